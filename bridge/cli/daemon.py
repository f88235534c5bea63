"""The daemon's processes: one that does the work, or a parent and its workers."""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import structlog

from bridge import logs
from bridge.app import instance_name, new_token
from bridge.cli.exits import FAILED, FINE, code_of
from bridge.cli.start import making_what_waits, prepare, run_process, until_signal
from bridge.errors import PostdateError
from bridge.settings import Settings
from bridge.workers import Workers, end_with_parent

log = structlog.get_logger("postdate")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]

#: A worker that has not stopped by itself so long after its grace is killed.
_PATIENCE_S = 5.0


def run_daemon(settings: Settings) -> int:
    """Run until a signal; the exit code."""
    logs.set_up(settings.log)
    houses = settings.houses()
    if settings.bridge.workers == 1 and len(houses) == 1:
        return _until_end(run_process(houses[0], settings.bridge.setup, new_token(), settings), _loop_factory())
    # No uvloop: this process only waits, and asyncio's own loop starts processes with every option there is.
    return _until_end(_run_workers(settings, houses), None)


async def _run_workers(settings: Settings, houses: Sequence[Settings]) -> None:
    waits = await prepare(settings, houses, settings.bridge.setup)
    # The settings go through a pipe: what this process has checked is what the workers run with, whatever is in the
    # file by the time that one of them is started anew; and no secret stands on a command line.
    each = [pickle.dumps((house, os.getpid())) for house in houses]
    # -P: or a folder named "bridge" in the directory where postdate was started would be imported in place of ours.
    command = (sys.executable, "-P", "-c", "from bridge.cli.daemon import run_worker; run_worker()")
    patience_s = settings.bridge.shutdown_grace / 1000 + _PATIENCE_S
    async with making_what_waits(settings, waits):
        await Workers(command, each * settings.bridge.workers, patience_s).run()


def run_worker() -> None:
    """The whole life of a worker process; its settings stand on standard input."""
    settings, parent = pickle.load(sys.stdin.buffer)  # noqa: S301 (from our own parent, through a pipe of its own)
    end_with_parent(parent)
    token = new_token()
    logs.set_up(settings.log, instance_name(settings, token))
    sys.exit(_until_end(run_process(settings, False, token), _loop_factory()))


def _until_end(work: Coroutine[Any, Any, None], loop_factory: LoopFactory | None) -> int:
    """Run to the end; its exit code. A daemon's last word belongs into its log, in the log's own format."""
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
