"""What stats say of an instance, in one line."""

from __future__ import annotations

from bridge.admin.desk import Stats
from bridge.cli.stats import _as_text


def told(health: str) -> str:
    nothing = Stats(0, 0, 0, 0, 0, None, {}, {"a": {"health": health, "shards": [0, 1]}}, [], None, 0)
    return dict(_as_text(nothing, used=True))["instance a"]


def test_what_came_in_is_what_left_and_what_is_there() -> None:
    ever = {"parked": 4616, "rejected": 3, "dead": 5, "delivered": 4614, "cancelled": 1, "replaced": 1, "recovered": 2}
    lines = dict(_as_text(Stats(0, 1, 0, 2, 0, None, ever, {}, [], None, 0), used=True))
    assert lines["came in, ever"] == "4619 = parked 4616 + dead letters at once 3"
    assert lines["left, ever"] == "4616 = delivered 4614 + cancelled 1 + replaced 1"
    assert lines["moved, ever"] == "became dead letters 5, leases recovered 2"


def test_the_sentence_of_an_instance_ends_without_a_stop_where_more_follows() -> None:
    assert told("all is well") == "all is well · shards 0,1"
    assert told("messages are refused (312 NO_ROUTE).") == "messages are refused (312 NO_ROUTE) · shards 0,1"
