"""Lines in the log that stand for many messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bridge.core.errors import HeaderError
from bridge.core.reasons import Reason, ReasonKind, bad_headers
from bridge.delay.header import HeaderRules, read_due
from bridge.telemetry import notices
from bridge.telemetry.notices import Notices

FULL = Reason(ReasonKind.NACKED, "full")


def unroutable(key: str) -> Reason:
    return Reason(ReasonKind.UNROUTABLE, "no queue is bound for routing key '{key}'", {"key": key})


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


@pytest.mark.usefixtures("leaping_time")
async def test_a_flood_of_one_cause_is_one_line_at_once_and_its_rest_another_a_second_later(log: Log) -> None:
    for number in range(1000):
        log.notices.tell("refused", "orders", unroutable(f"key.{number}"), id=number)
    log.notices.tell("refused", "orders", Reason(ReasonKind.FORBIDDEN, "no rights"), id="x")
    log.notices.tell("refused", "payments", unroutable("key.1"), id="y")
    assert log.told() == [("orders", 0, 1), ("orders", "x", 1), ("payments", "y", 1)]
    await log.until(lambda: len(log.lines) == 4)
    assert log.told()[3:] == [("orders", 999, 999)]


async def test_what_is_held_back_is_said_at_the_end(log: Log) -> None:
    for number in range(3):
        log.notices.tell("dead letter", "orders", bad_headers("no moment"), id=number)
    log.notices.close()
    log.notices.close()
    assert log.told() == [("orders", 0, 1), ("orders", 2, 2)]


async def test_causes_of_one_kind_do_not_hide_each_other(log: Log) -> None:
    headers = [("x-delay", value) for value in ("soon", 'it\'s "late"', "1e3", "{value}")]
    for name, value in (*headers, ("x-deliver-at", "soon"), ("x-deliver-at", "2026-01-31T09:30:00")):
        with pytest.raises(HeaderError) as caught:
            read_due({name: value}, 0, None, HeaderRules())
        log.notices.tell("dead letter", "orders", caught.value.reason, id=(name, value))
    assert [line["id"] for line in log.lines] == [
        ("x-delay", "soon"),
        ("x-deliver-at", "soon"),
        ("x-deliver-at", "2026-01-31T09:30:00"),
    ]


async def test_a_kind_of_endless_causes_has_a_bounded_number_of_lines(log: Log) -> None:
    for number in range(1000):
        log.notices.tell("dead letter", "orders", Reason(ReasonKind.REJECTED, "x" * (number + 1)), id=number)
    assert len(log.lines) == notices._CAUSES_MAX + 1
    log.notices.close()
    assert sum(line["messages"] for line in log.lines) == 1000
    assert len(log.lines) <= 2 * (notices._CAUSES_MAX + 1)


async def test_hostile_details_make_few_lines_and_no_long_one(log: Log) -> None:
    for number in range(1000):
        key = f"{chr(39) * (number % 7)}{chr(97 + number % 26) * number}{chr(34)}: {chr(92)}"
        log.notices.tell("refused", "orders", unroutable(key))
    log.notices.tell("refused", "orders", Reason(ReasonKind.REJECTED, "{text}", {"text": "many words " * 5000}))
    log.notices.close()
    assert sum(line["messages"] for line in log.lines) == 1001
    assert len(log.lines) == 3
    assert max(len(line["reason"]) for line in log.lines) <= 1000


@pytest.mark.usefixtures("leaping_time")
async def test_after_a_quiet_second_nothing_is_kept_and_the_next_one_is_said_at_once(log: Log) -> None:
    log.notices.tell("refused", "orders", FULL, id=1)
    await log.until(lambda: not log.notices._kinds)
    log.notices.tell("refused", "orders", FULL, id=2)
    assert log.told() == [("orders", 1, 1), ("orders", 2, 1)]
    log.notices.close()
