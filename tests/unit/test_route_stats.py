"""The numbers of each route from a look at the first messages of every shard."""

from __future__ import annotations

from dataclasses import replace

from bridge.cli.stats import as_text
from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.desk.numbers import RouteStats, ShardLook, Stats, by_route, overdue_in
from bridge.operate.describe import counts_of, stats_of

NOW_MS = 1_000_000


def look(
    parked: dict[str, int],
    heads: dict[str, tuple[int, int]],
    overdue: int = 0,
    end_ms: int | None = None,
    refused: dict[str, tuple[int, int]] | None = None,
    refused_seen: int = 0,
) -> ShardLook:
    counts = {("parked", route): number for route, number in parked.items()}
    seen = sum(number for _, number in heads.values()) + refused_seen
    return ShardLook(NOW_MS, counts, overdue, heads, end_ms, seen, refused or {})


def test_a_look_that_saw_everything_is_exact() -> None:
    found = by_route([look({"a": 3, "b": 1}, {"a": (NOW_MS - 500, 2), "b": (NOW_MS + 9, 0)}, 2)])
    assert found["a"] == RouteStats(3, 0, 0, 2, 500, NOW_MS - 500)
    assert found["b"] == RouteStats(1, 0, 0, 0, 0, NOW_MS + 9)


def test_a_look_that_ends_beyond_now_saw_everything_that_is_overdue() -> None:
    found = by_route([look({"a": 900, "b": 5}, {"a": (NOW_MS - 500, 60)}, 60, NOW_MS + 1)])
    assert (found["a"].overdue, found["a"].oldest_overdue_ms) == (60, 500)
    assert found["b"] == RouteStats(5)


def test_beyond_the_look_overdue_messages_are_shared_out_and_the_age_of_an_unseen_route_is_a_bound() -> None:
    heads = {"a": (NOW_MS - 900, 48), "b": (NOW_MS - 800, 16)}
    found = by_route([look({"a": 700, "b": 300, "c": 9}, heads, 800, NOW_MS - 100)])
    assert (found["a"].overdue, found["b"].overdue, found["c"].overdue) == (600, 200, 0)
    assert [found[route].oldest_overdue_ms for route in "abc"] == [900, 800, 100]
    assert found["c"].next_due_ms is None


def test_no_more_messages_of_a_route_are_overdue_than_are_parked() -> None:
    found = by_route(
        [look({"a": 456, "b": 300}, {"a": (NOW_MS - 900, 49), "b": (NOW_MS - 800, 31)}, 756, NOW_MS - 100)]
    )
    assert (found["a"].overdue, found["b"].overdue) == (456, 293)


def test_a_route_whose_messages_are_all_held_is_not_overdue() -> None:
    shard = look({"c": 9}, {"a": (NOW_MS - 900, 64)}, 800, NOW_MS - 100)
    shard = shard._replace(counts={**shard.counts, ("held", "c"): 9})
    assert by_route([shard])["c"] == RouteStats(9, 9)


def test_refused_messages_are_overdue_since_their_due_moment_and_count_once() -> None:
    refused = {"a": (4, NOW_MS - 5000)}
    shard = look({"a": 5, "b": 2}, {"a": (NOW_MS - 90, 1), "b": (NOW_MS + 9, 0)}, 3, None, refused, 2)
    found = by_route([shard])
    assert found["a"] == RouteStats(5, 0, 0, 5, 5000, NOW_MS - 90, 4)
    assert found["b"] == RouteStats(2, 0, 0, 0, 0, NOW_MS + 9)
    assert overdue_in([shard]) == 5


def test_a_route_whose_messages_were_all_refused_is_known_beyond_the_look() -> None:
    shard = look({"a": 700, "b": 50}, {"a": (NOW_MS - 900, 48)}, 800, NOW_MS - 100, {"b": (50, NOW_MS - 7000)}, 16)
    found = by_route([shard])
    assert (found["a"].overdue, found["b"].overdue, overdue_in([shard])) == (600, 50, 650)
    assert (found["a"].oldest_overdue_ms, found["b"].oldest_overdue_ms) == (900, 7000)


def test_shards_are_added_up_and_the_oldest_and_the_next_win() -> None:
    shards = [look({"a": 1}, {"a": (NOW_MS - 5, 1)}, 1), look({"a": 2}, {"a": (NOW_MS - 7, 1)}, 1), look({}, {})]
    assert by_route(shards)["a"] == RouteStats(3, 0, 0, 2, 7, NOW_MS - 7)


def test_a_head_that_cannot_be_opened_is_no_route() -> None:
    assert by_route([look({}, {"": (NOW_MS, 0)})]) == {}


def test_no_route_counts_as_missing_while_an_instance_that_may_have_it_is_silent() -> None:
    """After a restart of Redis, an instance may deliver and not have reported yet."""
    routes, reports = {"bills": RouteStats(4, overdue=4, oldest_overdue_ms=1_500)}, {"a-1": {"routes": ["orders"]}}
    missing = Stats(NOW_MS, 4, 0, 0, 4, None, {}, reports, (), by_route=routes)
    silent = replace(missing, silent={"b-2": 4_000})
    assert (list(missing.unserved), list(silent.unserved), silent.all_warnings) == (["bills"], [], [])


def test_a_route_is_full_if_an_instance_says_so_and_nothing_was_ordered() -> None:
    orders = {"b": RouteOrder(RouteState.PAUSED, 1, Actor("admin", "api"), "")}
    found = Stats(NOW_MS, 0, 0, 0, 0, None, {}, {"one": {"full": ["a", "b"]}, "other": {}}, (), orders=orders)
    states = [counts_of(name, found).state for name in "abc"]
    assert states == ["full", "paused", "running"]
    assert ("route b", "paused since") in [(name, text[:12]) for name, text in as_text(stats_of(found, True, ""), True)]
