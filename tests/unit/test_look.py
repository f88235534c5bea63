"""The look at the store that the page and the API share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.desk.numbers import Stats
from bridge.operate.stores import Look

REPORT = {"health": "All well.", "takeover_ms": 5000}
BOTH = Stats(0, 0, 0, 0, 0, None, {}, {"a": REPORT, "b": REPORT}, [], None, 0)


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
        pytest.param([(0.0, silent_b(21_000))], ["b"], id="it never ran"),
    ],
)
async def test_an_instance_is_not_called_silent_because_the_stores_clock_stepped(
    monkeypatch: pytest.MonkeyPatch, looks: Sequence[tuple[float, Stats]], silent: list[str]
) -> None:
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
    assert list(last.silent) == silent
    assert sorted([*last.instances, *last.silent]) == sorted({*looks[-1][1].instances, *looks[-1][1].silent})
