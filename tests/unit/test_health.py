"""What postdate says is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from bridge.core.reasons import Reason, ReasonKind
from bridge.telemetry.health import WELL, Health, RefusedRoutes
from bridge.telemetry.subject import STORE, Subject

ORDERS = Subject("route", "orders")


class Clock:
    """A clock that the test sets, and the lines that were logged until then."""

    def __init__(self, lines: list[Any]) -> None:
        self.now_s = 100.0
        self.lines = lines

    def __call__(self) -> float:
        return self.now_s

    def said(self) -> list[tuple[str, str]]:
        return [(line["event"], line.get("what", "")) for line in self.lines]


@pytest.fixture
def clock() -> Iterator[Clock]:
    with capture_logs() as lines:
        yield Clock(lines)


def test_a_sentence_stays_until_it_is_well_again() -> None:
    health = Health()
    health.say(STORE, "Redis does not answer")
    assert health.sentence() == "Redis does not answer."
    health.say(STORE, "")
    assert health.sentence() == WELL


def test_a_sentence_that_nobody_takes_back_is_forgotten_after_its_time_and_not_called_well(clock: Clock) -> None:
    health = Health(clock)
    health.say(ORDERS, "messages are refused", for_s=5)
    health.say(STORE, "Redis does not answer", for_s=60)
    clock.now_s += 6
    assert health.troubles() == {STORE: "Redis does not answer"}
    health.say(STORE, "")
    for _ in range(3):
        clock.now_s += 1
        health.look()
    ends = {line["subject"]: line["event"] for line in clock.lines[2:]}
    assert ends == {"route orders": "not seen again", "store": "well again"}


def test_a_running_number_is_no_news() -> None:
    health = Health()
    with capture_logs() as lines:
        for seconds in range(11, 20):
            health.say(Subject("overdue"), f"the oldest overdue message was due {seconds}s ago", cause="overdue")
    assert len(lines) == 1
    assert health.troubles() == {Subject("overdue"): "the oldest overdue message was due 19s ago"}


def test_details_that_differ_make_one_line_a_second_and_the_last_one_is_not_lost(clock: Clock) -> None:
    health = Health(clock)
    for number in range(3000):
        clock.now_s = 100 + number / 1000
        health.say(ORDERS, f"refused: routing key {'abcdefghij'[number % 10] * (number % 250)}!")
    assert 3 <= len(clock.lines) <= 4
    health.say(ORDERS, "refused: the last one")
    clock.now_s += 1
    health.look()
    assert clock.said()[-1] == ("trouble", "refused: the last one")
    assert len(clock.lines) <= 5


def test_subjects_do_not_hide_each_other(clock: Clock) -> None:
    health = Health(clock)
    for subject in (ORDERS, Subject("route", "payments"), STORE):
        health.say(subject, "something is wrong")
    assert [line["subject"] for line in clock.lines] == ["route orders", "route payments", "store"]


def test_well_again_is_said_once_a_second_has_passed_without_trouble(clock: Clock) -> None:
    health = Health(clock)
    health.say(STORE, "Redis does not answer")
    clock.now_s += 10
    health.say(STORE, "")
    health.look()
    assert clock.said() == [("trouble", "Redis does not answer")]
    clock.now_s += 1
    health.look()
    assert clock.said()[1:] == [("well again", "")]
    clock.now_s += 1
    health.look()
    assert len(clock.lines) == 2


def test_trouble_that_comes_and_goes_many_times_a_second_is_one_line(clock: Clock) -> None:
    health = Health(clock)
    for _ in range(80):
        health.say(Subject("kafka", "intake"), "no Read permission on the group")
        clock.now_s += 0.05
        health.say(Subject("kafka", "intake"), "")
        clock.now_s += 0.05
        health.look()
    assert clock.said() == [("trouble", "no Read permission on the group")]


def test_a_trouble_within_the_second_is_told_although_it_is_over(clock: Clock) -> None:
    health = Health(clock)
    health.say(STORE, "Redis does not answer")
    health.say(STORE, "Redis is at its maxmemory")
    health.say(STORE, "")
    for _ in range(3):
        clock.now_s += 1
        health.look()
    assert [what for _, what in clock.said()] == ["Redis does not answer", "Redis is at its maxmemory", ""]


def test_a_trouble_that_is_the_told_one_again_is_no_news(clock: Clock) -> None:
    health = Health(clock)
    for sentence in ("no exchange orders", "no rights", "no exchange orders"):
        health.say(ORDERS, sentence)
    clock.now_s += 1
    health.look()
    assert clock.said() == [("trouble", "no exchange orders")]


def test_a_sentence_that_ran_out_is_not_seen_again_in_the_log_too(clock: Clock) -> None:
    health = Health(clock)
    health.say(ORDERS, "messages are refused", for_s=5)
    for _ in range(7):
        clock.now_s += 1
        health.look()
    assert clock.said() == [("trouble", "messages are refused"), ("not seen again", "")]


def test_another_cause_in_the_same_words_is_news(clock: Clock) -> None:
    health = Health(clock)
    for cause in ("first", "second"):
        health.say(ORDERS, "messages are refused", cause=cause)
        clock.now_s += 1
        health.look()
    assert clock.said() == [("trouble", "messages are refused")] * 2


def test_a_flood_of_refusals_of_one_cause_is_one_line_and_health_names_the_last(clock: Clock) -> None:
    health = Health(clock)
    routes = RefusedRoutes(health)
    for number in range(3000):
        clock.now_s = 100 + number / 1000
        text = "no queue is bound for routing key '{key}'"
        routes.refused("orders", Reason(ReasonKind.UNROUTABLE, text, {"key": f"key.{number}"}))
    assert len(clock.lines) == 1
    assert "key.2999" in health.sentence()
    routes.refused("orders", Reason(ReasonKind.NACKED, "a queue is full"))
    assert clock.said()[-1] == (
        "trouble",
        "messages of route orders are refused, the last one as nacked: a queue is full",
    )


def test_after_a_delivery_a_refusal_is_past_and_its_messages_wait_until_the_last_next_try(clock: Clock) -> None:
    health = Health(clock)
    routes = RefusedRoutes(health, clock)
    reason = Reason(ReasonKind.UNROUTABLE, "no queue is bound")
    clock.now_s = 100
    routes.refused("orders", reason, wait_ms=120_000)
    routes.refused("orders", reason, wait_ms=1_000)
    for clock.now_s in (100.1, 101.9):
        routes.delivered({"orders"})
        assert "messages of route orders are refused, the last one as unroutable" in health.sentence()
    for clock.now_s in (103, 215, 224):
        routes.delivered({"orders"})
        past = "route orders delivers again, and messages wait for their next try after a refusal"
        assert health.sentence().startswith(past)
    routes.refused("orders", reason, wait_ms=1_000)
    assert "are refused" in health.sentence()
    clock.now_s += 12
    routes.delivered({"orders"})
    assert health.sentence() == WELL
    assert [what for event, what in clock.said() if event == "trouble"] == [
        "messages of route orders are refused, the last one as unroutable: no queue is bound"
    ], "one cause, one line"


def test_a_refused_message_that_waits_in_the_broker_is_not_called_waiting(clock: Clock) -> None:
    health = Health(clock)
    routes = RefusedRoutes(health, clock)
    clock.now_s = 100
    routes.refused("orders", Reason(ReasonKind.UNROUTABLE, "no queue is bound"))
    clock.now_s = 103
    routes.delivered({"orders"})
    assert "are refused" in health.sentence()


def test_the_first_delivery_that_disproves_a_refusal_ends_it(clock: Clock) -> None:
    """A missing target is there again with any delivery; another cause is over with that of a refused message."""
    health = Health(clock)
    routes = RefusedRoutes(health, clock)
    missing = Reason(ReasonKind.MISSING_EXCHANGE, "exchange 'orders' does not exist")
    unroutable = Reason(ReasonKind.UNROUTABLE, "no queue is bound")
    for reason, retried in ((missing, set[str]()), (unroutable, {"orders"})):
        routes.refused("orders", reason)  # it became a dead letter
        clock.now_s += 0.1
        routes.delivered({"orders"}, retried)
        assert health.sentence() == WELL
        routes.refused("orders", reason, wait_ms=1_000)
        routes.delivered({"orders"}, retried)
        assert health.sentence().startswith(
            "route orders delivers again, and messages wait for their next try after a refusal"
        )
        clock.now_s += 1.1
        routes.delivered({"orders"}, retried)
        assert health.sentence() == WELL


async def test_a_running_process_tells_what_is_held_back_also_when_it_stops() -> None:
    health = Health()
    with capture_logs() as lines:
        running = asyncio.create_task(health.run())
        await asyncio.sleep(0)
        health.say(ORDERS, "refused as one")
        health.say(ORDERS, "refused as another")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert [line["what"] for line in lines] == ["refused as one", "refused as another"]


def test_a_sentence_is_cut_where_a_detail_is_endless(clock: Clock) -> None:
    health = Health(clock)
    health.say(ORDERS, f"no queue takes it with routing key '{'k' * 5000}' (NO_ROUTE)")
    health.say(STORE, "too many words " * 1000)
    [(_, first), (_, second)] = clock.said()
    assert first == f"no queue takes it with routing key '{'k' * 118}… (NO_ROUTE)"
    assert len(second) == 1000
    assert health.sentence() == f"{first}. {second}."
