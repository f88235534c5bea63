"""A record of a route without a store as it is sent on: to its level, its target or the dead letters.

A level topic's record has the whole original, packed by ``record.pack``, as its value. So nothing is lost on the
way, and the settings at the due time decide what leaves. Its key is the original's. Two headers hold its due time
and its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from adapters.kafka.intake import KafkaIntake
from adapters.kafka.levels.level_topics import LevelTopics, level_ms_in
from adapters.kafka.outgoing import DUE_HEADER, ID_HEADER, KafkaOut
from adapters.kafka.raw.record import pack, topic_of, unpack
from adapters.kafka.routing import Target
from bridge.core.message import Delivery, HeaderValue, Origin
from bridge.core.reasons import Reason
from bridge.delay.duration import write_duration
from bridge.delay.levels import Bury, Hold, Move
from bridge.delay.naming import Naming
from bridge.pipeline.relay import Packing, Parcel

REASON_HEADER = b"x-delay-reason"
#: The headers of a record in a level's topic.
LEVEL_HEADERS = frozenset({ID_HEADER.encode(), DUE_HEADER.encode()})
#: The place of records that go to their destination.
TARGET = "target"
_REASON_BYTES = 2000
_DUE_DIGITS = 15
#: Largest clock difference between two instances. Within it a record counts as postdate's own.
_CLOCKS_APART_MS = 3_600_000


def places(topics: LevelTopics, target: KafkaOut) -> Mapping[str, KafkaOut]:
    """What the sink needs to know of each place that a parcel may go to. ``target`` is the destination."""
    ours = (*topics.levels.values(), topics.dead)
    waiting = {topic: KafkaOut(_fixed(topic), frozenset(), audit=False, partitioner="same") for topic in ours}
    dead = replace(waiting[topics.dead], compress_always=True)
    return {**waiting, topics.dead: dead, TARGET: target}


def _fixed(topic: str) -> Target:
    """Return one topic as target, whatever the record says."""
    return lambda *_: topic


def due_ms_of(value: HeaderValue) -> int:
    """The due time (Unix ms) in a header of a level topic's record; 0 if it has none and is foreign."""
    if isinstance(value, bytes) and value.isdigit() and len(value) <= _DUE_DIGITS:
        return int(value)
    return 0


def held_until(delivery: Delivery) -> int:
    """The due time (Unix ms) of a delivery from a level topic; 0 for a foreign one."""
    return 0 if delivery.fault else due_ms_of(delivery.headers.get(DUE_HEADER))


def too_late(due_ms: int, topic: str, now_ms: int) -> str:
    """Why no record of this level topic can be due then, as the second half of a sentence; empty if one can.

    A foreign writer could set any due time, and every record behind it would wait for that.
    """
    left_ms, level_ms = due_ms - now_ms, level_ms_in(topic)
    if left_ms <= level_ms + _CLOCKS_APART_MS:
        return ""
    return f"is due in {write_duration(left_ms)}, and this level waits at most {write_duration(level_ms)}"


def public_id(origin: Origin) -> bytes:
    """The id of a record: the same at every read, and different from every other record's."""
    log, offset = origin
    return blake2b(b"%b/%d" % (log, offset), digest_size=10).hexdigest().encode()


def level_intakes(topics: LevelTopics, lane: str, in_use: bool) -> list[KafkaIntake]:
    """What the source of the levels reads. The levels of the settings are named if ``in_use``, so that a missing one
    is reported. The rule covers those of previous settings."""
    names = [Naming(name, name) for name in topics.levels.values()] if in_use else []
    return [KafkaIntake(lane, naming, LEVEL_HEADERS) for naming in (*names, topics.every)]


class LevelPacking(Packing):
    """``relay.Packing`` on Kafka. ``lane`` is the ``Delivery.route`` of records from the level topics of ``route``."""

    def __init__(self, topics: LevelTopics, lane: str, route: str) -> None:
        self._topics = topics
        self._lane = lane
        self._route = route

    def route_of(self, delivery: Delivery) -> str:
        """The route of the settings."""
        return self._route

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        """Pack a delivery for its move. Raises ``ValueError`` for a foreign record in a level topic."""
        match move:
            case Hold(wait_ms):
                return Parcel(self._topics.levels[wait_ms], _held(delivery, due_ms))
            case Bury(None):
                return Parcel(self._topics.dead, self._came(delivery))
            case Bury(Reason() as reason):
                return Parcel(self._topics.dead, _with_reason(self._came(delivery), str(reason)))
        if delivery.route != self._lane:
            assert delivery.origin is not None
            return Parcel(TARGET, delivery.payload, public_id(delivery.origin), due_ms)
        if delivery.fault:
            raise ValueError(f"a record in a level's topic that postdate did not write: {delivery.fault}")
        found, due_ms = delivery.headers.get(ID_HEADER), held_until(delivery)
        if not isinstance(found, bytes) or not due_ms:
            raise ValueError("a record in a level's topic that postdate did not write")
        return Parcel(TARGET, _original(delivery), found, due_ms)

    def _came(self, delivery: Delivery) -> bytes:
        """The record as its producer wrote it; the level topic's record if that has no original."""
        if delivery.route != self._lane:
            return delivery.payload
        try:
            original = _original(delivery)
            unpack(original)
        except ValueError:
            return delivery.payload
        return original


def _original(delivery: Delivery) -> bytes:
    """The original record in a level topic's record."""
    value = unpack(delivery.payload).value
    if value is None:
        raise ValueError("a record in a level's topic that has no value")
    return value


def _held(delivery: Delivery, due_ms: int) -> bytes:
    assert delivery.origin is not None
    partition, _, key, _, _ = unpack(delivery.payload)
    headers = [(ID_HEADER.encode(), public_id(delivery.origin)), (DUE_HEADER.encode(), b"%d" % due_ms)]
    return pack(partition, delivery.arrived_ms, key, delivery.payload, headers)


def _with_reason(payload: bytes, reason: str) -> bytes:
    """A dead letter: the original with the reason."""
    partition, timestamp, key, value, headers = unpack(payload)
    kept = [(name, content) for name, content in headers if name != REASON_HEADER]
    written = reason.encode(errors="backslashreplace")[:_REASON_BYTES]
    return pack(partition, timestamp, key, value, [*kept, (REASON_HEADER, written)], topic_of(payload))
