"""The plan of `postdate migrate plugin`: which steps, in which state, and what is refused."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import pytest

from adapters.rabbitmq.declarations import Binding
from adapters.rabbitmq.migration.facts import binding_facts, exchange_facts, inner_publishers
from adapters.rabbitmq.migration.hold import HoldAnswer, held, script
from adapters.rabbitmq.migration.move_plan import (
    WAITING_ARGUMENTS,
    BrokerFacts,
    ExchangeFacts,
    Stage,
    describe,
    moves,
    names_of,
    route_name,
    toml,
)
from adapters.rabbitmq.nodes import PLUGIN_TYPE
from bridge.core.errors import FAILED, FINE, REFUSED, BrokerUnavailable, Refused
from bridge.desk.migration import Means, Migration, Progress
from bridge.settings import load

ORDERS = ExchangeFacts("orders", PLUGIN_TYPE, {"x-delayed-type": "topic"}, waiting=7)
TARGET = ExchangeFacts("orders.target", "topic")
FRONT = ExchangeFacts("orders.delay", "headers", {"alternate-exchange": "orders.target"})
WAITING = ExchangeFacts("orders.waiting", PLUGIN_TYPE, WAITING_ARGUMENTS, waiting=3)
ENDS = ExchangeFacts("orders", "topic", {"alternate-exchange": "orders.delay"})
BOUND = Binding("orders", "work", key="new.#")
INTAKE = Binding("orders.delay", "postdate.orders")
READY = (BOUND, replace(BOUND, exchange="orders.target"), INTAKE)
CTL, PAUSED = Means("rabbitmqctl"), Means(paused=True)


def facts(*exchanges: ExchangeFacts, **more: Any) -> BrokerFacts:
    given = {"bindings": (BOUND,), "consumed": frozenset({"postdate.orders"}), **more}
    return BrokerFacts({exchange.name: exchange for exchange in exchanges}, **given)


def told(found: BrokerFacts, means: Means = CTL) -> Migration:
    [move] = moves(found)
    return describe(move, found, means)


def states(migration: Migration) -> list[str]:
    return [step.progress.value for step in migration.steps]


def refusal(found: BrokerFacts, means: Means = CTL) -> str:
    migration = told(found, means)
    assert migration.code == REFUSED
    return " ".join(step.text for step in migration.steps if step.progress is Progress.REFUSED)


class TestSteps:
    def test_at_first_all_is_planned_and_the_route_is_the_operators_step(self) -> None:
        migration = told(facts(ORDERS))
        assert states(migration) == ["planned", "yours", "planned", "planned"]
        assert (migration.name, migration.kind, migration.waiting, migration.code) == ("orders", "topic", 7, FAILED)

    def test_a_target_that_lacks_a_binding_is_not_done(self) -> None:
        assert states(told(facts(ORDERS, TARGET)))[0] == "planned"
        assert states(told(facts(ORDERS, TARGET, bindings=READY)))[0] == "done"

    def test_a_front_without_a_consumer_behind_it_is_the_operators_step(self) -> None:
        prepared = (ORDERS, TARGET, FRONT)
        assert states(told(facts(*prepared, bindings=READY)))[1] == "done"
        idle = told(facts(*prepared, bindings=READY, consumed=frozenset()))
        assert states(idle)[1] == "yours"
        assert "no postdate takes messages from queue 'postdate.orders'" in idle.steps[1].text
        assert "reload it" in idle.steps[1].text
        assert "SIGHUP" in told(facts(ORDERS)).steps[1].text

    def test_what_waits_is_counted_in_both_exchanges(self) -> None:
        assert told(facts(ORDERS, TARGET, WAITING)).waiting == 10
        assert told(facts(replace(ORDERS, waiting=None))).waiting is None

    def test_a_replaced_exchange_drains(self) -> None:
        migration = told(facts(ENDS, TARGET, FRONT, WAITING, bindings=READY[1:]))
        assert states(migration) == ["done", "done", "done", "done", "draining"]
        assert (migration.waiting, migration.code) == (3, FINE)

    def test_an_exchange_that_a_kill_left_missing_is_found_by_its_waiting_exchange(self) -> None:
        [move] = moves(facts(TARGET, FRONT, WAITING))
        assert (move.names.old, move.stage, move.type) == ("orders", Stage.MISSING, "topic")
        assert move.ends == ENDS

    def test_the_target_gets_the_arguments_but_for_the_plugins(self) -> None:
        own = {"x-delayed-type": "direct", "alternate-exchange": "lost", "x-more": 1}
        [move] = moves(facts(replace(ORDERS, arguments=own)))
        assert (move.type, move.arguments) == ("direct", {"alternate-exchange": "lost", "x-more": 1})

    def test_an_exchange_of_users_that_ends_in_waiting_is_a_move_of_its_own(self) -> None:
        own = replace(ORDERS, name="people.waiting", arguments={"x-delayed-type": "fanout"})
        assert [move.names.old for move in moves(facts(own))] == ["people.waiting"]


class TestRefusals:
    def test_without_rabbitmqctl_it_says_what_would_be_lost(self) -> None:
        ready = facts(ORDERS, TARGET, FRONT, bindings=READY)
        assert "Give --rabbitmqctl" in refusal(ready, Means())
        assert "messages wait in the plugin: 7" in refusal(ready, PAUSED)
        assert "unknown" in refusal(facts(replace(ORDERS, waiting=None)), PAUSED)

    def test_paused_and_empty_needs_no_rabbitmqctl_on_one_node(self) -> None:
        empty = replace(ORDERS, waiting=0)
        assert "refused" not in states(told(facts(empty), PAUSED))
        for nodes in (3, None):
            assert "on one node only" in refusal(facts(empty, nodes=nodes), PAUSED)

    def test_publishers_inside_the_broker_are_refused_unless_paused(self) -> None:
        inside = facts(ORDERS, publishers={"orders": ("queue 'failing' dead-letters to it",)})
        assert "queue 'failing' dead-letters to it" in refusal(inside)
        assert "refused" not in states(told(inside, Means("rabbitmqctl", paused=True)))

    @pytest.mark.parametrize("change", [{"durable": False}, {"auto_delete": True}, {"internal": True}])
    def test_what_an_application_makes_for_the_moment_is_refused(self, change: dict[str, Any]) -> None:
        assert "auto-delete, internal or not durable" in refusal(facts(replace(ORDERS, **change)))

    def test_a_queue_of_another_connection_is_refused(self) -> None:
        assert "'orders.target' itself" in refusal(facts(ORDERS, exclusive=frozenset({"work"})))

    @pytest.mark.parametrize(
        "taken",
        [
            replace(TARGET, type="direct"),
            replace(TARGET, durable=False),
            replace(FRONT, arguments={}),
            replace(WAITING, type="topic"),
        ],
    )
    def test_a_name_that_is_taken_is_refused(self, taken: ExchangeFacts) -> None:
        assert f"exchange '{taken.name}' exists with other properties" in refusal(facts(ORDERS, taken))

    def test_an_exchange_without_its_alternate_exchange_is_refused(self) -> None:
        assert "delayed messages are not delayed" in refusal(facts(replace(ENDS, arguments={}), TARGET, FRONT, WAITING))


class TestRoute:
    def test_its_name_is_one_that_settings_allow(self) -> None:
        assert [route_name(exchange) for exchange in ("orders", "Orders-EU.v2", "7up", "...")] == [
            "orders",
            "orders_eu_v2",
            "x_7up",
            "x",
        ]

    @pytest.mark.parametrize("old", ["orders", 'a"b\\c', "Übung"])
    def test_the_settings_read_it(self, old: str, tmp_path: Any) -> None:
        file = tmp_path / "postdate.toml"
        file.write_text(toml(names_of(old)))
        [route] = tomllib.loads(file.read_text())["routes"].values()
        assert (route["intercept"], route["deliver_to"]) == (f"{old}.delay", f"{old}.target")
        assert list(load(file, {}).routes)


class TestFacts:
    def test_the_api_is_read(self) -> None:
        answer = {
            "name": "orders",
            "type": PLUGIN_TYPE,
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"x-delayed-type": "topic"},
            "messages_delayed": 7,
        }
        assert exchange_facts(answer) == ORDERS
        bound = {"source": "orders", "destination": "work", "destination_type": "queue", "routing_key": "new.#"}
        assert binding_facts({**bound, "arguments": {}}) == BOUND

    def test_what_publishes_inside_the_broker_is_found(self) -> None:
        exchanges = [ExchangeFacts("a", "topic", {"alternate-exchange": "orders"})]
        queues = [
            {"name": "q", "arguments": {"x-dead-letter-exchange": "orders"}},
            {"name": "r", "arguments": {}, "effective_policy_definition": {"dead-letter-exchange": "orders"}},
            {"name": "s", "arguments": {}, "effective_policy_definition": []},
        ]
        found = inner_publishers(exchanges, [BOUND, Binding("b", "orders", to_exchange=True)], queues)
        assert {name: len(texts) for name, texts in found.items()} == {"orders": 4}


class TestHold:
    def test_names_in_the_script_are_numbers(self) -> None:
        text = script("/", 'x">>, halt().', "w", "amq.gen-1")
        assert "halt" not in text
        assert "@" not in text
        assert "%%" not in text
        assert "{resource,<<47>>,exchange,<<119>>}" in text

    def test_the_tools_last_line_decides(self) -> None:
        assert held("ctl", ["Warning: old", "{held,12,40}"]) == HoldAnswer(12, 40)
        with pytest.raises(Refused, match=r"another broker than rabbitmq\.url\. Nothing was replaced"):
            held("ctl", ["{refused,other_broker}"])
        with pytest.raises(Refused, match="badarg"):
            held("ctl", ["{refused,badarg}"])
        with pytest.raises(BrokerUnavailable, match="unable to connect"):
            held("ctl", ["Error: unable to connect to node"])
        with pytest.raises(BrokerUnavailable, match="it said nothing"):
            held("ctl", [])
