"""The store in memory. Several instances share one ``Memory``, each through its own ``MemoryStore``.

It can fail as a server does: be away, be full, or carry out a call and lose the reply.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count, dropwhile, islice, takewhile
from typing import TypeVar

from adapters.memory.memory_tiers import TieredShard
from adapters.memory.shard import Shard
from bridge.core import ports
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreFull, StoreUnavailable
from bridge.core.journal import FarPage, JournalEntry, LoggedMoves, TierMoved
from bridge.core.message import Claim, Origin
from bridge.core.orders import RouteOrder, RouteOrders
from bridge.core.roll import Roll
from bridge.desk.past import AuditEntry, Remembered
from bridge.parking.envelope import due_in
from bridge.parking.history import HistoryLimits, unpack_entries
from bridge.parking.identity import shard_of
from bridge.parking.opening import claimed_from

T = TypeVar("T")

HISTORY_LIMITS = HistoryLimits(24 * 3_600_000, 100_000)
#: A moment in 2027, so that ids and envelopes look as in production.
START_MS = 1_800_000_000_000


class ManualClock(StoreClock):
    """A clock that moves only when a test moves it. The store and every instance read the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self._now_us = START_MS * 1000.0
        #: By how much the clock stepped, which no time passed for.
        self.stepped_us = 0.0

    def advance(self, ms: float) -> None:
        self._now_us += ms * 1000

    def step(self, ms: float) -> None:
        """Set the clock. A negative number sets it back."""
        self._now_us += ms * 1000
        self.stepped_us += ms * 1000

    def now_us(self) -> float:
        return self._now_us

    def surely_us(self) -> float:
        return self._now_us

    def observe(self, sent_s: float, received_s: float, store_us: int) -> float:
        """Do nothing: there is nothing to estimate."""
        return 0.0


class Memory:
    """What a server would hold. While ``away`` has a text, every call fails with it. ``full`` refuses new messages."""

    def __init__(
        self, shards: int = 8, clock: StoreClock | None = None, limits: HistoryLimits = HISTORY_LIMITS
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.limits = limits
        self.shards = [TieredShard(self.now_ms, partial(self._wake, shard), limits=limits) for shard in range(shards)]
        #: By start of the slot, route and place of the class of lateness.
        self.tallies: Counter[tuple[int, str, int]] = Counter()
        self.audit: list[AuditEntry] = []
        #: By route: Unix µs at which its bucket of tokens would have been empty.
        self.rates: dict[str, float] = {}
        self.remembered: dict[bytes, tuple[int, Remembered]] = {}
        self.instances: dict[str, tuple[int, bool, str]] = {}
        #: By instance: how many were listed at its last report, with itself.
        self.sizes: dict[str, int] = {}
        #: By instance: when it was removed (Unix ms), and its size then.
        self.lost: dict[str, tuple[int, int]] = {}
        self.instances_lost = 0
        self.deal = ""
        self.orders: dict[str, RouteOrder] = {}
        self.operations: dict[str, str] = {}
        #: Who holds each lease, and until when (Unix ms).
        self.leads: dict[str, tuple[str, int]] = {}
        self.reported: dict[str, int] = {}
        self.listeners: list[Callable[[int, int], None]] = []
        self.loss: ports.Loss | None = None
        self.restored = 0
        self.away = ""
        self.full = False

    def now_ms(self) -> int:
        """Return Unix milliseconds, rounded down: a message due in the next one is not due yet, as in the scripts."""
        return int(self.clock.now_us() // 1000)

    def stepped_us(self) -> float:
        """Return by how much the clock stepped so far."""
        return self.clock.stepped_us if isinstance(self.clock, ManualClock) else 0.0

    def steady_s(self) -> float:
        """Return seconds of a clock that never steps."""
        return (self.clock.now_us() - self.stepped_us()) / 1e6

    def _wake(self, shard: int, due_ms: int) -> None:
        for heard in self.listeners:
            asyncio.get_running_loop().call_soon(heard, shard, due_ms)


class MemoryStore:
    """A ``Store`` in memory."""

    def __init__(self, memory: Memory | None = None, instance: str = "memory") -> None:
        self.memory = Memory() if memory is None else memory
        self.instance = instance
        self.shards = len(self.memory.shards)
        self.clock = self.memory.clock
        self._token_head = secrets.token_bytes(4)
        self._token_count = count(1)
        #: As in the store on Redis.
        self._lost: dict[int, tuple[bytes, bytes]] = {}
        self._replies_to_lose = 0
        self._roll = Roll()
        self._stepped_us = self.memory.stepped_us()

    def lose_reply(self, calls: int = 1) -> None:
        """Carry out the next calls, and then let them fail."""
        self._replies_to_lose = calls

    @asynccontextmanager
    async def _call(self, adds: bool = False) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        if self.memory.away:
            raise StoreUnavailable(self.memory.away)
        if adds and self.memory.full:
            raise StoreFull("the memory store is full: what is due is still delivered, nothing new is parked")
        yield
        if self._replies_to_lose:
            self._replies_to_lose -= 1
            raise StoreUnavailable("the reply was lost")

    async def _in_each(
        self, shards: Iterable[int], step: Callable[[int], T | StoreUnavailable], adds: bool = False
    ) -> dict[int, T | StoreUnavailable]:
        """Make a step in each shard."""
        try:
            async with self._call(adds):
                return {shard: step(shard) for shard in shards}
        except StoreUnavailable as error:
            return dict.fromkeys(shards, error)

    def new_token(self) -> bytes:
        return self._token_head + next(self._token_count).to_bytes(4, "big")

    # -- parking ----------------------------------------------------------------------------------------------------

    async def park(self, batches: Mapping[int, ports.Batch]) -> dict[int, ports.Parked | StoreUnavailable]:
        return await self._in_each(batches, lambda shard: self._park(shard, batches[shard]), adds=True)

    def _park(self, shard: int, batch: ports.Batch) -> ports.Parked | StoreUnavailable:
        try:
            return self.memory.shards[shard].park(self.instance + " once" * batch.once, batch)
        except TierMoved as error:
            return error

    async def reject(self, shard: int, dead: ports.DeadBatch) -> tuple[int, ...]:
        async with self._call(adds=True):
            return self.memory.shards[shard].reject(self.instance, dead)

    async def done(self, shard: int, origins: Sequence[Origin]) -> set[Origin]:
        async with self._call():
            return set(filter(self.memory.shards[shard].offsets.done, origins))

    async def firsts(self, shard: int, logs: Sequence[bytes]) -> dict[bytes, int]:
        async with self._call():
            firsts = self.memory.shards[shard].offsets.firsts
            return {log: firsts[log] for log in logs if log in firsts}

    async def loss(self) -> ports.Loss | None:
        async with self._call():
            return self.memory.loss

    async def mark_done(self, shard: int, origins: Sequence[Origin]) -> None:
        async with self._call():
            for origin in origins:
                self.memory.shards[shard].offsets.note(origin)

    async def line_up(self, shard: int, named: Sequence[tuple[bytes, int]]) -> list[int]:
        async with self._call():
            return self.memory.shards[shard].line_up(named)

    async def recent(self, shard: int) -> list[bytes]:
        async with self._call():
            return list(self.memory.shards[shard].recent)

    # -- by key -----------------------------------------------------------------------------------------------------

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, ports.Found]:
        async with self._call():
            shards = self.memory.shards
            return {field: ports.Found.merged([shard.keys.found(field) for shard in shards]) for field in fields}

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        async with self._call():
            return {message_id for message_id in ids if message_id in self._shard(message_id).due}

    async def cancel(
        self, ids: Sequence[bytes], dead_too: bool, replaced: bool = False, reason: str = ""
    ) -> dict[bytes, str]:
        async with self._call():
            return {
                message_id: self._shard(message_id).cancel(message_id, dead_too, replaced, reason) for message_id in ids
            }

    async def retry(self, ids: Sequence[bytes]) -> int:
        """Park dead letters again, due at once. Return how many. No part of the port: operators do it, not loops."""
        async with self._call():
            return sum(self._shard(message_id).retry(message_id) for message_id in ids)

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, str]:
        """Give parked messages another moment (0: now). Return the state of each id. No part of the port."""
        async with self._call():
            return {message_id: self._shard(message_id).reschedule(message_id, due_ms) for message_id in ids}

    # -- delivering ------------------------------------------------------------------------------------------------

    async def claim(
        self, shards: Sequence[int], limit: int, bytes_max: int, lease_ms: int, drain_ms: int, ahead_ms: int = 0
    ) -> dict[int, ports.Claimed | StoreUnavailable]:
        token = self.new_token()
        lease_ends = time.monotonic() + lease_ms / 1000

        def step(number: int) -> ports.Claimed:
            self._give_back(number)
            shard = self.memory.shards[number]
            if (owner := shard.owner(self.instance, drain_ms)) is not None:
                return ports.Claimed([], None, owner, 0, [])
            taken, ghosts = shard.claim(token, lease_ms, limit, bytes_max, ahead_ms)
            ids, envelopes, next_due_ms = b"".join(taken), [*taken.values()], shard.due.head_ms()
            return claimed_from(ids, envelopes, number, token, lease_ends, shard.now_ms(), next_due_ms, ghosts)

        claimed: dict[int, ports.Claimed | StoreUnavailable] = {}
        try:
            claimed = await self._in_each(shards, step)
        finally:  # also where it is cancelled
            if limit and not any(isinstance(reply, ports.Claimed) for reply in claimed.values()):
                self._lost |= {number: (self._lost.get(number, (token,))[0], token) for number in shards}
        return claimed

    async def renew(self, claims: Iterable[Claim], lease_ms: int) -> int:
        async with self._call():
            return sum(self._of(claim).renew(claim, lease_ms) for claim in claims)

    async def settle(self, claims: Iterable[Claim]) -> int:
        async with self._call():
            return sum(self._of(claim).settle(claim) for claim in claims)

    async def release(self, releases: Iterable[ports.Release]) -> int:
        async with self._call():
            return sum(self._of(release.claim).release(*release) for release in releases)

    async def bury(self, burials: Iterable[tuple[Claim, str]]) -> int:
        async with self._call():
            return sum(self._of(claim).bury(claim, reason) for claim, reason in burials)

    async def record(self, pieces: Mapping[int, Sequence[ports.Piece]], most: int) -> dict[int, int | StoreUnavailable]:
        rows = {
            shard: [row for piece in of_shard for row in unpack_entries(piece.data)]
            for shard, of_shard in pieces.items()
        }
        return await self._in_each(pieces, lambda shard: self.memory.shards[shard].record(rows[shard], most))

    async def tally(self, counts: Sequence[ports.DeliveryCount]) -> None:
        async with self._call():
            for slot_ms, route, place, number in counts:
                self.memory.tallies[slot_ms, route, place] += number

    async def recover(self, shards: Sequence[int], lease_ms: int) -> int:
        async with self._call():
            given_back = sum(self._give_back(number) for number in tuple(self._lost) if number not in shards)
            return given_back + sum(self.memory.shards[number].recover(lease_ms) for number in shards)

    def _give_back(self, number: int) -> int:
        lost = self._lost.pop(number, None)
        return self.memory.shards[number].recover(0, lost) if lost else 0

    async def hold(self, holds: Iterable[tuple[Claim, str | None]]) -> int:
        async with self._call():
            return sum(self._of(claim).hold(claim, reason) for claim, reason in holds)

    async def let_go(
        self, steps: Mapping[int, ports.HeldStep], limit: int, gap_us: int = 0
    ) -> dict[int, ports.LetGo | StoreUnavailable]:
        shards = self.memory.shards
        return await self._in_each(steps, lambda n: shards[n].let_go(self.instance, steps[n], limit, gap_us))

    async def tokens(self, route: str, per_s: float, most: int, wanted: int) -> int:
        async with self._call():
            now_us, gap_us = self.memory.now_ms() * 1000, 1e6 / per_s
            empty_us = max(self.memory.rates.get(route, 0.0), now_us - most * gap_us)
            empty_us = min(empty_us, now_us + most * gap_us)
            taken = max(0, min(wanted, int((now_us - empty_us) / gap_us + 1e-6)))
            self.memory.rates[route] = empty_us + taken * gap_us
            return taken

    async def parked_by_route(self, routes: Sequence[str]) -> dict[str, int]:
        async with self._call():
            shards, states = self.memory.shards, ("parked", "cold")
            return {
                route: sum(shard.routes[state, route.encode()] for shard in shards for state in states)
                for route in routes
            }

    # -- the cold tier ------------------------------------------------------------------------------------------------

    async def marks(self, shards: Iterable[int]) -> dict[int, bytes]:
        async with self._call():
            return {shard: self.memory.shards[shard].mark for shard in shards}

    async def begin(self, shard: int, counts: Mapping[str, int], mark: bytes = b"") -> None:
        async with self._call():
            self.memory.shards[shard].begin(counts, mark)

    async def far(self, shard: int, from_ms: int, skip: int, limit: int) -> FarPage:
        async with self._call():
            found = self.memory.shards[shard].far(from_ms)[skip : skip + limit]
            fitting = [(message_id, due_ms) for message_id, due_ms, fits in found if fits]
            return FarPage(fitting, [message_id for message_id, _, fits in found if not fits])

    async def unload(self, shard: int, messages: Sequence[tuple[bytes, int]]) -> int:
        async with self._call():
            return self.memory.shards[shard].unload(messages)

    async def load(
        self, shard: int, mark: bytes, messages: Sequence[tuple[bytes, int, bytes]], known: Sequence[bytes]
    ) -> bool:
        async with self._call():
            return self.memory.shards[shard].load(mark, messages, known)

    async def cold(self) -> dict[int, dict[str, int]]:
        async with self._call():
            return {number: shard.cold() for number, shard in enumerate(self.memory.shards)}

    # -- the log for the journal --------------------------------------------------------------------------------------

    async def read(
        self,
        shards: Iterable[int],
        limit: int,
        parks: bool = False,
        from_ms: int = 0,
        ends: Mapping[int, bytes] | None = None,
    ) -> dict[int, LoggedMoves]:
        async with self._call():
            found = {}
            for number in shards:
                since = dropwhile(lambda move: move.at_ms < from_ms, self.memory.shards[number].log(parks))
                end = int((ends or {}).get(number, 0))
                until = takewhile(lambda move, end=end: not end or move.at <= end, since)  # type: ignore[misc]
                if moves := list(islice(until, limit)):
                    found[number] = LoggedMoves(moves, [b"%d" % move.at for move in moves])
            return found

    async def ends(self, shards: Iterable[int]) -> dict[int, bytes]:
        async with self._call():
            found = {shard: self.memory.shards[shard].log(True) for shard in shards}
            return {shard: b"%d" % moves[-1].at for shard, moves in found.items() if moves}

    async def forget(self, shard: int, names: Sequence[bytes], parks: bool = False) -> None:
        places = set(map(int, names))
        async with self._call():
            moves = self.memory.shards[shard].log(parks)
            moves[:] = [move for move in moves if move.at not in places]

    async def pass_by(self, places: Mapping[int, int]) -> None:
        async with self._call():
            for shard, place in places.items():
                self.memory.shards[shard].pass_by(place)

    async def envelopes(self, ids: Sequence[bytes]) -> list[JournalEntry]:
        async with self._call():
            found = [(message_id, self._shard(message_id).messages.get(message_id)) for message_id in ids]
            return [JournalEntry(message_id, due_in(row), row) for message_id, row in found if row is not None]

    async def known(self, ids: Sequence[bytes]) -> set[bytes]:
        async with self._call():
            return {message_id for message_id in ids if message_id in self._shard(message_id).messages}

    # -- between instances ------------------------------------------------------------------------------------------

    async def hand_over(self, shards: Iterable[int]) -> None:
        async with self._call():
            for shard in shards:
                self._give_back(shard)
                self.memory.shards[shard].hand_over(self.instance)

    async def meet(self, ttl_ms: int, able: bool, health: str) -> ports.Met:
        async with self._call():
            now_ms, now_s, there = self.memory.now_ms(), self.memory.steady_s(), self.memory.instances
            for name, until_ms in self._roll.silent(now_s).items():
                if name != self.instance and name in there and there[name][0] == until_ms:
                    del there[name]
                    self.memory.instances_lost += 1
                    self.memory.lost[name] = (now_ms, self.memory.sizes.pop(name, len(there) + 1))
            if ttl_ms > 0:
                there[self.instance] = (now_ms + ttl_ms, able, health)
                self.memory.sizes[self.instance] = len(there)
            else:
                there.pop(self.instance, None)
                self.memory.sizes.pop(self.instance, None)
            self.memory.lost.pop(self.instance, None)
            self.memory.lost = {name: loss for name, loss in self.memory.lost.items() if len(there) < loss[1]}
            beats = {name: until_ms for name, (until_ms, _, _) in there.items()}
            running = self._roll.running(beats, ttl_ms, now_ms, now_s)
            before_us, self._stepped_us = self._stepped_us, self.memory.stepped_us()
            stepped_s = (self._stepped_us - before_us) / 1e6
            return ports.Met([name for name in running if there[name][1]], dict(self.memory.orders), stepped_s)

    async def orders(self) -> RouteOrders:
        async with self._call():
            return dict(self.memory.orders)

    async def deal(self, read: str, wanted: str) -> ports.Dealt:
        async with self._call():
            if wanted and self.memory.deal == read:
                self.memory.deal = wanted
            there = sorted(self.memory.instances.items())
            return ports.Dealt(self.memory.deal, {name: said for name, (_, able, said) in there if able})

    async def listen(self, heard: Callable[[int, int], None]) -> None:
        async with self._call():
            self.memory.listeners.append(heard)
            try:
                await asyncio.Event().wait()
            finally:
                self.memory.listeners.remove(heard)

    def _of(self, claim: Claim) -> Shard:
        return self.memory.shards[claim.shard]

    def _shard(self, message_id: bytes) -> Shard:
        return self.memory.shards[shard_of(message_id)]
