"""The planned queues of routes without a store: names and arguments. No broker."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from adapters.rabbitmq.declarations import Binding, Exchange, Queue
from adapters.rabbitmq.levels.waits import Waits, plan_waits
from adapters.rabbitmq.stale_levels import LevelQueue, why_kept
from adapters.rabbitmq.topology.route_topology import kept, plan
from bridge.core.errors import SettingsError
from bridge.settings import Settings, load

NOTHING: Mapping[str, object] = {}
ORDERS = {"intercept": "orders.delay", "deliver_to": "orders"}


pytestmark = pytest.mark.usefixtures("empty_directory")


def settings(mode: str = "levels", more: Mapping[str, object] = NOTHING) -> Settings:
    return load(None, {}, {"routes.orders": {**ORDERS, "mode": mode}, "headers.levels": ["1s", "1h 30m"], **more})


def waits(mode: str = "levels", more: Mapping[str, object] = NOTHING) -> Waits:
    return plan_waits(settings(mode, more), "orders")


def queues(found: Waits) -> dict[str, Queue]:
    return {part.name: part for part in found.declarations if isinstance(part, Queue)}


def test_a_level_is_a_queue_with_its_ttl_that_dead_letters_to_the_due_queue() -> None:
    found = waits()
    assert [name.rpartition(".")[0] for name in found.levels.values()] == [
        "postdate.orders.level.1s",
        "postdate.orders.level.1h30m",
    ]
    arguments = queues(found)[found.levels[1000]].arguments
    assert arguments["x-message-ttl"] == 1000
    assert arguments["x-dead-letter-exchange"] == found.due
    assert "x-dead-letter-routing-key" not in arguments
    assert (arguments["x-dead-letter-strategy"], arguments["x-overflow"]) == ("at-least-once", "reject-publish")
    assert queues(found)[found.due].arguments["x-dead-letter-exchange"] == "orders"


def test_a_classic_level_queue_is_lazy_and_has_the_newer_storage() -> None:
    found = waits(more={"levels.queue_type": "classic"})
    arguments = queues(found)[found.levels[1000]].arguments
    assert (arguments["x-queue-version"], arguments["x-queue-mode"]) == (2, "lazy")


def test_a_full_classic_level_refuses_messages_and_a_queue_fed_by_queues_does_not() -> None:
    levels, ladder = (waits(mode, {"levels.queue_type": "classic"}) for mode in ("levels", "ladder"))
    assert {queues(levels)[name].arguments["x-overflow"] for name in levels.levels.values()} == {"reject-publish"}
    fed = [queues(levels)[levels.due], *(queues(ladder)[name] for name in (*ladder.ladder, ladder.due))]
    assert [queue.name for queue in fed if "x-overflow" in queue.arguments] == []


@pytest.mark.parametrize(
    "more",
    [
        {"levels.queue_type": "classic"},
        {"levels.alone_after": "9s"},
        {"levels.last_hop": "broker"},
        {"routes.orders": {**ORDERS, "mode": "levels", "deliver_to": "others"}},
    ],
)
def test_settings_that_change_queue_arguments_change_the_names(more: dict[str, object]) -> None:
    assert not set(waits().levels.values()) & set(waits(more=more).levels.values())


def test_another_list_of_levels_keeps_the_names_of_the_levels_that_stay_and_the_due_queue() -> None:
    longer = waits(more={"headers.levels": ["5s", "1s"]})
    assert longer.levels[1000] == waits().levels[1000]
    assert longer.due == waits().due


def test_another_list_or_order_of_levels_changes_the_one_argument_that_amqp_compares() -> None:
    def version(found: Waits) -> object:
        (levels,) = [part for part in found.declarations if isinstance(part, Exchange) and part.recreated]
        return levels.arguments["alternate-exchange"]

    assert version(waits()) == version(waits())
    assert version(waits()) != version(waits(more={"headers.levels": ["1h 30m", "1s"]}))


def test_a_level_is_bound_as_a_number_and_as_text() -> None:
    found = waits()
    bound = [
        (part.arguments.get("x-delay-level"), part.queue)
        for part in found.declarations
        if isinstance(part, Binding)
        and part.exchange.startswith("postdate.orders.levels")
        and part.queue in found.levels.values()
    ]
    first, second = found.levels.values()
    assert bound == [("1", first), ("2", second), (1, first), (2, second)]


def test_the_steps_of_a_ladder_lead_to_the_next_and_the_last_to_the_due_queue() -> None:
    found = waits("ladder")
    made = queues(found)
    assert len(found.ladder) == 28
    for step, name in enumerate(found.ladder):
        after = found.ladder[step - 1] if step else found.due
        assert made[name].arguments["x-message-ttl"] == 1000 * 2**step
        assert made[name].arguments["x-dead-letter-exchange"] == after
        exchanges = [part for part in found.declarations if isinstance(part, Exchange) and part.name == name]
        assert [part.arguments for part in exchanges] == [{"alternate-exchange": after}]


@pytest.mark.parametrize("mode", ["levels", "ladder"])
def test_everything_is_declared_before_what_leads_to_it_and_no_name_is_too_long(mode: str) -> None:
    longest = {**ORDERS, "mode": mode, "queue": "q" * 200}
    (topology,) = plan(settings(more={"routes.orders": longest, "headers.levels": ["3649d 23h 59m 59.999s"]}))
    there = {"orders"}
    for part in topology.declarations():
        if isinstance(part, Binding):
            assert {part.exchange, part.queue} <= there
        else:
            assert part.arguments.get("alternate-exchange", "orders") in there
            assert len(part.name.encode()) <= 255
            there.add(part.name)


def test_the_guarded_bindings_are_those_that_sort_messages_and_that_of_the_due_queue() -> None:
    found = kept(settings(), "orders").bound
    assert [(binding.exchange, binding.queue) for binding in found] == [
        (waits().due, waits().due),
        ("postdate.orders.plain", "postdate.orders.level"),
        ("orders.delay", "postdate.orders"),
        ("orders.delay", "postdate.orders"),
    ]


def test_the_front_differs_from_that_of_a_route_with_a_store() -> None:
    fronts = [plan(settings(mode))[0].front.arguments for mode in ("redis", "levels", "ladder")]
    assert fronts == [{"alternate-exchange": "orders"}, *[{"alternate-exchange": "postdate.orders.plain"}] * 2]


@pytest.mark.parametrize(
    ("mode", "more", "said"),
    [
        ("ladder", {"levels.last_hop": "broker"}, "levels.last_hop must be bridge: routes.orders has mode ladder"),
        ("levels", {"headers.levels": ["1s", "1s"]}, "headers.levels must not contain a level twice"),
        (
            "ladder",
            {"routes.orders": {**ORDERS, "mode": "ladder", "broker": "kafka"}},
            "must be redis or levels on Kafka",
        ),
        ("levels", {"routes.orders": {**ORDERS, "mode": "levels", "queue": "q" * 201}}, "must be at most 200 bytes"),
    ],
)
def test_conflicting_settings_of_levels_are_refused(mode: str, more: dict[str, object], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings(mode, more)


@pytest.mark.parametrize("more", [{}, {"levels.queue_type": "classic"}])
def test_one_quorum_queue_that_delays_by_itself_leads_to_the_due_queue(more: dict[str, object]) -> None:
    found = waits("native", more)
    queue = queues(found)[found.native]
    assert queue.delays
    assert queue.arguments["x-queue-type"] == "quorum"
    assert queue.arguments["x-dead-letter-strategy"] == "at-least-once"
    assert queue.arguments["x-message-ttl"] == 0
    assert queue.arguments["x-dead-letter-exchange"] == found.due
    assert [name for name, other in queues(found).items() if other.delays] == [found.native]


def test_a_queue_that_delays_by_itself_is_kept_because_amqp_does_not_count_what_waits_in_it() -> None:
    found = waits("native")
    empty = LevelQueue("orders", queues(found)[found.native], 0, old=True, is_due=False, is_dead=False)
    assert "it may hold messages that RabbitMQ does not count" in why_kept(empty, [empty])
