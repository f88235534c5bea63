"""Puts messages back into a store under ids that they have already: from a file, or from the log they came from.

Safe to repeat, and beside running instances: the store takes no id that it has, in any state, and no record that was
put back before. A younger message with the same key stays alone. A call that failed is repeated with its token.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from bridge.core.errors import StoreUnavailable
from bridge.core.message import Origin
from bridge.core.ports import Batch, DeadBatch, Keyed, ParkingStore
from bridge.core.reasons import Reason, ReasonKind
from bridge.desk.protocol import Desk
from bridge.parking.envelope import index_field
from bridge.parking.identity import arrival_of, shard_of

T = TypeVar("T")

#: Messages, and bytes of them, that are put back in one call; messages per second where no rate is given.
BATCH, BATCH_BYTES = 250, 4 * 1024 * 1024
RATE = 10_000
#: How often a call is repeated while the store is away, once a second.
_TRIES = 120
OVERDUE = Reason(ReasonKind.OVERDUE, "it was due before it was put back, and --overdue is dead")


class Overdue(StrEnum):
    """What becomes of messages whose due moment has passed when they are put back."""

    DELIVER = "deliver"
    SKIP = "skip"
    DEAD = "dead"


class Fate(StrEnum):
    """What became of a message."""

    PARKED = "parked"
    DEAD = "dead"
    #: The store has its id, or put its record back before.
    THERE = "there"
    #: A younger message with its key waits.
    KEY_TAKEN = "key_taken"
    OVERDUE_SKIPPED = "overdue_skipped"


class Restorable(NamedTuple):
    """A message to put back. ``at_ms``: its next try. ``key``: as in its envelope. ``dead``: why it is a dead letter.

    ``claimed``: its delivery was under way, so no younger message with its key replaces it.
    """

    id: bytes
    route: bytes
    due_ms: int
    at_ms: int
    key: bytes
    envelope: bytes
    dead: str = ""
    claimed: bool = False
    origin: Origin | None = None


@dataclass
class Pace:
    """Lets at most ``rate`` messages pass a second."""

    rate: int = RATE
    _began_s: float = 0.0
    _passed: int = 0

    async def passed(self, number: int) -> None:
        """Wait until the next batch may go. A pause even at the highest rate: the store serves deliveries first."""
        now_s = time.monotonic()
        self._began_s = max(self._began_s or now_s, now_s - 1 - self._passed / self.rate)
        self._passed += number
        await asyncio.sleep(max(0.005, self._began_s + self._passed / self.rate - now_s))


class PutBack:
    """Puts messages back into one store. ``counts`` says by route what became of them."""

    def __init__(
        self,
        store: ParkingStore,
        desk: Desk,
        overdue: Overdue,
        pace: Pace,
        dry_run: bool = False,
        on_same_key: Callable[[str], str] | None = None,
    ) -> None:
        """``desk`` is asked where nothing may be written, and for the clock. ``on_same_key(route)``: the rule by which
        one of several messages with a key is left; without it, all may be but those that are older than what waits."""
        self._store = store
        self._desk = desk
        self._overdue = overdue
        self._pace = pace
        self._dry_run = dry_run
        self._on_same_key = on_same_key
        self.shards = store.shards
        self.counts: Counter[tuple[str, Fate]] = Counter()
        self._fates: dict[bytes, Fate] = {}

    async def put(self, messages: Sequence[Restorable]) -> dict[bytes, Fate]:
        """Put a batch back, and return what became of each message. Records of one log come in their order. Raises
        ``StoreUnavailable`` after two minutes."""
        self._fates = {}
        now_ms = await patiently(self._desk.now_ms)
        wanted = [kept for message in messages if (kept := self._judged(message, now_ms))]
        taken, guarded, replaced = await patiently(lambda: self._look_up(wanted))
        self._count(Fate.KEY_TAKEN, [message for message in wanted if message.id in taken])
        by_shard: dict[int, list[Restorable]] = {}
        for message in wanted:
            if message.id not in taken:
                by_shard.setdefault(shard_of(message.id), []).append(message)
        if self._dry_run:
            await patiently(lambda: self._look(by_shard))
            return self._fates
        if replaced:
            await patiently(lambda: self._store.cancel(list(replaced), False, replaced=True))
        await self._park(by_shard, guarded)
        for shard, returning in by_shard.items():
            dead = [message for message in returning if message.dead]
            for restored in (False, True):
                await self._reject(shard, [message for message in dead if _was_dead(message) is restored], restored)
        await self._pace.passed(len(messages))
        return self._fates

    def _judged(self, message: Restorable, now_ms: int) -> Restorable | None:
        """Return a message as it is put back; None for one that is not, because it is overdue."""
        if message.dead or message.due_ms > now_ms or self._overdue is Overdue.DELIVER:
            return message
        if self._overdue is Overdue.DEAD:
            return message._replace(dead=str(OVERDUE))
        self._count(Fate.OVERDUE_SKIPPED, [message])
        return None

    async def _look_up(self, messages: Sequence[Restorable]) -> tuple[set[bytes], set[bytes], set[bytes]]:
        """Return the ids of those whose own key another message has, the index fields of keys under which nothing else
        waits, and the ids of what waits there and is replaced."""
        keyed = {message.id: index_field(message.route, message.key) for message in messages if _owns_key(message)}
        if not keyed:
            return set(), set(), set()
        found = await self._store.find(list(dict.fromkeys(keyed.values())))
        others = {field: set(found[field].ids) - keyed.keys() for field in found}
        waiting = await self._store.parked([other for ids in others.values() for other in ids])
        there = {field: ids & waiting for field, ids in others.items()}
        taken = {
            message_id
            for message_id, field in keyed.items()
            if any(arrival_of(other) > arrival_of(message_id) for other in there[field])
        }
        replaced = self._replaced(keyed, there, taken) if self._on_same_key is not None else set()
        return taken, {field for field in others if not there[field] - replaced}, replaced

    def _replaced(
        self, keyed: Mapping[bytes, bytes], there: Mapping[bytes, set[bytes]], taken: set[bytes]
    ) -> set[bytes]:
        """Return what older messages the others of the call replace. Add all but one message of each key to ``taken``,
        or all where an older one is kept."""
        assert self._on_same_key is not None
        by_field: dict[bytes, list[bytes]] = {}
        for message_id in sorted(keyed.keys() - taken, key=arrival_of):
            by_field.setdefault(keyed[message_id], []).append(message_id)
        replaced = set[bytes]()
        for field, ids in by_field.items():
            keeps = self._on_same_key(field.partition(b"\0")[0].decode()) != "replace"
            taken.update(ids if keeps and there[field] else ids[1:] if keeps else ids[:-1])
            replaced |= set() if keeps else there[field]
        return replaced

    async def _park(self, by_shard: dict[int, list[Restorable]], guarded: set[bytes]) -> None:
        batches = {shard: self._batch(returning, set(guarded)) for shard, returning in by_shard.items()}
        batches = {shard: batch for shard, batch in batches.items() if batch.messages or batch.owed}
        parked = {shard: [message for message in by_shard[shard] if not message.dead] for shard in batches}

        async def attempt() -> None:
            for shard, reply in (await self._store.park(batches)).items():
                if isinstance(reply, StoreUnavailable):
                    raise reply
                before, kept = set(reply.before), set(reply.kept)
                for position, message in enumerate(parked[shard], 1):
                    word = Fate.THERE if position in before else Fate.KEY_TAKEN if position in kept else Fate.PARKED
                    self._count(word, [message])
                del batches[shard]

        while batches:
            await patiently(attempt)

    def _batch(self, returning: Sequence[Restorable], guarded: set[bytes]) -> Batch:
        """Return one call. What a producer parks meanwhile under one of the ``guarded`` fields is younger, and stays
        alone; messages of the call itself do not replace each other."""
        batch = Batch(self._store.new_token(), once=True)
        for message in returning:
            if message.dead:
                batch.owed += [message.origin] if message.origin else []
                continue
            batch.messages.append((message.id, message.at_ms, message.envelope))
            batch.origins += [message.origin] if message.origin else []
            field = index_field(message.route, message.key)
            if _owns_key(message) and field in guarded:
                guarded.remove(field)
                batch.keyed.append(Keyed(len(batch.messages), field, "keep"))
            elif message.key:
                batch.found[field] = batch.found.get(field, b"") + message.id
        return batch

    async def _reject(self, shard: int, dead: Sequence[Restorable], restored: bool) -> None:
        if not dead:
            return
        rows = [(message.id, message.envelope, message.dead) for message in dead]
        origins = [message.origin for message in dead if message.origin]
        call = DeadBatch(self._store.new_token(), rows, origins, restored)
        before = await patiently(lambda: self._store.reject(shard, call))
        self._count(Fate.THERE, [message for n, message in enumerate(dead, 1) if n in before])
        self._count(Fate.DEAD, [message for n, message in enumerate(dead, 1) if n not in before])

    async def _look(self, by_shard: dict[int, list[Restorable]]) -> None:
        """Count what would be put back."""
        for shard, returning in by_shard.items():
            there = {row.id for row in await self._desk.look([message.id for message in returning], 0)}
            origins = [message.origin for message in returning if message.origin]
            done = await self._store.done(shard, origins) if origins else set()
            for message in returning:
                known = message.id in there or message.origin in done
                self._count(Fate.THERE if known else Fate.DEAD if message.dead else Fate.PARKED, [message])

    def _count(self, word: Fate, messages: Sequence[Restorable]) -> None:
        self.counts.update((message.route.decode(), word) for message in messages)
        self._fates.update((message.id, word) for message in messages)


async def patiently(call: Callable[[], Awaitable[T]], tries: int = _TRIES) -> T:
    """Call, and ``tries`` times again, a second apart, while the store is away. Raises as the last call."""
    for _ in range(tries):
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(1)
    return await call()


def _was_dead(message: Restorable) -> bool:
    """Return whether a dead letter was one before. Those of an intake come in the order of their records. Pure."""
    return message.origin is None and message.dead != str(OVERDUE)


def _owns_key(message: Restorable) -> bool:
    return bool(message.key) and message.key[:1] != b"\0" and not message.dead and not message.claimed
