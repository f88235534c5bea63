"""RabbitMQ's part ``levels`` of ``bridge.app.brokers.Broker``: messages that wait in the broker."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.rabbitmq import stale_levels
from adapters.rabbitmq.stale_levels import count_intakes as count_intakes
from adapters.rabbitmq.stale_levels import stalled_intakes as stalled_intakes
from bridge.desk.leftovers import Place, Use
from bridge.settings import Settings


def levels_at(settings: Settings, before: Sequence[Settings]) -> list[Settings]:
    """Return what to ask for levels: the settings' own RabbitMQ with its routes; where no route uses one, those that
    previous settings have a route of. AMQP lists no queues, so without previous settings there is nothing to ask for.
    """
    if names := settings.routes_of("rabbitmq"):
        return [settings.only(names)]
    olds = [old for old in before if old.routes_of("rabbitmq")]
    if settings.is_set("rabbitmq.url"):
        return [settings.only(())] if olds else []
    return list({old.rabbitmq.url: old.only(()) for old in reversed(olds)}.values())


def unknown_hint(settings: Settings) -> str:
    return ""


def looks_at_start(settings: Settings) -> list[str]:
    """Return the routes whose stale levels a starting process looks for. Not those without a store: that takes a
    hundred questions, and `setup` reports a changed list of levels."""
    return [name for name, route in settings.routes.items() if route.broker == "rabbitmq" and route.stored]


def count_levels(settings: Settings, before: Sequence[Settings]) -> list[Place]:
    return [_place(queue) for queue in stale_levels.count(settings, before)]


def remove_levels(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[Place]:
    found: list[Place] = []
    for asked in levels_at(settings, before):
        found += [_place(queue) for queue in stale_levels.remove(asked, before, everything, force, dry_run)]
    return found


def remaining_exchanges(settings: Settings, before: Sequence[Settings]) -> dict[str, str]:
    """Return, for each removed route of previous settings without a store, what `levels remove` never deletes. Pure."""
    fronts = {settings.routes[name].intercept for name in settings.routes_of("rabbitmq")}
    queues = {settings.queue_of(name) for name in settings.routes_of("rabbitmq")}
    found = {}
    for old in before:
        for name in old.routes_of("rabbitmq"):
            front, queue = old.routes[name].intercept, old.queue_of(name)
            parts = [f"front exchange '{front}'"] * (front not in fronts)
            parts += [f"intake queue '{queue}' and the exchanges '{queue}.…'"] * (queue not in queues)
            if parts and name not in settings.routes and not old.routes[name].stored:
                found[name] = (
                    f"postdate does not delete these of the removed route {name}: {', '.join(parts)}. Delete the front "
                    "first, when no producer uses it, then the queue, when it is empty"
                )
    return found


def works_alone(settings: Settings) -> list[str]:
    return [name for name in settings.routes_of("rabbitmq") if settings.routes[name].mode == "levels"]


def _place(queue: stale_levels.LevelQueue) -> Place:
    use = Use.OLD if queue.old else Use.MISSING if queue.messages is None else Use.IN_USE
    return Place(queue.route, "queue", queue.name, queue.messages, use, queue.is_dead, queue.uncounted, queue.kept)
