"""What a route lets its producers do: name a destination or a queue from its list, and cancel in-band. Pure.

The bridge publishes with its own rights and must not lend them. A message that asks for more becomes a dead letter,
because what its producer meant cannot be guessed. A destination in a header is checked twice: on arrival, so that its
producer need not wait for the answer, and on departure, because the list may have changed by then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bridge.core.message import Delivery, HeaderValue
from bridge.delay.duration import quoted
from bridge.delay.header import CANCEL

#: The header with which a producer names a destination.
DESTINATION = "x-delay-to"
#: The kind of the refusal.
NOT_ALLOWED = "not_allowed"


@dataclass(frozen=True)
class Trust:
    """``cancel``: whether a header may cancel. ``queues``: the routing keys that a producer may use; None for any."""

    cancel: bool = True
    queues: frozenset[bytes] | None = None

    def refusal(self, delivery: Delivery) -> str:
        """Return why a delivery becomes a dead letter; "" if it does not."""
        if delivery.headers.get(CANCEL) is not None:  # it goes nowhere, so its routing key does not matter
            said = f"{NOT_ALLOWED}: header {CANCEL} cancels nothing here, the route's cancel is false"
            return "" if self.cancel else said
        if self.queues is not None and delivery.order_key not in self.queues:
            return f"{NOT_ALLOWED}: {no_such_queue(delivery.order_key)}"
        return ""


def is_cancellation(reason: str) -> bool:
    """Return whether a dead letter with this reason is a cancellation, which is never delivered and never retried."""
    return reason.startswith(("not_unique:", "long_key:", "not_possible:", f"{NOT_ALLOWED}: header {CANCEL}"))


def no_such_queue(routing_key: bytes) -> str:
    """Return the sentence about a routing key that is not on the list."""
    return f"the routing key {quoted(routing_key)} is not in the route's allow_to"


def destination_refusal(value: HeaderValue, allowed: Collection[str]) -> str:
    """Return why a message may not go where its header says; "" if it may. ``allowed`` are names."""
    name = value
    if isinstance(value, bytes):
        try:
            name = value.decode()
        except UnicodeDecodeError:
            name = None
    if isinstance(name, str) and name in allowed:
        return ""
    shown = quoted(value) if isinstance(value, (str, bytes)) else "no name"
    if not allowed:
        return f"header {DESTINATION} says {shown}, and the route's allow_to is empty"
    return f"header {DESTINATION} says {shown}, which is not in the route's allow_to"
