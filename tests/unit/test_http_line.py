"""What the HTTP process makes of frames: alive, ready, and numbers that never go back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from bridge.http.line import SILENT_S, Frame, Processes, read_frame
from bridge.operate.verdict import STALE_S
from bridge.process.frames import FrameLine, line_pair
from bridge.telemetry.metrics import Metrics, added
from bridge.telemetry.subject import Subject
from tests.api import api

UP = {"redis": True, "rabbitmq": True}


class Moment:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def frame(name: str = "a", at_s: float = 100.0, **more: Any) -> Frame:
    return Frame(**{"process": name, "broker": "rabbitmq", "state": "running", **more}, heard_s=at_s)


def test_a_process_that_runs_with_all_connections_is_ready() -> None:
    processes = Processes(1, Moment())
    assert processes.not_ready() == [("processes", "not all processes have started")]
    assert not processes.started()
    processes.take(0, frame(peers=UP))
    assert processes.not_ready() == []
    assert processes.started()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"state": "starting"}, ("a", "it is starting")),
        ({"state": "stopping", "peers": UP}, ("a", "it is stopping")),
        (
            {
                "state": "starting",
                "peers": {"journal": False},
                "troubles": {Subject("journal"): "waiting for the journal: no answer"},
            },
            ("journal", "waiting for the journal: no answer"),
        ),
        ({"peers": {**UP, "redis": False}}, ("redis", "not connected in instance a")),
        ({"peers": {**UP, "rabbitmq": False}}, ("rabbitmq", "not connected, or not consumed, in instance a")),
    ],
)
def test_what_is_missing_is_named_and_startup_stays_done(more: dict[str, Any], expected: tuple[str, str]) -> None:
    processes = Processes(1, Moment())
    processes.take(0, frame(peers=UP))
    processes.take(0, frame(**more))
    assert processes.not_ready() == [expected]
    assert processes.started()
    assert processes.not_alive() == ""


def test_a_stuck_loop_and_a_silent_process_are_not_alive() -> None:
    now = Moment()
    processes = Processes(2, now)
    processes.take(0, frame("a", peers=UP))
    processes.take(1, frame("b", peers=UP))
    assert processes.not_alive() == ""
    processes.take(1, frame("b", peers=UP, stuck="claim"))
    assert processes.not_alive() == "the loop of claim makes no progress in b"
    processes.take(1, frame("b", peers=UP))
    now.now_s += SILENT_S + 1
    processes.take(0, frame("a", now.now_s, peers=UP))
    assert processes.not_alive().startswith("b has reported nothing")
    processes.take(1, frame("b", now.now_s - STALE_S, peers=UP))
    assert processes.not_alive() == ""
    assert processes.not_ready() == [("b", f"it has reported nothing for {STALE_S:.0f} s")], "as the verdict says"


def test_workers_that_wait_for_their_parent_are_alive_and_missing_ones_are_not() -> None:
    now = Moment()
    processes = Processes(2, now)
    processes.take(0, frame("parent", state="starting"))
    now.now_s += 100
    processes.take(0, frame("parent", now.now_s, state="starting"))
    assert processes.not_alive() == ""
    processes.take(0, frame("parent", now.now_s))
    assert processes.not_alive().startswith("a process has reported nothing")


def test_an_overdue_canary_is_not_ready() -> None:
    processes = Processes(1, Moment())
    processes.take(0, frame(peers=UP))
    processes.canary = lambda: "no canary came back"
    assert processes.not_ready() == [("canary", "no canary came back")]


def test_the_numbers_of_a_worker_that_was_replaced_are_kept() -> None:
    processes = Processes(2, Moment())
    processes.take(0, frame("a", metrics={"routes": {"orders": {"received": 5, "dead": {"loop": 1}}}}))
    processes.take(1, frame("b", metrics={"routes": {"orders": {"received": 2, "dead": {}}}}))
    processes.take(0, frame("a", metrics={"routes": {"orders": {"received": 6, "dead": {"loop": 1}}}}))
    processes.take(0, frame("a2", metrics={"routes": {"orders": {"received": 1, "dead": {"early": 1}}}}))
    assert processes.totals() == {"routes": {"orders": {"received": 9, "dead": {"loop": 1, "early": 1}}}}


def test_snapshots_of_the_same_process_kind_can_be_added() -> None:
    ours, other = Metrics(["orders"]), Metrics(["orders"])
    for metrics in (ours, other):
        metrics.routes["orders"].lateness_ms.add(3.0)
        metrics.routes["canary"].received += 1
        metrics.parked(["orders", "orders"])
    total: Any = added(ours.as_json(), other.as_json())
    assert total["routes"]["orders"]["parked"] == 4
    assert total["routes"]["orders"]["lateness_ms"] == [0, 0, 2, *[0] * 14, 6.0]
    assert list(total["routes"]) == ["orders"]


def test_a_line_that_a_restart_cut_is_no_frame() -> None:
    whole = json.dumps({"process": "a", "broker": "", "state": "running", "new": 1}).encode()
    assert read_frame(whole, 7.0) == Frame("a", "", "running", heard_s=7.0)
    assert read_frame(whole[5:], 7.0) is None
    assert read_frame(b"[1]", 7.0) is None
    assert read_frame(b"\n", 7.0) is None


async def test_a_sender_never_waits_and_a_new_reader_finds_the_next_frame() -> None:
    hearing, telling = line_pair()
    line, big = FrameLine(telling), {"state": "x" * 100_000}
    taken = [line.tell(big) for _ in range(50)]
    assert not taken[-1], "frames are dropped while nothing reads"
    processes = Processes(1)
    task = asyncio.ensure_future(processes.hear([hearing]))
    frame = {"process": "a", "broker": "", "state": "running"}
    for _ in range(500):
        line.tell(frame)
        if processes.frames():
            break
        await asyncio.sleep(0.01)
    assert processes.frames()[0].state == "running"
    telling.close()
    await task


async def test_a_process_that_takes_over_a_line_ends_the_cut_frame_of_the_one_before() -> None:
    hearing, telling = line_pair()
    telling.send(b'{"process": "old", "sta')
    FrameLine(telling).tell({"process": "a", "broker": "", "state": "running"})
    processes = Processes(1)
    task = asyncio.ensure_future(processes.hear([hearing]))
    for _ in range(500):
        if processes.frames():
            break
        await asyncio.sleep(0.01)
    assert processes.frames()[0].process == "a"
    telling.close()
    await task


async def test_health_names_nothing_without_a_token() -> None:
    async with api(None, processes=Processes(1)) as client:
        told = await client.client.get("/readyz?verbose&route=orders")
        assert told.text == "not ok\n"
        assert (await client.client.get("/livez?verbose")).text == "ok\n"
        assert (await client.client.get("/readyz?route=unknown")).status_code == 404, "a typo in a probe"


async def test_without_processes_the_store_alone_is_asked() -> None:
    async with api(None) as client:
        assert (await client.client.get("/readyz")).status_code == 200
        client.stores.memory.away = "gone"
        client.backend.look.forget()
        assert (await client.client.get("/readyz")).status_code == 503
        assert (await client.client.get("/startupz")).status_code == 503
