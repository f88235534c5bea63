"""What is declared for which settings, and the sentence for each difference. No broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq.declarations import DELIVERY_LIMIT, Binding, Exchange, Queue
from adapters.rabbitmq.topology.declaring import Session
from adapters.rabbitmq.topology.findings import ArgumentDifference, Comparison, difference_in, summary
from adapters.rabbitmq.topology.route_topology import RouteTopology, foreign, kept, plan
from bridge.delay.header import DUE_HEADERS
from bridge.desk.topology import Standing
from bridge.settings import Settings, load

ORDERS = {"intercept": "orders.delay", "deliver_to": "orders"}


pytestmark = pytest.mark.usefixtures("empty_directory")


def settings(**routes: Mapping[str, object]) -> Settings:
    return load(None, {}, {f"routes.{name}": dict(route) for name, route in routes.items()})


def planned(**more: object) -> RouteTopology:
    (route,) = plan(settings(orders={**ORDERS, **more}))
    return route


class TestPlan:
    def test_an_undelayed_message_goes_straight_to_the_target_exchange(self) -> None:
        front = planned().front
        assert (front.name, front.type) == ("orders.delay", "headers")
        assert front.arguments == {"alternate-exchange": "orders"}

    def test_every_delay_header_leads_to_the_intake_queue_whatever_its_value(self) -> None:
        arguments = planned().binding.arguments
        assert arguments == {"x-match": "any-with-x", **dict.fromkeys(DUE_HEADERS)}

    def test_the_headers_of_a_dialect_lead_to_the_intake_only_if_the_route_has_the_dialect(self) -> None:
        assert "eta" not in planned().binding.arguments
        assert planned(dialects=["eta", "DELAY"]).binding.arguments.keys() >= {"eta", "DELAY", "x-delay"}

    def test_a_key_header_alone_does_not_lead_to_the_intake(self) -> None:
        assert "x-delay-key" not in planned().binding.arguments

    def test_with_the_default_exchange_as_target_everything_passes_through_the_intake_queue(self) -> None:
        route = planned(deliver_to="")
        assert route.front.arguments == {}
        assert route.binding.arguments == {"x-match": "all"}

    def test_a_quorum_queue_never_drops_a_message_for_its_redeliveries(self) -> None:
        assert planned().intake.arguments["x-delivery-limit"] == DELIVERY_LIMIT > 10**9

    def test_a_classic_queue_has_no_delivery_limit_which_it_would_not_know(self) -> None:
        assert planned(queue_type="classic").intake.arguments == {
            "x-queue-type": "classic",
            "x-single-active-consumer": True,
            "x-overflow": "reject-publish",
        }

    @pytest.mark.parametrize("queue_type", ["quorum", "classic"])
    def test_a_full_intake_refuses_messages(self, queue_type: str) -> None:
        assert planned(queue_type=queue_type).intake.arguments["x-overflow"] == "reject-publish"

    @pytest.mark.parametrize(("queue_type", "waits_ms"), [("quorum", 5000), ("classic", None)])
    def test_rabbitmq_hands_over_the_intake_of_a_dead_node_within_seconds(
        self, queue_type: str, waits_ms: int | None
    ) -> None:
        """By default RabbitMQ 4.3 reserves it for the consumer of that node for a minute."""
        assert planned(queue_type=queue_type).intake.arguments.get("x-consumer-disconnected-timeout") == waits_ms

    @pytest.mark.parametrize(("order", "single"), [("key", True), ("route", True), ("none", None)])
    def test_one_instance_consumes_where_order_matters(self, order: str, single: bool | None) -> None:
        assert planned(order=order).intake.arguments.get("x-single-active-consumer") is single

    def test_the_target_exchange_is_not_declared(self) -> None:
        route = planned()
        assert [(target.name, target.ours) for target in route.targets] == [("orders", False)]
        assert route.targets[0] not in route.declarations()

    def test_undelayed_messages_reach_each_of_several_targets_through_an_exchange_of_our_own(self) -> None:
        route = planned(deliver_to=["orders", "audit"])
        assert route.front.arguments == {"alternate-exchange": "postdate.orders.spread"}
        bindings = [part for part in route.spread if isinstance(part, Binding)]
        assert [(part.exchange, part.queue, part.to_exchange) for part in bindings] == [
            ("postdate.orders.spread", "orders", True),
            ("postdate.orders.spread", "audit", True),
        ]

    def test_the_queue_is_declared_before_the_exchange_that_leads_to_it(self) -> None:
        route = planned()
        assert route.declarations() == (route.intake, route.front, route.binding)

    def test_every_route_has_a_plan_of_its_own(self) -> None:
        routes = plan(settings(a={"intercept": "a.in", "deliver_to": "a"}, b={"intercept": "b.in", "deliver_to": ""}))
        assert [(route.route, route.intake.name, route.front.name) for route in routes] == [
            ("a", "postdate.a", "a.in"),
            ("b", "postdate.b", "b.in"),
        ]


class TestRetryPlan:
    @pytest.fixture
    def route(self) -> RouteTopology:
        retry = {"kind": "retry", "queue": "work", "schedule": ["1s"], "then": "exchange:parking"}
        (route,) = plan(settings(orders=retry))
        return route

    def test_dead_letters_of_the_consumers_queue_reach_the_intake_by_the_name_of_the_route(
        self, route: RouteTopology
    ) -> None:
        assert route.front == Exchange("postdate.retry", "direct")
        assert route.binding == Binding("postdate.retry", "postdate.orders", {}, key="orders")

    def test_a_returned_message_reaches_the_consumers_queue_alone(self, route: RouteTopology) -> None:
        back = "postdate.orders.back"
        assert route.back == (Exchange(back, "fanout"), Binding(back, "work", {}, foreign=True))

    def test_what_belongs_to_the_consumers_is_compared_and_never_declared(self, route: RouteTopology) -> None:
        assert [(part.name, part.ours) for part in route.targets] == [("work", False), ("parking", False)]
        assert not set(map(id, route.targets)) & set(map(id, route.declarations()))

    def test_the_bindings_on_both_sides_are_kept(self) -> None:
        found = settings(orders={"kind": "retry", "queue": "work", "schedule": ["1s"]})
        assert [binding.exchange for binding in kept(found, "orders").bound] == ["postdate.retry"]
        assert [binding.exchange for binding in foreign(found, "orders")] == ["postdate.orders.back"]

    @pytest.mark.parametrize(
        ("place", "said"),
        [
            (0, "queue 'work', to which route r returns messages, does not exist. Declare it .* routes.r.queue"),
            (1, "exchange 'parking', which gets messages of route r after .* Declare it .* routes.r.then"),
        ],
    )
    def test_what_is_missing_at_the_consumers_is_named_with_its_setting(
        self, route: RouteTopology, place: int, said: str
    ) -> None:
        missing = Comparison("r", route.targets[place], Standing.MISSING, last_step=place == 1)
        assert re.match(said, missing.text)


def different(wanted: Exchange | Queue, reply: str, without_store: bool = False) -> Comparison:
    difference = difference_in(reply, wanted)
    return Comparison("orders", wanted, Standing.DIFFERENT, reply, difference, without_store=without_store)


class Refusing:
    """A connection whose every channel closes with one reply."""

    _impl = SimpleNamespace(server_properties={"version": "4.4.0"})

    def __init__(self, reply: str) -> None:
        self._reply = reply

    def channel(self) -> Any:
        return SimpleNamespace(is_open=False, queue_declare=self._close)

    def _close(self, *_: object, **__: object) -> None:
        raise ChannelClosedByBroker(404, self._reply)


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ("NOT_FOUND - no queue 'timed' in vhost '/'", Standing.MISSING),
        # Of 3.10.8, and of a build before 4.4.0.
        ("NOT_FOUND - home node 'a@b' of durable queue 'timed' in vhost '/' is down or inaccessible", Standing.AWAY),
        ("NOT_FOUND - failed to perform operation on queue 'timed' in vhost '/' due to timeout", Standing.AWAY),
    ],
)
def test_a_queue_on_a_node_that_is_down_is_not_missing(reply: str, state: Standing) -> None:
    session = Session(cast("Any", Refusing(reply)))
    found = session.compare("orders", Queue("timed", {"x-queue-type": "classic"}), without_store=False)
    assert found.state is state
    assert session.lacks(Queue("timed")) is (state is Standing.MISSING)


class TestFindings:
    QUEUE = Queue("postdate.orders", {"x-queue-type": "quorum", "x-single-active-consumer": True})
    FRONT = Exchange("orders.delay", arguments={"alternate-exchange": "orders"})
    IS_CLASSIC = ArgumentDifference("x-queue-type", "classic", "quorum")

    @pytest.mark.parametrize(
        "reply",
        [
            # As RabbitMQ 4.3.6 and 3.10.8 write it.
            "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'postdate.orders' in vhost '/': "
            "received 'quorum' but current is 'classic'",
            "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'postdate.orders' in vhost '/': "
            "received the value 'quorum' of type 'longstr' but current is the value 'classic' of type 'longstr'",
        ],
    )
    def test_a_setting_keeps_a_queue_of_another_type(self, reply: str) -> None:
        assert difference_in(reply, self.QUEUE) == self.IS_CLASSIC
        assert different(self.QUEUE, reply).text == (
            "queue 'postdate.orders' of route orders exists with x-queue-type 'classic', and postdate needs 'quorum'. "
            'Set routes.orders.queue_type = "classic" to keep it, or delete it when it is empty and run '
            "`postdate setup`"
        )
        text = different(self.QUEUE, reply, without_store=True).text
        assert text.endswith('`postdate setup`. levels.queue_type = "quorum" sets the type of the level queues alone')

    def test_a_summary_gives_equal_advice_once_and_equal_facts_once(self) -> None:
        queues = [Queue(name, {}) for name in "ab"]
        alike = [Comparison("r", queue, Standing.DIFFERENT, difference=self.IS_CLASSIC) for queue in queues]
        crash = [Comparison("r", queue, Standing.DIFFERENT, crashing_version="3.10.5") for queue in queues]
        assert summary([alike[0], crash[0], alike[1], crash[1]]) == [
            "queue 'a' of route r exists with x-queue-type 'classic', and postdate needs 'quorum'; "
            "queue 'b' of route r exists with x-queue-type 'classic', and postdate needs 'quorum'. "
            'Set routes.r.queue_type = "classic" to keep it, or delete it when it is empty and run `postdate setup`',
            "RabbitMQ 3.10.5 crashes the classic queues that levels need. Use 3.10.7 or later, or set "
            'levels.queue_type = "quorum"',
        ]

    def test_an_absent_argument_is_named(self) -> None:
        reply = (
            "PRECONDITION_FAILED - inequivalent arg 'x-single-active-consumer' for queue 'postdate.orders' in vhost "
            "'/': received the value 'true' of type 'bool' but current is none"
        )
        assert difference_in(reply, self.QUEUE) == ArgumentDifference("x-single-active-consumer", None, "true")
        text = different(self.QUEUE, reply).text
        assert "exists with no x-single-active-consumer, and postdate needs 'true'" in text

    def test_another_type_of_exchange_is_named(self) -> None:
        reply = (
            "PRECONDITION_FAILED - inequivalent arg 'type' for exchange 'orders.delay' in vhost '/': received "
            "'headers' but current is 'x-delayed-message'"
        )
        text = different(self.FRONT, reply).text
        assert "exchange 'orders.delay' of route orders exists with type 'x-delayed-message'" in text
        assert "postdate needs 'headers'" in text
        assert "routes.orders.intercept" in text

    def test_an_unknown_reply_is_passed_on(self) -> None:
        assert difference_in("SOMETHING_ELSE - no idea", self.FRONT) is None
        assert "SOMETHING_ELSE" in different(self.FRONT, "SOMETHING_ELSE - no idea").text
