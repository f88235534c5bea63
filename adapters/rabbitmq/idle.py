"""Sees that messages wait in an intake queue and this instance is given none: the consumer that has them is frozen.

AMQP counts those that RabbitMQ has not sent to a consumer yet. So this sees a frozen consumer when its prefetch is
full; before that, heartbeats alone find it out.
"""

from __future__ import annotations

#: A working consumer makes the number of waiting messages fall now and then, also when more come than it takes. So many
#: looks without that are no chance: one in 40,000 where the number rises and falls like a coin.
LOOKS = 8
LOOK_S = 1.0


class Idle:
    """What the looks at one queue have found."""

    def __init__(self) -> None:
        self._waiting = 0
        self._received = 0
        self._still = 0

    def look(self, waiting: int, received: int, in_hand: bool) -> bool:
        """Whether this instance is left out, from how many messages are ready in the queue, how many it has ever
        received from there, and whether it has some that are not acknowledged: then it is the one that is busy."""
        moves = waiting < self._waiting or received != self._received or in_hand
        self._still = 0 if moves or not waiting else self._still + 1
        self._waiting, self._received = waiting, received
        return self._still >= LOOKS


def left_out(queue: str, waiting: int) -> str:
    """The sentence about it, without its stop. AMQP does not say who holds a queue: a quorum queue counts its active
    consumer alone (3.10.8)."""
    return (
        f"this instance is given none of the messages that wait in queue {queue}: {waiting}. Another consumer holds "
        "the queue and takes none: its instance is frozen or overloaded"
    )
