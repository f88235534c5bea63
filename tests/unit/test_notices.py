"""Lines in the log that stand for many messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bridge.telemetry import notices
from bridge.telemetry.notices import Notices


class Log:
    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.notices = Notices(lambda event, **facts: self.lines.append({"event": event, **facts}))

    def told(self) -> list[tuple[str, Any, int]]:
        return [(line["route"], line["id"], line["messages"]) for line in self.lines]

    async def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(500):
            if reached():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.lines)


@pytest.fixture
async def log() -> Log:
    return Log()


async def test_a_flood_of_one_cause_is_one_line_at_once_and_its_rest_another_a_second_later(log: Log) -> None:
    for number in range(1000):
        log.notices.tell("refused", "orders", f"unroutable: routing key 'key.{number}' ({number})", id=number)
    log.notices.tell("refused", "orders", "forbidden: no rights", id="x")
    log.notices.tell("refused", "payments", "unroutable: key 1", id="y")
    assert log.told() == [("orders", 0, 1), ("orders", "x", 1), ("payments", "y", 1)]
    await log.until(lambda: len(log.lines) == 4)
    assert log.told()[3:] == [("orders", 999, 999)]


async def test_what_is_held_back_is_said_at_the_end(log: Log) -> None:
    for number in range(3):
        log.notices.tell("dead letter", "orders", "bad_header: no moment", id=number)
    log.notices.close()
    log.notices.close()
    assert log.told() == [("orders", 0, 1), ("orders", 2, 2)]


async def test_causes_of_one_kind_do_not_hide_each_other(log: Log) -> None:
    for value in ("soon", 'it\'s "late"', "1e3"):
        log.notices.tell("dead letter", "orders", f"bad_header: header x-delay: {value!r} is not a duration", id=value)
    log.notices.tell("dead letter", "orders", "bad_header: header x-deliver-at: 'soon' is not a moment", id="moment")
    assert [line["id"] for line in log.lines] == ["soon", "moment"]


async def test_a_kind_of_endless_causes_has_a_bounded_number_of_lines(log: Log) -> None:
    for number in range(1000):
        log.notices.tell("dead letter", "orders", f"rejected: {'x' * number}", id=number)
    assert len(log.lines) == notices._CAUSES_MAX + 1
    log.notices.close()
    assert sum(line["messages"] for line in log.lines) == 1000
    assert len(log.lines) <= 2 * (notices._CAUSES_MAX + 1)


async def test_hostile_details_make_few_lines_and_no_long_one(log: Log) -> None:
    for number in range(1000):
        key = f"{chr(39) * (number % 7)}{chr(97 + number % 26) * number}{chr(34)}: {chr(92)}"
        log.notices.tell("refused", "orders", f"unroutable: no queue takes it with routing key '{key}'")
    log.notices.tell("refused", "orders", f"rejected: {'many words ' * 5000}")
    log.notices.close()
    assert sum(line["messages"] for line in log.lines) == 1001
    assert len(log.lines) <= 2 * (notices._CAUSES_MAX + 1) + 1
    assert max(len(line["reason"]) for line in log.lines) <= 1000


async def test_after_a_quiet_second_nothing_is_kept_and_the_next_one_is_said_at_once(log: Log) -> None:
    log.notices.tell("refused", "orders", "nacked: full", id=1)
    await log.until(lambda: not log.notices._kinds)
    log.notices.tell("refused", "orders", "nacked: full", id=2)
    assert log.told() == [("orders", 1, 1), ("orders", 2, 1)]
    log.notices.close()
