"""Chooses the topic for a record when it leaves: by its own header, or by the topic it was read from. Pure.

A parked record keeps its intake topic, and the settings may have changed since. If they no longer name that topic,
the target is never guessed: the record waits, and the refusal names the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from adapters.kafka.raw.record import Header
from bridge.core.message import Refusal
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.naming import Naming, is_topic, taken_by
from bridge.delay.trust import DESTINATION, destination_refusal

_HEADER = DESTINATION.encode()
_UNKNOWN_MS = 5000


#: Chooses the topic for a record by its own topic and its headers, or says why it has none.
Target = Callable[[bytes, Sequence[Header]], str | Refusal]


class Router:
    """Chooses the targets of one route. ``taken`` are the namings of all routes, with their names: no record goes to
    an intercepted topic."""

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
        """The target of a record, or why it has none. If a header repeats, the last one wins."""
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
            return own  # it may name its own target, which is unknown until the settings name its topic again
        if isinstance(own, str) and value == own.encode():
            return own
        refused = destination_refusal(value, self._allowed.values())
        assert refused is not None  # the names on the list were looked up above
        return Refusal(refused, lasting=True)

    def _by_topic(self, topic: str) -> str | Refusal:
        found = (naming.target(topic) for naming in self._namings)
        target = next((candidate for candidate in found if candidate is not None), None)
        if target is None:
            source = f"from topic '{topic}'" if topic else "without a topic"
            text = "routes.{route} has no target for a record {source}. Add its topic to routes.{route}.also"
            reason = Reason(ReasonKind.NO_TARGET, text, {"route": self._route, "source": source})
            return Refusal(reason, again_ms=_UNKNOWN_MS)
        if not is_topic(target) or target.startswith("__"):
            text = "topic '{topic}' leads to '{target}', which is not a valid topic name"
            return Refusal(Reason(ReasonKind.BAD_TARGET, text, {"topic": topic, "target": target}), lasting=True)
        if (route := taken_by(target, self._taken)) is not None:
            text = "topic '{topic}' leads to '{target}', which route {route} intercepts. It would loop for ever"
            values = {"topic": topic, "target": target, "route": route}
            return Refusal(Reason(ReasonKind.LOOP, text, values), lasting=True)
        return target
