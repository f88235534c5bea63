"""A record of a route without a store, as it is sent on: to its level, to its destination, to the dead letters.

``relay.Packing`` on Kafka. In a level's topic the whole record, as ``record.pack`` writes it, is the value: so
nothing of it is lost on the way, and what leaves is made from what came, by the settings of that day. Its key is the
original's, and two headers say when it is due and what its id is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from adapters.kafka.intake import KafkaIntake
from adapters.kafka.levels.plan import LevelTopics, level_ms_in
from adapters.kafka.outgoing import DUE_HEADER, ID_HEADER, KafkaOut
from adapters.kafka.raw.record import pack, topic_of, unpack
from adapters.kafka.routing import FixedTarget
from bridge.core.message import Delivery, HeaderValue, Origin
from bridge.delay.duration import write_duration
from bridge.delay.levels import Bury, Hold, Move
from bridge.delay.naming import Naming
from bridge.pipeline.relay import Packing, Parcel

REASON_HEADER = b"x-delay-reason"
#: Which part of a dead letter a record is, and of how many: ``2/5``.
PART_HEADER = b"x-delay-part"
#: The headers of a record in a level's topic.
LEVEL_HEADERS = frozenset({ID_HEADER.encode(), DUE_HEADER.encode()})
#: The place of what goes to its destination.
TARGET = "target"
_REASON_BYTES = 2000
_DUE_DIGITS = 15
#: Half of what a topic takes that nobody has told otherwise.
_PART_BYTES = 512 * 1024
#: What the clocks of two instances may differ by: what one has written is no stranger's record to another.
_CLOCKS_APART_MS = 3_600_000


def places(topics: LevelTopics, target: KafkaOut) -> Mapping[str, KafkaOut]:
    """What the sink needs to know of each place that a parcel may be sent to; ``target`` is the destination."""
    ours = (*topics.levels.values(), topics.dead)
    waiting = {topic: KafkaOut(FixedTarget(topic), frozenset(), audit=False, keep_partition=True) for topic in ours}
    return {**waiting, TARGET: target}


def due_ms_of(value: HeaderValue) -> int:
    """When a record of a level's topic is due (Unix ms); 0 where it does not say so, which is none of postdate's."""
    if isinstance(value, bytes) and value.isdigit() and len(value) <= _DUE_DIGITS:
        return int(value)
    return 0


def held_until(delivery: Delivery) -> int:
    """When a delivery from a level's topic is due (Unix ms); 0 for one that is none of postdate's."""
    return 0 if delivery.fault else due_ms_of(delivery.headers.get(DUE_HEADER))


def too_late(due_ms: int, topic: str, now_ms: int) -> str:
    """Why no record of this level's topic can be due then, as the second half of a sentence; "" where one can be.

    Whoever else can write there could write any moment, and everything behind it would wait for that.
    """
    left_ms, level_ms = due_ms - now_ms, level_ms_in(topic)
    if left_ms <= level_ms + _CLOCKS_APART_MS:
        return ""
    return f"is due in {write_duration(left_ms)}, and none waits there for more than {write_duration(level_ms)}"


def public_id(origin: Origin) -> bytes:
    """The id of a record: the same one whenever it is read again, and no other record's."""
    log, offset = origin
    return blake2b(b"%b/%d" % (log, offset), digest_size=10).hexdigest().encode()


def level_intakes(topics: LevelTopics, lane: str, in_use: bool) -> list[KafkaIntake]:
    """What the source of the levels takes from: those of the settings by name where they are ``in_use``, so that one
    that is missing is told of, and those of settings of before."""
    names = [Naming(name, name) for name in topics.levels.values()] if in_use else []
    return [KafkaIntake(lane, naming, LEVEL_HEADERS) for naming in (*names, topics.every)]


class LevelPacking(Packing):
    """See ``relay.Packing``. ``lane`` is the ``Delivery.route`` of what comes from the levels' topics of
    ``route``."""

    def __init__(self, topics: LevelTopics, lane: str, route: str) -> None:
        self._topics = topics
        self._lane = lane
        self._route = route

    def route_of(self, delivery: Delivery) -> str:
        """See ``bridge.pipeline.relay.Packing``."""
        return self._route

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        """See ``relay.Packing``. Raises ``ValueError`` for a record of a level's topic that is none of ours."""
        match move:
            case Hold(wait_ms):
                return Parcel(self._topics.levels[wait_ms], _held(delivery, due_ms))
            case Bury(""):
                return Parcel(self._topics.dead, self._came(delivery))
            case Bury(reason):
                return Parcel(self._topics.dead, _with_reason(self._came(delivery), reason))
        if delivery.route != self._lane:
            assert delivery.origin is not None
            return Parcel(TARGET, delivery.payload, public_id(delivery.origin), due_ms)
        if delivery.fault:
            raise ValueError(f"a record in a level's topic that postdate did not write: {delivery.fault}")
        found, due_ms = delivery.headers.get(ID_HEADER), held_until(delivery)
        if not isinstance(found, bytes) or not due_ms:
            raise ValueError("a record in a level's topic that postdate did not write")
        return Parcel(TARGET, _original(delivery), found, due_ms)

    def in_parts(self, delivery: Delivery, reason: str) -> Iterator[Parcel]:
        """See ``relay.Packing``. The values of the parts, in their order, are what ``record.unpack`` reads:
        so key and headers may be of any size, too."""
        assert delivery.origin is not None
        came, partition, own_id = self._came(delivery), unpack(delivery.payload).partition, public_id(delivery.origin)
        starts = range(0, len(came), _PART_BYTES)
        for number, start in enumerate(starts, 1):
            part = (PART_HEADER, b"%d/%d" % (number, len(starts)))
            headers = [(ID_HEADER.encode(), own_id), part, (REASON_HEADER, _said(reason))]
            value = came[start : start + _PART_BYTES]
            yield Parcel(self._topics.dead, pack(partition, delivery.arrived_ms, own_id, value, headers))

    def _came(self, delivery: Delivery) -> bytes:
        """The record as its producer wrote it; where that cannot be had, what stands in the level's topic."""
        if delivery.route != self._lane:
            return delivery.payload
        try:
            original = _original(delivery)
            unpack(original)
        except ValueError:
            return delivery.payload
        return original


def _original(delivery: Delivery) -> bytes:
    """What was put into the level's topic."""
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
    """A dead letter: as it came, with the reason."""
    partition, timestamp, key, value, headers = unpack(payload)
    kept = [(name, content) for name, content in headers if name != REASON_HEADER]
    return pack(partition, timestamp, key, value, [*kept, (REASON_HEADER, _said(reason))], topic_of(payload))


def _said(reason: str) -> bytes:
    return reason.encode(errors="backslashreplace")[:_REASON_BYTES]
