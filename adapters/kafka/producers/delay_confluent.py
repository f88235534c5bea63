"""A confluent-kafka ``Producer`` that sends records with a delay header to postdate, and all others to their topic.

Change one line, here or with a copy of this file, which needs only confluent-kafka::

    from postdate.producers.confluent_kafka import DelayProducer as Producer

``producer.produce("orders", value, key, headers={"x-delay": b"900000"})`` then writes to ``orders.delay``.

``produce_batch`` is unchanged: confluent-kafka gives its records no headers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import Producer, SerializingProducer

log = logging.getLogger(__name__)

#: Headers that delay a record, cancel one, or name another topic. ``x-delay-key`` alone does none of these.
DELAY_HEADERS = ("x-delay", "x-deliver-at", "x-delay-level", "x-delay-cancel", "x-delay-to")

Content = str | bytes | None
Headers = dict[str, Content] | list[tuple[str, Content]]
Report = Callable[[Any, Any], None]


class DelayProducer(Producer):
    """A ``Producer`` in everything else: settings, transactions, callbacks.

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
        # Both names mean the same. A None for the first would hide the second.
        report: Any = on_delivery if callback is None else callback
        super().produce(topic, value, key, partition, report, timestamp=timestamp, headers=headers)

    def _are_delayed(self, headers: Headers) -> bool:
        names = headers if isinstance(headers, dict) else [name for name, *_ in headers]
        found = [name for name in names if name in self._names]
        if any(isinstance(name, bytes) for name in found):
            # confluent-kafka would write the name with its b and quotes. That is no delay header, so delivered at once.
            raise TypeError(f"a header name must be text: {found[0]!r} would not delay the record")
        return bool(found)


class DelaySerializingProducer(SerializingProducer, DelayProducer):  # type: ignore[misc]
    """The same for a ``SerializingProducer``. Its serializers and the schema registry still see the named topic, so
    no schema is looked up under the name of an intake topic."""

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
    """The header names to look for; as bytes they are a mistake."""
    if isinstance(delay_headers, str) or not delay_headers:
        raise ValueError(f"delay_headers must be a list of names, not {delay_headers!r}")
    return frozenset(delay_headers) | {name.encode() for name in delay_headers}


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
