"""What each process runs, planned from the settings."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from bridge.settings import ProcessPlan, Settings, plan
from bridge.settings.process_plan import emptied_stores, store_of, unused_stores, used_stores

KAFKA = {"broker": "kafka"}
STORED = {"intercept": "a.delay", "deliver_to": "a"}
LEVELS = {**STORED, "mode": "levels"}


def settings(**routes: dict[str, Any]) -> Settings:
    return Settings.model_validate({"routes": routes})


def described(processes: tuple[ProcessPlan, ...]) -> list[tuple[str, bool, list[str], str]]:
    return [
        (plan.broker, plan.stored, list(plan.settings.routes), plan.settings.redis.key_prefix) for plan in processes
    ]


def test_each_broker_has_a_process_for_routes_with_a_store_and_one_for_routes_without() -> None:
    every = settings(
        rabbit=STORED, rabbit_levels=LEVELS, kafka={**STORED, **KAFKA}, kafka_levels={**LEVELS, **KAFKA}, more=STORED
    )
    assert described(plan(every)) == [
        ("rabbitmq", True, ["rabbit", "more"], "postdate"),
        ("kafka", True, ["kafka"], "postdate.kafka"),
        ("rabbitmq", False, ["rabbit_levels"], "postdate"),
        ("kafka", False, ["kafka_levels"], "postdate.kafka"),
    ]


def test_a_broker_without_a_route_has_no_process() -> None:
    assert plan(settings()) == ()
    assert described(plan(settings(a=LEVELS))) == [("rabbitmq", False, ["a"], "postdate")]


def test_a_store_is_used_by_routes_with_a_store_only() -> None:
    both = settings(stored=STORED, levels=LEVELS)
    assert [list(plan.settings.routes) for plan in used_stores(both)] == [["stored"]]
    assert [plan.broker for plan in unused_stores(both)] == ["kafka"]
    assert used_stores(settings(levels=LEVELS)) == []


def test_a_process_delivers_what_former_routes_parked_and_takes_nothing_from_them() -> None:
    changed = settings(here={**STORED, **KAFKA}, gone={**LEVELS, **KAFKA}, rabbit=LEVELS)
    (store,) = used_stores(changed)
    assert list(store.settings.routes) == ["here"]
    assert list(store.delivering.routes) == ["here", "gone"]
    assert not any(process.former for process in plan(changed) if not process.stored)


def test_a_store_is_emptied_if_all_routes_of_its_broker_left_it() -> None:
    (store,) = emptied_stores(settings(here={**STORED, **KAFKA}, rabbit=LEVELS))
    assert (store.broker, store.stored, store.settings.redis.key_prefix) == ("rabbitmq", True, "postdate")
    assert (list(store.settings.routes), list(store.delivering.routes)) == ([], ["rabbit"])


def test_a_process_without_a_store_empties_the_store_that_no_route_uses_any_more() -> None:
    changed = settings(a=LEVELS, b={**LEVELS, **KAFKA}, c={**STORED, **KAFKA})
    emptied = {(process.broker, process.stored): process.emptied for process in plan(changed)}
    assert emptied.pop(("rabbitmq", False)) == store_of(changed, "rabbitmq")
    assert emptied == {("kafka", True): None, ("kafka", False): None}
    (process,) = plan(settings(b={**LEVELS, **KAFKA}))
    assert process.emptied is not None
    assert process.emptied.settings.redis.key_prefix == "postdate.kafka"


def test_a_plan_is_a_value_and_can_be_sent_to_a_worker_process() -> None:
    before = settings(a=LEVELS, b={**STORED, **KAFKA})
    (first, second) = plan(before)
    assert pickle.loads(pickle.dumps((first, second))) == plan(before)
    assert before == settings(a=LEVELS, b={**STORED, **KAFKA}), "planning changes nothing"
    with pytest.raises(FrozenInstanceError):
        first.broker = "kafka"  # type: ignore[misc]


def test_settings_have_no_private_state() -> None:
    assert not Settings.__private_attributes__
