"""The canary: which brokers have one, when it is overdue, what is remembered and logged of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bridge.app.canaries import LOST_S, Canaries
from bridge.core.errors import BrokerUnavailable
from bridge.settings import Settings, load, plan
from bridge.settings.process_plan import canary_brokers, canary_name, is_canary

ROUTES = {
    "routes.orders": {"intercept": "orders.delay", "deliver_to": "orders"},
    "routes.pay": {"broker": "kafka", "intercept": "pay.delay", "deliver_to": "pay"},
}


def settings(**more: object) -> Settings:
    return load(None, {}, {**ROUTES, **{name.replace("__", "."): value for name, value in more.items()}})


class TestPlan:
    def test_every_broker_with_a_store_has_a_canary(self) -> None:
        assert canary_brokers(settings()) == ["rabbitmq", "kafka"]
        assert canary_brokers(settings(canary__enabled=False)) == []

    def test_routes_without_a_store_have_none(self) -> None:
        levels = {**ROUTES["routes.orders"], "mode": "levels"}
        assert canary_brokers(load(None, {}, {**ROUTES, "routes.orders": levels})) == ["kafka"]

    def test_its_route_is_added_beside_the_others(self) -> None:
        rabbitmq, _ = plan(settings())
        names = list(rabbitmq.with_canary().settings.routes)
        assert names == ["orders", canary_name("rabbitmq")]
        assert [is_canary(name) for name in names] == [False, True]
        assert list(rabbitmq.settings.routes) == ["orders"]

    def test_its_name_is_reserved(self) -> None:
        with pytest.raises(Exception, match="is reserved for postdate's canary"):
            load(None, {}, {"routes.postdate_canary_rabbitmq": ROUTES["routes.orders"]})


class TestStates:
    def setup_method(self) -> None:
        self.answers: list[float | BrokerUnavailable | None] = []
        self.now_s = 1000.0
        self.canaries = Canaries(settings(), ["rabbitmq"], self.fly, lambda: self.now_s)
        (self.state,) = self.canaries.states()

    async def fly(self, broker: str, sent: Callable[[], None]) -> float | None:
        answer = self.answers.pop(0)
        if isinstance(answer, BrokerUnavailable):
            raise answer
        sent()
        self.while_it_flies = self.state.missing(settings().canary, self.now_s)
        return answer

    async def test_one_that_comes_back_leaves_its_lateness_and_moment(self) -> None:
        self.answers = [0.012]
        await self.canaries.once(self.state)
        assert (self.state.late_s, self.state.trouble) == (0.012, "")
        assert self.state.success_s == self.now_s

    async def test_a_lost_one_keeps_the_last_success_and_says_why(self) -> None:
        self.answers = [0.012, None, BrokerUnavailable("no broker answers")]
        await self.canaries.once(self.state)
        await self.canaries.once(self.state)
        assert (self.state.late_s, self.state.trouble) == (0.012, "it did not come back within 10 s of its due moment")
        await self.canaries.once(self.state)
        assert self.state.trouble == "no broker answers"

    async def test_it_is_missing_from_the_first_that_is_lost_or_late(self) -> None:
        rules = settings().canary
        assert self.state.missing(rules, self.now_s) == ""
        assert self.state.missing(rules, self.now_s + 37) == "none for 37 s"
        self.answers = [0.01, None]
        await self.canaries.once(self.state)
        assert self.state.missing(rules, self.now_s + 36) == ""
        await self.canaries.once(self.state)
        assert self.state.missing(rules, self.now_s).startswith("it did not come back")
        self.answers = [None]
        await self.canaries.once(self.state)
        assert self.while_it_flies.startswith("it did not come back"), "only one that comes back ends this"
        assert self.canaries.overdue() == ""

    async def test_a_canary_that_is_under_way_too_long_is_missing_before_it_is_lost(self) -> None:
        self.answers = [0.01]
        await self.canaries.once(self.state)
        came_back, rules = asyncio.Event(), settings().canary

        async def fly(*_: object) -> float | None:
            await came_back.wait()
            return 9.0

        self.canaries = Canaries(settings(), ["rabbitmq"], fly, lambda: self.now_s)
        (self.state,) = self.canaries.states()
        flight = asyncio.create_task(self.canaries.once(self.state))
        await asyncio.sleep(0)
        assert self.state.missing(rules, self.now_s + 6) == ""
        assert self.state.missing(rules, self.now_s + 7) == "it has been under way for 7 s"
        came_back.set()
        await flight
        assert self.state.missing(rules, self.now_s + 7) == ""

    async def test_after_a_failure_the_next_goes_soon_and_its_moment_is_known(self) -> None:
        """A broker that delivers again is not called frozen for a whole interval."""
        self.answers = [BrokerUnavailable("RabbitMQ does not answer. It is frozen"), 0.01]
        await self.canaries.once(self.state)
        assert self.state.tried_s == self.now_s
        assert self.canaries.pause_s(self.state) == 1
        self.now_s += 60
        await self.canaries.once(self.state)
        assert self.while_it_flies == "", "the broker took it, so it answers"
        assert (self.state.missing(settings().canary, self.now_s), self.canaries.pause_s(self.state)) == ("", 30)

    async def test_it_is_overdue_after_three_intervals_without_a_success(self) -> None:
        assert self.canaries.overdue() == ""
        self.now_s += 3 * 30 + LOST_S - 1
        assert self.canaries.overdue() == ""
        self.now_s += 2
        assert self.canaries.overdue() == "no canary of RabbitMQ came back: none was sent"
        self.answers = [0.01]
        await self.canaries.once(self.state)
        assert self.canaries.overdue() == ""
