"""The daemon's processes: one that does the work, or a parent and its workers."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from bridge.app.build import instance_name, new_token
from bridge.app.canary import with_canaries
from bridge.app.start import declaring_later, prepare, run_process, until_signal
from bridge.core.errors import FAILED, FINE, PostdateError, code_of
from bridge.process import notify
from bridge.process.report import Report
from bridge.process.workers import Handed, Workers, end_with_parent
from bridge.settings import ProcessPlan, Settings, plan
from bridge.telemetry import logs

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


def run_daemon(settings: Settings) -> int:
    """Run until a signal. Return the exit code."""
    logs.set_up(settings.log)
    processes = plan(settings)
    if settings.bridge.workers == 1 and len(processes) == 1:
        report = _to_supervisor(_stuck_s(settings))
        work = run_process(processes[0], settings.bridge.setup, new_token(), report, settings)
        return _until_end(work, _loop_factory(), report)
    # No uvloop: this process only waits, and only asyncio's own loop supports every option for subprocesses.
    report = _to_supervisor(_TURN_S)
    return _until_end(_run_workers(settings, processes, report), None, report)


def _to_supervisor(stuck_s: float) -> Report:
    """Return the report to the service manager that started this process, if one did."""
    watchdog_s = notify.watchdog_s(os.environ, os.getpid())
    if watchdog_s and not faulthandler.is_enabled():
        faulthandler.enable()  # systemd ends a stuck process with SIGABRT: print where it was
    return Report(notify.supervisor(os.environ), watchdog_s, stuck_s)


def _stuck_s(settings: Settings) -> float:
    """Return the seconds after which a loop without a pass is stuck, and not waiting for an unreachable store."""
    redis = settings.redis
    return _TURN_S + _CALLS * (redis.timeout + redis.connect_timeout) / 1000


async def _run_workers(settings: Settings, processes: Sequence[ProcessPlan], report: Report) -> None:
    waits = await prepare(settings, processes, settings.bridge.setup, report)
    processes = await with_canaries(settings, processes)
    planned = [one for _ in range(settings.bridge.workers) for one in processes]
    pairs = [notify.pair() for _ in planned] if report.wanted else []
    lines = [Handed(hearing, telling.socket.fileno()) for hearing, telling in pairs]
    # The settings go through a pipe: a restarted worker runs with the settings that were checked, even if the file has
    # changed, and no secret appears on a command line.
    fds: list[int | None] = [line.telling for line in lines] if lines else [None] * len(planned)
    each = [pickle.dumps((one, os.getpid(), fd)) for one, fd in zip(planned, fds, strict=True)]
    # -P: otherwise a folder named "bridge" in the current directory would be imported instead of ours.
    command = (sys.executable, "-P", "-c", "from bridge.app.daemon import run_worker; run_worker()")
    patience_s = settings.bridge.shutdown_grace / 1000 + _PATIENCE_S
    async with declaring_later(settings, waits):
        workers = Workers(command, each, patience_s, lines)
        report.of(workers)
        await workers.run()


def run_worker() -> None:
    """Run a worker process with the plan on its standard input, and exit."""
    process, parent, fd = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent, through a pipe of its own)
    end_with_parent(parent)
    settings, token = process.settings, new_token()
    logs.set_up(settings.log, instance_name(settings, token))
    report = Report(None if fd is None else notify.inherited(fd), _SIGN_S, _stuck_s(settings))
    sys.exit(_until_end(run_process(process, False, token, report), _loop_factory(), report))


def _until_end(work: Coroutine[Any, Any, None], loop_factory: LoopFactory | None, report: Report) -> int:
    """Run ``work`` to its end, and report meanwhile. Log the error that ended it. Return the exit code."""
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(until_signal(report.telling(work)))
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
