"""One bridge process: starts the loops, watches over them, and stops in good order.

A loop handles what can be expected (a store or a broker that is away) by itself. One that ends with any other error is
a mistake in postdate: then everything stops, exit 1, and whoever supervises the process starts it anew; what was
claimed comes back when its lease ends.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Sink, Source, Store
from bridge.pipeline.claim import Dispatcher
from bridge.pipeline.park import Parker
from bridge.pipeline.settle import Settler
from bridge.pipeline.wake import Wake
from bridge.pipeline.ways import Link, Way
from bridge.process.leftovers import LevelsDrain, StoreDrain
from bridge.process.loops import end
from bridge.process.members import Members
from bridge.process.store_watch import StoreWatch
from bridge.process.watchdog import Watch
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")

_TURN_S = 0.02
#: A subscription that held so long was a good one: the next attempt comes at once.
_LISTENED_S = 10.0


@dataclass(frozen=True)
class Parts:
    """Everything that runs in one process with a store. ``links`` keep the broker's connections; ``leaving`` is None
    where the broker empties the levels of before by itself."""

    store: Store
    source: Source
    sink: Sink
    links: tuple[Link, ...]
    parker: Parker
    wake: Wake
    dispatcher: Dispatcher
    settler: Settler
    members: Members
    watch: Watch
    store_watch: StoreWatch
    health: Health
    grace_ms: int
    leaving: LevelsDrain | None = None


class Running:
    """Runs loops until a signal comes, then gives them their grace. What the loops are, a subclass says."""

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self.stopping = asyncio.Event()
        self._now = asyncio.Event()

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        """The loops; none of them ends by itself."""
        raise NotImplementedError

    def take_no_more(self) -> int:
        """Stop taking; how much is claimed or under way."""
        raise NotImplementedError

    def finished(self) -> bool:
        """Whether nothing is under way any more."""
        raise NotImplementedError

    async def leave(self) -> int:
        """Say goodbye, and give back what is left; how much that is."""
        raise NotImplementedError

    def up(self) -> bool:
        """See ``bridge.process.report.Reported``."""
        raise NotImplementedError

    def sentence(self) -> str:
        """See ``bridge.process.report.Reported``."""
        raise NotImplementedError

    def marks(self) -> Mapping[str, object]:
        """See ``bridge.process.report.Reported``."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop in good order; a second call stops now."""
        if self.stopping.is_set():
            self._now.set()
        self.stopping.set()

    async def run(self) -> None:
        """Run until ``stop``, SIGTERM or SIGINT. Raises what a loop raised."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        tasks = [asyncio.ensure_future(run) for run in self.loops()]
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            done, _ = await asyncio.wait((*tasks, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in done - {stopping}:
                task.result()  # a loop never ends by itself, so this raises
            await self._drain(tasks)
        finally:
            await end((*tasks, stopping))

    async def _drain(self, tasks: Sequence[asyncio.Future[None]]) -> None:
        """Take nothing new, finish what is in hand, give the rest back."""
        deadline = time.monotonic() + self._grace_ms / 1000
        log.info("stopping", claimed=self.take_no_more())
        while time.monotonic() < deadline and not self._now.is_set():
            if self.finished() or any(task.done() and not task.cancelled() and task.exception() for task in tasks):
                break
            await asyncio.sleep(_TURN_S)
        log.info("stopped", given_back=await self.leave())


class Service(Running):
    """A process with a store."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.grace_ms)
        self._parts = parts

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        """See ``Running.loops``."""
        parts = self._parts
        return (
            *(link() for link in parts.links),
            parts.parker.run(),
            parts.dispatcher.run(),
            parts.dispatcher.run_departures(),
            parts.settler.run(),
            parts.members.run(),
            parts.watch.run(),
            parts.store_watch.run(),
            parts.health.run(),
            self._listen(),
            *([parts.leaving.run()] if parts.leaving is not None else []),
        )

    def up(self) -> bool:
        """See ``Running.up``."""
        return self._parts.sink.able() and not self._parts.health.troubles()

    def sentence(self) -> str:
        """See ``Running.sentence``."""
        return self._parts.health.sentence()

    def marks(self) -> Mapping[str, object]:
        """See ``Running.marks``."""
        return {"park": self._parts.parker.mark(), "dispatch": self._parts.dispatcher.mark()}

    async def _listen(self) -> None:
        """Hear the store's hints; without them the look once a second finds everything, later."""
        reconnect = Reconnect()
        while True:
            started = time.monotonic()
            try:
                await self._parts.store.listen(self._parts.wake.heard)
            except StoreUnavailable:
                if time.monotonic() - started > _LISTENED_S:
                    reconnect.worked()
                await reconnect.wait()

    def take_no_more(self) -> int:
        """See ``Running.take_no_more``."""
        parts = self._parts
        claimed = len(parts.dispatcher.held())
        parts.source.stop()
        parts.dispatcher.stopping = True
        parts.parker.stopping = True
        if parts.leaving is not None:
            parts.leaving.take_no_more()
        parts.wake.nudge()
        parts.dispatcher.answered()
        return claimed

    def finished(self) -> bool:
        """See ``Running.finished``."""
        parts = self._parts
        taken_in = parts.source.emptied() and not parts.parker.busy
        drained = parts.leaving is None or parts.leaving.finished()
        return taken_in and drained and not (parts.dispatcher.held() or parts.settler.pending())

    async def leave(self) -> int:
        """See ``Running.leave``."""
        try:
            await asyncio.wait_for(self._parts.members.leave(), 2)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("could not say goodbye to the store", error=str(error) or "no answer within 2 s")
        return len(self._parts.dispatcher.held())


@dataclass(frozen=True)
class RelayParts:
    """Everything that runs in one process without a store. ``emptying`` is None where a process of the same broker has
    that store."""

    ways: tuple[Way, ...]
    clock: StoreClock
    health: Health
    grace_ms: int
    emptying: StoreDrain | None = None


class RelayService(Running):
    """A process without a store."""

    def __init__(self, parts: RelayParts) -> None:
        super().__init__(parts.grace_ms)
        self._parts = parts

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        """See ``Running.loops``."""
        return (
            *(loop for way in self._parts.ways for loop in way.loops()),
            self._tell_time(),
            self._parts.health.run(),
            *([self._parts.emptying.run()] if self._parts.emptying is not None else []),
        )

    def up(self) -> bool:
        """See ``Running.up``."""
        return all(way.relay.able() for way in self._parts.ways) and not self._parts.health.troubles()

    def sentence(self) -> str:
        """See ``Running.sentence``."""
        return self._parts.health.sentence()

    def marks(self) -> Mapping[str, object]:
        """See ``Running.marks``."""
        return {f"relay {number}": way.relay.mark() for number, way in enumerate(self._parts.ways, 1)}

    async def _tell_time(self) -> None:
        """The machine's clock is the one that counts here, and somebody may set it."""
        while True:
            now_s = time.monotonic()
            self._parts.clock.observe(now_s, now_s, time.time_ns() // 1000)
            await asyncio.sleep(1)

    def take_no_more(self) -> int:
        """See ``Running.take_no_more``."""
        for way in self._parts.ways:
            way.take_no_more()
        emptying = self._parts.emptying
        return self._under_way() + (emptying.take_no_more() if emptying is not None else 0)

    def finished(self) -> bool:
        """See ``Running.finished``."""
        emptied = self._parts.emptying is None or self._parts.emptying.finished()
        return emptied and all(way.finished() for way in self._parts.ways)

    async def leave(self) -> int:
        """See ``Running.leave``. What is not accepted goes back when the connection closes."""
        emptying = self._parts.emptying
        return self._under_way() + (await emptying.leave() if emptying is not None else 0)

    def _under_way(self) -> int:
        return sum(way.relay.under_way() for way in self._parts.ways)
