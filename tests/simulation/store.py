"""The store of a simulated run: the memory store behind a connection that may fail.

Each call runs twice at most: at the server, when the request arrives, and at the client, when no answer came. The
second run fails at once; it does what a store does at the client after a failure.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar

from adapters.memory import ManualClock, Memory, MemoryStore
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Claimed, Met
from bridge.core.roll import Roll
from tests.simulation.loop import PROCESS, Process, VirtualLoop
from tests.simulation.servers import Connection, Server, asked

#: As ``redis.timeout``.
TIMEOUT_S = 2.0
#: For so long (s) an instance drains a shard from which it has claimed; less than its lease, because clocks drift.
DRAIN_S = 3.99
START_S = 1_800_000_000.0

T = TypeVar("T")

#: Fields of ``Memory`` and of its shards that a server would write to its disk.
_OF_MEMORY = ("tallies", "audit", "rates", "remembered", "instances", "deal", "orders", "operations", "leads")
_NOT_OF_SHARD = ("now_ms", "wake")
_NOTHING: nullcontext[None] = nullcontext()


class _Client(NamedTuple):
    """What a client remembers between its calls."""

    lost: dict[int, tuple[bytes, bytes]]
    roll: Roll
    stepped_us: float


class ServerClock(ManualClock):
    """The clock of the server. ``drift``: by which part it is too fast."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self.drift = 0.0
        #: Loop time and size (ms) of each step.
        self.steps: list[tuple[float, float]] = []

    def step(self, ms: float) -> None:
        """Set the clock by ``ms``. A negative number sets it back."""
        super().step(ms)
        self.steps.append((self._loop.time(), ms))

    def now_us(self) -> float:
        return (START_S + self._loop.time() * (1 + self.drift)) * 1e6 + self.stepped_us

    def highest_ms(self, from_s: float, to_s: float) -> float:
        """Return the latest moment that it showed between two moments of the loop."""
        offset_ms, highest_ms = sum(ms for at_s, ms in self.steps if at_s <= from_s), 0.0
        for at_s, ms in (*((at_s, ms) for at_s, ms in self.steps if from_s < at_s <= to_s), (to_s, 0.0)):
            highest_ms = max(highest_ms, (START_S + at_s * (1 + self.drift)) * 1e3 + offset_ms)
            offset_ms += ms
        return max(highest_ms, (START_S + to_s * (1 + self.drift)) * 1e3 + offset_ms)


class StoreServer(Server):
    """A Redis: what it holds, and the instances that listen."""

    def __init__(self, loop: VirtualLoop, random: Any, shards: int) -> None:
        super().__init__(loop, random)
        self.clock = ServerClock(loop)
        self.memory = Memory(shards, self.clock)
        self._nothing = self.snapshot()
        #: Which share of the hints is lost.
        self.hints_lost = 0.05
        #: By shard: who claimed from it last, and when (s). What claimed beside another one.
        self._drains: dict[int, tuple[str, float]] = {}
        self.drained_twice: list[str] = []

    def drains(self, shard: int, instance: str) -> None:
        """Note who claims from a shard. Another one may not for ``DRAIN_S``, unless the shard was handed over or the
        clock stepped."""
        now_s = self.loop.time()
        other, at_s = self._drains.get(shard, (instance, now_s))
        stepped = any(at_s <= step_s for step_s, _ in self.clock.steps)
        if other != instance and now_s < at_s + DRAIN_S and not stepped:
            self.drained_twice.append(f"shard {shard}: {other} at {at_s:.3f} s, and {instance} at {now_s:.3f} s")
        self._drains[shard] = (instance, now_s)

    def handed_over(self, shard: int, instance: str) -> None:
        """Let any other instance claim from a shard, if this one did."""
        if self._drains.get(shard, ("", 0.0))[0] == instance:
            del self._drains[shard]

    def snapshot(self) -> bytes:
        """Return a copy of everything it holds."""
        memory = self.memory
        shards = [
            {name: value for name, value in vars(shard).items() if name not in _NOT_OF_SHARD} for shard in memory.shards
        ]
        return pickle.dumps(({name: getattr(memory, name) for name in _OF_MEMORY}, shards), -1)

    def restore(self, kept: bytes) -> None:
        """Hold what it held then: a replica that lagged, or an older backup."""
        memory, shards = pickle.loads(kept)
        self._drains.clear()
        vars(self.memory).update(memory)
        for shard, fields in zip(self.memory.shards, shards, strict=True):
            vars(shard).update(fields)

    def empty(self) -> None:
        """Hold nothing any more, as after FLUSHALL."""
        self.restore(self._nothing)


class SimulatedStore(MemoryStore):
    """``MemoryStore`` over a connection. The clock is estimated from the answers, as in production."""

    def __init__(self, server: StoreServer, instance: str) -> None:
        super().__init__(server.memory, instance)
        self._server = server
        self._connection = Connection(server)
        self.clock = StoreClock()
        self.fails = ""
        self._token: bytes | None = None

    def new_token(self) -> bytes:
        token, self._token = self._token, None
        return token or super().new_token()

    def _call(self, adds: bool = False) -> AbstractAsyncContextManager[None]:  # type: ignore[override]
        """Raise what a server answers that is away or full. At the client, raise what its server did not answer."""
        if self.fails:
            raise StoreUnavailable(self.fails)
        if self.memory.away:
            raise StoreUnavailable(self.memory.away)
        if adds and self.memory.full:
            raise StoreUnavailable("the store is full")
        return _NOTHING

    async def remote(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Carry out a call at the server, with what the client remembered when it was sent."""
        token = self.new_token()
        sent = self._state()

        def at_server() -> tuple[T, float, _Client]:
            now = self._state()
            self._set(sent)
            self._token = token
            try:
                return run_at_once(call()), self._server.clock.now_us(), self._state()
            finally:
                self._set(now)

        sent_s = time.monotonic()
        try:
            answer, store_us, changed = await asked(self._connection, at_server, TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError) as error:
            self.fails, self._token = "no answer in time", token
            try:
                return run_at_once(call())
            finally:
                self.fails, self._token = "", None
                if isinstance(error, asyncio.CancelledError):
                    raise error
        self._merge(sent, changed)
        self.clock.observe(sent_s, time.monotonic(), int(store_us))
        result: T = answer
        return result

    def _state(self) -> _Client:
        return _Client(dict(self._lost), self._roll, self._stepped_us)

    def _set(self, state: _Client) -> None:
        self._lost, self._roll, self._stepped_us = dict(state.lost), state.roll, state.stepped_us

    async def _meet(self, *args: Any) -> Met:
        self._roll = copy.copy(self._roll)  # so that a call without an answer changes nothing here
        return await MemoryStore.meet(self, *args)

    async def _claim(self, shards: Sequence[int], *rules: Any) -> dict[int, Claimed | StoreUnavailable]:
        claimed = await MemoryStore.claim(self, shards, *rules)
        for shard, reply in claimed.items():
            if isinstance(reply, Claimed) and not reply.owner:
                self._server.drains(shard, self.instance)
        return claimed

    async def _hand_over(self, shards: Iterable[int]) -> None:
        shards = list(shards)
        await MemoryStore.hand_over(self, shards)
        for shard in shards:
            self._server.handed_over(shard, self.instance)

    def _merge(self, sent: _Client, changed: _Client) -> None:
        """Learn what a call changed, and keep what other calls changed meanwhile."""
        if changed.roll is not sent.roll:
            self._roll, self._stepped_us = changed.roll, changed.stepped_us
        for shard, span in sent.lost.items():
            if shard not in changed.lost and self._lost.get(shard) == span:
                del self._lost[shard]
        for shard, span in changed.lost.items():
            if span != sent.lost.get(shard):
                self._lost[shard] = (self._lost.get(shard, span)[0], span[1])

    async def look_at_clock(self) -> None:
        """Read the server's clock."""
        sent_s = time.monotonic()
        try:
            store_us = await asked(self._connection, self._server.clock.now_us, TIMEOUT_S)
        except TimeoutError:
            raise StoreUnavailable("no answer in time") from None
        self.clock.observe(sent_s, time.monotonic(), int(store_us))

    async def listen(self, heard: Callable[[int, int], None]) -> None:
        """Hints take their time, and some are lost."""
        process, server = PROCESS.get(), self._server
        assert process is not None
        listener = _listener(server, process, heard)
        self.memory.listeners.append(listener)
        try:
            await asyncio.Event().wait()
        finally:
            if listener in self.memory.listeners:
                self.memory.listeners.remove(listener)


def _listener(server: StoreServer, process: Process, heard: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def hint(shard: int, due_ms: int) -> None:
        if server.random.random() >= server.hints_lost:
            server.loop.call_later(server.travel_s(), heard, shard, due_ms, context=process.context)

    return hint


def run_at_once(call: Coroutine[Any, Any, T]) -> T:
    """Run a call of a memory server, which never waits here."""
    try:
        call.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a memory server waited")


def _over_the_wire(name: str) -> Any:
    plain = vars(SimulatedStore).get(f"_{name}") or getattr(MemoryStore, name)

    async def call(self: SimulatedStore, *args: Any, **more: Any) -> Any:
        return await self.remote(lambda: plain(self, *args, **more))

    call.__name__ = name
    return call


_CALLS = (
    "park reject done mark_done line_up recent find parked cancel retry reschedule claim renew settle release bury "
    "record tally recover hand_over hold let_go tokens parked_by_route orders meet deal "
    "marks begin far unload load read ends forget pass_by envelopes known"
)
for _name in _CALLS.split():
    if hasattr(MemoryStore, _name):
        setattr(SimulatedStore, _name, _over_the_wire(_name))
