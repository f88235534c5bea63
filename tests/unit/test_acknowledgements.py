"""Acknowledging with the fewest frames, and no other delivery."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.intake_queue import acknowledgements


@pytest.mark.parametrize(
    ("floor", "tags", "reached", "acks"),
    [
        (0, [1, 2, 3], 3, [(3, True)]),
        (3, [4], 4, [(4, True)]),
        (3, [5, 6], 3, [(5, False), (6, False)]),
        (0, [1, 2, 4, 5], 2, [(2, True), (4, False), (5, False)]),
        (7, [], 7, []),
    ],
)
def test_a_contiguous_run_is_one_frame_and_the_rest_are_acknowledged_one_by_one(
    floor: int, tags: list[int], reached: int, acks: list[tuple[int, bool]]
) -> None:
    assert acknowledgements(floor, set(), tags) == (reached, acks)


def test_the_floor_passes_early_acknowledgements_when_the_gap_closes() -> None:
    early: set[int] = set()
    assert acknowledgements(0, early, [3, 4]) == (0, [(3, False), (4, False)])
    assert acknowledgements(0, early, [1, 2]) == (4, [(2, True)])
    assert acknowledgements(4, early, [5, 6]) == (6, [(6, True)])
    assert not early


@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_after_any_order_of_batches_everything_and_nothing_else_is_acknowledged(number: int, random: object) -> None:
    order = list(range(1, number + 1))
    random.shuffle(order)  # type: ignore[attr-defined]
    floor, accepted, acknowledged = 0, set[int](), set[int]()
    early: set[int] = set()
    while order:
        batch = sorted(order[:7])
        del order[:7]
        accepted.update(batch)
        floor, acks = acknowledgements(floor, early, batch)
        for tag, multiple in acks:
            covered = set(range(1, tag + 1)) if multiple else {tag}
            assert covered <= accepted, "a delivery was acknowledged that is not durable"
            acknowledged |= covered
        assert acknowledged == accepted
