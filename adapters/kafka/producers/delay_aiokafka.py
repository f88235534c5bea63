"""An ``AIOKafkaProducer`` that sends records with a delay header to postdate, and all others to their topic.

Change one line, here or with a copy of this file, which needs only aiokafka::

    from postdate.producers.aiokafka import DelayProducer as AIOKafkaProducer

``await producer.send("orders", value, key=key, headers=[("x-delay", b"900000")])`` then writes to ``orders.delay``.

``send_batch`` is not inspected, because its records are bytes already. A batch of delayed records must name the
intake topic itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from aiokafka import AIOKafkaProducer

log = logging.getLogger(__name__)

#: Headers that delay a record, cancel one, or name another topic. ``x-delay-key`` alone does none of these.
DELAY_HEADERS = ("x-delay", "x-deliver-at", "x-delay-level", "x-delay-cancel", "x-delay-to")


class DelayProducer(AIOKafkaProducer):
    """An ``AIOKafkaProducer`` in everything else: arguments, transactions, serializers, results.

    ``intake`` says where delayed records go. It is a text with one ``*``, which stands for the named topic, or a
    mapping of topics to intake topics. A topic that is not in the mapping keeps all its records, even those with a
    delay header; the log warns once for each such topic.
    ``delay_headers`` are the header names that delay a record. Add those of the dialects that the route has enabled.
    ``keep_partition``: use a given partition number on the intake topic too. That makes sense only with
    ``kafka.partitioner = "same"``, and fails if the intake topic has fewer partitions. Without it the key chooses.

    Raises ``ValueError`` for another ``intake``, and for ``delay_headers`` that are a single text or empty.
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
    """The header names to look for."""
    if isinstance(delay_headers, str) or not delay_headers:
        raise ValueError(f"delay_headers must be a list of names, not {delay_headers!r}")
    return frozenset(delay_headers)


def _rule(intake: str | Mapping[str, str]) -> Callable[[str], str | None]:
    """The intake topic of a topic; None if it has none, or is an intake topic itself."""
    if not isinstance(intake, str):
        return _listed(intake)
    before, star, after = intake.partition("*")
    if not star or "*" in after or not before + after:
        raise ValueError(f'intake must be a text with one "*" and other characters, like "*.delay", not {intake!r}')

    def named(topic: str) -> str | None:
        is_intake = topic.startswith(before) and topic.endswith(after)
        return None if is_intake else f"{before}{topic}{after}"

    return named


def _listed(intake: Mapping[str, str]) -> Callable[[str], str | None]:
    """The intake topic by a mapping. Warns once for each topic that has delayed records and no intake."""
    warned: set[str] = set()

    def listed(topic: str) -> str | None:
        found = intake.get(topic)
        if found is None and topic not in warned and topic not in intake.values():
            warned.add(topic)
            log.warning('a record for topic "%s" has a delay header and is not delayed: add the topic to intake', topic)
        return found

    return listed
