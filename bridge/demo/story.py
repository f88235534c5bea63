"""What the demo sends, and what has to become of each message. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

Headers = Mapping[str, str | int]

#: The key that is cancelled, and when: so long after the messages were sent, and well before that one is due.
CANCELLED_KEY = "order-6"
CANCEL_AFTER_S = 2.0
_THIRD_DUE_MS = 3200


class End(Enum):
    """How a message's way ends."""

    DELIVERED = "delivered"
    DEAD = "dead letter"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Order:
    """One message: its name, which is its body too; what its header says, for people; its headers; how it must end."""

    name: str
    asked: str
    headers: Headers
    end: End
    delayed: bool = True


def orders(now_ms: int) -> tuple[Order, ...]:
    """The six messages of a demo that begins at ``now_ms`` (Unix milliseconds by the store's clock)."""
    # A whole second looks better, and is three or four from now.
    moment = datetime.fromtimestamp(-(-(now_ms + _THIRD_DUE_MS) // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        Order("order 1", "x-delay: 2000", {"x-delay": 2000}, End.DELIVERED),
        Order("order 2", 'x-delay: "3s"', {"x-delay": "3s"}, End.DELIVERED),
        Order("order 3", f"x-deliver-at: {moment[11:]}", {"x-deliver-at": moment}, End.DELIVERED),
        Order("order 4", "no header", {}, End.DELIVERED, delayed=False),
        Order("order 5", 'x-delay: "tomorrow"', {"x-delay": "tomorrow"}, End.DEAD),
        Order("order 6", "x-delay: 5000, a key", {"x-delay": 5000, "x-delay-key": CANCELLED_KEY}, End.CANCELLED),
    )
