"""Which queues and exchanges of others are bound to the front exchanges. Only the management API tells. Blocking.

A headers exchange uses its alternate exchange only for a message that no binding matches. A binding without arguments
matches every message, so one foreign binding takes the undelayed messages away from the real consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from adapters.rabbitmq.management import ManagementApi, reach
from adapters.rabbitmq.native_guard import sort_exchange
from bridge.desk.severity import named
from bridge.settings import Settings
from bridge.telemetry.subject import Subject


@dataclass(frozen=True, slots=True)
class ForeignBinding:
    """What else is bound to the front exchange of a route. ``target`` is empty where all messages pass postdate."""

    route: str
    front: str
    target: str
    ends: tuple[str, ...]

    @property
    def text(self) -> str:
        """What it does to messages, without the final stop."""
        bound = f"bound to the front exchange '{self.front}': {named(self.ends, 3)}"
        if not self.target:
            return f"{bound}. Every message that matches is copied there at once, also a delayed one"
        return (
            f"{bound}. Undelayed messages that match go there and not to '{self.target}', and delayed ones are copied "
            "there at once"
        )

    @property
    def advice(self) -> str:
        """What to do about it."""
        bind = f"Bind it to '{self.target}' instead" if self.target else "Let it read the consumers' queue"
        return f"Remove that binding. {bind}. Without the right `read` on the front, no application can bind to it"


def foreign_bindings(settings: Settings) -> list[ForeignBinding]:
    """Return what is bound to each front exchange beside postdate's intake queue. Raises ``BrokerUnavailable`` where
    no management API answers, or none is to be asked."""
    with reach(settings.rabbitmq) as api:
        found = (_of_route(api, settings, name) for name in delay_routes(settings))
        return [foreign for foreign in found if foreign.ends]


def delay_routes(settings: Settings) -> list[str]:
    """Return the routes that have a front exchange. Pure."""
    return [name for name in settings.routes_of("rabbitmq") if not settings.routes[name].retries]


def _of_route(api: ManagementApi, settings: Settings, name: str) -> ForeignBinding:
    route = settings.routes[name]
    ends = foreign_ends(api.bindings_of(route.intercept), settings.queue_of(name))
    return ForeignBinding(name, route.intercept, ", ".join(route.targets) if route.target else "", ends)


def foreign_ends(bindings: Iterable[Mapping[str, Any]], intake: str) -> tuple[str, ...]:
    """Return where the bindings of a front exchange lead, except to the intake. Pure."""
    own = {("queue", intake), ("exchange", sort_exchange(intake))}
    return tuple(f"{kind} '{name}'" for kind, name in sorted(ends_of(bindings) - own))


def ends_of(bindings: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Return the kinds and names to which bindings lead. Pure."""
    return {(str(binding.get("destination_type")), str(binding.get("destination"))) for binding in bindings}


def front_troubles(settings: Settings) -> dict[Subject, str]:
    """Return subject and sentence of each front exchange with foreign bindings. Raises as ``foreign_bindings``."""
    return {
        Subject("rabbitmq", "front", foreign.front): f"RabbitMQ: {foreign.text}. {foreign.advice}"
        for foreign in foreign_bindings(settings)
    }
