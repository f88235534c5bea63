"""An ``AIOKafkaProducer`` whose records with a delay header go to postdate; all others go where they always went.

The one line that changes, here or with a copy of this file, which needs aiokafka and nothing else::

    from adapters.kafka.producers.delay_aiokafka import DelayProducer as AIOKafkaProducer

``await producer.send("orders", value, key=key, headers=[("x-delay", b"900000")])`` then writes to ``orders.delay``.

``send_batch`` is not looked into: the records of a batch are bytes already, so a batch of delayed records has to name
the intake topic itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer

log = logging.getLogger(__name__)

#: The headers that delay a record, cancel one, or name another topic. ``x-delay-key`` alone does none of these.
DELAY_HEADERS = ("x-delay", "x-deliver-at", "x-delay-level", "x-delay-cancel", "x-delay-to")


class DelayProducer(AIOKafkaProducer):
    """An ``AIOKafkaProducer`` in everything else: arguments, transactions, serializers, results.

    ``intake`` says where delayed records go: a text with one ``*``, which stands for the topic that was named, or a
    mapping of topics to intake topics. A topic that is not in the mapping keeps all its records, also those with a
    delay header: the log warns once of each such topic.
    ``delay_headers`` are the names that count; add those of the dialects that the route has switched on.
    ``keep_partition``: a partition number that was given for the topic is used on the intake topic too. It has a
    meaning only with ``kafka.partitioner = "same"``, and fails where the intake topic has fewer partitions. Without it
    the key chooses.

    Raises ``ValueError`` for an ``intake`` that is no such text, and for ``delay_headers`` that are one text, or none.
    """

    def __init__(
        self,
        *,
        intake: str | Mapping[str, str] = "*.delay",
        delay_headers: Collection[str] = DELAY_HEADERS,
        keep_partition: bool = False,
        **settings: Any,
    ) -> None:
        self._names, self._intake_of = _names(delay_headers), _rule(intake)
        self._keep_partition = keep_partition
        super().__init__(**settings)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> asyncio.Future[Any]:
        """As in aiokafka, also for ``send_and_wait``. The result names the topic that the record was written to."""
        delayed = headers and any(name in self._names for name, *_ in headers)
        if delayed and (intake := self._intake_of(topic)):
            topic, partition = intake, partition if self._keep_partition else None
        sent: asyncio.Future[Any] = await super().send(topic, value, key, partition, timestamp_ms, headers)
        return sent


def _names(delay_headers: Collection[str]) -> frozenset[str]:
    """The names to look for."""
    if isinstance(delay_headers, str) or not delay_headers:
        raise ValueError(f"delay_headers is a list of names, not {delay_headers!r}")
    return frozenset(delay_headers)


def _rule(intake: str | Mapping[str, str]) -> Callable[[str], str | None]:
    """The intake topic of a topic; None where there is none, as for a topic that is an intake topic itself."""
    if not isinstance(intake, str):
        return _listed(intake)
    before, star, after = intake.partition("*")
    if not star or "*" in after or not before + after:
        raise ValueError(f'intake is a text with one "*" beside other characters, like "*.delay", not {intake!r}')

    def named(topic: str) -> str | None:
        is_intake = topic.startswith(before) and topic.endswith(after)
        return None if is_intake else f"{before}{topic}{after}"

    return named


def _listed(intake: Mapping[str, str]) -> Callable[[str], str | None]:
    """The intake topic by a mapping; a warning, once for each topic, where a delayed record has none."""
    told: set[str] = set()

    def listed(topic: str) -> str | None:
        found = intake.get(topic)
        if found is None and topic not in told and topic not in intake.values():
            told.add(topic)
            log.warning('a record for topic "%s" has a delay header and is not delayed: add the topic to intake', topic)
        return found

    return listed
