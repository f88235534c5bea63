"""An intake queue, and the consumer on it: how far its deliveries are acknowledged, and whether it is left out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError

from adapters.rabbitmq.declarations import Binding
from adapters.rabbitmq.failure import FailingQueue

#: A working consumer lowers the number of ready messages now and then, even when more arrive than it takes. This many
#: looks in a row without a fall happen by chance once in 40,000 (1 in 8!).
LOOKS = 8
LOOK_S = 1.0
#: How often the channel of a removed route is looked at, until it can be closed.
_LEAVE_S = 0.05


@dataclass(frozen=True)
class IntakeQueue:
    """One intake queue: its route, and the header names that matter on that route.

    ``bindings`` lead to the queue; empty where postdate may not declare. A front exchange that lost its binding would
    send delayed messages to the target at once. AMQP cannot ask for a binding, so the source declares them again every
    few seconds, and removes those in ``unbound``. It declares the ``foreign`` ones, too, which RabbitMQ may refuse.
    ``without`` says what happens while the queue is missing, ``meanwhile`` the same afterwards. ``entries_max`` bounds
    the header entries of a message; None for no bound. ``correlated``: the property ``correlation_id`` is a message's
    own id. ``prioritized``: the property ``priority`` counts. ``failing`` is set on retry routes only. ``packed``: the
    headers that RabbitMQ 3.x packs for AMQP 1.0 are read, too. ``native`` takes the place of this one where RabbitMQ
    delays by itself; there ``guards`` marks the queue of what it would delay.
    """

    route: str
    queue: str
    wanted: frozenset[bytes]
    bindings: tuple[Binding, ...] = ()
    without: str = "delayed messages are delivered at once"
    entries_max: int | None = None
    foreign: tuple[Binding, ...] = ()
    prioritized: bool = False
    correlated: bool = False
    failing: FailingQueue | None = None
    packed: bool = False
    unbound: tuple[Binding, ...] = ()
    guards: bool = False
    native: tuple[IntakeQueue, ...] = ()
    meanwhile: str = "delayed messages were delivered at once"


class Idle:
    """Detects that messages wait in a queue and this instance receives none: the consumer that has them is frozen.

    AMQP counts messages that RabbitMQ has not sent to a consumer. So this detects a frozen consumer whose prefetch is
    full; before that, only heartbeats do.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._received = 0
        self._still = 0

    def look(self, waiting: int, received: int, in_hand: bool) -> bool:
        """Record one look. Return whether this instance is left out.

        ``waiting``: ready messages in the queue. ``received``: messages received from it so far. ``in_hand``: some of
        them are not acknowledged, so this instance is the busy consumer.
        """
        moves = waiting < self._waiting or received != self._received or in_hand
        self._still = 0 if moves or not waiting else self._still + 1
        self._waiting, self._received = waiting, received
        return self._still >= LOOKS


def left_out(queue: str, waiting: int) -> str:
    """Return the health sentence. AMQP does not name the holder: a quorum queue counts only its active consumer."""
    return (
        f"this instance receives nothing from queue {queue}, although messages wait there: {waiting}. Another consumer "
        "holds the queue and takes none: its instance is frozen or overloaded"
    )


class IntakeConsumer:
    """The channel of an intake while it is open, and how far its deliveries are acknowledged.

    ``consumer_tag`` names it to RabbitMQ; it is empty while nothing is to be taken. After ``cancelled`` no more
    deliveries come. ``last`` is the tag of the last delivery, which is also their number. ``leaving``: its route was
    removed at a reload.
    """

    def __init__(self, intake: IntakeQueue, channel: Channel) -> None:
        self.intake = intake
        self.channel = channel
        self.number = channel.channel_number
        self.consumer_tag = ""
        self.floor = self.last = 0
        self.early: set[int] = set()
        self.idle = Idle()
        self.alive = True
        self.cancelled = False
        self.leaving = False

    def cancel(self) -> None:
        """Cancel the consumer. RabbitMQ sends its last deliveries before its answer.

        Messages between a quorum queue and the channel at this moment go back to the head of the queue.
        """

        def on_cancelled(_: Any) -> None:
            self.cancelled = not self.consumer_tag  # it may consume again by now

        if self.alive and self.consumer_tag:
            tag, self.consumer_tag = self.consumer_tag, ""
            with suppress(AMQPError):  # a closing channel delivers nothing more either
                self.channel.basic_cancel(tag, on_cancelled)

    def leave(self) -> None:
        """Take nothing more from a queue. Close the channel when all that came from it is acknowledged."""
        self.leaving = True
        self.cancel()
        self._close_when_empty()

    def _close_when_empty(self) -> None:
        if not self.alive:
            return
        if self.cancelled and self.floor == self.last:
            with suppress(AMQPError):  # it is closing already
                self.channel.close()
        else:
            asyncio.get_running_loop().call_later(_LEAVE_S, self._close_when_empty)

    def consume(self, on_started: Callable[[Any], None] = lambda _: None) -> None:
        """Consume the queue. Raises ``AMQPError`` if the channel is closing."""
        self.cancelled = False
        self.consumer_tag = self.channel.basic_consume(self.intake.queue, lambda *_: None, callback=on_started)


def acknowledgements(floor: int, early: set[int], tags: Sequence[int]) -> tuple[int, list[tuple[int, bool]]]:
    """Return the new floor, up to which everything is acknowledged, and the fewest (tag, multiple) for ``tags``.

    ``multiple`` acknowledges everything below its tag, so it stops at the first gap. The tags above are acknowledged
    one by one and kept in ``early``, so that the floor can pass them when the gap is closed.
    """
    new, last = set(tags), 0
    while floor + 1 in new or floor + 1 in early:
        floor += 1
        if floor in new:
            last = floor
        early.discard(floor)
    singles = sorted(tag for tag in new if tag > floor)
    early.update(singles)
    return floor, ([(last, True)] if last else []) + [(tag, False) for tag in singles]
