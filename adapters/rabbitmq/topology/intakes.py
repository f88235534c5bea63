"""Whether consumers take messages from the intake queues. Blocking."""

from __future__ import annotations

import time
from collections.abc import Iterator

from adapters.rabbitmq.topology.setup import Session, open_session
from bridge.admin.leftovers import Intake
from bridge.settings import Settings

#: How often to count: the number of messages that wait behind a working consumer falls now and then.
_LOOKS, _LOOK_S = 8, 0.25


def intakes(settings: Settings) -> list[Intake]:
    """Return the intake queue of each route, if it exists. Raises ``BrokerUnavailable``, ``Refused``."""
    with open_session(settings) as session:
        return list(_intakes(session, settings))


def stalled(settings: Settings) -> list[Intake]:
    """Return the intake queues in which messages wait and from which no consumer takes one for two seconds.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        found = [one for one in _intakes(session, settings) if one.messages]
        for _ in range(_LOOKS):
            if found:
                time.sleep(_LOOK_S)
                now = {one.route: one for one in _intakes(session, settings)}
                found = [
                    now[one.route] for one in found if one.route in now and now[one.route].messages >= one.messages
                ]
        return found


def _intakes(session: Session, settings: Settings) -> Iterator[Intake]:
    for route in settings.routes:
        name = settings.queue_of(route)
        there = session.counts(name)
        if there is not None:
            yield Intake(route, "queue", name, there.message_count, there.consumer_count)
