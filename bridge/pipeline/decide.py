"""Decide what becomes of a delivery: parked, rejected, or a cancellation. ``bridge.pipeline.park`` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

from bridge.core.errors import HeaderError
from bridge.core.message import Delivery, Failure
from bridge.core.reasons import Reason, ReasonKind, bad_headers, over_body_max
from bridge.delay.duration import quoted, write_moment
from bridge.delay.header import Due, HeaderRules, read_due
from bridge.delay.schedule import NO_JITTER, Jitter, RetrySchedule
from bridge.delay.trust import DESTINATION, Trust, destination_refusal
from bridge.parking.envelope import found_key
from bridge.parking.identity import shard_for, shard_of_record

SAME_KEY = Reason(ReasonKind.SAME_KEY, "a message with this key is parked already, and on_same_key is reject")

#: How far two moments may lie apart that mean one, in milliseconds.
_NEAR_MS = 8
#: Those from a moment on that are near, as bits.
_NEAR = (1 << _NEAR_MS + 1) - 1
#: A word remembers the moments of 256 ms. The number of words kept at least; a forgotten one starts over.
_WORD_BITS = 8
_WORDS_MAX = 16_384


@dataclass(frozen=True)
class RouteRules:
    """What parking needs to know of a route.

    ``allow_to``: the destinations that a header may name; None where that header has no meaning. ``trust``: None where
    producers are not restricted. ``schedule``: of a retry route, which reads no delay headers. ``jitter``: by how much
    a delay is postponed.
    """

    headers: HeaderRules
    order: str
    on_bad: str
    on_same_key: str
    message_id: str
    body_max: int
    allow_to: frozenset[str] | None = None
    trust: Trust | None = None
    schedule: RetrySchedule | None = None
    jitter: Jitter = NO_JITTER


class Parking(NamedTuple):
    """Park it until ``due_ms``. ``owned``: ``key`` is the producer's own and obeys ``on_same_key``.

    ``relative``: the moment was counted from the publish (``Neighbours``).
    """

    due_ms: int
    key: bytes
    owned: bool
    relative: bool = False


class Rejection(NamedTuple):
    """Keep it as a dead letter. ``key`` finds it, and replaces nothing."""

    reason: Reason
    key: bytes = b""


class Cancellation(NamedTuple):
    """Cancel what is parked under ``key``. The message itself is not delivered."""

    key: bytes


def decide(delivery: Delivery, rules: RouteRules) -> Parking | Rejection | Cancellation:
    """Return what becomes of one delivery. Pure."""
    if delivery.fault:
        return Rejection(bad_headers(delivery.fault))
    if len(delivery.payload) > rules.body_max:
        return Rejection(over_body_max(len(delivery.payload), rules.body_max))
    if rules.schedule is not None:
        return _failed(delivery, rules.schedule, rules.message_id)
    if rules.allow_to is not None and DESTINATION in delivery.headers:
        refused = destination_refusal(delivery.headers[DESTINATION], rules.allow_to)
        if refused:
            return Rejection(refused)
    if rules.trust is not None and (refused := rules.trust.refusal(delivery)):
        return Rejection(refused)
    try:
        due = read_due(delivery.headers, delivery.arrived_ms, delivery.published_ms, rules.headers)
    except HeaderError as error:
        if rules.on_bad == "dead":
            return Rejection(error.reason)
        return Parking(delivery.arrived_ms, b"", False)
    if due.cancel is not None:
        return Cancellation(due.cancel)
    return _undelayed(delivery) if due.due_ms is None else _parking(delivery, rules, due.due_ms, due)


def home_of(delivery: Delivery, rules: RouteRules, shards: int) -> int | None:
    """Return the shard of a delivery, None where any will do. Pure."""
    if rules.order == "route":
        return shard_for(delivery.route.encode(), shards)
    if rules.order == "key":
        return shard_for(delivery.order_key, shards)
    if delivery.origin is not None:  # each shard has its own mark for this log, so a repeat needs the same shard
        return shard_of_record(*delivery.origin, shards)
    return None


def _parking(delivery: Delivery, rules: RouteRules, due_ms: int, due: Due) -> Parking:
    """Return when a delayed delivery is due, and its key."""
    relative = due.delay_ms is not None
    if rules.jitter is not NO_JITTER and due_ms > delivery.arrived_ms:
        due_ms += rules.jitter.extra_ms(due_ms - delivery.arrived_ms, spread_of(delivery))
        relative = False
    if due.key is not None:
        return Parking(due_ms, due.key, True, relative)
    if delivery.message_id and rules.message_id == "key":
        return Parking(due_ms, delivery.message_id, True, relative)
    if delivery.message_id and rules.message_id == "find":
        return Parking(due_ms, found_key(delivery.message_id), False, relative)
    return Parking(due_ms, b"", False, relative)


def _undelayed(delivery: Delivery) -> Parking | Rejection | Cancellation:
    """Decide about a delivery without a delay. It has no key: what does not wait cannot be cancelled or replaced."""
    if not delivery.tombstone or not delivery.message_id:
        return Parking(delivery.arrived_ms, b"", False)
    if not found_key(delivery.message_id):
        text = "a key of {size} bytes cannot be looked up, so nothing was cancelled"
        return Rejection(Reason(ReasonKind.LONG_KEY, text, {"size": len(delivery.message_id)}))
    return Cancellation(delivery.message_id)


def spread_of(delivery: Delivery) -> float:
    """Return a number from 0 to 1 that is as good as random and the same whenever this delivery comes again."""
    name, offset = delivery.origin or (delivery.digest, 0)
    return crc32(b"%b/%d" % (name, offset)) / 0xFFFFFFFF


def _failed(delivery: Delivery, schedule: RetrySchedule, message_id: str) -> Parking | Rejection:
    """Decide about a message that a consumer rejected. Its delay headers, if any, belong to its consumers."""
    failure = delivery.failure or Failure(1)
    wait_ms = schedule.wait_ms(failure.attempt, spread_of(delivery))
    known = delivery.message_id is not None and message_id != "ignore"
    key = found_key(delivery.message_id) if known and delivery.message_id else b""
    if wait_ms is None and schedule.keeps_dead:
        return Rejection(_exhausted(delivery, failure, schedule.consumers), key)
    return Parking(delivery.arrived_ms + (wait_ms or 0), key, False)


def _exhausted(delivery: Delivery, failure: Failure, consumers: str) -> Reason:
    text = "{consumers} failed {attempt} times, first at {first}; the last reason: {reason}"
    first = write_moment(failure.first_ms or delivery.arrived_ms)
    values = {"consumers": consumers, "attempt": failure.attempt, "first": first, "reason": failure.reason or "none"}
    return Reason(ReasonKind.EXHAUSTED, text, values)


def not_unique(key: bytes, number: int) -> Rejection:
    """Return the rejection of a cancellation whose key fits too many messages."""
    text = "{number} messages are parked under {key}, so nothing was cancelled; give each its own x-delay-key"
    return Rejection(Reason(ReasonKind.NOT_UNIQUE, text, {"number": number, "key": quoted(key)}))


class Step(NamedTuple):
    """A delivery, what becomes of it, and its shard."""

    delivery: Delivery
    decision: Parking | Rejection | Cancellation
    shard: int


class Neighbours:
    """Keeps the order of a record key among delays that end within a few milliseconds of each other.

    A relative delay counts from the record's timestamp. A producer that means one moment computes each delay, cuts it
    to whole milliseconds, and publishes a little later, at a timestamp that is cut once more. So of two records that
    mean one moment, the later may be due earlier (measured: by up to 6 ms in a burst of 20,000). postdate cannot
    distinguish that from two moments. So a record is never due before an earlier one of its key, unless it would have
    to wait for it for more than 8 ms. It is never early. An absolute moment is exact and is not changed. Records of
    other keys do not wait for each other: under a steady load each would wait for some milliseconds.

    The moments of a key are bits in words of 256 ms. A word repeats the first 8 ms of the next one, so that one look
    finds all that are near. Keys share the table by their hash: a collision makes a record late by 8 ms at most.
    """

    def __init__(self) -> None:
        self._words: dict[int, int] = {}
        self._older: dict[int, int] = {}

    def due_ms(self, line: tuple[bytes, bytes | None], due_ms: int) -> int:
        """Return when the next record of ``line``, a log and a record key, is due, which asked for ``due_ms``.

        Call it in the log's order."""
        name, place = hash(line) + (due_ms >> _WORD_BITS), due_ms & (1 << _WORD_BITS) - 1
        word = self._words.get(name)
        if word is None:
            word = self._fetch(name)
        near = word >> place & _NEAR
        if near:
            return due_ms + near.bit_length() - 1
        self._words[name] = word | 1 << place
        if place < _NEAR_MS:
            self._words[name - 1] = self._fetch(name - 1) | 1 << place + (1 << _WORD_BITS)
        return due_ms

    def _fetch(self, name: int) -> int:
        """Return a word. Forget half of all words when there are too many."""
        word = self._words.get(name)
        if word is None:
            if len(self._words) >= _WORDS_MAX:
                self._words, self._older = {}, self._words
            word = self._words[name] = self._older.get(name, 0)
        return word
