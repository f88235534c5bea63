"""What the demo sends, and what has to become of each message. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

Headers = Mapping[str, str | int]

#: When one of them is cancelled: so long after the messages were sent, and well before it is due.
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

    @property
    def key(self) -> str | int | None:
        """Under which it can be cancelled, if at all."""
        return self.headers.get("x-delay-key")


def orders(now_ms: int, noun: str = "order") -> tuple[Order, ...]:
    """The six messages of a demo that begins at ``now_ms`` (Unix milliseconds by the store's clock), called ``noun``
    and a number."""
    # A whole second looks better, and is three or four from now.
    moment = datetime.fromtimestamp(-(-(now_ms + _THIRD_DUE_MS) // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        Order(f"{noun} 1", "x-delay: 2000", {"x-delay": 2000}, End.DELIVERED),
        Order(f"{noun} 2", 'x-delay: "3s"', {"x-delay": "3s"}, End.DELIVERED),
        Order(f"{noun} 3", f"x-deliver-at: {moment[11:]}", {"x-deliver-at": moment}, End.DELIVERED),
        Order(f"{noun} 4", "no header", {}, End.DELIVERED, delayed=False),
        Order(f"{noun} 5", 'x-delay: "tomorrow"', {"x-delay": "tomorrow"}, End.DEAD),
        Order(f"{noun} 6", "x-delay: 5000, a key", {"x-delay": 5000, "x-delay-key": f"{noun}-6"}, End.CANCELLED),
    )
