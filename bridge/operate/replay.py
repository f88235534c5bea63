"""Brings back what a lost store had of a route, from the records that its intake still has.

The intake is read from the first record that may matter, through the decisions of the pipeline. The first pass finds
out which messages a later record cancelled or replaced. The second one puts the others back that were due after the
loss, unless the present store has handled them: it knows the first record of each log that it parked. The third reads
what came meanwhile, and cancels what that cancels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from enum import StrEnum
from typing import NamedTuple

from bridge.core.message import Delivery, Failure
from bridge.core.ports import ParkingStore
from bridge.operate.operator import Progress, silent
from bridge.parking.envelope import found_key, seal
from bridge.parking.identity import id_of_record, rank_of
from bridge.pipeline.decide import Cancellation, Neighbours, Parking, Rejection, RouteRules, decide, home_of
from bridge.pipeline.ends import LogReplay
from bridge.pipeline.putback import BATCH, BATCH_BYTES, PutBack, Restorable

#: A key with more messages than this is no identity, so a cancellation by it cancels nothing.
_IDENTITY_MAX = 16
#: So many keys are remembered before those are forgotten that can no longer matter.
_KEYS_MIN = 10_000


class Past(StrEnum):
    """Why a record is not put back."""

    #: It was due before the moment from which messages come back.
    BEFORE = "before"
    CANCELLED = "cancelled"
    #: The present store has taken it in, or an instance will.
    HANDLED = "handled"


class Decided(NamedTuple):
    """A record, what the pipeline decided, and the id and the due moment that it gets."""

    delivery: Delivery
    decision: Parking | Rejection | Cancellation
    id: bytes
    due_ms: int
    shard: int


class Reader:
    """Decides about the records of one pass, in their order."""

    def __init__(self, rules: RouteRules, shards: int) -> None:
        self._rules = rules
        self._shards = shards
        self._neighbours = Neighbours()
        self._lines: dict[bytes, int] = {}

    def read(self, delivery: Delivery) -> Decided:
        """Decide about the next record."""
        assert delivery.origin is not None
        decision = decide(delivery, self._rules)
        shard = home_of(delivery, self._rules, self._shards)
        assert shard is not None
        due_ms = delivery.arrived_ms
        if isinstance(decision, Parking):
            due_ms = decision.due_ms
            if decision.relative:
                due_ms = self._neighbours.due_ms((delivery.origin[0], delivery.record_key), due_ms)
            if self._rules.schedule is not None and self._rules.schedule.hold and delivery.message_id is not None:
                due_ms = self._lines[delivery.message_id] = max(due_ms, self._lines.get(delivery.message_id, 0))
        message_id = id_of_record(*delivery.origin, delivery.arrived_ms, shard, rank_of(delivery.priority))
        return Decided(delivery, decision, message_id, due_ms, shard)


class Later:
    """Which messages were cancelled or replaced by later records while they waited. Records come in their order.

    ``gone`` are their ids. A message whose key was kept by an older one is gone, too.
    """

    def __init__(self, on_same_key: str, since_ms: int) -> None:
        self._replace = on_same_key == "replace"
        self._since_ms = since_ms
        #: By key: due moment and id of what waits, or waited.
        self._waiting: dict[bytes, list[tuple[int, bytes]]] = {}
        self._keys_max = _KEYS_MIN
        self.gone: set[bytes] = set()

    def see(self, read: Decided) -> None:
        """Take the next record."""
        decision, now_ms = read.decision, read.delivery.arrived_ms
        if isinstance(decision, Cancellation):
            for key in (decision.key, found_key(decision.key)):
                if len(self._waiting.get(key, ())) <= _IDENTITY_MAX:
                    self._remove(key, now_ms)
        elif isinstance(decision, Parking) and decision.key:
            if decision.owned and self._replace:
                self._remove(decision.key, now_ms)
            elif decision.owned and any(due_ms > now_ms for due_ms, _ in self._waiting.get(decision.key, ())):
                self.gone.add(read.id)
                return
            self._waiting.setdefault(decision.key, []).append((read.due_ms, read.id))
            if len(self._waiting) > self._keys_max:
                self._forget(now_ms)

    def _remove(self, key: bytes, now_ms: int) -> None:
        """Remove what waits under a key. What was due before has left."""
        waiting = [(due_ms, message_id) for due_ms, message_id in self._waiting.pop(key, ()) if due_ms > now_ms]
        self.gone.update(message_id for due_ms, message_id in waiting if due_ms >= self._since_ms)

    def _forget(self, now_ms: int) -> None:
        """Forget what was due, and can no longer be cancelled."""
        left = ((key, [entry for entry in waiting if entry[0] > now_ms]) for key, waiting in self._waiting.items())
        self._waiting = {key: waiting for key, waiting in left if waiting}
        self._keys_max = max(_KEYS_MIN, 2 * len(self._waiting))


class Replay:
    """One replay of a route. ``skipped`` counts what is not put back; ``PutBack.counts`` has the rest."""

    def __init__(self, log: LogReplay, store: ParkingStore, rules: RouteRules, since_ms: int) -> None:
        self._log = log
        self._store = store
        self._rules = rules
        self._since_ms = since_ms
        self._later = Later(rules.on_same_key, since_ms)
        self._firsts: dict[tuple[int, bytes], int | None] = {}
        self._put: set[bytes] = set()
        self.skipped: Counter[Past] = Counter()
        self.read = 0

    async def look(self, progress: Progress = silent) -> None:
        """Find out what was cancelled or replaced later. Call it first."""
        async for read in self._reads(self._log.records(), progress):
            self._later.see(read)

    async def put(self, putback: PutBack, progress: Progress = silent) -> None:
        """Put messages back, or count them."""
        self.skipped.clear()
        waiting: list[Restorable] = []
        size = 0
        async for read in self._reads(self._log.records(), progress):
            if isinstance(read.decision, Cancellation) or not await self._comes_back(read):
                continue
            waiting.append(self._restorable(read))
            size += len(waiting[-1].envelope)
            if len(waiting) == BATCH or size > BATCH_BYTES:
                await putback.put(waiting)
                waiting, size = [], 0
        if waiting:
            await putback.put(waiting)

    async def follow(self) -> int:
        """Cancel what records cancelled or replaced that came since ``look``. Return how many messages."""
        before = set(self._later.gone)
        async for read in self._reads(self._log.later(), silent):
            self._later.see(read)
        gone = list(self._later.gone - before)
        words = await self._store.cancel(gone, False, reason="by its producer, during a replay") if gone else {}
        return sum(word == "parked" for word in words.values())

    async def _reads(self, deliveries: AsyncIterator[Delivery], progress: Progress) -> AsyncIterator[Decided]:
        reader = Reader(self._rules, self._store.shards)
        number = 0
        async for delivery in deliveries:
            progress(number := number + 1)
            yield reader.read(delivery)
        self.read = max(self.read, number)

    async def _comes_back(self, read: Decided) -> bool:
        if read.due_ms < self._since_ms:
            self.skipped[Past.BEFORE] += 1
        elif await self._is_handled(read):
            self.skipped[Past.HANDLED] += 1
        elif read.id in self._later.gone:
            self.skipped[Past.CANCELLED] += 1
        else:
            return True
        return False

    async def _is_handled(self, read: Decided) -> bool:
        """Return whether the present store has taken the record in, or an instance still will.

        What the store parked first of a log, it was the first to handle. Of a log that it parked nothing of, all that
        the group has committed was handled by the store that was lost.
        """
        log, offset = read.delivery.origin or (b"", 0)
        place = read.shard, log
        if place not in self._firsts:
            self._firsts[place] = (await self._store.firsts(read.shard, [log])).get(log)
        first = self._firsts[place]
        return not self._log.taken(read.delivery) if first is None else offset >= first

    def _restorable(self, read: Decided) -> Restorable:
        """Return a message as it was, with an id by its record. Its mark is one of this replay."""
        delivery, decision = read.delivery, read.decision
        assert delivery.origin is not None
        assert not isinstance(decision, Cancellation)
        log, offset = delivery.origin
        route, key = delivery.route.encode(), decision.key
        dead = str(decision.reason) if isinstance(decision, Rejection) else ""
        tries = (delivery.failure or Failure(0)).attempt if dead else 0
        envelope = seal(read.due_ms, delivery.arrived_ms, route, key, b"", delivery.payload, tries)
        origin = (b"%b/again/%d" % (log, self._since_ms), offset)
        return Restorable(read.id, route, read.due_ms, read.due_ms, key, envelope, dead, False, origin)
