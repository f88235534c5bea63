"""Which topic a record goes to, decided when it leaves: by its own header, or by the topic it was taken from. Pure.

What was parked keeps the topic it came on, and the settings may have changed since. Where a record goes whose topic
they no longer speak of is never guessed: it waits, and it is said what is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from adapters.kafka.raw.record import Header
from bridge.core.message import Refusal
from bridge.delay.naming import Naming, is_topic, taken_by
from bridge.delay.trust import DESTINATION, NOT_ALLOWED, destination_refusal

_HEADER = DESTINATION.encode()
_UNKNOWN_MS = 5000


class FixedTarget:
    """One topic, whatever a record says."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def target(self, topic: bytes, headers: Sequence[Header]) -> str:
        """See ``Router.target``."""
        return self._topic


class Router:
    """Of one route. ``taken`` are the namings of all routes, each beside its route's name: none is delivered to."""

    def __init__(
        self,
        route: str,
        namings: Sequence[Naming],
        allowed: Collection[str] = (),
        taken: Sequence[tuple[str, Naming]] = (),
    ) -> None:
        self._route = route
        self._namings = namings
        self._allowed = {name.encode(): name for name in allowed}
        self._taken = taken
        self._known: dict[bytes, str | Refusal] = {}

    def target(self, topic: bytes, headers: Sequence[Header]) -> str | Refusal:
        """The topic that a record goes to; or why it goes nowhere. Of headers with one name the last one holds."""
        for name, value in reversed(headers):
            if name == _HEADER:
                return self._by_header(value, topic)
        return self._own(topic)

    def _own(self, topic: bytes) -> str | Refusal:
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._by_topic(topic.decode(errors="replace"))
        return known

    def _by_header(self, value: bytes | None, topic: bytes) -> str | Refusal:
        if value is not None and (name := self._allowed.get(value)):
            return name
        own = self._own(topic)
        if isinstance(own, Refusal) and own.again_ms is not None:
            return own  # it may name its own target, which is not known before the settings have its topic again
        if isinstance(own, str) and value == own.encode():
            return own
        return Refusal(NOT_ALLOWED, destination_refusal(value, self._allowed.values()), lasting=True)

    def _by_topic(self, topic: str) -> str | Refusal:
        first = self._namings[0]
        if not topic and len(self._namings) == 1 and not first.is_rule:
            return first.deliver_to  # from before the topic was written down
        found = (naming.target(topic) for naming in self._namings)
        target = next((one for one in found if one is not None), None)
        if target is None:
            source = f"from topic '{topic}'" if topic else "that does not say which topic it is from"
            text = (
                f"routes.{self._route} does not say where a record {source} goes: add it to routes.{self._route}.also"
            )
            return Refusal("no_target", text, again_ms=_UNKNOWN_MS)
        if not is_topic(target) or target.startswith("__"):
            return Refusal(
                "bad_target", f"'{target}', where topic '{topic}' leads, is no topic of anybody's", lasting=True
            )
        if (route := taken_by(target, self._taken)) is not None:
            text = f"topic '{topic}' leads to '{target}', which route {route} takes from: it would be delayed for ever"
            return Refusal("loop", text, lasting=True)
        return target
