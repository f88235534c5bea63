"""The look at the store that the page and the API share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.core.process_mark import mark_of
from bridge.desk.numbers import Stats
from bridge.operate.stores import Look, settled_stats

REPORT = {"health": "All well.", "takeover_ms": 5000}
BOTH = Stats(0, 0, 0, 0, 0, None, {}, {"a": REPORT, "b": REPORT}, [], None, 0)
#: The mark of a process with this id that started at another time.
WITH_ENDED = replace(BOTH, instances={"a": REPORT, "b": {**REPORT, "process": f"{mark_of(os.getpid())}9"}})


def silent_b(ms: int) -> Stats:
    return replace(BOTH, instances={"a": REPORT}, silent={"b": ms})


@pytest.mark.parametrize(
    ("looks", "silent"),
    [
        pytest.param([(0.0, BOTH), (0.5, silent_b(21_000))], [], id="a clock that stepped"),
        pytest.param([(0.0, BOTH), (0.5, silent_b(21_000)), (1.1, silent_b(21_600))], [], id="looked at twice"),
        pytest.param([(0.0, BOTH), (0.5, silent_b(21_000)), (2.1, silent_b(22_600))], ["b"], id="and it died"),
        pytest.param([(0.0, BOTH), (0.5, silent_b(5_000))], [], id="a clock that stepped back"),
        pytest.param([(0.0, BOTH), (0.5, silent_b(5_400))], ["b"], id="it died"),
        pytest.param([(0.0, BOTH), (60.0, silent_b(64_000))], ["b"], id="it died between two looks"),
        pytest.param([(0.0, WITH_ENDED), (0.5, silent_b(900))], ["b"], id="its process has ended on this machine"),
        pytest.param([(0.0, silent_b(21_000))], ["b"], id="it never ran"),
    ],
)
async def test_an_instance_is_not_called_silent_because_the_stores_clock_stepped(
    monkeypatch: pytest.MonkeyPatch, looks: Sequence[tuple[float, Stats]], silent: list[str]
) -> None:
    last = await after(monkeypatch, looks)
    assert list(last.silent) == silent
    assert sorted([*last.instances, *last.silent]) == sorted({*looks[-1][1].instances, *looks[-1][1].silent})


async def test_a_first_look_after_a_step_of_the_clock_waits_for_the_next_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.operate.stores._REPEAT_S", 0)
    looks = [replace(BOTH, instances={}, silent={"a": 3_600_000, "b": 3_600_000}), silent_b(3_600_000), BOTH, EMPTY]

    async def stats() -> Stats:
        return looks.pop(0)

    desk: Any = SimpleNamespace(stats=stats)
    assert await settled_stats(desk) is BOTH
    looks[:] = [silent_b(3_600_000)] * 9
    assert (await settled_stats(desk)).silent == {"b": 3_600_000}
    assert looks, "a dead instance is waited for a moment only"


async def after(monkeypatch: pytest.MonkeyPatch, looks: Sequence[tuple[float, Stats]]) -> Stats:
    """Return what the last of these looks finds, each at its moment (s)."""
    now_s, found = [100.0], [BOTH]

    async def stats() -> Stats:
        return found[0]

    async def desk() -> Any:
        return SimpleNamespace(stats=stats)

    stores: Any = SimpleNamespace(desk=desk)
    monkeypatch.setattr("bridge.operate.stores.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    look = Look(stores)
    for at_s, seen in looks:
        now_s[0], found[0] = 100.0 + at_s, seen
        look.forget()
        last = await look.stats()
    return last


FULL = replace(BOTH, ever={"parked": 900, "dead": 3})
EMPTY = replace(FULL, ever={}, instances={})
#: An instance has noted the loss, and reported.
NOTED = replace(EMPTY, ever={"parked": 1}, loss="Redis was emptied at noon", instances={"a": REPORT})


@pytest.mark.parametrize(
    ("looks", "shrunk", "running"),
    [
        pytest.param([(0.0, FULL), (0.5, EMPTY)], True, ["a", "b"], id="emptied"),
        pytest.param([(0.0, FULL), (0.5, replace(FULL, ever={"parked": 899}))], True, ["a", "b"], id="an older copy"),
        pytest.param([(0.0, FULL), (0.5, EMPTY), (1.0, EMPTY)], True, ["a", "b"], id="looked at twice"),
        pytest.param([(0.0, FULL), (0.5, EMPTY), (1.0, NOTED)], False, ["a", "b"], id="noted"),
        pytest.param([(0.0, FULL), (0.5, EMPTY), (2.4, NOTED)], False, ["a"], id="noted, and one died"),
        pytest.param([(0.0, FULL), (0.5, EMPTY), (3.0, EMPTY)], True, [], id="and all died"),
        pytest.param([(0.0, FULL), (6.0, EMPTY)], False, [], id="long ago, and no instance ran"),
        pytest.param([(0.0, NOTED), (0.5, replace(NOTED, ever={}))], True, ["a"], id="emptied again"),
    ],
)
async def test_a_store_that_counts_less_is_marked_at_the_first_look_until_an_instance_has_noted_the_loss(
    monkeypatch: pytest.MonkeyPatch, looks: Sequence[tuple[float, Stats]], shrunk: bool, running: list[str]
) -> None:
    last = await after(monkeypatch, looks)
    assert (last.shrunk, sorted(last.instances)) == (shrunk, running)
