"""What a start does with each server: judge the stores, declare what the routes of a broker need. And what a reload
declares.

A server that is away holds up no other, and not for long its own processes: they start after the first attempt, and
report that server as they do when it goes away later. The step goes on until the server answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

import structlog

from bridge.app.brokers import open_store
from bridge.app.build import instance_name
from bridge.app.canaries import prepare_canary
from bridge.app.survey import left_at_start, strays_of
from bridge.app.topology import Declared, declare_topology, verify_topology
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, Refused, Unreachable
from bridge.desk.topology import Standing
from bridge.parking.identity import new_instance
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import BrokerKind
from bridge.settings.process_plan import canary_brokers
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")
T = TypeVar("T")

#: A first attempt that takes longer than this (s) holds up its processes no further.
_FIRST_S = 5.0
#: Seconds between two looks for a missing target topic.
_AGAIN_S = 3.0


async def when_there(attempt: Callable[[], Awaitable[T]], away: Callable[[str], None]) -> T:
    """Repeat ``attempt`` until its server answers. Log each new reason once, and call ``away`` with it."""
    reconnect, reported = Reconnect(), ""
    while True:
        try:
            return await attempt()
        except Unreachable as error:
            if str(error) != reported:
                reported = str(error)
                log.warning("waiting", because=reported)
                away(reported)
            await reconnect.wait()


class ServerStep:
    """One server's part of a start, repeated until the server answers."""

    def __init__(self) -> None:
        self._tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def work(self) -> None:
        """Do it, and call ``was_tried`` after the first attempt. Raises what no waiting cures."""
        raise NotImplementedError

    async def run(self) -> None:
        """Do all of it. Raises as ``work``."""
        try:
            await self.work()
        except PostdateError as error:
            if not self._tried.done():
                self._tried.set_exception(error)
                self._tried.exception()  # raised here in any case
            raise
        self.was_tried()

    def was_tried(self, _reason: str = "") -> None:
        """Note that the first attempt is over."""
        if not self._tried.done():
            self._tried.set_result(None)

    async def tried(self) -> None:
        """Wait for the first attempt, but not for long. Raises what it raised."""
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._tried), _FIRST_S)


class StoreStep(ServerStep):
    """Judges the stores, and logs the parked messages of routes that the settings do not have."""

    def __init__(self, settings: Settings, processes: Sequence[ProcessPlan]) -> None:
        super().__init__()
        self._settings = settings
        self._processes = [process for process in processes if process.stored]

    async def work(self) -> None:
        """Raises ``StoreUnfit``."""
        for process in self._processes:
            redis = process.settings.redis
            store = open_store(process.settings, StoreClock(), instance_name(process.settings, new_instance()))
            try:
                opening = partial(store.open, redis.durability, redis.replicas, redis.timeout)
                words = await when_there(opening, self.was_tried)
            finally:
                await store.close()
            for text in words:
                log.warning("store", what=text)
        await log_strays(self._settings)


class BrokerStep(ServerStep):
    """Declares what one broker's routes and its canary need, and logs what previous settings left there."""

    def __init__(self, settings: Settings, kind: BrokerKind) -> None:
        """``settings`` have the routes of all brokers."""
        super().__init__()
        self._settings, self._kind = settings, kind
        self._own = settings.only(settings.routes_of(kind))
        #: Whether the canary comes; it may as long as the broker has not answered.
        self.canary = kind in canary_brokers(settings)

    def planned(self, process: ProcessPlan) -> ProcessPlan:
        """Return the process with the canary if it gets one."""
        return process.with_canary() if self.canary and process.stored else process

    async def work(self) -> None:
        """Raises ``TopologyMismatch``, ``Refused``."""
        waits = await when_there(self._attempt, self.was_tried)
        with suppress(PostdateError):
            await asyncio.to_thread(_log_left, self._settings, self._kind)
        self.was_tried()
        if waits:
            await self._declare_later()

    async def _attempt(self) -> bool:
        """Return whether part of the topology waits for a target topic."""
        waits = self._settings.bridge.setup and await self._declare()
        if self.canary and (trouble := await asyncio.to_thread(prepare_canary, self._settings, self._kind)):
            log.warning("no canary", broker=self._kind, because=trouble)
            self.canary = False
        return waits

    async def _declare(self, again: bool = False) -> bool:
        declared = await asyncio.to_thread(declare_topology, self._own, self._settings)
        _log_declared(declared._replace(warnings=[]) if again else declared)
        return any(finding.state is Standing.WAITS for finding in declared.found)

    async def _declare_later(self) -> None:
        """Create what waits for a target topic as soon as that topic exists."""
        waits = True
        while waits:
            await asyncio.sleep(_AGAIN_S)
            try:
                waits = await self._declare(again=True)
            except PostdateError as error:
                log.warning("topology", what=str(error))
                return


class Stoppable(Protocol):
    """The loops of a process, or its workers."""

    async def run(self) -> None:
        """Run until ``stop`` or a signal."""

    def stop(self) -> None:
        """Stop in good order."""


@asynccontextmanager
async def under_way(steps: Sequence[ServerStep]) -> AsyncIterator[Callable[[Stoppable], Awaitable[None]]]:
    """Do the steps during the block, which gets a call that runs loops or workers. A step that fails stops these in
    good order, and its error is raised."""
    doing = asyncio.gather(*(step.run() for step in steps))

    async def run(running: Stoppable) -> None:
        def done(_: object) -> None:
            if not doing.cancelled() and doing.exception() is not None:
                running.stop()

        doing.add_done_callback(done)
        await running.run()
        if doing.done():
            doing.result()

    try:
        yield run
    finally:
        doing.cancel()
        await asyncio.gather(doing, return_exceptions=True)


async def set_up_routes(settings: Settings, whole: Settings) -> None:
    """Declare what the routes that come at a reload need: those in ``settings``. ``whole`` has the others, too.

    Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``; then nothing was declared.
    """
    missing = {
        str(finding.part.name)
        for finding in await asyncio.to_thread(verify_topology, settings)
        if finding.state is Standing.MISSING
        and not finding.part.ours
        and finding.part.name.name in settings.routes[finding.part.route].targets
    }
    if missing:
        raise Refused(f"new routes deliver to what does not exist: {', '.join(sorted(missing))}. Create it, and reload")
    _log_declared(await asyncio.to_thread(declare_topology, settings, whole))


async def log_strays(settings: Settings) -> None:
    """Log the parked messages of routes that the settings do not have."""
    if settings.uses_store:
        for stray in await strays_of(settings):
            log.warning("left behind", route=stray.route, what=stray.text)


def _log_left(settings: Settings, kind: BrokerKind) -> None:
    """Raises ``PostdateError`` for a broker that is away again."""
    left, unknown = left_at_start(settings, kind)
    for text in unknown:
        log.warning("left behind", what=text)
    for leftover in left:
        if leftover.messages:
            log.warning("left behind", route=leftover.route, what=leftover.text)


def _log_declared(declared: Declared) -> None:
    for finding in declared.found:
        if finding.state is Standing.MADE:
            log.info("declared", kind=finding.part.name.kind, name=finding.part.name.name, route=finding.part.route)
    for text in declared.warnings:
        log.warning("topology", what=text)
