"""What the numbers of a store say of a loss, and of its room."""

from __future__ import annotations

import pytest

from adapters.redis.agreement import HEALTH_MS, TOLD_MS, loss_in
from adapters.redis.guard import Mark, lost
from adapters.redis.room import dead_letters, nearly_full
from bridge.admin.desk import Memory

BEFORE = {0: Mark(ever=100, parked=60, held=20, dead=1), 1: Mark(ever=50, parked=50, held=50, dead=0)}


@pytest.mark.parametrize(
    ("now", "gone"),
    [
        (BEFORE, None),
        ({0: Mark(101, 61, 0, 0)}, None),  # everything was delivered, and a shard did not answer
        ({0: Mark(0, 0, 0, 0), 1: Mark(0, 0, 0, 0)}, 70),
        ({0: Mark(0, 0, 0, 0), 1: Mark(51, 51, 51, 0)}, 20),  # one node of a cluster
        ({0: Mark(7, 7, 7, 0), 1: Mark(51, 51, 51, 0)}, 20),  # emptied, and used again since
        ({0: Mark(95, 57, 22, 1)}, 3),  # an older copy: the last moments are gone
        ({2: Mark(0, 0, 0, 0)}, None),
    ],
)
def test_counts_that_go_down_tell_how_many_messages_are_gone(now: dict[int, Mark], gone: int | None) -> None:
    assert lost(BEFORE, now) == gone


def test_a_loss_is_told_of_for_a_while() -> None:
    made = {"format": 1, "shards": 8, "id": 5, "lost_ms": 1_800_000_000_000, "lost": 12_027}
    said = loss_in(made, made["lost_ms"] + TOLD_MS - 1)
    assert said == (
        "Redis was emptied, or replaced by an older copy of its data, at 2027-01-15T08:00:00.000Z. Messages that are "
        "gone: about 12027"
    )
    assert loss_in(made, made["lost_ms"] + TOLD_MS) == ""
    assert loss_in(made, made["lost_ms"] + HEALTH_MS, HEALTH_MS) == ""
    assert loss_in({"format": 1, "shards": 8}, 1_800_000_000_000) == ""


def test_the_fullest_server_is_named_from_four_fifths_of_its_memory_on() -> None:
    small, unlimited, full = Memory("a", 79, 100), Memory("b", 10**12, 0), Memory("c", 805, 1000)
    assert nearly_full([small, unlimited]) == ""
    assert nearly_full([]) == ""
    assert nearly_full([small, full, unlimited]).startswith(
        "c uses 80% of its maxmemory. At 100% nothing new is parked"
    )


def test_many_dead_letters_are_worth_a_word() -> None:
    assert dead_letters(10_000) == ""
    assert dead_letters(10_001).startswith("dead letters: 10001. ")
