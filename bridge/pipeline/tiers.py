"""The cold tier: what is due much later waits in the journal alone, and comes back in time.

A message is parked as every other one, and accepted then. Once its row is written, the ``Tiering`` of the instance that
drains its shard marks the row as cold, and then removes the message from the store. What is due soon is loaded again,
and so is each message that an operator or a producer wants to change: the store's own moves do the rest. So a message
is in the store, or its row is cold, or both.

Loading is fenced. Between its look at the mark of a shard and the call that parks, no other message changed its tier
there. The store did not have the message, all moves of the shard are carried into the journal, and the row is still
cold: so it has not left the store meanwhile. A row stays cold until a later look finds the message in the store: a
crash of Redis that takes back the last second loses none.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import START, Journal, JournalFilter, JournalMessage, MoveLog, Place, TierMoved, Tiers, Written
from bridge.core.ports import Batch, Found, Parked, ParkingStore
from bridge.delay.duration import write_duration
from bridge.desk.protocol import Desk
from bridge.parking.envelope import as_loaded, plain_key, with_due
from bridge.parking.identity import shard_of
from bridge.pipeline.move_tail import MoveTail
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

JOURNAL_COLD = Subject("journal", "cold")
COLD = JournalFilter((Written.COLD,))
#: Messages, and bytes of them, of one step between the tiers.
BATCH, _BYTES = 250, 4 * 1024 * 1024
#: More messages with one key than this are no identity (``lua/include/key_index.lua``).
IDS_MAX = 16
_NAMED_MAX = IDS_MAX + 1
#: How often a step is tried while messages change their tier beside it.
_TRIES = 50
_EVERY_S, _LEASE_MS = 3.0, 15_000
#: How often cold messages are counted, and by how much longer than counting takes that has to be.
_COUNT_EVERY_S, _COUNTING_RARER = 60.0, 100
#: Messages of a shard that are looked up before its counts are corrected.
_FAR_MAX = 25_000
#: How long the answer counts that there is no cold tier. Nothing is unloaded until ``_EVERY_S`` after one has begun.
_ASK_S = 1.0
#: How long before its due moment a message is loaded where there is no ``cold_after`` any more.
_LEAD_MS = 1_800_000


class Loaded(NamedTuple):
    """The ids of messages that were parked, and of those that the store had."""

    parked: set[bytes]
    there: set[bytes]


class Loader:
    """Brings messages back into one store."""

    def __init__(self, journal: Journal, moves: MoveLog, tiers: Tiers, shards: int) -> None:
        self._journal = journal
        self._moves = moves
        self._tiers = tiers
        self._shards = shards
        self._tail = MoveTail(journal, moves)
        self._begun = False
        self._asked_s = -_ASK_S

    async def begun(self) -> bool:
        """Return whether the store has a cold tier. Once it has one, it keeps it."""
        now_s = asyncio.get_running_loop().time()
        if not self._begun and now_s - self._asked_s > _ASK_S:
            self._begun, self._asked_s = bool((await self._tiers.marks([0]))[0]), now_s
        return self._begun

    async def begin(self, wanted: bool = True) -> None:
        """Let every shard have a cold tier: also after a loss of the store, with the counts of the journal. If none is
        ``wanted``, only where there are cold messages."""
        if not wanted and not await self._journal.page(COLD, START, 1, 1):
            return
        marks = await self._tiers.marks(range(self._shards))
        if not all(marks.values()):
            counts = await self._journal.cold_counts()
            for shard in reversed(range(self._shards)):  # the mark of the first one says that all have theirs
                await self._tiers.begin(shard, counts.get(shard, {}))
        self._begun = True

    async def marks(self, shards: Iterable[int]) -> dict[int, bytes]:
        wanted = list(shards)
        while not all((found := await self._tiers.marks(wanted)).values()):
            await self.begin()
        return found

    async def recount(self, from_ms: int) -> None:
        """Correct the counts of cold messages, when all that is due before a moment is loaded. A store that lost moves
        between the tiers counts wrong. A shard is left alone where a message changes its tier meanwhile."""
        marks, counts = await self.marks(range(self._shards)), await self._tiers.cold()
        rows = await self._journal.cold_counts(from_ms)
        still = await self._tiers.marks(marks)
        quiet = [shard for shard, mark in marks.items() if mark == still[shard]]
        both = {shard: await self._in_both(shard, from_ms) for shard in quiet}
        wrong = [shard for shard in quiet if Counter(rows.get(shard, {})) - both[shard] != Counter(counts[shard])]
        if not wrong or await self._lacks(from_ms):
            return
        await self._tail.catch_up(wrong)
        rows = await self._journal.cold_counts(from_ms)
        for shard in wrong:
            if await self._in_both(shard, from_ms) == both[shard]:
                await self._tiers.begin(shard, Counter(rows.get(shard, {})) - both[shard], marks[shard])

    async def _lacks(self, until_ms: int) -> bool:
        """Return whether the store lacks cold messages that are due before a moment: by another ``cold_after`` they
        were unloaded since."""
        place: Place = START
        while rows := await self._journal.page(JournalFilter(COLD.states, due_before_ms=until_ms), place, BATCH, 1):
            if len(await self._moves.known([row.id for row in rows])) < len(rows):
                return True
            place = rows[-1].due_ms, rows[-1].id
        return False

    async def _in_both(self, shard: int, from_ms: int) -> Counter[str]:
        """Return by route how many messages of the store have a cold row, too."""
        found, seen = Counter[str](), 0
        while seen < _FAR_MAX:
            messages, stay = await self._tiers.far(shard, from_ms, seen, BATCH)
            if not (ids := [*stay, *(message_id for message_id, _ in messages)]):
                break
            rows = await self._journal.look(ids)
            found.update(row.route for row in rows.values() if row.state is Written.COLD)
            seen += len(ids)
        return found

    async def ids(self, ids: Sequence[bytes]) -> list[bytes]:
        """Load those of the messages that are cold. Return the ids of all that wait by the journal."""
        if not ids or not await self.begun():
            return []
        rows = await self._journal.look(ids)
        await self.load([row for row in rows.values() if row.state is Written.COLD])
        return [row.id for row in rows.values() if row.state in (Written.COLD, Written.WAITING)]

    async def carry(self, ids: Iterable[bytes]) -> None:
        """Carry the moves of the shards of messages into the journal."""
        await self._tail.catch_up({shard_of(message_id) for message_id in ids})

    async def settle(self, ids: Sequence[bytes]) -> None:
        """Let those that the store has be cold no longer."""
        rows = (await self._journal.look(ids)).values()
        loaded = await self.load([row for row in rows if row.state is Written.COLD])
        await self._journal.shift(list(loaded.there), Written.COLD, Written.WAITING)

    async def named(self, fields: Iterable[bytes]) -> bool:
        """Load cold messages with these fields of the key index. Return whether the store lacked any."""
        parted = (field.partition(b"\0") for field in fields)
        pairs = dict.fromkeys((route.decode(), plain_key(key)) for route, _, key in parted)
        return bool((await self.load(await self._journal.named(list(pairs), _NAMED_MAX))).parked)

    async def load(self, rows: Sequence[JournalMessage]) -> Loaded:
        """Load cold messages, at most ``_BYTES`` of them in a step. Raises ``StoreUnavailable``."""
        loaded = Loaded(set(), set())
        piece: set[bytes] = set()
        size = 0
        for row in (*rows, None):
            if piece and (row is None or size + row.size > _BYTES):
                await self._load(piece, loaded)
                piece, size = set(), 0
            if row is not None:
                piece.add(row.id)
                size += row.size
        return loaded

    async def look_up(self, route: str, key: bytes) -> list[bytes]:
        """Return the ids of cold messages with a key, and load none."""
        return [row.id for row in await self._journal.named([(route, key)], _NAMED_MAX)]

    async def _load(self, left: set[bytes], loaded: Loaded) -> None:
        """Load cold messages. The look at their rows comes last, so what it finds has not left the store meanwhile."""
        for _ in range(_TRIES):
            if not left:
                return
            marks = await self.marks(set(map(shard_of, left)))
            known = await self._moves.known(list(left))
            await self.carry(left - known)
            wanted = JournalFilter(COLD.states, ids=tuple(left))
            rows = await self._journal.page(wanted, START, len(left))
            left = {row.id for row in rows}
            await self._tail.pass_by(rows)
            for shard, mark in marks.items():
                here = [row for row in rows if shard_of(row.id) == shard]
                there = [row.id for row in here if row.id in known]
                lacking = [
                    (row.id, row.due_ms, as_loaded(row.id, with_due(row.envelope, row.due_ms)))
                    for row in here
                    if row.id not in known
                ]
                if here and await self._tiers.load(shard, mark, lacking, there):
                    loaded.parked.update(row[0] for row in lacking)
                    loaded.there.update(there)
                    left -= {row.id for row in here}
        if left:
            raise StoreUnavailable("messages could not be loaded from the journal: others change their tier")


class TieredStore:
    """``ParkingStore`` of both tiers: what is wanted by its key or its id is loaded first."""

    def __init__(self, store: ParkingStore, loader: Loader) -> None:
        self._store = store
        self._loader = loader
        self.shards: int = store.shards
        self.clock: StoreClock = store.clock
        self.reject, self.done, self.firsts, self.mark_done = store.reject, store.done, store.firsts, store.mark_done
        self.line_up, self.recent, self.new_token, self.loss = store.line_up, store.recent, store.new_token, store.loss

    async def park(self, batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        """Park. A message with a key of its own meets the cold ones with that key."""
        if (
            not any(batch.keyed or batch.once or batch.again for batch in batches.values())
            or not await self._loader.begun()
        ):
            return await self._store.park(batches)
        replies: dict[int, Parked | StoreUnavailable] = {}
        try:
            known = (batch for batch in batches.values() if batch.once or batch.again)
            await self._loader.ids([row[0] for batch in known for row in batch.messages])
            left = dict(batches)
            for _ in range(_TRIES):
                marks = await self._loader.marks(left)
                if await self._loader.named(entry.field for batch in left.values() for entry in batch.keyed):
                    continue  # the marks are older than what was loaded
                for shard, batch in left.items():
                    batch.mark = marks[shard] if batch.keyed else b""
                replies |= await self._store.park(left)
                left = {shard: left[shard] for shard in left if isinstance(replies[shard], TierMoved)}
                if not left:
                    break
        except StoreUnavailable as error:
            return {shard: replies.get(shard, error) for shard in batches}
        return {
            shard: replies.get(shard) or TierMoved("messages with these keys change their tier") for shard in batches
        }

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, Found]:
        """Load the cold messages of each field, and find them with the others.

        The store is asked before and after: a message may go to the journal in between, or come back.
        """
        found = await self._store.find(fields)
        wanted = [field for field in fields if not found[field].unlisted]
        if not wanted or not await self._loader.begun():
            return found
        await self._loader.named(wanted)
        again = await self._store.find(wanted)
        return found | {
            field: Found(list(dict.fromkeys(found[field].ids + again[field].ids)), again[field].unlisted)
            for field in wanted
        }

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        found = await self._store.parked(ids)
        waiting = await self._loader.ids([message_id for message_id in ids if message_id not in found])
        return found | (await self._store.parked(waiting) if waiting else set())

    async def cancel(
        self, ids: Sequence[bytes], dead_too: bool, replaced: bool = False, reason: str = ""
    ) -> dict[bytes, str]:
        words = await self._store.cancel(ids, dead_too, replaced, reason)
        waiting = await self._loader.ids([message_id for message_id, word in words.items() if word == "none"])
        return words | (await self._store.cancel(waiting, dead_too, replaced, reason) if waiting else {})


class Tiering:
    """Moves messages between the tiers of one store."""

    def __init__(
        self, loader: Loader, journal: Journal, tiers: Tiers, desk: Desk, instance: str, after_ms: int, health: Health
    ) -> None:
        """``after_ms``: what is due later goes to the journal; 0: nothing does, and what is there comes back."""
        self._loader = loader
        self._journal = journal
        self._tiers = tiers
        self._desk = desk
        self._instance = instance
        self._after_ms = after_ms
        self._lead_ms = after_ms // 2 or _LEAD_MS
        self._health = health
        #: The store has all that is due before it, by the last look (Unix ms).
        self.loaded_until_ms = 0
        #: By shard: how many far messages at the beginning are known to stay.
        self._skip: dict[int, int] = {}
        #: Cold messages that the store had, or got, at the last look.
        self._there: set[bytes] = set()
        #: When cold messages are counted next, and for how long the last count took.
        self._count_s = self._counting_s = 0.0

    def loops(
        self, shards: Callable[[], Iterable[int]], clock: StoreClock
    ) -> tuple[Coroutine[None, None, None], Coroutine[None, None, None]]:
        """Return the loops. This instance drains the ``shards``."""
        return self._load_loop(clock), self._unload_loop(shards, clock)

    async def _load_loop(self, clock: StoreClock) -> None:
        self.loaded_until_ms = clock.now_ms() + self._lead_ms
        while True:
            why = ""
            try:
                if await self.load(clock.now_ms()) and time.monotonic() >= self._count_s:
                    await self.count()
            except StoreUnavailable as error:
                why = f": {error}"
            self._report(clock.now_ms(), why)
            await asyncio.sleep(_EVERY_S)

    async def _unload_loop(self, shards: Callable[[], Iterable[int]], clock: StoreClock) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            with suppress(StoreUnavailable):  # what stays is in the store, and the other loops report it
                await self.unload(shards(), clock.now_ms())

    async def load(self, now_ms: int) -> bool:
        """Load what is due soon. Return False where another instance does. Raises ``StoreUnavailable``.

        It begins with the first cold row, whatever the clock did. So a row is the checkpoint of its message.
        """
        until_ms = now_ms + self._lead_ms
        await self._loader.begin(self._after_ms > 0)
        place: Place = START
        before, self._there = self._there, set()
        while rows := await self._journal.page(JournalFilter(COLD.states, due_before_ms=until_ms), place, BATCH, 1):
            self.loaded_until_ms = rows[0].due_ms
            if not await self._desk.lead("load", self._instance, _LEASE_MS):
                return False
            parked, there = await self._loader.load(rows)
            await self._journal.shift(list(there & before), Written.COLD, Written.WAITING)
            self._there |= parked | there
            place = rows[-1].due_ms, rows[-1].id
        self.loaded_until_ms = until_ms
        return True

    async def count(self) -> None:
        """Let the counts of cold messages be true again, if no other instance does. Raises ``StoreUnavailable``."""
        began_s, every_s = time.monotonic(), max(_COUNT_EVERY_S, self._counting_s * _COUNTING_RARER)
        self._count_s = began_s + every_s
        # After a step of the store's clock, what was due later may be claimed or held: it would count as cold.
        loaded = await self._loader.begun() and await self._desk.now_ms() < self.loaded_until_ms
        if loaded and await self._desk.lead("count", self._instance, int(every_s * 1000)):
            await self._loader.recount(self.loaded_until_ms)
            self._counting_s = time.monotonic() - began_s

    async def unload(self, shards: Iterable[int], now_ms: int) -> None:
        """Move what is due much later to the journal. Raises ``StoreUnavailable``."""
        for shard in list(shards) if self._after_ms else ():
            while await self._unload(shard, now_ms + self._after_ms):
                pass

    async def _unload(self, shard: int, from_ms: int) -> bool:
        """Make one step in a shard. Return whether there may be more."""
        skip = self._skip.pop(shard, 0)
        messages, stay = await self._tiers.far(shard, from_ms, skip, BATCH)
        seen, unloaded = len(messages) + len(stay), 0
        if messages and (await self._tiers.marks([shard]))[shard]:
            cold = set(await self._journal.shift([row[0] for row in messages], Written.WAITING, Written.COLD))
            unloaded = await self._tiers.unload(shard, [row for row in messages if row[0] in cold])
        if seen and unloaded < seen:
            self._skip[shard] = skip + seen - unloaded
        return bool(seen) and (unloaded > 0 or seen == BATCH)

    def behind_ms(self, now_ms: int) -> int:
        """Return by how much loading is later than half of the time that it has."""
        return max(0, now_ms + self._lead_ms // 2 - self.loaded_until_ms) if self.loaded_until_ms else 0

    def _report(self, now_ms: int, why: str = "") -> None:
        left_ms = max(0, self.loaded_until_ms - now_ms) // 1000 * 1000
        text = f"messages that are due in {write_duration(left_ms)} are not loaded from the journal{why}"
        self._health.say(JOURNAL_COLD, text if self.behind_ms(now_ms) else "", cause=why)
