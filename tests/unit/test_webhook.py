"""The webhook: what is reported, once, by one instance, and again until the URL takes it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.store import Memory, MemoryStore
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreFull, StoreUnavailable
from bridge.core.ports import DeadBatch
from bridge.delay.duration import write_moment
from bridge.desk.clock_step import ClockStep
from bridge.desk.numbers import RouteStats, Stats
from bridge.operate.webhook import (
    LastReport,
    WebhookReporter,
    _of_store,
    by_route_and_reason,
    news_of,
    report_on,
    reported,
    troubles_in,
)
from bridge.parking.envelope import seal
from bridge.parking.identity import Ids
from bridge.settings import Log, Webhook
from bridge.telemetry import logs

CALM = Stats(1_000_000, 5, 0, 0, 0, 1_020_000, {"dead": 4}, {}, ())
AFTER_MS = 30_000


def after(before: LastReport, found: Stats) -> tuple[str, LastReport]:
    troubles = troubles_in(found)
    now = reported(found, AFTER_MS, {name: trouble.at_ms for name, trouble in troubles.items()})
    report = report_on(news_of(before, now, found, troubles, "", AFTER_MS), before, now, found, "a-1")
    return (report["text"] if report else ""), now


class TestReport:
    def test_dead_letters_from_before_the_start_are_not_reported(self) -> None:
        assert after(LastReport(), CALM) == ("", LastReport(4, False))

    def test_new_dead_letters_are_counted_once(self) -> None:
        more = replace(CALM, dead=7, ever={"dead": 7})
        text, then = after(LastReport(4, False), more)
        assert text == "postdate: New dead letters: 3, 7 in all. See `postdate list --state dead`."
        assert after(then, more)[0] == ""

    @pytest.mark.parametrize(
        ("subject", "over"),
        [
            ("rabbitmq front orders.delay", "Only postdate is bound to the front exchanges."),
            ("rabbitmq deleted orders.delay.intake", "The intake queue that was deleted exists again."),
            ("rabbitmq recreated orders.delay.intake", ""),
            ("kafka recreated orders.delay", ""),
            ("kafka lost orders.delay", ""),
        ],
    )
    def test_what_passes_messages_by_or_loses_them_is_reported_once_beside_its_server(
        self, subject: str, over: str
    ) -> None:
        troubles = {subject: "messages are gone"}
        text, then = after(LastReport(4, False), replace(CALM, instances={"a-1": {"troubles": troubles}}))
        assert text == "postdate: Messages are gone."
        server = subject.partition(" ")[0]
        away = {**troubles, f"{server} publish": "the server is away"}
        text, then = after(then, replace(CALM, instances={"a-1": {"troubles": away}}))
        assert text == "postdate: The server is away."
        assert over in after(then, CALM)[0]
        assert "No running instance" not in after(then, CALM)[0], "nothing ends what has happened"

    def test_each_deleted_intake_is_reported_and_so_is_the_same_one_deleted_again(self) -> None:
        def seen(**deleted_s: int) -> Stats:
            troubles = {
                f"kafka recreated {name}": f"{name} was deleted at {write_moment(at_s * 1000)}"
                for name, at_s in deleted_s.items()
            }
            return replace(CALM, instances={"a-1": {"troubles": troubles}, "b-2": {"troubles": troubles}})

        text, then = after(LastReport(4), seen(t=900))
        assert text == "postdate: T was deleted at 1970-01-01T00:15:00.000Z."
        assert after(then, seen(t=901))[0] == "", "another instance saw the same"
        text, then = after(then, seen(t=900, u=901))
        assert text == "postdate: U was deleted at 1970-01-01T00:15:01.000Z."
        text, then = after(LastReport().with_noted(then.noted()), seen(t=930, u=901))
        assert text == "postdate: T was deleted at 1970-01-01T00:15:30.000Z."
        assert after(then, CALM)[0] == ""

    def test_a_trouble_of_several_queues_is_over_with_the_last(self) -> None:
        both = {f"rabbitmq front {name}": f"a queue is bound to {name}" for name in ("a", "b")}
        text, then = after(LastReport(4), replace(CALM, instances={"a-1": {"troubles": both}}))
        assert text == "postdate: A queue is bound to a. A queue is bound to b."
        del both["rabbitmq front a"]
        text, then = after(then, replace(CALM, instances={"a-1": {"troubles": both}}))
        assert text == ""
        assert after(then, CALM)[0] == "postdate: Only postdate is bound to the front exchanges."

    def test_each_step_of_the_stores_clock_is_reported(self) -> None:
        text, then = after(LastReport(4), replace(CALM, step=ClockStep(CALM.now_ms, 3_600_000)))
        assert text.startswith("postdate: Redis's clock stepped forward by 1h, to 1970-01-01T00:16:40.000Z. ")
        assert after(then, CALM)[0] == "", "two minutes later it is no trouble"
        back = replace(CALM, step=ClockStep(CALM.now_ms - 60_000, -3_600_000, CALM.now_ms, CALM.now_ms + 9))
        assert after(then, back)[0].startswith("postdate: Redis's clock stepped back by 1h, to ")

    def test_overdue_messages_are_reported_when_it_begins_and_when_it_is_over(self) -> None:
        late = replace(CALM, overdue=2, by_route={"orders": RouteStats(oldest_overdue_ms=31_000)})
        text, then = after(LastReport(4, False), late)
        assert text == "postdate: Overdue messages: 2, the oldest by 31s. Run `postdate doctor`."
        assert after(then, late)[0] == ""
        assert after(then, CALM)[0] == "postdate: No message is overdue any more."
        less = replace(late, by_route={"orders": RouteStats(oldest_overdue_ms=5_000)})
        assert after(then, less)[0] == "postdate: No message is overdue by 30s any more."
        lost = replace(CALM, loss="Redis was emptied", lost_ms=CALM.now_ms)
        assert "any more. Lost messages are not counted: run `postdate doctor`." in after(then, lost)[0]

    def test_messages_that_the_broker_does_not_confirm_are_counted(self) -> None:
        report = {"unconfirmed": 3, "unconfirmed_s": 31.0}
        text, _ = after(LastReport(4, False), replace(CALM, claimed=3, instances={"a-1": report}))
        assert text == "postdate: Overdue messages: 3, the oldest by 31s. Run `postdate doctor`."

    def test_routes_are_named_whose_own_messages_are_overdue_for_too_long(self) -> None:
        routes = {
            "orders": RouteStats(overdue=2, oldest_overdue_ms=31_000),
            "bills": RouteStats(overdue=1, oldest_overdue_ms=30_001),
            "quick": RouteStats(overdue=9, oldest_overdue_ms=40),
            "late": RouteStats(overdue=1, oldest_overdue_ms=30_000),
            "calm": RouteStats(5),
        }
        text, _ = after(LastReport(4, False), replace(CALM, overdue=3, by_route=routes))
        assert text.startswith("postdate: Overdue messages: 3, the oldest by 31s. Routes: bills, orders. Run ")

    def test_overdue_messages_of_a_route_that_is_refused_are_reported_with_the_cause_and_its_target(self) -> None:
        refused = "messages of route orders are refused, the last one as missing_exchange: no exchange 'shop'"
        troubles = {"route orders": refused, "route bills": "it is not late"}
        reports = {name: {"able": True, "health": "x", "troubles": troubles} for name in ("a-1", "b-2")}
        routes = {"orders": RouteStats(overdue=2, refused=2, oldest_overdue_ms=31_000), "bills": RouteStats(refused=1)}
        text, _ = after(LastReport(4, False), replace(CALM, overdue=2, by_route=routes, instances=reports))
        assert f" Routes: orders. M{refused[1:]}. Run `postdate doctor`." in text

    def test_a_broker_that_is_away_and_a_journal_that_fails_are_reported_in_the_words_of_the_page(self) -> None:
        troubles = {
            "rabbitmq intake": "nothing is taken from RabbitMQ: no answer",
            "rabbitmq publish": "nothing is published: no answer",
            "journal write": "the journal lacks accepted messages: 3, delivered ones included. Check the database. "
            "It is locked",
            "kafka front": "a warning of the topology",
        }
        report = {"able": False, "health": "x", "troubles": troubles}
        text, then = after(LastReport(4, False), replace(CALM, instances={"a-1": report}))
        assert text == (
            "postdate: The journal lacks accepted messages: 3, delivered ones included. Check the database. "
            "It is locked. Nothing is taken from RabbitMQ: no answer."
        )
        assert after(then, replace(CALM, instances={"a-1": report}))[0] == ""
        assert LastReport().with_noted(then.noted()) == then, "the next leader does not repeat it"
        assert after(then, CALM)[0] == "postdate: The journal is well again. RabbitMQ is well again."

    def test_an_instance_that_was_lost_is_reported_once(self) -> None:
        lost = replace(CALM, instances_lost=3, lost={"b-2 (rabbitmq)": 999_000})
        assert after(LastReport(), lost)[0] == "", "it was before the start"
        text, then = after(LastReport(4, instances_lost=2), lost)
        assert text.startswith("postdate: Lost instances: b-2 (rabbitmq) at 1970-01-01T00:16:39.000Z. Each stopped")
        assert after(then, lost)[0] == ""

    def test_a_short_delay_is_no_alarm(self) -> None:
        late = replace(CALM, overdue=2, by_route={"orders": RouteStats(oldest_overdue_ms=29_000)})
        assert after(LastReport(4, False), late)[0] == ""

    def test_a_loss_of_the_store_is_reported_once_and_its_end_after_a_restore_or_an_hour(self) -> None:
        lost = replace(CALM, now_ms=9_000_000, lost_ms=8_900_000)
        text, then = after(LastReport(4), lost)
        assert text == "postdate: The store lost messages, noticed at 1970-01-01T02:28:20.000Z. Run `postdate doctor`."
        assert after(then, lost) == ("", then)
        assert after(then, replace(lost, lost_ms=8_900_500))[0] == "", "the other store noted the same loss later"
        again, _ = after(then, replace(lost, lost_ms=8_960_000))
        assert "lost messages, noticed at 1970-01-01T02:29:20.000Z" in again
        earlier = replace(lost, lost_ms=8_899_000)
        assert after(then, earlier)[0] == "", "of two stores the later one was restored"
        over = "The loss is over: a restore brought back all that the journal has."
        restored = replace(lost, lost_ms=0, restored_ms=8_999_900)
        assert after(then, restored) == (f"postdate: {over}", LastReport(4))
        old = "The loss is an hour old, so this alarm ends. No restore has ended it: `postdate doctor`."
        later = replace(lost, now_ms=lost.lost_ms + 3_600_000)
        assert after(then, later) == (f"postdate: {old}", LastReport(4))
        assert after(then, replace(later, restored_ms=8_999_900))[0] == f"postdate: {old}", "one of two is restored"
        assert after(then, replace(lost, lost_ms=0))[0] == "", "it was emptied again, which no instance has noted"
        assert after(LastReport(), lost)[0] == "", "it was before the start"

    def test_dead_letters_are_counted_in_the_report_that_names_them_alone(self) -> None:
        more, before = replace(CALM, dead=8, ever={"dead": 8}), LastReport(7, away=True)
        now = reported(more, AFTER_MS)
        other = report_on(list(_of_store(before, now)), before, now, more, "a")
        assert other is not None
        assert other["text"] == "postdate: The store answers again."
        assert other["dead_letters"] == {"new": 0, "total": 8}


class TestSending:
    def setup_method(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.answer = ""
        self.now_s = 0.0
        self.found = CALM
        self.away = ""
        self.memory = Memory(8, StoreClock())
        self.desk = MemoryDesk(MemoryStore(self.memory, "a"))
        self.hooks = [self.hook(name) for name in ("a", "b")]

    def hook(self, name: str) -> WebhookReporter:
        rules = Webhook.model_validate({"overdue_after": "10s"})
        return WebhookReporter(rules, self.open, self.look, name, self.post, lambda: self.now_s)

    async def open(self) -> MemoryDesk:
        return self.desk

    async def look(self, _: float) -> Stats:
        if self.away == "frozen":
            raise TimeoutError
        if self.away:
            raise StoreUnavailable(self.away)
        return replace(self.found, reported=self.memory.reported)

    async def post(self, report: dict[str, Any]) -> str:
        if not self.answer:
            self.sent.append(report)
        return self.answer

    async def turn(self) -> None:
        for hook in self.hooks:
            await hook.once()

    async def test_one_of_two_instances_reports(self) -> None:
        await self.turn()
        self.found = replace(CALM, dead=5, ever={"dead": 5})
        await self.turn()
        await self.turn()
        assert [alert["dead_letters"] for alert in self.sent] == [{"new": 1, "total": 5}]

    async def test_new_dead_letters_are_named_by_route_and_reason(self) -> None:
        store = MemoryStore(self.memory, "a")
        ids, dead = Ids("aaaaaa"), CALM.ever["dead"]
        for *reasons, words in (
            ("too_large: over 1 MB", "orders too_large (1)"),
            (
                "unroutable: no queue",
                "too_large: over 1 MB",
                "unroutable: no queue",
                "orders unroutable (2), orders too_large (1)",
            ),
            ("missing_exchange: no exchange 'shop'", "orders missing_exchange: no exchange 'shop' (1)"),
        ):
            await asyncio.sleep(0.002)  # the store's clock goes on
            self.found = replace(self.found, now_ms=store.clock.now_ms())
            await self.turn()
            await asyncio.sleep(0.002)
            for reason in reasons:
                message_id = ids.next(now_ms := store.clock.now_ms(), 0)
                envelope = seal(now_ms, now_ms, b"orders", b"", b"", b"x")
                await store.reject(0, DeadBatch(store.new_token(), [(message_id, envelope, reason)]))
            dead += len(reasons)
            self.found = replace(self.found, dead=dead, ever={"dead": dead})
            self.now_s += 100
            await self.turn()
            text = f"New dead letters: {len(reasons)}, {dead} in all. By route and reason: {words}. See "
            assert text in self.sent[-1]["text"]
        partly = by_route_and_reason(Counter({("orders", "unroutable"): 500}), 900)
        assert partly == " Among them: orders unroutable (500)."

    async def test_a_message_that_died_while_a_look_counted_has_its_route_and_reason(self) -> None:
        store, ids = MemoryStore(self.memory, "a"), Ids("aaaaaa")

        async def dies(reason: str) -> None:
            message_id = ids.next(now_ms := store.clock.now_ms(), 0)
            envelope = seal(now_ms, now_ms, b"orders", b"", b"", b"x")
            await store.reject(0, DeadBatch(store.new_token(), [(message_id, envelope, reason)]))

        await dies("unroutable: it was reported before")
        await dies("too_large: over 1 MB")
        self.found = replace(self.found, now_ms=store.clock.now_ms() + 1)  # its own shard was counted first
        await self.turn()
        dead = CALM.ever["dead"] + 1
        self.found = replace(self.found, now_ms=self.found.now_ms + 1000, dead=dead, ever={"dead": dead})
        await self.turn()
        assert "By route and reason: orders too_large (1). See " in self.sent[-1]["text"]

    async def test_the_instances_of_a_process_that_died_are_one_report(self) -> None:
        await self.turn()
        for names in (["a"], ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"]):
            lost = {f"{name} (rabbitmq)": 999_000 for name in names}
            self.found = replace(CALM, instances_lost=len(names), lost=lost)
            self.now_s += 1
            await self.turn()
        (alert,) = self.sent
        assert "a (rabbitmq)" in alert["text"]
        assert "b (rabbitmq)" in alert["text"]

    @pytest.mark.usefixtures("leaping_time")
    async def test_a_slow_url_makes_no_second_instance_report_the_same(self) -> None:
        """The second one has looked at the store before the first one could note what it has reported."""

        async def look(within_s: float) -> Stats:
            found = await self.look(within_s)
            await asyncio.sleep(2.9)
            return found

        async def post(report: dict[str, Any]) -> str:
            await asyncio.sleep(4.9)
            return await self.post(report)

        rules = Webhook.model_validate({"every": "10s"})
        async with asyncio.TaskGroup() as group:
            hooks = []
            for name in ("a", "b"):
                hook = WebhookReporter(rules, self.open, look, name, post, lambda: time.monotonic())
                hooks.append(group.create_task(hook.run()))
                await asyncio.sleep(2)
            for total in range(5, 9):
                self.found = replace(CALM, dead=total, ever={"dead": total})
                await asyncio.sleep(60)
            for task in hooks:
                task.cancel()
        assert [report["dead_letters"] for report in self.sent] == [{"new": 1, "total": total} for total in range(5, 9)]

    async def test_what_happens_while_nobody_reports_is_reported_by_the_next(self) -> None:
        """The instance that reported has died. One follows it that ran then, and one that started afterwards."""
        await self.turn()
        for total, name in ((5, "b"), (6, "c")):
            next_one = self.hook(name) if name == "c" else self.hooks[1]
            late = {"orders": RouteStats(oldest_overdue_ms=11_000 if name == "c" else 0)}
            self.found = replace(CALM, dead=total, ever={"dead": total}, overdue=2, by_route=late)
            await next_one.once()
            assert len(self.sent) == total - 5, "another one holds the lease"
            self.memory.leads.clear()
            self.now_s += 120
            await next_one.once()
        assert [report["dead_letters"] for report in self.sent] == [{"new": 1, "total": 5}, {"new": 1, "total": 6}]
        assert "Overdue messages: 2" in self.sent[1]["text"]

    async def test_reports_keep_their_distance_and_lose_nothing(self) -> None:
        await self.turn()
        for total in (5, 6, 7):
            self.found = replace(CALM, dead=total, ever={"dead": total})
            await self.turn()
            self.now_s += 20
        self.now_s += 60
        await self.turn()
        assert [alert["dead_letters"]["new"] for alert in self.sent] == [1, 2]

    async def test_another_kind_of_trouble_does_not_wait_for_every(self) -> None:
        await self.turn()
        for self.now_s, self.found in (
            (1, replace(CALM, dead=5, ever={"dead": 5})),
            (2, replace(CALM, dead=6, ever={"dead": 6})),
            (3, replace(CALM, dead=6, ever={"dead": 6}, lost_ms=999_000)),
        ):
            await self.turn()
        assert [(report["dead_letters"]["new"], report["store"]["lost_at"]) for report in self.sent] == [
            (1, None),
            (1, "1970-01-01T00:16:39.000Z"),
        ]

    async def test_a_broker_is_reported_when_it_has_been_away_for_some_seconds(self) -> None:
        report = {"able": False, "health": "x", "troubles": {"kafka publish": "no broker answers"}}
        away = replace(CALM, instances={"a-1": report})
        for self.now_s, self.found in ((0, CALM), (1, away), (4, CALM), (5, away), (9, away), (10, away), (11, away)):
            await self.turn()
            assert len(self.sent) == (self.now_s >= 10)
        assert self.sent[0]["text"] == "postdate: No broker answers."

    async def test_another_deleted_intake_within_every_does_not_wait_and_both_give_all_instances_time(self) -> None:
        def seen(*names: str) -> Stats:
            texts = {f"kafka recreated {name}": f"{name} was deleted at {write_moment(900_000)}" for name in names}
            return replace(CALM, instances={"a-1": {"troubles": texts}})

        looks = [(0, CALM), (1, seen("t")), (5, seen("t")), (6, seen("t")), (7, seen("t", "u")), (12, seen("t", "u"))]
        for self.now_s, self.found in looks:
            await self.turn()
            assert len(self.sent) == (self.now_s >= 6) + (self.now_s >= 12)
        assert self.sent[1]["text"] == "postdate: U was deleted at 1970-01-01T00:15:00.000Z."

    async def test_what_a_step_of_the_clock_forward_makes_overdue_and_leaves_at_once_is_not_reported(self) -> None:
        late = replace(CALM, overdue=107, by_route={"orders": RouteStats(oldest_overdue_ms=3_600_000)})
        for self.now_s, self.found in ((0, CALM), (1, late), (5, late), (6, CALM), (10, late), (14, late), (15, late)):
            await self.turn()
            assert len(self.sent) == (self.now_s >= 15), "it lasts now"

    async def test_messages_that_are_late_for_long_are_reported_with_the_look_that_finds_them_so(self) -> None:
        for self.now_s in range(33):
            lag_ms = max(0, self.now_s * 1000 - 500)
            self.found = replace(CALM, overdue=2, by_route={"orders": RouteStats(oldest_overdue_ms=lag_ms)})
            await self.turn()
            assert len(self.sent) == (lag_ms > 10_000)

    @pytest.mark.parametrize("broker", ["rabbitmq", "kafka"])
    async def test_a_broker_whose_confirms_are_missing_counts_as_in_trouble(self, broker: str) -> None:
        """A frozen broker keeps its connections: for a while only its confirms are missing."""
        unconfirmed = {"confirms": "the broker has not confirmed published messages: 3, the oldest for 4s"}
        frozen = replace(CALM, instances={"a-1": {"broker": broker, "health": "x", "troubles": unconfirmed}})
        away = {f"{broker} publish": "no answer", **unconfirmed}
        found = replace(CALM, instances={"a-1": {"broker": broker, "health": "x", "troubles": away}})
        looks = [(0, CALM), (4, frozen), (8, frozen), (9, frozen), (12, found), (14, frozen), (80, CALM)]
        for self.now_s, self.found in looks:
            await self.turn()
            assert len(self.sent) == (self.now_s >= 9) + (self.now_s >= 80)
        assert self.sent[0]["text"].startswith("postdate: The broker has not confirmed published messages: 3, ")
        assert self.sent[1]["text"].endswith(" is well again.")

    async def test_a_full_store_is_no_silent_one(self) -> None:
        """It has no memory for the lease either, so each instance reports it."""

        async def lead(*_: object) -> bool:
            raise StoreFull("Redis is at its maxmemory. Due messages are still delivered")

        await self.turn()
        able, self.desk.lead = self.desk.lead, lead  # type: ignore[assignment,method-assign]
        for self.now_s in (5, 16, 40):
            await self.turn()
        self.desk.lead = able  # type: ignore[method-assign]
        for self.now_s in (70, 71):
            await self.turn()
        texts = [report["text"] for report in self.sent]
        full = "postdate: Nothing is parked: Redis is at its maxmemory. Due messages are still delivered."
        assert texts == [full, full, *["postdate: The store has room again."] * 2]
        assert not any(report["store"]["away"] for report in self.sent)

    async def test_a_full_store_that_takes_a_lease_for_a_moment_has_no_room_yet(self) -> None:
        """At its limit Redis takes small writes now and then. It has room when none is refused, and instances park."""

        async def lead(*_: object) -> bool:
            raise StoreFull("Redis is at its maxmemory")

        del self.hooks[1]
        await self.turn()
        able = self.desk.lead
        full = replace(CALM, instances={"b-1": {"health": "x", "troubles": {"store full": "nothing is parked"}}})
        looks: list[tuple[int, Any, Stats]] = [
            (100, lead, CALM),
            (101, able, CALM),
            (104, able, CALM),
            (105, lead, CALM),
            (109, able, CALM),
        ]
        looks += [(120, able, full), (200, able, full), (201, able, CALM), (202, able, CALM)]
        for self.now_s, self.desk.lead, self.found in looks:  # type: ignore[method-assign]
            await self.turn()
            assert len(self.sent) == 1 + (self.now_s > 200)
        assert self.sent[1]["text"] == "postdate: The store has room again."

    async def test_a_refused_report_is_sent_again(self) -> None:
        await self.turn()
        self.answer = "hooks.example answers 500"
        self.found = replace(CALM, dead=5, ever={"dead": 5})
        await self.turn()
        assert self.sent == []
        self.answer = ""
        await self.turn()
        assert [alert["dead_letters"]["new"] for alert in self.sent] == [1]

    async def test_each_instance_reports_a_store_that_does_not_answer_and_that_it_answers_again(self) -> None:
        await self.turn()
        self.away = "Redis does not answer (Connection refused). Start it."
        for self.now_s in (5, 9, 14, 15, 20):
            await self.turn()
            assert len(self.sent) == (0 if self.now_s < 15 else 2), "it was asked at 5 s for the first time"
        text = "The store has not answered for 10s: Redis does not answer (Connection refused). Start it."
        assert [(report["instance"], report["text"]) for report in self.sent] == [
            (name, f"postdate: {text} Its messages wait.") for name in ("a", "b")
        ]
        assert (self.sent[0]["store"]["away"], self.sent[0]["overdue"], self.sent[0]["dead_letters"]) == (
            True,
            None,
            None,
        )
        self.away, self.found = "", replace(CALM, dead=5, ever={"dead": 5})
        for self.now_s in (21, 75, 80):
            await self.turn()
        assert [(report["instance"], report["text"]) for report in self.sent[2:]] == [
            (
                "a",
                "postdate: The store answers again. New dead letters: 1, 5 in all. See `postdate list --state dead`.",
            ),
            ("b", "postdate: The store answers again."),
        ]
        assert not self.sent[2]["store"]["away"]

    async def test_a_store_that_is_frozen_or_away_from_the_start_is_reported_too(self) -> None:
        self.away = "frozen"
        for self.now_s in (4, 15):
            await self.turn()
        assert [report["text"] for report in self.sent] == [
            "postdate: The store has not answered for 11s. Its messages wait."
        ] * 2

    @pytest.mark.usefixtures("leaping_time")
    @pytest.mark.parametrize("how", ["frozen", "Redis does not answer (Connection refused). Start it."])
    async def test_each_instance_reports_a_silent_store_within_a_look_of_overdue_after(self, how: str) -> None:
        async def look(within_s: float) -> Stats:
            if self.away == "frozen":
                await asyncio.sleep(within_s)
            return await self.look(within_s)

        async def post(report: dict[str, Any]) -> str:
            delays_s.append(time.monotonic() - away_s)
            return await self.post(report)

        delays_s: list[float] = []
        rules = Webhook.model_validate({"overdue_after": "10s"})
        async with asyncio.TaskGroup() as group:
            hooks = []
            for name in ("a", "b", "c"):
                hook = WebhookReporter(rules, self.open, look, name, post, lambda: time.monotonic())
                hooks.append(group.create_task(hook.run()))
                await asyncio.sleep(2.3)  # so that they look at different moments
            self.away, away_s = how, time.monotonic()
            await asyncio.sleep(14)
            for task in hooks:
                task.cancel()
        assert [report["store"]["away"] for report in self.sent] == [True] * 3
        assert 10 <= min(delays_s) <= max(delays_s) < 13, "a look is made every second"

    async def test_a_store_that_is_away_for_a_moment_is_not_reported(self) -> None:
        for self.now_s, self.away in (
            (0, ""),
            (5, "x"),
            (9, "x"),
            (10, ""),
            (15, "x"),
            (19, "x"),
            (21, ""),
        ):
            await self.turn()
        assert self.sent == []

    async def test_one_of_two_instances_reports_a_loss(self) -> None:
        await self.turn()
        self.found = replace(CALM, parked=0, ever={}, lost_ms=999_000)
        await self.turn()
        await self.turn()
        assert [report["store"]["lost_at"] for report in self.sent] == ["1970-01-01T00:16:39.000Z"]


async def test_an_endless_answer_neither_fills_the_memory_nor_holds_up_the_next_report() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(65536))
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    desk = MemoryDesk(MemoryStore(Memory(8, StoreClock()), "a"))
    found = [CALM]

    async def open_desk() -> MemoryDesk:
        return desk

    async def look(_: float) -> Stats:
        return found[0]

    settings = Webhook(url=SecretStr(f"http://user:secret@127.0.0.1:{port}/hook"))
    hook = WebhookReporter(settings, open_desk, look, "a")
    await hook.once()
    found[0] = replace(CALM, dead=5, ever={"dead": 5})
    async with asyncio.timeout(3):
        await hook.once()
    assert hook.trouble == ""
    server.close()


async def test_a_receiver_verifies_a_report_as_the_page_on_deployment_shows_it() -> None:
    page = (Path(__file__).parents[2] / "deploy/README.md").read_text()
    (snippet,) = [
        text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "X-Postdate-Signature" in text
    ]
    shown: dict[str, Any] = {}
    exec(snippet, shown)
    requests: list[tuple[dict[str, str], bytes]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = dict(line.split(": ", 1) for line in head)
        requests.append((headers, await reader.readexactly(int(headers["Content-Length"]))))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = SecretStr(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    for secret in ("shared", ""):
        settings = Webhook(url=url, secret=SecretStr(secret))
        found = [CALM]

        async def open_desk() -> MemoryDesk:
            return MemoryDesk(MemoryStore(Memory(8, StoreClock()), "a"))

        async def look(_: float, found: list[Stats] = found) -> Stats:
            return found[0]

        hook = WebhookReporter(settings, open_desk, look, "a")
        await hook.once()
        found[0] = replace(CALM, dead=5, ever={"dead": 5})
        await hook.once()
    server.close()
    (headers, body), (unsigned, _) = requests
    assert json.loads(body)["dead_letters"] == {"new": 1, "total": 5}
    assert shown["is_genuine"](headers, body, b"shared")
    assert not shown["is_genuine"](headers, body + b" ", b"shared")
    assert not shown["is_genuine"](headers, body, b"another")
    assert not shown["is_genuine"]({**headers, "X-Postdate-Timestamp": str(int(time.time()) - 3600)}, body, b"shared")
    assert "X-Postdate-Signature" not in unsigned


def test_no_library_logs_the_url() -> None:
    logs.set_up(Log(level="debug"), stream=io.StringIO())
    assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
    assert not logging.getLogger("httpcore").isEnabledFor(logging.DEBUG)
