"""The daemon's processes: one that does the work, or a parent and its workers."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from socket import socket
from typing import Any, NamedTuple

import structlog

from bridge.app.build import instance_name
from bridge.app.set_up import BrokerStep, StoreStep, log_strays, set_up_routes, under_way
from bridge.app.start import log_start, run_process, until_signal
from bridge.core.errors import FAILED, FINE, PostdateError, code_of
from bridge.parking.identity import new_instance
from bridge.process import notify
from bridge.process.frames import FrameLine, line_pair
from bridge.process.handover import Handover, packed
from bridge.process.http_child import HttpChild
from bridge.process.live import LiveListener
from bridge.process.reload import Reloader, RouteSteps
from bridge.process.report import Report
from bridge.process.workers import PARENT_DIED, Handed, Workers, end_with_parent, python_command
from bridge.settings import ProcessPlan, Settings, plan
from bridge.settings.process_plan import replanned
from bridge.telemetry import logs
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

#: A worker that still runs this long after its grace period is killed.
_PATIENCE_S = 5.0
#: The longest pass of a loop, without its calls to the store.
_TURN_S = 30.0
#: Calls to the store in one pass: each may have to connect first, and may be repeated on another server.
_CALLS = 4
#: A worker sends two signs of life in this time, and counts as stuck after ``_TURN_S`` without one.
_SIGN_S = 2.0
_STEPS = RouteSteps(set_up_routes, log_strays)


def run_daemon(settings: Settings, read: Callable[[], Settings]) -> int:
    """Run until a signal. Return the exit code. ``read`` reads all settings again, for a reload."""
    logs.set_up(settings.log)
    processes = plan(settings)
    health = Health()
    if settings.bridge.workers == 1 and len(processes) == 1:
        beside = Beside(settings, 1, health)
        report = _to_supervisor(_stuck_s(settings), beside)
        work = run_process(processes[0], new_instance(), report, health, settings)
        reloader = Reloader(settings, read, report, beside.child, _set_up_logs, _STEPS)
        return _until_end(beside.around(report.telling(work), reloader, report.not_alive), _loop_factory())
    # No uvloop: this process only waits, and only asyncio's own loop supports every option for subprocesses.
    beside = Beside(settings, 1 + settings.bridge.workers * len(processes), health)
    report = _to_supervisor(_TURN_S, beside)
    work = _run_workers(settings, processes, report, beside, health)
    reloader = Reloader(settings, read, report, beside.child, _set_up_logs, _STEPS)
    return _until_end(beside.around(report.telling(work), reloader, report.not_alive), None)


def _set_up_logs(settings: Settings, name: str = "") -> None:
    logs.set_up(settings.log, name)


class Beside:
    """The HTTP process beside the others, and the lines to it: the first for this process, one for each worker. And the
    address of this process's own that answers /livez."""

    def __init__(self, settings: Settings, lines: int, health: Health) -> None:
        self.child: HttpChild | None = None
        self._live_listen, self._health = settings.http.live_listen, health
        self._pairs = [line_pair() for _ in range(lines)] if settings.http.enabled else []
        if self._pairs:
            self.child = HttpChild(settings, [line for line, _ in self._pairs], partial(health.say, Subject("http")))

    def telling(self) -> list[socket]:
        """Return the ends of the lines that tell; none without HTTP."""
        return [telling for _, telling in self._pairs]

    async def around(self, work: Coroutine[Any, Any, None], reloader: Reloader, not_alive: Callable[[], str]) -> None:
        """Do ``work``, and serve HTTP from before its start until after its end. React to SIGHUP."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _on_hangup(reloader))
        if self.child is None:
            await work
            return
        keeping = [asyncio.ensure_future(self.child.run())]
        if self._live_listen:
            live = LiveListener(self._live_listen, not_alive, partial(self._health.say, Subject("liveness")))
            keeping.append(asyncio.ensure_future(live.run()))
        try:
            await work
        finally:
            for keeper in keeping:
                keeper.cancel()
            await self.child.leave()


def _on_hangup(reloader: Reloader) -> Callable[[], None]:
    """Return what to do at SIGHUP: reload, or end as at SIGTERM where the terminal was closed.

    Standard input is no terminal any more then. While it is one, `kill -HUP` and the API's reload work as elsewhere.
    """
    on_terminal = os.isatty(0)

    def hung_up() -> None:
        if on_terminal and not os.isatty(0):
            asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the shell and the kernel may both send it
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            reloader.ask()

    return hung_up


def _to_supervisor(stuck_s: float, beside: Beside) -> Report:
    """Return the report to the service manager that started this process, if one did."""
    watchdog_s = notify.watchdog_s(os.environ, os.getpid())
    if watchdog_s and not faulthandler.is_enabled():
        faulthandler.enable()  # systemd ends a stuck process with SIGABRT: print where it was
    frames = FrameLine(beside.telling()[0]) if beside.telling() else None
    return Report(notify.supervisor(os.environ), watchdog_s, stuck_s, frames=frames)


def _stuck_s(settings: Settings) -> float:
    """Return the seconds after which a loop without a pass is stuck, and not waiting for an unreachable store."""
    redis = settings.redis
    return _TURN_S + _CALLS * (redis.timeout + redis.connect_timeout) / 1000


async def _run_workers(
    settings: Settings, processes: Sequence[ProcessPlan], report: Report, beside: Beside, health: Health
) -> None:
    log_start(settings)
    brokers = {kind: BrokerStep(settings, kind) for kind in {process.broker: None for process in processes}}
    stores = [StoreStep(settings, processes)] if settings.uses_store else []
    planned = [process for _ in range(settings.bridge.workers) for process in processes]
    watched = report.wanted or bool(settings.http.live_listen)
    pairs = [notify.pair() for _ in planned] if watched else []
    lines = [Handed(hearing, telling.socket.fileno()) for hearing, telling in pairs]
    # The settings go through a pipe: a restarted worker runs with the settings that were checked, even if the file has
    # changed, and no secret appears on a command line.
    fds: list[int | None] = [line.telling for line in lines] if lines else [None] * len(planned)
    telling = [end.fileno() for end in beside.telling()[1:]]
    ends: list[int | None] = [*telling] if telling else [None] * len(planned)

    def handed() -> list[bytes]:
        plans = zip(planned, fds, ends, strict=True)
        return [packed(Plan(process, os.getpid(), *two)) for process, *two in plans]

    async def before(number: int) -> bytes:
        broker = brokers[planned[number - 1].broker]
        needed = [*stores, broker] if planned[number - 1].stored else [broker]
        await asyncio.gather(*(step.tried() for step in needed))
        planned[number - 1] = broker.planned(planned[number - 1])
        return handed()[number - 1]

    command = python_command("bridge.app.daemon", "run_worker")
    patience_s = settings.bridge.shutdown_grace / 1000 + _PATIENCE_S
    async with under_way([*stores, *brokers.values()]) as run:
        workers = Workers(command, handed(), patience_s, lines, telling, health, before)

        def follow(new: Settings) -> None:
            planned[:] = [replanned(process, new) for process in planned]
            workers.hand(handed(), packed(new))

        workers.on_reload = follow
        report.of(workers)
        await run(workers)


class Plan(NamedTuple):
    """What a worker is handed. The numbers are file descriptors that it inherits: its lines to the parent and to the
    HTTP process."""

    process: ProcessPlan
    parent: int
    notify_fd: int | None
    frames_fd: int | None


def run_worker() -> None:
    """Run a worker process with the plan on its standard input, and exit."""
    handover = Handover()
    handed: Plan = handover.first()
    end_with_parent(handed.parent, PARENT_DIED)
    settings, token = handed.process.settings, new_instance()
    logs.set_up(settings.log, instance_name(settings, token))
    line = None if handed.notify_fd is None else notify.inherited(handed.notify_fd)
    frames = None if handed.frames_fd is None else FrameLine(socket(fileno=handed.frames_fd))
    report = Report(line, _SIGN_S, _stuck_s(settings), frames=frames)
    work = run_process(handed.process, token, report, Health())

    def reload(new: Settings) -> None:
        _set_up_logs(new, instance_name(settings, token))
        report.follow(new)

    async def following() -> None:
        handover.follow(reload)
        await report.telling(work)

    sys.exit(_until_end(following(), _loop_factory()))


def _until_end(work: Coroutine[Any, Any, None], loop_factory: LoopFactory | None) -> int:
    """Run ``work`` to its end. Log the error that ended it. Return the exit code."""
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(until_signal(work))
    except PostdateError as error:
        log.critical("cannot go on", because=str(error))
        return code_of(error)
    except Exception:
        log.critical("a mistake in postdate", exc_info=True)
        return FAILED
    return FINE


def _loop_factory() -> LoopFactory | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
