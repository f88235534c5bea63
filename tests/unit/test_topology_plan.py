"""The topology as a plan: what is declared for which settings, and how a mismatch is put into words. No broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from adapters.rabbitmq.topology.declarations import DELIVERY_LIMIT, Exchange, Queue
from adapters.rabbitmq.topology.findings import mismatch
from adapters.rabbitmq.topology.plan import RouteTopology, plan
from adapters.rabbitmq.topology.setup import Finding, State, told
from bridge.delay.header import DUE_HEADERS
from bridge.settings import Settings, load

ORDERS = {"intercept": "orders.delay", "deliver_to": "orders"}


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(**routes: Mapping[str, object]) -> Settings:
    return load(None, {}, {f"routes.{name}": dict(route) for name, route in routes.items()})


def planned(**more: object) -> RouteTopology:
    (route,) = plan(settings(orders={**ORDERS, **more}))
    return route


class TestPlan:
    def test_what_is_not_delayed_goes_straight_to_the_real_exchange(self) -> None:
        front = planned().front
        assert (front.name, front.type) == ("orders.delay", "headers")
        assert front.arguments == {"alternate-exchange": "orders"}

    def test_every_delay_header_leads_to_the_intake_queue_whatever_its_value_is(self) -> None:
        arguments = planned().binding.arguments
        assert arguments == {"x-match": "any-with-x", **dict.fromkeys(DUE_HEADERS)}

    def test_the_headers_of_a_dialect_lead_there_only_when_the_route_has_it(self) -> None:
        assert "eta" not in planned().binding.arguments
        assert planned(dialects=["eta", "DELAY"]).binding.arguments.keys() >= {"eta", "DELAY", "x-delay"}

    def test_a_key_alone_is_no_reason_to_intercept(self) -> None:
        assert "x-delay-key" not in planned().binding.arguments

    def test_with_the_default_exchange_as_target_everything_passes_through_the_intake_queue(self) -> None:
        route = planned(deliver_to="")
        assert route.front.arguments == {}
        assert route.binding.arguments == {"x-match": "all"}

    def test_a_quorum_queue_never_gives_up_a_message_for_being_redelivered(self) -> None:
        assert planned().intake.arguments["x-delivery-limit"] == DELIVERY_LIMIT > 10**9

    def test_a_classic_queue_has_no_delivery_limit_which_it_would_not_know(self) -> None:
        assert planned(queue_type="classic").intake.arguments == {
            "x-queue-type": "classic",
            "x-single-active-consumer": True,
            "x-overflow": "reject-publish",
        }

    @pytest.mark.parametrize("queue_type", ["quorum", "classic"])
    def test_a_full_intake_refuses_and_one_that_an_earlier_postdate_declared_is_known(self, queue_type: str) -> None:
        intake = planned(queue_type=queue_type).intake
        assert intake.arguments["x-overflow"] == "reject-publish"
        assert intake.earlier is not None
        assert "x-overflow" not in intake.earlier
        assert {**intake.arguments, **intake.earlier} == intake.arguments

    @pytest.mark.parametrize(("queue_type", "waits_ms"), [("quorum", 5000), ("classic", None)])
    def test_rabbitmq_hands_the_intake_of_a_dead_node_over_soon(self, queue_type: str, waits_ms: int | None) -> None:
        """RabbitMQ 4.3 would keep it for the consumer of that node for a minute."""
        assert planned(queue_type=queue_type).intake.arguments.get("x-consumer-disconnected-timeout") == waits_ms

    @pytest.mark.parametrize(("order", "single"), [("key", True), ("route", True), ("none", None)])
    def test_one_instance_consumes_where_the_order_counts(self, order: str, single: bool | None) -> None:
        assert planned(order=order).intake.arguments.get("x-single-active-consumer") is single

    def test_the_exchange_of_the_consumers_is_not_among_what_is_declared(self) -> None:
        route = planned()
        assert route.target.name == "orders"
        assert not route.target.ours
        assert route.target not in route.declarations()

    def test_the_queue_is_there_before_the_exchange_that_needs_it(self) -> None:
        route = planned()
        assert route.declarations() == (route.intake, route.front, route.binding)

    def test_every_route_has_a_plan_of_its_own(self) -> None:
        routes = plan(settings(a={"intercept": "a.in", "deliver_to": "a"}, b={"intercept": "b.in", "deliver_to": ""}))
        assert [(route.route, route.intake.name, route.front.name) for route in routes] == [
            ("a", "postdate.a", "a.in"),
            ("b", "postdate.b", "b.in"),
        ]


class TestMismatchInWords:
    QUEUE = Queue("postdate.orders", {"x-queue-type": "quorum", "x-single-active-consumer": True})
    FRONT = Exchange("orders.delay", arguments={"alternate-exchange": "orders"})

    @pytest.mark.parametrize(
        "said",
        [
            # As RabbitMQ 4.3.6 and 3.10.8 write it.
            "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'postdate.orders' in vhost '/': "
            "received 'quorum' but current is 'classic'",
            "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'postdate.orders' in vhost '/': "
            "received the value 'quorum' of type 'longstr' but current is the value 'classic' of type 'longstr'",
        ],
    )
    def test_another_queue_type_can_be_kept_by_a_setting(self, said: str) -> None:
        assert mismatch("orders", self.QUEUE, said) == (
            "queue 'postdate.orders' of route orders exists with x-queue-type 'classic', and postdate needs 'quorum'",
            'set routes.orders.queue_type = "classic" to keep what is there, or delete it when it is empty and run '
            "`postdate setup`",
        )
        _, advice = mismatch("orders", self.QUEUE, said, waits=True)
        assert '(levels.queue_type = "quorum" is for the queues in which messages wait), or delete it when' in advice

    def test_one_advice_is_given_once_and_so_is_what_is_said_of_several(self) -> None:
        first, second, third = (Finding("a", self.QUEUE, State.DIFFERENT, what, "do it") for what in "abc")
        alone, again = (Finding("a", self.QUEUE, State.DIFFERENT, "this RabbitMQ cannot") for _ in range(2))
        other = replace(third, advice="do that")
        assert told([first, alone, second, other, again]) == ["this RabbitMQ cannot", "a; b: do it", "c: do that"]

    def test_what_is_missing_is_called_missing(self) -> None:
        said = (
            "PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'postdate.orders' in vhost "
            "'/': received the value 'true' of type 'bool' but current is none"
        )
        text, _ = mismatch("orders", self.QUEUE, said)
        assert "exists with no x-single-active-consumer, and postdate needs 'true'" in text

    def test_another_kind_of_exchange_is_named(self) -> None:
        said = (
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'orders.delay' in vhost '/': received "
            "'headers' but current is 'x-delayed-message'"
        )
        text, advice = mismatch("orders", self.FRONT, said)
        assert "exchange 'orders.delay' of route orders exists with type 'x-delayed-message'" in text
        assert "postdate needs 'headers'" in text
        assert "routes.orders.intercept" in advice

    def test_words_that_nobody_expected_are_passed_on(self) -> None:
        assert "SOMETHING_ELSE" in mismatch("orders", self.FRONT, "SOMETHING_ELSE - no idea")[0]
