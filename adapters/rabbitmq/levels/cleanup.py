"""Looks at the queues of routes without a store, and removes those that settings of before have left. Blocking.

AMQP cannot list queues. But names follow from settings, so those of other settings can be asked for by name: the other
mode, queue type and last hop, RocketMQ's levels, and whatever a settings file of before says.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from adapters.rabbitmq.levels.plan import Waits, dead_queue, plan_waits
from adapters.rabbitmq.topology.declarations import Binding, Exchange, Queue
from adapters.rabbitmq.topology.plan import plan
from adapters.rabbitmq.topology.setup import Session, open_session, planned_names
from bridge.delay.header import LEVELS_MS
from bridge.settings import Settings
from bridge.telemetry.plural import counted

#: A message that an exchange, or the queue before, has sent on needs so long at most to be in the next queue.
_ARRIVED_S = 0.25


@dataclass(frozen=True, slots=True)
class LevelQueue:
    """One queue. ``messages``: those that are ready, None where it does not exist. ``old``: the settings do not have
    it any more. ``is_due``: what has waited comes here for its last hop. ``is_dead``: it holds dead letters.
    ``ways_in``: the bindings to it of other exchanges than its own. ``kept``: why ``remove`` leaves it. ``uncounted``:
    it may hold messages that nobody can count."""

    route: str
    queue: Queue
    messages: int | None
    old: bool
    is_due: bool
    is_dead: bool
    ways_in: tuple[Binding, ...] = ()
    kept: str = ""
    uncounted: bool = False

    @property
    def name(self) -> str:
        """The queue's."""
        return self.queue.name

    @property
    def leads_to(self) -> str:
        """The exchange that what has waited here goes to; a queue of ours has one of its own name."""
        return str(self.queue.arguments.get("x-dead-letter-exchange", ""))


def count(settings: Settings, before: Sequence[Settings] = ()) -> list[LevelQueue]:
    """Every queue of the routes without a store, and those that settings of before have left: these routes', those of
    routes that have a store now, and those of routes that only ``before`` has: settings of before, of which nothing
    else would tell the queues' names.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        found = list(_count(session, settings, before))
    alive = [one for one in found if one.messages is not None]
    return [replace(one, uncounted=one in alive and may_hide(one, alive)) for one in found]


def remove(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[LevelQueue]:
    """Delete what is old and empty, or everything that ``setup`` declared for routes without a store; returns the
    queues it is about, and of each that stays, why. The exchanges of a route that has a store now stay: a front of
    before, which nobody can ask for, may still lead there, and without them it would lose what is not delayed.

    ``force`` deletes messages, too, and whatever is in use. Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        alive = [one for one in _count(session, settings, before) if one.messages is not None]
        doomed = removal_order([one for one in alive if one.old or everything])
        if everything and force and not dry_run:
            _delete_exchanges(session, settings, settings.routes)
        done = []
        for one in doomed:
            kept = "" if force else why_kept(one, alive) or _consumed(session, one)
            if not kept and not dry_run:
                kept = _delete(session, one, force)
            if not kept:
                alive.remove(one)
            done.append(replace(one, kept=kept))
        if everything and not force and not dry_run:
            _delete_exchanges(session, settings, settings.routes.keys() - {one.route for one in done if one.kept})
    return done


def removal_order(queues: Iterable[LevelQueue]) -> list[LevelQueue]:
    """Pure: nothing goes before what leads to it. A ladder from its highest step down, or a message that is between two
    steps would find the next one gone; then the due queues, and last what holds the dead letters, by which a route that
    once had levels is known."""
    return sorted(sorted(queues, key=lambda one: one.name, reverse=True), key=lambda one: (one.is_dead, one.is_due))


def why_kept(one: LevelQueue, alive: Sequence[LevelQueue]) -> str:
    """Pure: why a queue has to stay as long as the others that are still ``alive`` are there; "" if it need not."""
    before = next((other.name for other in alive if other is not one and other.leads_to == one.name), "")
    if one.messages:
        some = counted(one.messages, "message")
        return f"it holds {some}: run this again when it is empty, or delete what is in it, too, with --force"
    if before:
        return f"what waits in queue '{before}' goes on through it"
    if one.is_dead and any(other.route == one.route and not other.is_dead for other in alive):
        return "it goes last: by it postdate finds the others"
    if may_hide(one, alive):
        return (
            "it may hold messages that RabbitMQ alone tries to deliver and does not count over AMQP: when "
            "`rabbitmqctl list_queues name messages` shows 0 for it, remove it with --force"
        )
    return ""


def may_hide(one: LevelQueue, alive: Sequence[LevelQueue]) -> bool:
    """Pure: whether a queue may hold messages that RabbitMQ does not count: those that it tries to deliver from there
    and nobody takes. From one of ours to the next, that is still ``alive``, they are on their way for a moment."""
    keeps = one.queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
    return keeps and (one.is_due or one.leads_to not in {other.name for other in alive})


def _consumed(session: Session, one: LevelQueue) -> str:
    return "it is in use: somebody consumes it" if session.consumers(one.name) else ""


def _count(session: Session, settings: Settings, before: Sequence[Settings]) -> Iterator[LevelQueue]:
    # A route may have taken over the queue of another, renamed one: what any route needs now is no old one's.
    taken = set(planned_names(settings)[1])
    for route in settings.routes:
        stored = settings.routes[route].mode == "redis"
        if stored and not _had_levels(session, settings, route):
            continue
        now = {} if stored else _queues(settings, route)
        old = _old_queues(route, (*_variants(settings, route), *before), taken)
        for name, waits in {**now, **old}.items():
            messages = session.waiting(name)
            if messages is not None or name in now:
                yield _level_queue(route, name, waits, messages, name in old)
        taken.update(old)
    for route in dict.fromkeys(name for other in before for name in other.routes_of("rabbitmq")):
        old = {} if route in settings.routes else _old_queues(route, before, taken)
        for name, waits in old.items():
            if (messages := session.waiting(name)) is not None:
                yield _level_queue(route, name, waits, messages, True)
        taken.update(old)


def _old_queues(route: str, others: Iterable[Settings], taken: Container[str]) -> dict[str, Waits]:
    """The queues that a route has in other settings, but for those that are ``taken``."""
    return {
        name: waits
        for other in others
        if route in other.routes_of("rabbitmq") and other.routes[route].mode != "redis"
        for name, waits in _queues(other, route).items()
        if name not in taken
    }


def _level_queue(route: str, name: str, waits: Waits, messages: int | None, old: bool) -> LevelQueue:
    queue = next(one for one in waits.declarations if isinstance(one, Queue) and one.name == name)
    bindings = (one for one in waits.declarations if isinstance(one, Binding))
    ways_in = tuple(one for one in bindings if one.queue == name and one.exchange != name)
    return LevelQueue(route, queue, messages, old, name == waits.due, name == waits.dead, ways_in)


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


def _delete_exchanges(session: Session, settings: Settings, routes: Container[str]) -> None:
    """The front first: producers then get an error, and nothing goes astray behind it."""
    for topology in plan(settings):
        if topology.waits and topology.route in routes:
            session.delete(topology.front)
            for one in reversed(topology.waits):
                if isinstance(one, Exchange):
                    session.delete(one)


def _delete(session: Session, doomed: LevelQueue, force: bool) -> str:
    """Delete one; why not, if it stays. First the ways to it, so that nothing comes any more: what has a level then
    goes to the intake. What is on its way at this moment gets time to arrive."""
    session.delete(Exchange(doomed.name))
    for binding in doomed.ways_in:
        session.unbind(binding)
    if force:
        session.delete(doomed.queue)
        return ""
    time.sleep(_ARRIVED_S)
    if session.delete_if_empty(doomed.queue):
        return ""
    return "it got messages a moment ago: run this again when it is empty"
