"""A confluent-kafka ``Producer`` whose records with a delay header go to postdate, all others where they always went.

The one line that changes, here or with a copy of this file, which needs confluent-kafka and nothing else::

    from adapters.kafka.producers.delay_confluent import DelayProducer as Producer

``producer.produce("orders", value, key, headers={"x-delay": b"900000"})`` then writes to ``orders.delay``.

``produce_batch`` is as it was: confluent-kafka gives its records no headers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import Producer, SerializingProducer

log = logging.getLogger(__name__)

#: The headers that delay a record, cancel one, or name another topic. ``x-delay-key`` alone does none of these.
DELAY_HEADERS = ("x-delay", "x-deliver-at", "x-delay-level", "x-delay-cancel", "x-delay-to")

Content = str | bytes | None
Headers = dict[str, Content] | list[tuple[str, Content]]
Report = Callable[[Any, Any], None]


class DelayProducer(Producer):
    """A ``Producer`` in everything else: settings, transactions, callbacks.

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
        *config: Any,
        intake: str | Mapping[str, str] = "*.delay",
        delay_headers: Collection[str] = DELAY_HEADERS,
        keep_partition: bool = False,
        **settings: Any,
    ) -> None:
        self._names, self._intake_of = _names(delay_headers), _rule(intake)
        super().__init__(*config, **settings)
        self._keep_partition = keep_partition

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """As in confluent-kafka. The delivery report names the topic that the record was written to.

        Raises ``TypeError`` also for a delay header whose name is not text.
        """
        if headers and self._are_delayed(headers) and (intake := self._intake_of(topic)):
            topic, partition = intake, partition if self._keep_partition else -1
        # The two names mean the same; a None under the first one would hide what is given under the second.
        report: Any = on_delivery if callback is None else callback
        super().produce(topic, value, key, partition, report, timestamp=timestamp, headers=headers)

    def _are_delayed(self, headers: Headers) -> bool:
        names = headers if isinstance(headers, dict) else [name for name, *_ in headers]
        found = [name for name in names if name in self._names]
        if any(isinstance(name, bytes) for name in found):
            # confluent-kafka would write the name with its b and its quotes: no delay header, so delivered at once.
            raise TypeError(f"the name of a header is text: {found[0]!r} would not delay the record")
        return bool(found)


class DelaySerializingProducer(SerializingProducer, DelayProducer):  # type: ignore[misc]
    """The same for a ``SerializingProducer``. Its serializers still see the topic that was named, and so does a schema
    registry: no schema is looked for under the name of an intake topic."""

    def __init__(
        self,
        conf: dict[str, Any],
        intake: str | Mapping[str, str] = "*.delay",
        delay_headers: Collection[str] = DELAY_HEADERS,
        keep_partition: bool = False,
    ) -> None:
        super().__init__(conf)
        self._names, self._intake_of = _names(delay_headers), _rule(intake)
        self._keep_partition = keep_partition


def _names(delay_headers: Collection[str]) -> frozenset[str | bytes]:
    """The names to look for; as bytes they are a mistake."""
    if isinstance(delay_headers, str) or not delay_headers:
        raise ValueError(f"delay_headers is a list of names, not {delay_headers!r}")
    return frozenset(delay_headers) | {name.encode() for name in delay_headers}


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
