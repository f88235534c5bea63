"""The webhook: what is reported, once, by one instance, and again until the URL takes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from adapters.memory.desk import MemoryDesk
from adapters.memory.store import Memory, MemoryStore
from bridge.admin.desk import Stats
from bridge.app.webhook import Told, WebhookReporter, report_on, reported
from bridge.core.clock import StoreClock
from bridge.settings import Webhook

CALM = Stats(1_000_000, 5, 0, 0, 0, 1_020_000, {"dead": 4}, {}, ())
AFTER_MS = 30_000


def after(before: Told, found: Stats) -> tuple[str, Told]:
    report = report_on(before, found, AFTER_MS, "a-1")
    return (report["text"] if report else ""), reported(before, found, AFTER_MS)


class TestReport:
    def test_dead_letters_from_before_the_start_are_not_reported(self) -> None:
        assert after(Told(), CALM) == ("", Told(4, False))

    def test_new_dead_letters_are_counted_once(self) -> None:
        more = replace(CALM, dead=7, ever={"dead": 7})
        text, then = after(Told(4, False), more)
        assert text == "postdate: New dead letters: 3, 7 in all. See `postdate list --state dead`."
        assert after(then, more)[0] == ""

    def test_overdue_messages_are_reported_when_it_begins_and_when_it_is_over(self) -> None:
        late = replace(CALM, overdue=2, next_due_ms=1_000_000 - 31_000)
        text, then = after(Told(4, False), late)
        assert text == "postdate: Overdue messages: 2, the oldest by 31s. Run `postdate doctor`."
        assert after(then, late)[0] == ""
        assert after(then, CALM)[0] == "postdate: No message is overdue any more."

    def test_a_short_delay_is_no_alarm(self) -> None:
        late = replace(CALM, overdue=2, next_due_ms=1_000_000 - 29_000)
        assert after(Told(4, False), late)[0] == ""


class TestSending:
    def setup_method(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.answer = ""
        self.now_s = 0.0
        self.found = CALM
        desk = MemoryDesk(MemoryStore(Memory(8, StoreClock()), "a"))
        self.hooks = [
            WebhookReporter(Webhook(), desk, self.look, name, self.post, lambda: self.now_s) for name in ("a", "b")
        ]

    async def look(self) -> Stats:
        return self.found

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
        assert [one["dead_letters"] for one in self.sent] == [{"new": 1, "total": 5}]

    async def test_reports_keep_their_distance_and_lose_nothing(self) -> None:
        await self.turn()
        for total in (5, 6, 7):
            self.found = replace(CALM, dead=total, ever={"dead": total})
            await self.turn()
            self.now_s += 20
        self.now_s += 60
        await self.turn()
        assert [one["dead_letters"]["new"] for one in self.sent] == [1, 2]

    async def test_a_refused_report_is_sent_again(self) -> None:
        await self.turn()
        self.answer = "hooks.example answers 500"
        self.found = replace(CALM, dead=5, ever={"dead": 5})
        await self.turn()
        assert self.sent == []
        self.answer = ""
        await self.turn()
        assert [one["dead_letters"]["new"] for one in self.sent] == [1]
