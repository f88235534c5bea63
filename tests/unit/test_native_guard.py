"""Where a message goes whose header makes a quorum queue of RabbitMQ 4.4 hold it. A fake broker routes the plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from adapters.rabbitmq.declarations import Binding, Declaration, Exchange, Queue
from adapters.rabbitmq.native_guard import delays_natively
from adapters.rabbitmq.topology.route_topology import RouteTopology, kept, plan
from bridge.delay.header import NATIVE
from bridge.settings import Settings, load

Headers = Mapping[str, object]
TIMED = {NATIVE: 1_900_000_000_000}
ROUTES: dict[str, dict[str, object]] = {
    "redis": {"deliver_to": "orders"},
    "redis, with the dialect": {"deliver_to": "orders", "dialects": [NATIVE]},
    "redis, classic": {"deliver_to": "orders", "queue_type": "classic"},
    "several destinations": {"deliver_to": ["orders", "audit"]},
    "levels": {"deliver_to": "orders", "mode": "levels"},
    "ladder": {"deliver_to": "orders", "mode": "ladder"},
    "default exchange": {"deliver_to": ""},
    "default exchange, levels": {"deliver_to": "", "mode": "levels"},
}
DELAYS: tuple[Headers, ...] = ({"x-delay": 1}, {"x-deliver-at": 1}, {"x-delay-cancel": "k"}, {"x-delay-level": 2})
MESSAGES: tuple[Headers, ...] = (
    {},
    {"other": 1},
    *DELAYS,
    {"x-delay-level": 2, "x-death": []},
    {"x-delay": 1, "x-delay-level": 1},
)


class FakeBroker:
    """Routes by headers as RabbitMQ does. Its quorum queues hold what carries the header, as those of 4.4 do."""

    def __init__(self, declarations: Iterable[Declaration]) -> None:
        parts = list(declarations)
        self.exchanges = {part.name: part for part in parts if isinstance(part, Exchange)}
        self.queues = {part.name: part for part in parts if isinstance(part, Queue)}
        self.bindings = [part for part in parts if isinstance(part, Binding)]
        self.held: set[str] = set()

    def publish(self, exchange: str, headers: Headers) -> list[str]:
        """Return the queues, and the consumers' exchanges, that get one copy each."""
        reached = sorted(set(self._routed(exchange, headers)))
        kinds = {name: self.queues[name].arguments["x-queue-type"] for name in reached if name in self.queues}
        self.held |= {name for name, kind in kinds.items() if kind == "quorum" and NATIVE in headers}
        return reached

    def _routed(self, exchange: str, headers: Headers) -> Iterable[str]:
        if exchange not in self.exchanges:
            yield exchange  # the consumers' own
            return
        found = self.exchanges[exchange]
        ends = [part for part in self.bindings if part.exchange == exchange and _matches(found, part, headers)]
        for binding in ends:
            yield from self._routed(binding.queue, headers) if binding.to_exchange else (binding.queue,)
        if not ends and (alternate := found.arguments.get("alternate-exchange")):
            yield from self._routed(str(alternate), headers)


def _matches(exchange: Exchange, binding: Binding, headers: Headers) -> bool:
    if exchange.type == "fanout":
        return True
    wanted = {name: value for name, value in binding.arguments.items() if name != "x-match"}
    found = (name in headers and value in (None, headers[name]) for name, value in wanted.items())
    return any(found) if str(binding.arguments["x-match"]).startswith("any") else all(found)


def settings(kind: str) -> Settings:
    return load(None, {}, {"routes.orders": {"intercept": "front", **ROUTES[kind]}})


def topology(kind: str, native: bool) -> RouteTopology:
    (route,) = plan(settings(kind), native)
    return route


@pytest.mark.parametrize("version", ["4.4.0", "4.4.0-rc.1", "4.10.2", "5.0.0"])
def test_quorum_queues_delay_from_4_4_on(version: str) -> None:
    assert delays_natively(version)


@pytest.mark.parametrize("version", ["3.10.8", "3.13.7", "4.3.6", "", "unknown"])
def test_quorum_queues_of_earlier_versions_do_not_delay(version: str) -> None:
    assert not delays_natively(version)


@pytest.mark.parametrize("kind", ROUTES)
class TestRouting:
    @pytest.mark.parametrize("more", MESSAGES)
    def test_no_quorum_queue_gets_the_header_and_one_classic_queue_does(self, kind: str, more: Headers) -> None:
        broker = FakeBroker(topology(kind, native=True).declarations())
        assert broker.publish("front", {**TIMED, **more}) == ["postdate.orders.timed"]
        assert not broker.held

    @pytest.mark.parametrize("headers", MESSAGES)
    def test_every_other_message_goes_where_it_went_before(self, kind: str, headers: Headers) -> None:
        before, now = (FakeBroker(topology(kind, native).declarations()) for native in (False, True))
        assert now.publish("front", headers) == before.publish("front", headers)

    @pytest.mark.parametrize("headers", MESSAGES)
    def test_beside_the_bindings_of_earlier_no_message_is_doubled(self, kind: str, headers: Headers) -> None:
        before, now = topology(kind, native=False), topology(kind, native=True)
        both = FakeBroker((*before.declarations(), *now.declarations()))
        assert both.publish("front", headers) == FakeBroker(before.declarations()).publish("front", headers)

    def test_without_the_guard_the_header_reaches_a_quorum_queue(self, kind: str) -> None:
        """What the fake must show, or the tests above would show nothing."""
        broker = FakeBroker(topology(kind, native=False).declarations())
        broker.publish("front", {**TIMED, "x-delay": 1})
        assert bool(broker.held) == ("classic" not in kind)

    def test_a_setup_changes_the_arguments_of_nothing_that_exists(self, kind: str) -> None:
        before, now = (
            {(type(part), part.name): part for part in topology(kind, native).declarations() if hasattr(part, "name")}
            for native in (False, True)
        )
        assert all(now[which] == part for which, part in before.items())

    def test_the_bindings_of_earlier_are_removed_by_setup_and_by_a_running_process(self, kind: str) -> None:
        front = [part for part in topology(kind, native=False).declarations() if isinstance(part, Binding)]
        previous = [part for part in front if (part.exchange, part.queue) == ("front", "postdate.orders")]
        assert previous
        for unbound in (topology(kind, native=True).unbound, kept(settings(kind), "orders", native=True).unbound):
            assert all(binding in unbound for binding in previous)

    def test_nothing_that_is_declared_is_removed_again(self, kind: str) -> None:
        declared, unbound = topology(kind, native=True).declarations(), topology(kind, native=True).unbound
        assert not [binding for binding in unbound if binding in declared]

    def test_a_running_process_keeps_the_bindings_around_the_guard(self, kind: str) -> None:
        bound = kept(settings(kind), "orders", native=True).bound
        ends = {(part.exchange, part.queue) for part in bound}
        assert ends >= {
            ("front", "postdate.orders.sort"),
            ("postdate.orders.sort", "postdate.orders.timed"),
            ("postdate.orders.all", "postdate.orders"),
        }


@pytest.mark.parametrize("before", ["redis", "levels"])
@pytest.mark.parametrize("after", ["redis", "levels"])
def test_bindings_of_another_mode_do_not_lead_past_the_guard(before: str, after: str) -> None:
    old = [part for part in topology(before, native=False).declarations() if isinstance(part, Binding)]
    now = topology(after, native=True)
    left = [part for part in (*old, *now.declarations()) if part not in now.unbound]
    broker = FakeBroker(
        [
            *(part for part in now.declarations() if not isinstance(part, Binding)),
            *(b for b in left if isinstance(b, Binding)),
        ]
    )
    assert broker.publish("front", {**TIMED, "x-delay": 1, "x-delay-level": 1}) == ["postdate.orders.timed"]


def test_a_retry_route_has_no_guard() -> None:
    """A message that RabbitMQ dead-letters is not delayed again: its moment has come, or its queue is a classic one."""
    retry = load(None, {}, {"routes.orders": {"kind": "retry", "queue": "work", "schedule": ["1s"]}})
    assert plan(retry, native=True) == plan(retry, native=False)
