"""Counts the level queues and intakes of routes, and removes stale level queues of previous settings. Blocking.

AMQP cannot list queues. But names follow from settings, so this asks by name for the queues of other settings: the
other mode, queue type and last hop, RocketMQ's levels, and any previous settings file.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from adapters.rabbitmq.declarations import Binding, Exchange, Queue
from adapters.rabbitmq.levels.waits import Waits, dead_queue, plan_waits
from adapters.rabbitmq.native_guard import timed_queue
from adapters.rabbitmq.topology.declaring import Session, open_session, planned
from adapters.rabbitmq.topology.route_topology import plan
from bridge.delay.header import LEVELS_MS
from bridge.desk.leftovers import Intake
from bridge.settings import Settings

#: The time within which a message reaches the next queue.
_ARRIVED_S = 0.25


@dataclass(frozen=True, slots=True)
class LevelQueue:
    """One queue. ``messages`` are ready; None where it does not exist. ``old``: the settings no longer name it.

    ``is_due``: messages wait here for their last hop. ``is_dead``: it holds dead letters. ``bindings`` lead to it from
    other exchanges than its own. ``kept`` is the reason why ``remove`` keeps it. ``uncounted``: it may hold messages
    that AMQP does not count.
    """

    route: str
    queue: Queue
    messages: int | None
    old: bool
    is_due: bool
    is_dead: bool
    bindings: tuple[Binding, ...] = ()
    kept: str = ""
    uncounted: bool = False

    @property
    def name(self) -> str:
        """Its name."""
        return self.queue.name

    @property
    def leads_to(self) -> str:
        """The exchange to which expired messages go. Each level queue has one of its own name."""
        return str(self.queue.arguments.get("x-dead-letter-exchange", ""))


def count(settings: Settings, before: Sequence[Settings] = ()) -> list[LevelQueue]:
    """Return every queue of the routes without a store, and the stale ones of previous settings.

    Those are of these routes, of routes that have a store now, and of routes that only ``before`` has: only previous
    settings know their names. Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        found = list(_count(session, settings, before))
    alive = [queue for queue in found if queue.messages is not None]
    return [replace(queue, uncounted=queue in alive and may_hide(queue, alive)) for queue in found]


def remove(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[LevelQueue]:
    """Delete stale, empty level queues. Return every candidate with the reason it was kept.

    ``everything``: all that ``setup`` declared for routes without a store. ``force``: also queues with messages or
    consumers. The exchanges of a route that has a store now stay: a previous front, whose name is unknown, may still
    lead there and would lose undelayed messages. Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        alive = [queue for queue in _count(session, settings, before) if queue.messages is not None]
        doomed = removal_order([queue for queue in alive if queue.old or everything])
        if everything and force and not dry_run:
            _delete_exchanges(session, settings, settings.routes)
        done = []
        for queue in doomed:
            kept = "" if force else why_kept(queue, alive)
            if not kept and not force and session.consumers(queue.name):
                kept = "it has a consumer"
            if not kept and not dry_run:
                kept = _delete(session, queue, force)
            if not kept:
                alive.remove(queue)
            done.append(replace(queue, kept=kept))
        if everything and not force and not dry_run:
            _delete_exchanges(session, settings, settings.routes.keys() - {queue.route for queue in done if queue.kept})
    return done


def removal_order(queues: Iterable[LevelQueue]) -> list[LevelQueue]:
    """Return the queues in the order of removal: each after those that lead to it. Pure.

    A ladder goes from its highest step down: otherwise a message between two steps would find the next one missing.
    Then come the due queues. The queues of dead letters come last: they tell which routes once had levels.
    """
    return sorted(
        sorted(queues, key=lambda queue: queue.name, reverse=True), key=lambda queue: (queue.is_dead, queue.is_due)
    )


def why_kept(queue: LevelQueue, alive: Sequence[LevelQueue]) -> str:
    """Return why a queue must stay while the others in ``alive`` exist; "" where it need not. Pure."""
    before = next((other.name for other in alive if other is not queue and other.leads_to == queue.name), "")
    if queue.messages:
        return f"it holds messages: {queue.messages}. Run this again when it is empty, or delete them too with --force"
    if before:
        return f"the messages in queue '{before}' go through it"
    if queue.is_dead and any(other.route == queue.route and not other.is_dead for other in alive):
        return "it is removed last: postdate finds the others by it"
    if may_hide(queue, alive):
        return (
            "it may hold messages that RabbitMQ does not count over AMQP. When `rabbitmqctl list_queues name messages` "
            "shows 0 for it, remove it with --force"
        )
    return ""


def may_hide(queue: LevelQueue, alive: Sequence[LevelQueue]) -> bool:
    """Return whether a queue may hold messages that RabbitMQ does not count: those that it delays by itself, and those
    that it is dead-lettering. Pure.

    To a level queue that is ``alive`` these take only a moment.
    """
    if queue.queue.delays:
        return True
    keeps = queue.queue.arguments.get("x-dead-letter-strategy") == "at-least-once"
    return keeps and (queue.is_due or queue.leads_to not in {other.name for other in alive})


def _count(session: Session, settings: Settings, before: Sequence[Settings]) -> Iterator[LevelQueue]:
    # A route may have taken over the queue of a renamed one: a queue that any route needs is not stale.
    taken = {part.name for part in planned(settings) if isinstance(part, Queue)}
    for route in settings.routes:
        stored = settings.routes[route].stored
        # A route that once had no store has a queue of dead letters, which is removed last. Asking for all possible
        # queues would fill the broker's log with errors.
        if stored and session.waiting(dead_queue(settings, route)) is None:
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
    """Return the queues that a route has in other settings, without those in ``taken``."""
    return {
        name: waits
        for other in others
        if route in other.routes_of("rabbitmq") and not other.routes[route].stored
        for name, waits in _queues(other, route).items()
        if name not in taken
    }


def _level_queue(route: str, name: str, waits: Waits, messages: int | None, old: bool) -> LevelQueue:
    queue = next(part for part in waits.declarations if isinstance(part, Queue) and part.name == name)
    bindings = (part for part in waits.declarations if isinstance(part, Binding))
    leading = tuple(binding for binding in bindings if binding.queue == name and binding.exchange != name)
    return LevelQueue(route, queue, messages, old, name == waits.due, name == waits.dead, leading)


def _queues(settings: Settings, route: str) -> dict[str, Waits]:
    """Return its queues by name, without the intake."""
    waits = plan_waits(settings, route)
    return {part.name: waits for part in waits.declarations if isinstance(part, Queue)}


def _variants(settings: Settings, route: str) -> Iterator[Settings]:
    """Yield the settings with one or more of the usual changes undone."""
    for mode in ("levels", "ladder", "native"):
        routes = {**settings.routes, route: settings.routes[route].model_copy(update={"mode": mode})}
        for listed in dict.fromkeys((settings.headers.levels, LEVELS_MS)):
            headers = settings.headers.model_copy(update={"levels": listed})
            for queue_type in ("quorum", "classic"):
                for last_hop in ("bridge", "broker") if mode == "levels" else ("bridge",):
                    levels = settings.levels.model_copy(update={"queue_type": queue_type, "last_hop": last_hop})
                    yield settings.model_copy(update={"routes": routes, "headers": headers, "levels": levels})


def _delete_exchanges(session: Session, settings: Settings, routes: Container[str]) -> None:
    """Delete the front first: producers then get an error, and no message is lost behind it."""
    for topology in plan(settings, native=False):
        if topology.waits and topology.route in routes:
            session.delete(topology.front)
            for part in reversed(topology.waits):
                if isinstance(part, Exchange):
                    session.delete(part)


def _delete(session: Session, doomed: LevelQueue, force: bool) -> str:
    """Delete one queue. Return why it stays, or "".

    First delete what leads to it: messages with a level then go to the intake. Messages on their way get time to
    arrive.
    """
    session.delete(Exchange(doomed.name))
    for binding in doomed.bindings:
        session.unbind(binding)
    if force:
        session.delete(doomed.queue)
        return ""
    time.sleep(_ARRIVED_S)
    if session.delete_if_empty(doomed.queue):
        return ""
    return "messages have just arrived in it. Run this again when it is empty"


#: How often to count: the number of messages that wait behind a working consumer falls now and then.
_LOOKS, _LOOK_S = 8, 0.25


def count_intakes(settings: Settings) -> list[Intake]:
    """Return the intake queue of each route, if it exists. Raises ``BrokerUnavailable``, ``Refused``."""
    with open_session(settings) as session:
        return list(_intakes(session, settings))


def stalled_intakes(settings: Settings) -> list[Intake]:
    """Return the intake queues in which messages wait and from which no consumer takes one for two seconds.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    with open_session(settings) as session:
        found = [intake for intake in _intakes(session, settings) if intake.messages]
        for _ in range(_LOOKS):
            if found:
                time.sleep(_LOOK_S)
                now = {intake.name: intake for intake in _intakes(session, settings)}
                found = [
                    now[intake.name]
                    for intake in found
                    if intake.name in now and now[intake.name].messages >= intake.messages
                ]
        return found


def _intakes(session: Session, settings: Settings) -> Iterator[Intake]:
    for route in settings.routes:
        intake = settings.queue_of(route)
        for name in (intake, timed_queue(intake)) if session.native else (intake,):
            there = session.counts(name)
            if there is not None and (there.message_count or name == intake):
                yield Intake(route, "queue", name, there.message_count, there.consumer_count)
