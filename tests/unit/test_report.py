"""What the service manager is told: the datagrams, and that a sign of life stands for loops that turn."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.memory import MemoryStore
from bridge.core.errors import StoreUnavailable
from bridge.process import notify
from bridge.process.report import PATIENCE_S, ProcessReport, Report, StuckLoops
from bridge.settings import Settings
from tests.unit.house import House, turns

WATCHDOG_S = 10.0
STUCK_S = 30.0


@pytest.fixture(params=["a path", "an abstract address"])
def supervisor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """What NOTIFY_SOCKET says, and the socket behind it."""
    path = str(tmp_path / "notify")
    abstract = request.param != "a path"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("\0" + path if abstract else path)
        bound.setblocking(False)
        yield ("@" + path if abstract else path), bound


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, notify.NotifyLine]]:
    hearing, telling = notify.pair()
    with hearing, telling.socket:
        yield hearing, telling


class Subject:
    """A process whose loops do what the test says."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.is_up = True
        self.says = "All well."
        self.turns: dict[str, object] = {"dispatch": 1}

    def report(self) -> ProcessReport:
        return ProcessReport(self.is_up, self.says, dict(self.turns), peers={"redis": self.is_up})

    def follow(self, settings: Settings) -> None:
        pass


def test_a_stuck_loop_and_a_report_that_nothing_makes_are_not_alive() -> None:
    report, subject = Report(None, 0, STUCK_S), Subject()
    report.of(subject)
    now_s = time.monotonic()
    report.look(now_s)
    assert report.not_alive() == ""
    report.look(now_s + STUCK_S + 1)
    assert report.not_alive() == "the loop of dispatch makes no progress"
    subject.turns["dispatch"] = 2
    report.look(now_s - 100)
    assert report.not_alive().startswith("nothing has looked at the loops")


def test_a_datagram_reaches_the_socket_that_the_environment_names(supervisor: tuple[str, socket.socket]) -> None:
    address, bound = supervisor
    told = notify.supervisor({"NOTIFY_SOCKET": address})
    assert told is not None
    with told.socket:
        assert told.tell("READY")
        assert told.tell("STATUS", "two\nlines \ud800" + "x" * 5000)
        assert bound.recv(9000) == b"READY=1"
        assert bound.recv(9000).startswith(b"STATUS=two lines ?xxx")


@pytest.mark.parametrize("address", ["", "@", "/", "relative", "vsock:2:1234"])
def test_nothing_is_told_where_the_environment_names_no_socket(address: str) -> None:
    assert notify.supervisor({"NOTIFY_SOCKET": address}) is None
    assert notify.supervisor({}) is None


def test_a_supervisor_that_is_gone_is_no_error(tmp_path: Path) -> None:
    told = notify.supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert told is not None
    with told.socket:
        assert not told.tell("READY")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "8"}, 0.0),
        ({"WATCHDOG_USEC": "soon"}, 0.0),
    ],
)
def test_the_watchdog_is_that_of_this_process(environ: dict[str, str], seconds: float) -> None:
    assert notify.watchdog_s(environ, 7) == seconds


async def test_ready_alive_and_the_health_sentence_are_told(line: tuple[socket.socket, notify.NotifyLine]) -> None:
    hearing, telling = line
    report, subject = Report(telling, WATCHDOG_S, STUCK_S), Subject()
    start = report.started_s + PATIENCE_S
    report.look(start)
    assert notify.heard(hearing) == [("READY", "1"), ("STATUS", "Starting."), ("WATCHDOG", "1")]
    report.of(subject)
    subject.says = "messages wait."
    report.look(start + 1)
    report.look(start + 4.9)
    assert notify.heard(hearing) == [("STATUS", "messages wait.")]
    subject.turns["dispatch"] = 2
    report.look(start + 5)
    assert notify.heard(hearing) == [("WATCHDOG", "1")]


async def test_ready_is_told_when_all_is_there_or_after_a_while_with_what_is_missing(
    line: tuple[socket.socket, notify.NotifyLine],
) -> None:
    hearing, telling = line
    report = Report(telling, 0.0, STUCK_S)
    started = report.started_s
    report.waits("redis", "Redis does not answer")
    report.look(started + 9)
    assert notify.heard(hearing) == [("STATUS", "Waiting for Redis: Redis does not answer.")]
    report.look(started + 10)
    assert notify.heard(hearing) == [("READY", "1")]
    report = Report(telling, 0.0, STUCK_S)
    report.of(Subject())
    report.look(started + 1)
    assert ("READY", "1") in notify.heard(hearing)


async def test_there_is_no_sign_of_life_while_a_loop_stands_still(
    line: tuple[socket.socket, notify.NotifyLine],
) -> None:
    hearing, telling = line
    report, subject = Report(telling, WATCHDOG_S, STUCK_S), Subject()
    subject.turns["park"] = None
    report.of(subject)
    for now_s in range(1000, 1100, 5):
        subject.turns["dispatch"] = now_s if now_s < 1040 else "stuck"
        report.look(now_s)
    told = notify.heard(hearing)
    assert told.count(("WATCHDOG", "1")) == 15  # 1000 to 1070: 30 s after its last turn at 1040 it is stuck
    assert told[-1] == ("STATUS", "The loop of dispatch makes no progress. All well.")
    subject.turns["dispatch"] = "turns again"
    report.look(1100)
    assert ("WATCHDOG", "1") in notify.heard(hearing)


def test_a_loop_that_has_nothing_to_do_is_not_stuck() -> None:
    still = StuckLoops(STUCK_S)
    assert not any(still.stuck({"park": None, "dispatch": now_s}, now_s) for now_s in range(0, 1000, 5))
    assert not still.stuck({"park": 1}, 1000)
    assert not still.stuck({"park": None}, 1020)
    assert not still.stuck({"park": 1}, 1040)
    assert still.stuck({"park": 1}, 1071) == "park"


async def test_stopping_is_told_at_once_and_the_signs_of_life_go_on(
    line: tuple[socket.socket, notify.NotifyLine],
) -> None:
    hearing, telling = line
    report, subject = Report(telling, 0.06, 0.0), Subject()
    report.of(subject)
    told: list[tuple[str, str]] = []

    async def work() -> None:
        await asyncio.sleep(0.05)
        subject.stopping.set()
        while told.count(("WATCHDOG", "1")) < 3:
            await asyncio.sleep(0.01)
            told.extend(notify.heard(hearing))

    async with asyncio.timeout(10):
        await report.telling(work())
    assert told.count(("STOPPING", "1")) == 1
    assert told.index(("STOPPING", "1")) < len(told) - 1


async def test_without_a_supervisor_nothing_runs_beside_the_work() -> None:
    async def work() -> None:
        assert len(asyncio.all_tasks()) == 1

    await Report(None, WATCHDOG_S, STUCK_S).telling(work())


# -- the loops of the house -----------------------------------------------------------------------------------------


class Away(MemoryStore):
    """A store that hangs, or is away, for as long as a test says."""

    how = ""

    async def claim(self, *given: object, **named: object) -> object:  # type: ignore[override]
        await self._trouble()
        return await super().claim(*given, **named)  # type: ignore[arg-type]

    async def park(self, *given: object, **named: object) -> object:  # type: ignore[override]
        await self._trouble()
        return await super().park(*given, **named)  # type: ignore[arg-type]

    async def _trouble(self) -> None:
        if self.how == "hangs":
            await asyncio.Event().wait()
        if self.how == "is away":
            raise StoreUnavailable("Redis does not answer")


async def marks_of(how: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], list[object]]:
    """What the two loops show, again and again, with a store like that and a message on its way in."""
    monkeypatch.setattr("bridge.telemetry.reconnect.MAX_S", 0.001)
    monkeypatch.setattr("tests.unit.house.MemoryStore", Away)
    house = House()
    assert isinstance(house.store, Away)
    house.store.how = how
    loops = [asyncio.ensure_future(loop) for loop in (house.parker.run(), house.claimer.run())]
    house.publish("one")
    parks: list[object] = []
    dispatches: list[object] = []
    try:
        for _ in range(20):
            await asyncio.sleep(0.02)
            await turns()
            house.wake.nudge()
            parks.append(house.parker.mark())
            dispatches.append(house.claimer.mark())
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
    return parks[5:], dispatches[5:]


@pytest.mark.usefixtures("leaping_time")
async def test_a_loop_whose_store_call_never_ends_shows_that_it_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    parks, dispatches = await marks_of("hangs", monkeypatch)
    assert len(set(parks)) == len(set(dispatches)) == 1
    assert None not in (*parks, *dispatches)


@pytest.mark.usefixtures("leaping_time")
async def test_a_store_that_is_away_is_no_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    parks, dispatches = await marks_of("is away", monkeypatch)
    assert len(set(parks)) > 3
    assert len(set(dispatches)) > 3


@pytest.mark.usefixtures("leaping_time")
async def test_a_parker_with_nothing_to_park_has_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    parks, dispatches = await marks_of("", monkeypatch)
    assert set(parks) == {None}
    assert len(set(dispatches)) > 3
