"""What a route lets its producers do: name a destination or a queue from its list, and cancel in-band. Pure.

The bridge publishes with its own rights and must not lend them. A message that asks for more becomes a dead letter,
because what its producer meant cannot be guessed. A destination in a header is checked twice: on arrival, so that its
producer need not wait for the answer, and on departure, because the list may have changed by then.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bridge.core.message import Delivery, HeaderValue
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.duration import quoted
from bridge.delay.header import CANCEL

#: The header with which a producer names a destination.
DESTINATION = "x-delay-to"
_NO_CANCEL = Reason(ReasonKind.NOT_ALLOWED, f"header {CANCEL} cancels nothing here, the route's cancel is false")


@dataclass(frozen=True)
class Trust:
    """``cancel``: whether a header may cancel. ``queues``: the routing keys that a producer may use; None for any."""

    cancel: bool = True
    queues: frozenset[bytes] | None = None

    def refusal(self, delivery: Delivery) -> Reason | None:
        """Return why a delivery becomes a dead letter; None if it does not."""
        if delivery.headers.get(CANCEL) is not None:  # it goes nowhere, so its routing key does not matter
            return None if self.cancel else _NO_CANCEL
        if self.queues is not None and delivery.order_key not in self.queues:
            return no_such_queue(delivery.order_key)
        return None


def is_cancellation(reason: str) -> bool:
    """Return whether a dead letter with this reason is a cancellation, which is never delivered and never retried."""
    kinds = (ReasonKind.NOT_UNIQUE, ReasonKind.LONG_KEY, ReasonKind.NOT_POSSIBLE)
    return reason.startswith((*(f"{kind}:" for kind in kinds), f"{ReasonKind.NOT_ALLOWED}: header {CANCEL}"))


def no_such_queue(routing_key: bytes) -> Reason:
    """Return the reason for a routing key that is not on the list."""
    text = "the routing key {key} is not in the route's allow_to"
    return Reason(ReasonKind.NOT_ALLOWED, text, {"key": quoted(routing_key)})


def destination_refusal(value: HeaderValue, allowed: Collection[str]) -> Reason | None:
    """Return why a message may not go where its header says; None if it may. ``allowed`` are names."""
    name = value
    if isinstance(value, bytes):
        try:
            name = value.decode()
        except UnicodeDecodeError:
            name = None
    if isinstance(name, str) and name in allowed:
        return None
    shown = quoted(value) if isinstance(value, (str, bytes)) else "no name"
    why = ", which is not in the route's allow_to" if allowed else ", and the route's allow_to is empty"
    return Reason(ReasonKind.NOT_ALLOWED, f"header {DESTINATION} says {{value}}{why}", {"value": shown})
