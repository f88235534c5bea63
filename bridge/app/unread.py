"""The intakes of routes without a store, over all brokers."""

from __future__ import annotations

from typing import Any

from bridge.admin.unread import Intake
from bridge.settings import Settings


def intakes_of(settings: Settings) -> list[Intake]:
    """Those that exist. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    found: list[Intake] = []
    waiting = settings.only(name for name, route in settings.routes.items() if route.mode != "redis")
    if names := waiting.routes_of("rabbitmq"):
        from adapters.rabbitmq.topology.intakes import intakes

        found += intakes(waiting.only(names))
    if names := waiting.routes_of("kafka"):
        from adapters.kafka.levels.cleanup import intakes as intake_topics

        found += intake_topics(waiting.only(names))
    return found


def stalled_intakes(settings: Settings) -> list[Intake]:
    """Intake queues of RabbitMQ routes in which messages wait and none is taken. Blocking. Raises as ``intakes_of``."""
    names = settings.routes_of("rabbitmq")
    if not names:
        return []
    from adapters.rabbitmq.topology.intakes import stalled

    return stalled(settings.only(names))


def intake_places(settings: Settings) -> list[dict[str, Any]]:
    """A row for each, as ``bridge.app.leftovers`` has them of levels. Blocking. Raises as ``intakes_of``."""
    return [
        {
            "route": one.route,
            "kind": one.kind,
            "name": one.name,
            "messages": one.messages,
            "state": "intake" if one.readers else "intake, nobody takes",
            "text": "",
            "is_dead": False,
            "uncounted": False,
        }
        for one in intakes_of(settings)
    ]
