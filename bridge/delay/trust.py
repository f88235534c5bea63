"""What a route does not let its producers do: cancel in-band, or name a queue that is not on its list. Pure.

The bridge publishes with its own rights and must not lend them. A message that asks for too much becomes a dead letter:
its producer meant something by it that nobody may guess at. ``delay.destination`` is the same for ``x-delay-to``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.core.message import Delivery
from bridge.delay.destination import NOT_ALLOWED
from bridge.delay.duration import quoted
from bridge.delay.header import CANCEL


@dataclass(frozen=True)
class Trust:
    """``queues``: the routing keys that a producer may use; None for any, where an exchange of the consumers decides
    what they lead to, or where the settings have no list."""

    cancel: bool = True
    queues: frozenset[bytes] | None = None

    def refusal(self, delivery: Delivery) -> str:
        """Why a delivery becomes a dead letter; "" where it does not."""
        if delivery.headers.get(CANCEL) is not None:  # it goes nowhere, so its routing key does not matter
            said = f"{NOT_ALLOWED}: header {CANCEL} cancels nothing here, the route's cancel is false"
            return "" if self.cancel else said
        if self.queues is not None and delivery.order_key not in self.queues:
            return f"{NOT_ALLOWED}: {no_such_queue(delivery.order_key)}"
        return ""


def is_cancellation(reason: str) -> bool:
    """Whether a dead letter with this reason is a cancellation: one is never delivered, so it cannot be retried."""
    return reason.startswith(("not_unique:", "long_key:", "not_possible:", f"{NOT_ALLOWED}: header {CANCEL}"))


def no_such_queue(routing_key: bytes) -> str:
    """What is said of a routing key that is not on the list."""
    return f"the routing key {quoted(routing_key)} is not in the route's allow_to"
