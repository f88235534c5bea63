"""Whether somebody takes from the intake queues. Blocking."""

from __future__ import annotations

from adapters.rabbitmq.setup import open_session
from bridge.settings import Settings
from bridge.unread import Intake


def intakes(settings: Settings) -> list[Intake]:
    """The intake queue of each route, if it exists. Raises ``BrokerUnavailable``, ``Refused``."""
    found = []
    with open_session(settings) as session:
        for route in settings.routes:
            name = settings.queue_of(route)
            there = session.counts(name)
            if there is not None:
                found.append(Intake(route, "queue", name, there.message_count, there.consumer_count))
    return found
