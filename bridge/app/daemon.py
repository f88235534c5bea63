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
from bridge.app.start import making_what_waits, prepare, run_process, until_signal
from bridge.core.errors import FAILED, FINE, PostdateError, code_of
from bridge.process import notify
from bridge.process.report import Report
from bridge.process.workers import Handed, Workers, end_with_parent
from bridge.settings import ProcessPlan, Settings, plan
from bridge.telemetry import logs

log = structlog.get_logger("postdate")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

#: A worker that has not stopped by itself so long after its grace is killed.
_PATIENCE_S = 5.0
#: A loop may take so long for a turn, beside what its calls of the store may take.
_TURN_S = 30.0
#: Calls of the store in one turn: each may have to connect first, and may be tried on another server.
_CALLS = 4
#: A worker gives a sign of life to its parent twice in this, and is stuck when there is none for ``_TURN_S``.
_SIGN_S = 2.0


def run_daemon(settings: Settings) -> int:
    """Run until a signal; the exit code."""
    logs.set_up(settings.log)
    processes = plan(settings)
    if settings.bridge.workers == 1 and len(processes) == 1:
        report = _to_supervisor(_stuck_s(settings))
        work = run_process(processes[0], settings.bridge.setup, new_token(), report, settings)
        return _until_end(work, _loop_factory(), report)
    # No uvloop: this process only waits, and asyncio's own loop starts processes with every option there is.
    report = _to_supervisor(_TURN_S)
    return _until_end(_run_workers(settings, processes, report), None, report)


def _to_supervisor(stuck_s: float) -> Report:
    """What is told to the service manager that started this process, if one did."""
    watchdog_s = notify.watchdog_s(os.environ, os.getpid())
    if watchdog_s and not faulthandler.is_enabled():
        faulthandler.enable()  # the manager ends a stuck process with SIGABRT: say where it was stuck
    return Report(notify.supervisor(os.environ), watchdog_s, stuck_s)


def _stuck_s(settings: Settings) -> float:
    """A loop that makes no turn for so long is stuck, and not waiting for a store that is away."""
    redis = settings.redis
    return _TURN_S + _CALLS * (redis.timeout + redis.connect_timeout) / 1000


async def _run_workers(settings: Settings, processes: Sequence[ProcessPlan], report: Report) -> None:
    waits = await prepare(settings, processes, settings.bridge.setup, report)
    planned = [one for _ in range(settings.bridge.workers) for one in processes]
    pairs = [notify.pair() for _ in planned] if report.wanted else []
    lines = [Handed(hearing, telling.socket.fileno()) for hearing, telling in pairs]
    # The settings go through a pipe: what this process has checked is what the workers run with, whatever is in the
    # file by the time that one of them is started anew; and no secret stands on a command line.
    fds: list[int | None] = [line.telling for line in lines] if lines else [None] * len(planned)
    each = [pickle.dumps((one, os.getpid(), fd)) for one, fd in zip(planned, fds, strict=True)]
    # -P: or a folder named "bridge" in the directory where postdate was started would be imported in place of ours.
    command = (sys.executable, "-P", "-c", "from bridge.app.daemon import run_worker; run_worker()")
    patience_s = settings.bridge.shutdown_grace / 1000 + _PATIENCE_S
    async with making_what_waits(settings, waits):
        workers = Workers(command, each, patience_s, lines)
        report.of(workers)
        await workers.run()


def run_worker() -> None:
    """The whole life of a worker process; its settings stand on standard input."""
    process, parent, fd = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent, through a pipe of its own)
    end_with_parent(parent)
    settings, token = process.settings, new_token()
    logs.set_up(settings.log, instance_name(settings, token))
    report = Report(None if fd is None else notify.inherited(fd), _SIGN_S, _stuck_s(settings))
    sys.exit(_until_end(run_process(process, False, token, report), _loop_factory(), report))


def _until_end(work: Coroutine[Any, Any, None], loop_factory: LoopFactory | None, report: Report) -> int:
    """Run to the end, and tell how it is meanwhile; its exit code. A daemon's last word belongs into its log, in the
    log's own format."""
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
