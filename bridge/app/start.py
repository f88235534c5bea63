"""Starting and running one process, and waiting for a store and a broker that are not there yet.

A daemon that gives up because its broker starts a minute later only moves the waiting to whoever restarts it. So it
waits, says so once, and exits only over what no waiting mends: wrong settings, an unfit store, another topology.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, TypeVar

import structlog

from bridge.admin.topology import Standing
from bridge.app.brokers import broker_of, open_store
from bridge.app.build import build, build_without_store, instance_name, new_token
from bridge.app.leftovers import emptying, left_at_start, strays_of
from bridge.app.topology import declare_topology
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, Unreachable
from bridge.process.loops import Running
from bridge.process.report import Report
from bridge.settings import ProcessPlan, Settings, exposed_files, mask_url
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")
T = TypeVar("T")

#: How often it is looked whether a topic of the consumers' is there at last.
_AGAIN_S = 3.0


async def when_there(attempt: Callable[[], Awaitable[T]], report: Report | None = None) -> T:
    """Repeat ``attempt`` until what it needs can be reached; each new reason is logged once, and told."""
    reconnect, said = Reconnect(), ""
    while True:
        try:
            return await attempt()
        except Unreachable as error:
            if str(error) != said:
                said = str(error)
                log.warning("waiting", because=said)
                if report is not None:
                    report.waits(said)
            await reconnect.wait()


async def run_process(
    process: ProcessPlan, setup: bool, token: str, report: Report, whole: Settings | None = None
) -> None:
    """Open the store, declare the topology if asked, and run until a signal.

    ``token`` identifies the process. ``report`` tells the supervisor how it is. ``whole``: all settings, if no parent
    has logged the warnings about them.
    Raises ``StoreUnfit``, ``TopologyMismatch`` or ``Refused`` at start, and what a loop raised.
    """
    settings = process.settings
    clock, instance = StoreClock(), instance_name(settings, token)
    log.info("starting", version=version("postdate"), name=instance, routes=sorted(settings.routes), **_where(settings))
    if whole is not None:
        _warn_of_files(whole)
    if not process.stored:
        left = emptying(process, instance, token)
        await _serve(settings, setup, report, whole, lambda: build_without_store(process, Health(), left))
        return
    store = open_store(settings, clock, instance)
    try:
        await _open(settings, store, report)
        await _serve(settings, setup, report, whole, lambda: build(process, store, clock, instance, token, Health()))
    finally:
        await store.close()


async def _serve(
    settings: Settings, setup: bool, report: Report, whole: Settings | None, made: Callable[[], Running]
) -> None:
    """What both kinds of a process do between their store and a signal; ``made`` wires it when the topology stands."""
    waits = setup and await set_up_topology(settings, report)
    if whole is not None:
        await tell_what_is_left(whole)
    service = made()
    log.info("started")
    _calm_collector()
    report.of(service)
    async with making_what_waits(settings, waits):
        await service.run()


def _calm_collector() -> None:
    """Python's collector looks for cycles every 700 new objects, which is every few milliseconds here, and finds none:
    messages are freed by their counts. Seldom is enough, and what lives as long as the process need not be looked at.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def prepare(settings: Settings, processes: Sequence[ProcessPlan], setup: bool, report: Report) -> bool:
    """What is done once for all workers: judge the stores, declare the topology, say what settings of
    before have left. Whether some of the topology waits for a topic of the consumers'. Raises as ``run_process``."""
    log.info(
        "starting",
        version=version("postdate"),
        workers=settings.bridge.workers,
        routes=sorted(settings.routes),
        **_where(settings),
    )
    _warn_of_files(settings)
    for process in processes:
        if not process.stored:
            continue
        store = open_store(process.settings, StoreClock(), instance_name(settings, new_token()))
        try:
            await _open(process.settings, store, report)
        finally:
            await store.close()
    waits = setup and await set_up_topology(settings, report)
    await tell_what_is_left(settings)
    return waits


def _warn_of_files(settings: Settings) -> None:
    for text in exposed_files(settings):
        log.warning("settings", what=text)


async def tell_what_is_left(settings: Settings) -> None:
    """Say what a change of a mode, of the levels or of a route's name has left. Nobody waits for a broker that is away
    for that, nor for a Redis that no route needs."""
    if settings.uses_store:
        found, _ = await strays_of(settings)
        for stray in found:
            log.warning("left behind", route=stray.route, what=stray.text)
    try:
        left, unknown = await asyncio.to_thread(left_at_start, settings)
    except PostdateError:
        return
    for text in unknown:
        log.warning("left behind", what=text)
    for one in left:
        if one.messages:
            log.warning("left behind", route=one.route, what=one.text)


async def set_up_topology(settings: Settings, report: Report | None = None, again: bool = False) -> bool:
    """Declare what the routes need; whether some of it waits for a topic of the consumers'. What there is to say about
    it is not said ``again``. Raises ``TopologyMismatch`` and ``Refused``."""
    declared = await when_there(lambda: asyncio.to_thread(declare_topology, settings), report)
    for one in declared.found:
        if one.state is Standing.MADE:
            log.info("declared", kind=one.part.name.kind, name=one.part.name.name, route=one.part.route)
    for text in () if again else declared.warnings:
        log.warning("topology", what=text)
    return any(one.state is Standing.WAITS for one in declared.found)


@asynccontextmanager
async def making_what_waits(settings: Settings, waits: bool) -> AsyncIterator[None]:
    """Meanwhile, if something ``waits`` for a topic of the consumers', it is made as soon as that is there."""
    making = asyncio.ensure_future(_make_what_waits(settings)) if waits else None
    try:
        yield
    finally:
        if making is not None:
            making.cancel()


async def _make_what_waits(settings: Settings) -> None:
    waits = True
    while waits:
        await asyncio.sleep(_AGAIN_S)
        try:
            waits = await set_up_topology(settings, again=True)
        except PostdateError as error:
            log.warning("topology", what=str(error))
            return


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``; a signal that comes before it has taken over the signals cancels it, which is a good end too."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


async def _open(settings: Settings, store: Any, report: Report) -> None:
    redis = settings.redis
    words = await when_there(lambda: store.open(redis.durability, redis.replicas, redis.timeout), report)
    for text in words:
        log.warning("store", what=text)


def _where(settings: Settings) -> dict[str, str]:
    used = dict.fromkeys(broker_of(route.broker).address(settings) for route in settings.routes.values())
    store = {"store": mask_url(settings.redis.url.get_secret_value())} if settings.uses_store else {}
    return {**store, "broker": ", ".join(used)}
