"""When an instance says that it is given nothing while messages wait."""

from __future__ import annotations

import pytest

from adapters.rabbitmq.intake_queue import LOOKS, Idle


def test_an_instance_is_left_out_when_messages_wait_and_it_receives_none_for_eight_looks() -> None:
    idle = Idle()
    assert [idle.look(waiting, 0, False) for waiting in range(5, 5 + LOOKS)] == [False] * (LOOKS - 1) + [True]


@pytest.mark.parametrize(
    ("waiting", "received", "in_hand"), [(0, 0, False), (4, 0, False), (5, 1, False), (5, 0, True)]
)
def test_an_instance_is_not_left_out_when_the_queue_falls_or_it_holds_messages_itself(
    waiting: int, received: int, in_hand: bool
) -> None:
    idle = Idle()
    for _ in range(LOOKS):
        idle.look(5, 0, False)
    assert not idle.look(waiting, received, in_hand)
