"""The text that `postdate stats` prints."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from bridge.cli.stats import as_text
from bridge.core.orders import Actor, RouteOrder, RouteOrders, RouteState
from bridge.desk.numbers import RouteStats, Stats
from bridge.operate.describe import stats_of
from bridge.operate.doctor import judged_rates


def lines_of(found: Stats, orders: RouteOrders = MappingProxyType({})) -> list[tuple[str, str]]:
    return as_text(stats_of(replace(found, orders=orders), True, ""), used=True)


def instance_line(health: str) -> str:
    nothing = Stats(0, 0, 0, 0, 0, None, {}, {"a": {"health": health, "shards": [0, 1]}}, [], None, 0)
    return dict(lines_of(nothing))["instance a"]


def test_the_total_in_is_the_total_out_and_what_the_store_holds() -> None:
    ever = {"parked": 4616, "rejected": 3, "dead": 5, "delivered": 4614, "cancelled": 1, "replaced": 1, "recovered": 2}
    lines = dict(lines_of(Stats(0, 1, 0, 2, 0, None, ever, {}, [], None, 0)))
    assert lines["total in"] == "4619 = parked 4616 + dead on arrival 3, canaries included"
    restored = dict(lines_of(Stats(0, 1, 0, 2, 0, None, {**ever, "restored": 7}, {}, [], None, 0)))
    assert restored["total in"] == (
        "4626 = parked 4616 + dead on arrival 3 + dead letters restored 7, canaries included"
    )
    assert lines["total out"] == "4616 = delivered 4614 + cancelled 1 + replaced 1"


def test_a_message_that_was_dead_on_arrival_was_not_moved_to_dead_letters() -> None:
    ever = {"parked": 9, "rejected": 3, "dead": 5, "recovered": 2}
    lines = dict(lines_of(Stats(0, 1, 0, 2, 0, None, ever, {}, [], None, 0)))
    assert lines["total moved"] == "to dead letters 2, by recovered leases 2"


def test_stats_and_doctor_warn_of_each_max_rate_that_is_too_low_beside_other_troubles() -> None:
    slow = RouteStats(9, held=4, oldest_held_ms=54_300)
    found = Stats(0, 18, 0, 0, 0, None, {}, {}, [], None, 0)
    found = replace(found, by_route={"slow": slow, "paused": slow}, held=8, warnings=["the store is nearly full"])
    fact = "more is due than its max_rate of 10/s lets out. Held: 4, the oldest for 54s"
    lines = as_text(stats_of(found, False, "", rates={"slow": 10.0}), used=True)
    assert lines[:2] == [("warning", "the store is nearly full."), ("warning", f"route slow: {fact}.")]
    assert [(result.subject, result.text) for result in judged_rates(found, {"slow": 10.0})] == [("route slow", fact)]


def test_the_health_of_an_instance_loses_its_full_stop_where_more_follows() -> None:
    assert instance_line("all is well") == "all is well · shards 0,1"
    assert instance_line("messages are refused (312 NO_ROUTE).") == "messages are refused (312 NO_ROUTE) · shards 0,1"


def test_a_percentile_above_a_second_is_the_class_that_it_was_counted_in() -> None:
    late = {"p50": 2.3, "p99": 17516.2, "max": 18002.0}
    nothing = Stats(0, 0, 0, 0, 0, None, {}, {"a": {"health": "all is well", "lateness_ms": late}}, [], None, 0)
    assert dict(lines_of(nothing))["instance a"].endswith("lateness p50 2.3 ms, p99 14s to 18s")


def test_each_route_has_a_line_with_its_state_and_counts_and_a_canary_has_none() -> None:
    routes = {"orders": RouteStats(9, 4, 1, 2, 1500), "bills": RouteStats(3), "postdate_canary_kafka": RouteStats(1)}
    orders = {"orders": RouteOrder(RouteState.PAUSED, 1_800_000_000_000, Actor("anna", "cli"), "the bank is down")}
    found = replace(Stats(0, 13, 0, 1, 2, None, {}, {}, [], None, 0), by_route=routes, held=4)
    lines = dict(lines_of(found, orders))
    assert lines["held"] == "4, due on routes that are paused, missing or at max_rate"
    assert {name: text for name, text in lines.items() if name.startswith("route ")} == {
        "route bills": "parked 3",
        "route orders": "paused since 2027-01-15T08:00:00.000Z by anna (cli) (the bank is down) · parked 9 · held 4"
        " · dead 1 · overdue 2, the oldest by 1s",
    }


def test_an_instance_that_cannot_report_because_the_store_refuses_writes_is_neither_missing_nor_dead() -> None:
    silent = Stats(0, 0, 0, 0, 0, None, {}, {}, [], None, 0, silent={"a": 63_000})
    assert dict(lines_of(silent))["instance a"] == "stale: silent for 1m 3s"
    lines = dict(lines_of(replace(silent, refuses_writes=True)))
    assert lines["instance a"] == "unknown: it cannot report while Redis refuses writes"
    assert "instances" not in lines


def test_a_message_that_is_due_and_not_late_is_due_now() -> None:
    found = Stats(10_000, 1, 0, 0, 0, 9_000, {}, {}, ())
    assert dict(lines_of(found))["next due"] == "now"
    assert dict(lines_of(replace(found, next_due_ms=8_999)))["next due"] == "1.001s ago"
    assert dict(lines_of(replace(found, next_due_ms=12_000)))["next due"] == "in 2s"


def test_overdue_messages_that_the_broker_has_not_confirmed_are_named_because_no_route_counts_them() -> None:
    frozen = {"a": {"health": "x", "unconfirmed": 136, "unconfirmed_s": 8.0}}
    routes = {"orders": RouteStats(60, overdue=51, oldest_overdue_ms=9000)}
    found = Stats(10_000, 60, 136, 0, 51, None, {}, frozen, (), by_route=routes)
    more = "; 136 of them are claimed and not confirmed, and no route counts these"
    assert dict(lines_of(found))["overdue"] == f"187, the oldest by 9s{more}"
    assert dict(lines_of(replace(found, claimed=0)))["overdue"] == "51, the oldest by 9s"


def test_what_the_verdict_calls_a_trouble_is_no_warning() -> None:
    ill = {"a": {"health": "Redis was emptied.", "troubles": {"store contents": "Redis was emptied"}}}
    found = Stats(10_000, 1, 0, 0, 0, None, {}, ill, (), warnings=["Redis was emptied", "it is nearly full"])
    labels = [line for line in lines_of(found) if line[0] in ("trouble", "warning")]
    assert labels == [("trouble", "Redis was emptied."), ("warning", "it is nearly full.")]


def test_what_the_verdict_says_has_no_line_of_its_own() -> None:
    warnings = ["Redis was emptied", "it is nearly full"]
    found = Stats(0, 0, 0, 0, 0, None, {}, {}, [], warnings=warnings)
    lines = as_text(stats_of(found, False, "Trouble: Redis was emptied. Run `postdate restore`."), used=True)
    assert [line for line in lines if line[0] in ("trouble", "warning")] == [("warning", "it is nearly full.")]
