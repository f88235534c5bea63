"""Options and fixtures of all tests; the servers' fixtures are in tests/devstack/fixtures.py."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import time
from types import FunctionType
from typing import Any, Never

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

pytest_plugins = ["tests.devstack.fixtures"]

#: What `--fast` leaves out.
NOT_FAST = frozenset({"rabbitmq", "redis", "kafka", "slow", "long"})

# A machine that is busy with something else must not fail a test: slowness is measured, not asserted.
settings.register_profile("postdate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("postdate"), max_examples=20)
settings.load_profile("postdate")

# A run in the background of a script inherits "ignore SIGINT", and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests without servers, processes and pauses")
    parser.addoption("--backwards", action="store_true", help="the last test first: finds those that need another one")


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected: little of it is garbage
    if config.getoption("--fast"):
        settings.load_profile("fast")
        # Hypothesis would first read every file of postdate for constants to try: half of the time of this tier.
        vars(providers)["_get_local_constants"] = Constants
        for plugin in config.pluginmanager.get_plugins():
            if type(plugin).__name__ == "WorkerInteractor":
                tell_less(plugin)


def tell_less(worker: Any) -> None:
    """Let a worker of pytest-xdist send results and failures only: all six events of a test cost a tenth of the tier.

    So ``--durations`` with ``-n`` lists no setup and no teardown.
    """
    send = worker.sendevent

    def sendevent(name: str, **event: Any) -> None:
        if name == "testreport":
            dull = event["data"]["outcome"] == "passed" and event["data"]["when"] != "call"
        else:
            dull = name in ("logstart", "logfinish")
        if not dull:
            send(name, **event)

    worker.sendevent = sendevent


def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, obj: object) -> list[pytest.Item] | None:
    """Leave out early what ``--fast`` leaves out as a whole: it would be a tenth of the collection."""
    if collector.config.getoption("--fast") and isinstance(obj, type | FunctionType):
        marks = (*collector.iter_markers(), *getattr(obj, "pytestmark", ()))
        return [] if any(mark.name in NOT_FAST for mark in marks) else None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        left_out = {item for item in items if any(mark.name in NOT_FAST for mark in item.iter_markers())}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    if config.getoption("--backwards"):
        items.reverse()


def pytest_collection_finish() -> None:
    """Keep what the collection made out of each later collection of garbage: it lives as long as the process."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)  # a seventh of the fast tier's time went into collections
    gc.enable()


@pytest.hookimpl(trylast=True)  # the fixtures of the session are torn down before
def pytest_sessionfinish() -> None:
    """Keep what the session leaves out of the five collections that pytest makes at its end."""
    gc.collect()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def without_processes_if_fast(pytestconfig: pytest.Config) -> None:
    """Fail a test that starts a process in the fast tier, so that its author marks it."""
    if pytestconfig.getoption("--fast"):

        def refuse(*arguments: object, **options: object) -> Never:
            pytest.fail("starts a process: mark it slow, or with the servers that it needs")

        vars(subprocess)["Popen"] = refuse


@pytest.fixture
async def leaping_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waits take no time: where nothing is ready, time leaps to the next timer of the loop.

    For tests that wait for time alone. Sockets and threads would lose every race against a timer.
    """
    selector: Any = vars(asyncio.get_running_loop())["_selector"]
    select, monotonic, leapt_s = selector.select, time.monotonic, 0.0

    def leap(timeout_s: float | None = None) -> Any:
        nonlocal leapt_s
        leapt_s += timeout_s or 0.0
        return select(None if timeout_s is None else 0)

    monkeypatch.setattr(selector, "select", leap)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + leapt_s)
