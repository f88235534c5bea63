"""What is known of a message on its way, and what it comes out as. Pure: sightings in, words and verdicts out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.lab.demo.story import End, Order

#: A delivery later than this is a failure of the demo, not of taste.
LATE_MAX_MS = 1000.0
#: The store's clock is known to about so much.
EARLY_MAX_MS = 1.0
#: How long after its due moment a cancelled message is still watched for.
WATCH_MS = 500


class Sighting(NamedTuple):
    """A message in the store: parked, claimed or dead, when it is due (Unix ms), and the reason of a dead letter."""

    state: str
    due_ms: int
    reason: str


class Arrival(NamedTuple):
    """A message at the consumer: the moment by the store's clock, and the due moment that postdate wrote, if any."""

    at_ms: float
    due_ms: int | None


@dataclass
class Fate:
    """One message. ``sent_ms`` and all other moments are Unix milliseconds by the store's clock."""

    order: Order
    sent_ms: float = 0.0
    cancel_sent: bool = False
    sighting: Sighting | None = None
    parked_due_ms: int | None = None
    arrivals: list[Arrival] = field(default_factory=list)

    def see(self, sighting: Sighting | None) -> None:
        """What the store had of it at a look; None is nothing."""
        self.sighting = sighting
        if sighting is not None and sighting.state == "parked":
            self.parked_due_ms = sighting.due_ms

    def state(self) -> str:
        """One or two words for what it is now."""
        if self.arrivals:
            return End.DELIVERED.value
        if self.sighting is None:
            gone = self.cancel_sent and self.parked_due_ms is not None
            return End.CANCELLED.value if gone else "sent" if self.sent_ms else ""
        return {"parked": "parked", "dead": End.DEAD.value}.get(self.sighting.state, "on its way")

    def late_ms(self) -> float | None:
        """How late it was; None for one that has not come, or has come without having to wait."""
        due_ms = self.arrivals[0].due_ms if self.arrivals and self.order.delayed else None
        return None if due_ms is None else self.arrivals[0].at_ms - due_ms

    def settled(self, now_ms: float) -> bool:
        """Whether nothing more is expected of it."""
        if self.order.end is End.CANCELLED:
            due_ms = self.parked_due_ms
            return bool(self.arrivals) or (self.cancel_sent and due_ms is not None and now_ms > due_ms + WATCH_MS)
        return self.state() == str(self.order.end.value)


class Act(NamedTuple):
    """One broker's part of the demo: the broker's title, and what became of its messages."""

    title: str
    fates: list[Fate]


def complaints(fates: Iterable[Fate]) -> list[str]:
    """A sentence for everything that did not come out as it must."""
    return [text for fate in fates for text in _complaints(fate)]


def _complaints(fate: Fate) -> list[str]:
    order, state, late_ms = fate.order, fate.state(), fate.late_ms()
    if state != order.end.value:
        return [f"{order.name} ({order.asked}) must be {_as(order.end)}, and it is: {state or 'not sent'}"]
    if order.end is not End.DELIVERED:
        return []
    found = []
    if len(fate.arrivals) > 1:
        found.append(f"{order.name} was delivered {len(fate.arrivals)} times")
    if order.delayed and late_ms is None:
        found.append(f"{order.name} ({order.asked}) was delivered without the header x-delay-due")
    if late_ms is not None and late_ms < -EARLY_MAX_MS:
        found.append(f"{order.name} was delivered {-late_ms:.1f} ms early")
    if late_ms is not None and late_ms > LATE_MAX_MS:
        found.append(f"{order.name} was delivered {late_ms:.0f} ms late")
    return found


def _as(end: End) -> str:
    return "a dead letter" if end is End.DEAD else end.value
