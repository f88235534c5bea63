"""Looks at the queues of routes without a store, and removes those that settings of before have left. Blocking.

AMQP cannot list queues. But names follow from settings, so those of other settings can be asked for by name: the other
mode, queue type and last hop, RocketMQ's levels, and whatever a settings file of before says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from adapters.rabbitmq.declarations import Exchange, Queue
from adapters.rabbitmq.levels import Waits, dead_queue, plan_waits
from adapters.rabbitmq.setup import Session, open_session
from adapters.rabbitmq.topology import plan
from bridge.errors import Refused
from bridge.header import LEVELS_MS
from bridge.settings import Settings


@dataclass(frozen=True, slots=True)
class LevelQueue:
    """One queue. ``messages``: those that are ready, None where it does not exist. ``old``: the settings do not have
    it any more. ``is_due``: what has waited comes here for its last hop. ``is_dead``: it holds dead letters."""

    route: str
    name: str
    messages: int | None
    old: bool
    is_due: bool
    is_dead: bool


def count(settings: Settings, before: Sequence[Settings] = ()) -> list[LevelQueue]:
    """Every queue of the routes without a store, and those that settings of before have left: these routes', and those
    of routes that have a store now. ``before``: settings of before, of which nothing else would tell the queues' names.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        return list(_count(session, settings, before))


def remove(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[LevelQueue]:
    """Delete what is old, or everything that ``setup`` declared for routes without a store; returns the queues it is
    about. The exchanges of a route that has a store now stay: a front exchange of before, which nobody can ask for, may
    still lead there, and without them it would lose what is not delayed.

    ``force`` deletes messages, too. Raises ``Refused`` before anything is deleted where something holds messages, or
    may hold some, and ``BrokerUnavailable``.
    """
    with open_session(settings) as session:
        found = [one for one in _count(session, settings, before) if one.messages is not None]
        doomed = [one for one in found if one.old or everything]
        if not force:
            _refuse(doomed)
        if not dry_run:
            if everything:
                _delete_exchanges(session, settings)
            for one in doomed:
                _delete(session, one, force)
    return doomed


def _count(session: Session, settings: Settings, before: Sequence[Settings]) -> Iterator[LevelQueue]:
    for route in settings.routes:
        stored = settings.routes[route].mode == "redis"
        if stored and not _had_levels(session, settings, route):
            continue
        now = {} if stored else _queues(settings, route)
        old = {
            name: waits
            for other in (*_variants(settings, route), *before)
            if route in other.routes and other.routes[route].mode != "redis"
            for name, waits in _queues(other, route).items()
            if name not in now
        }
        for name, waits in {**now, **old}.items():
            messages = session.waiting(name)
            if messages is not None or name in now:
                yield LevelQueue(route, name, messages, name in old, name == waits.due, name == waits.dead)


def _had_levels(session: Session, settings: Settings, route: str) -> bool:
    """Whether a route that has a store now once had none. Its queue of dead letters is the one that every such route
    has, and that goes last; to ask for all that there may be would fill the broker's log with what there is not."""
    return session.waiting(dead_queue(settings, route)) is not None


def _queues(settings: Settings, route: str) -> dict[str, Waits]:
    """The names of its queues, without the intake."""
    waits = plan_waits(settings, route)
    return {one.name: waits for one in waits.declarations if isinstance(one, Queue)}


def _variants(settings: Settings, route: str) -> Iterator[Settings]:
    """The settings with one or more of the usual changes undone."""
    for mode in ("levels", "ladder"):
        routes = {**settings.routes, route: settings.routes[route].model_copy(update={"mode": mode})}
        for listed in dict.fromkeys((settings.headers.levels, LEVELS_MS)):
            headers = settings.headers.model_copy(update={"levels": listed})
            for queue_type in ("quorum", "classic"):
                for last_hop in ("bridge", "broker") if mode == "levels" else ("bridge",):
                    levels = settings.levels.model_copy(update={"queue_type": queue_type, "last_hop": last_hop})
                    yield settings.model_copy(update={"routes": routes, "headers": headers, "levels": levels})


def _refuse(doomed: Iterable[LevelQueue]) -> None:
    full = [f"queue '{one.name}' holds {one.messages} messages" for one in doomed if one.messages]
    if full:
        raise Refused(f"{', '.join(full)}: wait until they have left, or delete them too with --force")
    due = next((one.name for one in doomed if one.is_due), None)
    if due is not None:
        raise Refused(
            f"queue '{due}' may hold messages that RabbitMQ alone tries to deliver and does not count over AMQP: when "
            f"`rabbitmqctl list_queues name messages` shows 0 for it, remove it with --force"
        )


def _delete_exchanges(session: Session, settings: Settings) -> None:
    """The front first: producers then get an error, and nothing goes astray behind it."""
    for topology in plan(settings):
        if topology.waits:
            session.delete(topology.front)
            for one in reversed(topology.waits):
                if isinstance(one, Exchange):
                    session.delete(one)


def _delete(session: Session, doomed: LevelQueue, force: bool) -> None:
    """Its exchange first, so that nothing comes any more; then the queue, unless something came meanwhile."""
    session.delete(Exchange(doomed.name))
    if session.waiting(doomed.name) and not force:
        raise Refused(f"queue '{doomed.name}' got messages a moment ago; run it again when they have left")
    session.delete(Queue(doomed.name, {}))
