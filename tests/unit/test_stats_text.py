"""The text that `postdate stats` prints."""

from __future__ import annotations

from dataclasses import replace

from bridge.admin.desk import RouteStats, Stats
from bridge.cli.stats import as_text
from bridge.core.orders import RouteOrder, RouteState


def instance_line(health: str) -> str:
    nothing = Stats(0, 0, 0, 0, 0, None, {}, {"a": {"health": health, "shards": [0, 1]}}, [], None, 0)
    return dict(as_text(nothing, used=True))["instance a"]


def test_the_total_in_is_the_total_out_and_what_the_store_holds() -> None:
    ever = {"parked": 4616, "rejected": 3, "dead": 5, "delivered": 4614, "cancelled": 1, "replaced": 1, "recovered": 2}
    lines = dict(as_text(Stats(0, 1, 0, 2, 0, None, ever, {}, [], None, 0), used=True))
    assert lines["total in"] == "4619 = parked 4616 + dead on arrival 3"
    assert lines["total out"] == "4616 = delivered 4614 + cancelled 1 + replaced 1"
    assert lines["total moved"] == "to dead letters 5, by recovered leases 2"


def test_the_health_of_an_instance_loses_its_full_stop_where_more_follows() -> None:
    assert instance_line("all is well") == "all is well · shards 0,1"
    assert instance_line("messages are refused (312 NO_ROUTE).") == "messages are refused (312 NO_ROUTE) · shards 0,1"


def test_each_route_has_a_line_with_its_state_and_counts_and_a_canary_has_none() -> None:
    routes = {"orders": RouteStats(9, 4, 1, 2, 1500), "bills": RouteStats(3), "postdate_canary_kafka": RouteStats(1)}
    orders = {"orders": RouteOrder(RouteState.PAUSED, 1_800_000_000_000, "anna", "the bank is down")}
    found = replace(Stats(0, 13, 0, 1, 2, None, {}, {}, [], None, 0), by_route=routes, held=4)
    lines = dict(as_text(found, used=True, orders=orders))
    assert lines["held"] == "4, due on routes that are paused or at max_rate"
    assert {name: text for name, text in lines.items() if name.startswith("route ")} == {
        "route bills": "parked 3",
        "route orders": "paused since 2027-01-15T08:00:00.000Z by anna (the bank is down) · parked 9 · held 4 · dead 1"
        " · overdue 2, the oldest by 1.5s",
    }
