"""Start and run one process, and wait for a store and a broker that do not answer yet.

A daemon that exits because its broker starts a minute later only moves the waiting to its supervisor. So it waits, logs
that once, and exits only for what no waiting cures: wrong settings, an unfit store, a different topology.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import structlog

from bridge.app.brokers import broker_of, open_journal, open_store
from bridge.app.build import begin_logs, build, build_without_store, instance_name, new_token
from bridge.app.canaries import with_canaries
from bridge.app.survey import emptying, left_at_start, strays_of
from bridge.app.topology import Declared, declare_topology
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, Refused, Unreachable
from bridge.core.journal import Tables
from bridge.desk.topology import Standing
from bridge.process.loops import Running
from bridge.process.report import Report
from bridge.settings import ProcessPlan, Settings, exposed_files, mask_url
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")
T = TypeVar("T")

#: Seconds between two looks for a missing target topic.
_AGAIN_S = 3.0


async def when_there(attempt: Callable[[], Awaitable[T]], report: Report | None = None) -> T:
    """Repeat ``attempt`` until its server answers. Log and report each new reason once."""
    reconnect, reported = Reconnect(), ""
    while True:
        try:
            return await attempt()
        except Unreachable as error:
            if str(error) != reported:
                reported = str(error)
                log.warning("waiting", because=reported)
                if report is not None:
                    report.waits(reported)
            await reconnect.wait()


async def run_process(
    process: ProcessPlan, setup: bool, token: str, report: Report, health: Health, whole: Settings | None = None
) -> None:
    """Open the store, declare the topology if asked, and run until a signal.

    ``token`` identifies the process. ``report`` tells the supervisor how it is. ``whole``: all settings, if no parent
    has logged the warnings about them.
    Raises ``StoreUnfit``, ``TopologyMismatch`` or ``Refused`` at start, and what a loop raised.
    """
    settings = process.settings
    clock, instance = StoreClock(), instance_name(settings, token)
    report.name, report.broker = instance, process.broker
    log.info("starting", version=version("postdate"), name=instance, routes=sorted(settings.routes), **_where(settings))
    if whole is not None:
        _warn_of_files(whole)
    if not process.stored:
        left = emptying(process, instance, token)
        await _serve(settings, setup, report, whole, lambda: build_without_store(process, health, left))
        return
    store, journal = open_store(settings, clock, instance), open_journal(process)
    try:
        await _open(settings, store, report)
        if journal is not None:
            await when_there(partial(_open_journal, settings, journal), report)
        await when_there(partial(begin_logs, settings, store, journal), report)
        if whole is not None:
            (process,) = await when_there(lambda: with_canaries(whole, [process]), report)
        orders = await when_there(store.orders, report)  # a paused route must not deliver until the first beat
        await _serve(
            settings,
            setup,
            report,
            whole,
            lambda: build(process, store, orders, clock, instance, token, health, journal),
        )
    finally:
        await store.close()
        if journal is not None:
            await journal.close()


async def _serve(
    settings: Settings, setup: bool, report: Report, whole: Settings | None, make: Callable[[], Running]
) -> None:
    """Declare the topology, wire the service with ``made``, and run it until a signal."""
    waits = setup and await set_up_topology(settings, report)
    if whole is not None:
        await log_leftovers(whole)
    service = make()
    log.info("started")
    _calm_collector()
    report.of(service)
    async with declaring_later(settings, waits):
        await service.run()


def _calm_collector() -> None:
    """Make Python's cycle collector run less often. By default it runs every 700 new objects, which is every few
    milliseconds here, and finds nothing: messages are freed by their reference counts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def prepare(settings: Settings, processes: Sequence[ProcessPlan], setup: bool, report: Report) -> bool:
    """Do once for all workers: judge the stores, declare the topology, log what previous settings left.

    Return whether part of the topology waits for a target topic. Raises as ``run_process``.
    """
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
    await log_leftovers(settings)
    return waits


def _warn_of_files(settings: Settings) -> None:
    for text in exposed_files(settings):
        log.warning("settings", what=text)


async def log_leftovers(settings: Settings) -> None:
    """Log what previous settings left behind. Do not wait for a broker that is away, nor for a Redis without routes."""
    await log_strays(settings)
    try:
        left, unknown = await asyncio.to_thread(left_at_start, settings)
    except PostdateError:
        return
    for text in unknown:
        log.warning("left behind", what=text)
    for leftover in left:
        if leftover.messages:
            log.warning("left behind", route=leftover.route, what=leftover.text)


async def log_strays(settings: Settings) -> None:
    """Log the parked messages of routes that the settings do not have."""
    if settings.uses_store:
        for stray in await strays_of(settings):
            log.warning("left behind", route=stray.route, what=stray.text)


async def set_up_routes(settings: Settings, whole: Settings) -> None:
    """Declare what the routes that come at a reload need: those in ``settings``. ``whole`` has the others, too.

    Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``.
    """
    declared = await asyncio.to_thread(declare_topology, settings, whole)
    if waiting := sorted({finding.part.route for finding in declared.found if finding.state is Standing.WAITS}):
        raise Refused(f"the target of new routes does not exist yet: {', '.join(waiting)}. Create it, and reload again")
    _log_declared(declared)


async def set_up_topology(settings: Settings, report: Report | None = None, again: bool = False) -> bool:
    """Declare what the routes need. Return whether part of it waits for a target topic.

    ``again``: do not log the warnings a second time. Raises ``TopologyMismatch`` and ``Refused``.
    """
    declared = await when_there(lambda: asyncio.to_thread(declare_topology, settings), report)
    _log_declared(declared if not again else declared._replace(warnings=[]))
    return any(finding.state is Standing.WAITS for finding in declared.found)


def _log_declared(declared: Declared) -> None:
    for finding in declared.found:
        if finding.state is Standing.MADE:
            log.info("declared", kind=finding.part.name.kind, name=finding.part.name.name, route=finding.part.route)
    for text in declared.warnings:
        log.warning("topology", what=text)


@asynccontextmanager
async def declaring_later(settings: Settings, waits: bool) -> AsyncIterator[None]:
    """While the block runs, if something ``waits`` for a target topic, create it as soon as that topic exists."""
    making = asyncio.ensure_future(_declare_later(settings)) if waits else None
    try:
        yield
    finally:
        if making is not None:
            making.cancel()


async def _declare_later(settings: Settings) -> None:
    waits = True
    while waits:
        await asyncio.sleep(_AGAIN_S)
        try:
            waits = await set_up_topology(settings, again=True)
        except PostdateError as error:
            log.warning("topology", what=str(error))
            return


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``. A signal that arrives before ``work`` handles signals itself cancels it, which is a regular end."""
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


async def _open_journal(settings: Settings, journal: Tables) -> None:
    """Check the journal. Make its tables where there are none; only `setup` upgrades them."""
    if settings.bridge.setup and await journal.is_new():
        await journal.create()
    await journal.open()


def _where(settings: Settings) -> dict[str, str]:
    used = dict.fromkeys(broker_of(route.broker).ends.address(settings) for route in settings.routes.values())
    store = {"store": mask_url(settings.redis.url.get_secret_value())} if settings.uses_store else {}
    return {**store, "broker": ", ".join(used)}
