"""How the store's counts show a loss, and how its memory and dead letters are warned of."""

from __future__ import annotations

import pytest

from adapters.redis.guard import (
    LOSS_IN_HEALTH_MS,
    LOSS_SHOWN_MS,
    MOVES_LOST_SHOWN_MS,
    Mark,
    Seen,
    costly_loss_ms,
    loss_in,
    lost,
    many_dead,
    nearly_full,
    seen_in,
    unrestored,
)
from bridge.desk.numbers import ServerMemory

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
def test_counts_that_go_down_show_how_many_messages_are_lost(now: dict[int, Mark], gone: int | None) -> None:
    assert lost(BEFORE, now) == gone


def test_a_loss_is_reported_for_a_limited_time() -> None:
    made = {"format": 1, "shards": 8, "id": 5, "lost_ms": 1_800_000_000_000, "lost": 12_027}
    text = loss_in(made, made["lost_ms"] + LOSS_SHOWN_MS - 1)
    assert text == (
        "Redis was emptied, or replaced by an older copy of its data, noticed at 2027-01-15T08:00:00.000Z. "
        "Messages lost: about 12027, with those that were being sent"
    )
    assert loss_in(made, made["lost_ms"] + 1, broker="kafka") == text.replace("Z.", "Z (kafka).")
    assert loss_in(made, made["lost_ms"] + LOSS_SHOWN_MS) == ""
    assert loss_in(made, made["lost_ms"] + LOSS_IN_HEALTH_MS, LOSS_IN_HEALTH_MS) == ""
    assert loss_in({"format": 1, "shards": 8}, 1_800_000_000_000) == ""
    assert loss_in({**made, "restored_ms": made["lost_ms"] + 1}, made["lost_ms"] + 2) == ""
    assert loss_in({**made, "restored_ms": made["lost_ms"] - 1}, made["lost_ms"] + 2) == text, "of an earlier loss"


def test_a_loss_costs_nothing_any_more_once_a_restore_has_brought_back_everything() -> None:
    made = {"lost_ms": 1_800_000_000_000, "lost": 3, "emptied": 1}
    assert costly_loss_ms(made) == made["lost_ms"]
    assert costly_loss_ms({**made, "restored_ms": made["lost_ms"] - 1}) == made["lost_ms"], "of an earlier loss"
    assert costly_loss_ms({**made, "restored_ms": made["lost_ms"] + 1}) == 0


@pytest.mark.parametrize(("restored", "left"), [(12_000, 27), (12_027, 0), (12_030, 0)])
def test_what_a_restore_has_brought_back_is_not_counted_as_lost(restored: int, left: int) -> None:
    made = {"lost_ms": 1_800_000_000_000, "lost": 12_027, "restored": restored}
    assert loss_in(made, made["lost_ms"] + 1).endswith(f"Messages still lost: about {left}. Restored: {restored}")


def test_moves_that_are_lost_without_a_message_are_no_trouble_for_a_day() -> None:
    """A failover may take back the last deliveries and nothing that was parked."""
    made = {"format": 1, "shards": 8, "id": 5, "lost_ms": 1_800_000_000_000, "lost": 0}
    assert loss_in(made, made["lost_ms"] + MOVES_LOST_SHOWN_MS - 1, LOSS_IN_HEALTH_MS) == (
        "Redis was emptied, or replaced by an older copy of its data, noticed at 2027-01-15T08:00:00.000Z. "
        "No parked message seems to be lost. What was delivered just before may come again"
    )
    assert loss_in(made, made["lost_ms"] + MOVES_LOST_SHOWN_MS) == ""


@pytest.mark.parametrize(
    ("known", "made", "earlier"),
    [
        ({"lost": 5}, {}, True),  # the store was emptied again
        ({"lost": 5}, {"lost_ms": 60_000}, True),  # and another instance has noted that
        ({"lost": 5}, {"lost_ms": 1_000}, False),  # its own loss, which this instance sees later
        ({"lost": 5, "lost_ms": 2}, {"lost_ms": 2}, True),  # a later loss, which left the note
        ({"lost": 0}, {}, False),
        ({"lost": 0, "emptied": 1}, {}, True),
        ({"lost": 5, "restored_ms": 2_000}, {}, False),
    ],
)
def test_a_new_note_of_a_loss_repeats_an_earlier_loss_that_no_restore_ended(
    known: dict[str, int], made: dict[str, int], earlier: bool
) -> None:
    known = {"lost_ms": 1_000, **known}
    assert unrestored(known, made, 60_500) == (known if earlier else {})
    assert unrestored({}, made, 60_500) == {}


def test_an_emptied_store_is_a_loss_even_if_no_instance_had_counted_a_message() -> None:
    made = {"format": 1, "shards": 8, "id": 5, "lost_ms": 1_800_000_000_000, "lost": 0, "emptied": 1}
    assert loss_in(made, made["lost_ms"] + MOVES_LOST_SHOWN_MS).endswith(
        "Messages lost: about 0, and any that were parked in its last second"
    )
    assert loss_in(made, made["lost_ms"] + LOSS_IN_HEALTH_MS, LOSS_IN_HEALTH_MS) == ""


@pytest.mark.parametrize(
    ("made", "lost_ms"),
    [({}, 0), ({"lost_ms": 7, "lost": 0}, 0), ({"lost_ms": 7, "lost": 3}, 7), ({"lost_ms": 7, "emptied": 1}, 7)],
)
def test_only_a_loss_that_took_messages_has_a_moment_for_the_alert(made: dict[str, int], lost_ms: int) -> None:
    assert costly_loss_ms(made) == lost_ms


def test_the_fullest_server_is_named_from_80_percent_of_its_memory() -> None:
    small, unlimited, full = ServerMemory("a", 79, 100), ServerMemory("b", 10**12, 0), ServerMemory("c", 805, 1000)
    assert nearly_full([small, unlimited]) == ""
    assert nearly_full([]) == ""
    assert nearly_full([small, full, unlimited]).startswith(
        "c uses 80% of its maxmemory. At 100% nothing new is parked"
    )


def test_many_dead_letters_are_warned_of() -> None:
    assert many_dead(10_000) == ""
    assert many_dead(10_001).startswith("dead letters: 10001. ")


def test_a_look_tells_what_had_left_should_it_be_the_last_before_a_loss() -> None:
    now_us, quiet = 50_000_000, (0, 0, 0, 0)
    on_time, overdue = (now_us, 5, 1, 0, 0, 60_000, 0, 0), (now_us + 3_000, 9, 0, 0, 4, 48_500, 2, 3)
    assert seen_in([on_time, (now_us, *quiet, -1, 0, 0)]) == Seen(50_000, 0)
    assert seen_in([on_time, overdue]) == Seen(48_500, 5)
    assert seen_in([]) == Seen()
