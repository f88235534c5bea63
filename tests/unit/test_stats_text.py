"""What stats say of an instance, in one line."""

from __future__ import annotations

from bridge.cli.stats import _as_text
from bridge.desk import Stats


def told(health: str) -> str:
    nothing = Stats(0, 0, 0, 0, 0, None, {}, {"a": {"health": health, "shards": [0, 1]}}, [], None, 0)
    return dict(_as_text(nothing, used=True))["instance a"]


def test_the_sentence_of_an_instance_ends_without_a_stop_where_more_follows() -> None:
    assert told("all is well") == "all is well · shards 0,1"
    assert told("messages are refused (312 NO_ROUTE).") == "messages are refused (312 NO_ROUTE) · shards 0,1"
