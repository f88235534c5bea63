"""Start and run one process, and wait for a store that does not answer yet.

A daemon that exits because its store starts a minute later only moves the waiting to its supervisor. So it waits, logs
that once, and exits only for what no waiting cures: wrong settings, an unfit store, a different topology.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

import structlog

from bridge.app.brokers import RedisStore, broker_of, open_journal, open_store
from bridge.app.build import begin_logs, build, build_without_store, instance_name
from bridge.app.set_up import BrokerStep, log_strays, under_way, when_there
from bridge.app.survey import emptying
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import Tables
from bridge.core.ports import InstanceStore
from bridge.process.loops import Running
from bridge.process.members import BEAT_S
from bridge.process.report import Report
from bridge.settings import ProcessPlan, Settings, exposed_files, mask_url
from bridge.telemetry.health import Health

log = structlog.get_logger("postdate")
T = TypeVar("T")

#: How long it may take to sign off from the store, and after which a signal that ended nothing comes again.
_LEAVE_S, _AGAIN_S = 2.0, 3.0


async def run_process(
    process: ProcessPlan, token: str, report: Report, health: Health, whole: Settings | None = None
) -> None:
    """Open the store, let the broker be set up, and run until a signal.

    ``token`` identifies the process. ``report`` tells the supervisor how it is. ``whole``: all settings, if no parent
    sets the broker up.
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
        await _serve(process, report, whole, lambda _: build_without_store(process, health, left))
        return
    store, journal = open_store(settings, clock, instance), open_journal(process)
    try:
        await _open(settings, store, report)
        async with _announced(store, settings.dispatch.takeover, report):
            if journal is not None:
                await _when_there(partial(_open_journal, settings, store, journal), report, "journal")
            await _when_there(partial(begin_logs, settings, store, journal), report)
            orders = await _when_there(store.orders, report)  # a paused route must not deliver until the first beat
            if whole is not None:
                await log_strays(whole)
            await _serve(
                process,
                report,
                whole,
                lambda planned: build(planned, store, orders, clock, instance, token, health, journal),
            )
    finally:
        await store.close()
        if journal is not None:
            await journal.close()


async def _serve(
    process: ProcessPlan, report: Report, whole: Settings | None, make: Callable[[ProcessPlan], Running]
) -> None:
    """Try to set the broker up, ``make`` the service of the process, and run it until a signal."""
    steps = [] if whole is None else [BrokerStep(whole, process.broker)]
    async with under_way(steps) as run:
        for step in steps:
            await step.tried()
            process = step.planned(process)
        service = make(process)
        log.info("started")
        _calm_collector()
        report.of(service)
        await run(service)


@asynccontextmanager
async def _announced(store: InstanceStore, ttl_ms: int, report: Report) -> AsyncIterator[None]:
    """Until the process has loops, which do the same, list it in the store with what it waits for."""

    async def announce() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if not report.starting:
                return
            known = {"broker": report.broker, **report.now().in_store(), "takeover_ms": ttl_ms}
            with suppress(StoreUnavailable):
                await store.meet(ttl_ms, False, json.dumps(known))

    announcing = asyncio.ensure_future(announce())
    try:
        yield
    finally:
        announcing.cancel()
        await asyncio.wait([announcing])
        if report.starting:
            with suppress(StoreUnavailable, TimeoutError):
                await asyncio.wait_for(store.meet(0, False, "{}"), _LEAVE_S)


async def _when_there(attempt: Callable[[], Awaitable[T]], report: Report, server: str = "redis") -> T:
    """Repeat ``attempt`` until the server answers, and report meanwhile what the process waits for."""
    found = await when_there(attempt, partial(report.waits, server))
    report.waits(server, "")
    return found


def _calm_collector() -> None:
    """Make Python's cycle collector run less often. By default it runs every 700 new objects, which is every few
    milliseconds here, and finds nothing: messages are freed by their reference counts."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def log_start(settings: Settings) -> None:
    """Log that the workers are starting, and which files others can read."""
    log.info(
        "starting",
        version=version("postdate"),
        workers=settings.bridge.workers,
        routes=sorted(settings.routes),
        **_where(settings),
    )
    _warn_of_files(settings)


def _warn_of_files(settings: Settings) -> None:
    for text in exposed_files(settings):
        log.warning("settings", what=text)


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work``. A signal that arrives before ``work`` handles signals itself cancels it, which is a regular end.

    redis-py sometimes swallows a cancellation. So the signal is raised again after ``_AGAIN_S`` if ``work`` still runs:
    its handler of that moment gets it.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)

    def stop(number: int) -> None:
        task.cancel()
        loop.call_later(_AGAIN_S, again, number)

    def again(number: int) -> None:
        if not task.done():
            signal.raise_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    with suppress(asyncio.CancelledError):
        await task


async def _open(settings: Settings, store: Any, report: Report) -> None:
    redis = settings.redis
    words = await _when_there(lambda: store.open(redis.durability, redis.replicas, redis.timeout), report)
    for text in words:
        log.warning("store", what=text)


async def _open_journal(settings: Settings, store: RedisStore, journal: Tables) -> None:
    """Check the journal. Make the tables of a new one; only `setup` upgrades them. Where Redis logs its moves for a
    journal, that one was moved, or the settings name another: its messages must not wait without a row."""
    if settings.bridge.setup and await journal.is_new() and not await store.moves.begun():
        await journal.create()
    await journal.open()


def _where(settings: Settings) -> dict[str, str]:
    used = dict.fromkeys(broker_of(route.broker).ends.address(settings) for route in settings.routes.values())
    store = {"store": mask_url(settings.redis.url.get_secret_value())} if settings.uses_store else {}
    return {**store, "broker": ", ".join(used)}
