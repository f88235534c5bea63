"""The queues and exchanges in which messages of a route without a store wait. Pure: ``declaring.py`` declares them.

A level is a queue whose messages expire after its time. RabbitMQ dead-letters them with their routing key, and nothing
reads them while they wait. A ladder has 28 such queues, each with half the time of the one before. A message's headers
name those in which it waits. After the last one it comes to the due queue. postdate takes it there and publishes it to
its destination, mandatory. What postdate does not take in time, RabbitMQ dead-letters to the destination by itself.

On RabbitMQ 4.4 and later one quorum queue can take the place of all steps (mode native): it holds each message until
the moment in a header. Its TTL of 0 then dead-letters the message to the due queue.

Without the due queue an unroutable message would stay in its level forever, and 32 of those stop a level (RabbitMQ's
dead_letter_worker_consumer_prefetch; tried on 3.10 and 4.3).

Names carry a digest of all arguments that AMQP cannot change. Changed settings so make new queues beside the previous
ones, which drain::

    front ──x-delay…──▶ intake queue            an exchange sends a message without a matching binding
      │ rest                                    to the one on its right or below (alternate-exchange)
    plain ──x-delay-level──▶ level ──▶ levels ──1, 2, 3 …──▶ a queue for each level ──▶ due ──▶ destination
      │ rest                   └──── no such level ────▶ all ──▶ intake queue
    destination
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from types import MappingProxyType

from adapters.rabbitmq.declarations import (
    DELIVERY_LIMIT,
    REFUSE_WHEN_FULL,
    Arguments,
    Binding,
    Declaration,
    Exchange,
    Queue,
)
from adapters.rabbitmq.native_guard import every_message
from bridge.delay import ladder
from bridge.delay.duration import write_duration
from bridge.settings import Settings
from bridge.settings.own_names import EVERY

#: The header with which a message waits in a step of a ladder. Void: only its presence counts.
STEP_HEADERS = tuple(b"x-delay-step-%02d" % step for step in range(ladder.STEPS))
LEVEL_HEADER = "x-delay-level"
#: A level as a producer writes it, and its queue.
Level = tuple[int | str, str]
#: Bindings of one exchange of levels: RabbitMQ evaluates each of them for every message.
_BINDINGS_MAX = 6
#: Arguments of a classic level queue. Before 3.12, a queue that is not lazy keeps waiting messages in memory for hours,
#: and RabbitMQ stops while it cleans up. Version 2 is the newer storage, the only one from 4.0 on. Both together crash
#: RabbitMQ 3.10 before 3.10.7: ``declaring.py`` refuses those.
#: A full level refuses messages. By default it would dead-letter its oldest message, which would be early.
CLASSIC: Arguments = MappingProxyType({"x-queue-mode": "lazy", "x-queue-version": 2, **REFUSE_WHEN_FULL})
_QUORUM: Arguments = MappingProxyType(
    {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        **REFUSE_WHEN_FULL,
        "x-delivery-limit": DELIVERY_LIMIT,
    }
)


@dataclass(frozen=True, slots=True)
class Waits:
    """The names of one route: ``ladder`` by step, ``levels`` by wait in ms, or ``native``, where RabbitMQ delays by
    itself. Each names an exchange and its queue.

    ``due`` is empty where RabbitMQ alone does the last hop. The name of every level, also of previous settings, begins
    with ``level``.
    """

    level: str
    due: str
    dead: str
    levels: Mapping[int, str]
    ladder: tuple[str, ...]
    declarations: tuple[Declaration, ...]
    native: str = ""


def plan_waits(settings: Settings, route: str) -> Waits:
    """Return where the messages of a route wait whose mode is levels, ladder or native."""
    base, target = settings.queue_of(route), settings.routes[route].target
    dead, level = dead_queue(settings, route), f"{base}.level."
    kind: Arguments = {"x-queue-type": settings.queue_type_of(route)}
    declarations: list[Declaration] = list(_fanout(dead, {**kind, **REFUSE_WHEN_FULL}))
    due, end = "", target
    if settings.levels.last_hop == "bridge":
        arguments = _due_arguments(settings, route)
        due = end = f"{base}.due.{digest(arguments)}"
        declarations += _fanout(due, arguments)
    if settings.routes[route].mode == "ladder":
        arguments = _fed_by_queues(_waiting(settings, route))
        steps = tuple(f"{base}.step.{step:02d}.{digest([arguments, end])}" for step in range(ladder.STEPS))
        for step, name in enumerate(steps):
            declarations += _step(step, name, steps[step - 1] if step else end, arguments)
        return Waits(level, due, dead, {}, steps, (*declarations, *_plain(base, target)))
    if settings.routes[route].mode == "native":
        native, parts = _native(base, end)
        return Waits(level, due, dead, {}, (), (*declarations, *parts, *_plain(base, target)), native)
    levels = {}
    for level_ms in settings.headers.levels:
        arguments = {**_waiting(settings, route), "x-message-ttl": level_ms, "x-dead-letter-exchange": end}
        levels[level_ms] = name = f"{level}{write_duration(level_ms).replace(' ', '')}.{digest(arguments)}"
        declarations += _fanout(name, arguments)
    declarations += (*_plain(base, target), *_by_level(base, list(levels.values())))
    return Waits(level, due, dead, levels, (), tuple(declarations))


def dead_queue(settings: Settings, route: str) -> str:
    """Return the name of the queue with the dead letters of a route without a store."""
    return f"{settings.queue_of(route)}.dead"


def front_exchange(settings: Settings, route: str) -> Exchange:
    """Return the front exchange of a route without a store. Its alternate exchange reads the level.

    On a ladder that exchange only passes messages on. It also makes this front differ from that of a route with a
    store, so ``setup`` refuses such a change of mode: messages would stay in Redis unnoticed.
    """
    return Exchange(
        settings.routes[route].intercept, arguments={"alternate-exchange": f"{settings.queue_of(route)}.plain"}
    )


def died_before(settings: Settings, route: str) -> Binding:
    """Return the binding for a message with a level that was dead-lettered before.

    It goes through postdate, which removes x-death: RabbitMQ 3 drops a message at a queue that x-death already lists.
    """
    arguments = {"x-match": "all-with-x", LEVEL_HEADER: None, "x-death": None}
    return Binding(settings.routes[route].intercept, settings.queue_of(route), arguments)


def digest(what: object) -> str:
    """Return six hex digits that differ where the value differs."""
    return blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=3).hexdigest()


def _fanout(name: str, arguments: Arguments) -> tuple[Declaration, ...]:
    """Return a queue, and an exchange of its name that sends it messages with any routing key."""
    return Queue(name, arguments), Exchange(name, "fanout"), Binding(name, name, {})


def _waiting(settings: Settings, route: str) -> dict[str, str | int | bool | None]:
    """Return the arguments of a level queue. At-least-once: it keeps a message until the next queue confirms it."""
    if settings.level_queue_type_of(route) == "classic":
        return {"x-queue-type": "classic", **CLASSIC}
    return dict(_QUORUM)


def _native(base: str, end: str) -> tuple[str, tuple[Declaration, ...]]:
    """Return the queue that delays by itself. RabbitMQ looks at the TTL when a message is due, and passes it on."""
    arguments = {**_QUORUM, "x-message-ttl": 0, "x-dead-letter-exchange": end}
    name = f"{base}.native.{digest(arguments)}"
    return name, (Queue(name, arguments, delays=True), *_fanout(name, arguments)[1:])


def _fed_by_queues(waiting: Arguments) -> dict[str, str | int | bool | None]:
    """Return the arguments of a queue to which other queues dead-letter.

    A classic queue does not wait for the next one to accept a message: a refused one would be lost. So a full one sends
    its oldest message on instead: early on a ladder, but not lost.
    """
    dropped = REFUSE_WHEN_FULL if waiting["x-queue-type"] == "classic" else {}
    return {name: value for name, value in waiting.items() if name not in dropped}


def _due_arguments(settings: Settings, route: str) -> dict[str, str | int | bool | None]:
    arguments = {
        **_fed_by_queues(_waiting(settings, route)),
        "x-message-ttl": settings.levels.alone_after,
        "x-dead-letter-exchange": settings.routes[route].target,
    }
    if settings.routes[route].order != "none":
        arguments["x-single-active-consumer"] = True
    return arguments


def _step(step: int, name: str, after: str, waiting: Arguments) -> tuple[Declaration, ...]:
    """Return one step: messages with its header wait here, and all go on to ``after``."""
    stay = {"x-match": "any-with-x", STEP_HEADERS[step].decode(): None}
    return (
        Queue(name, {**waiting, "x-message-ttl": ladder.step_ms(step), "x-dead-letter-exchange": after}),
        Exchange(name, arguments={"alternate-exchange": after}),
        Binding(name, name, stay),
    )


def _plain(base: str, target: str) -> tuple[Declaration, ...]:
    """Return the alternate exchange of the front, which leads to the destination.

    The default exchange cannot be an alternate exchange, so messages for it go to the intake.
    """
    every = every_message(base)
    return *every, Exchange(f"{base}.plain", arguments={"alternate-exchange": target or f"{base}.{EVERY}"})


def _by_level(base: str, queues: list[str]) -> tuple[Declaration, ...]:
    """Return what lets RabbitMQ alone bring a message with ``x-delay-level`` to the queue of its level.

    A changed list of levels replaces the exchange ``levels``. Its alternate exchange has a digest of the list in its
    name: AMQP can compare nothing else of an exchange. While ``levels`` is missing, ``level`` sends its messages to the
    intake, so that none is early, duplicated or lost. RabbitMQ evaluates every binding of an exchange for every
    message, so each exchange has a few, and its alternate exchange the next ones. The levels as text come last.
    """
    every, level, levels = f"{base}.{EVERY}", f"{base}.level", f"{base}.levels"
    as_number: list[Level] = list(enumerate(queues, 1))
    as_text: list[Level] = [(str(number), queue) for number, queue in as_number]
    parts = [part for bound in (as_number, as_text) for part in _few(bound)]
    names = [levels, *(f"{levels}.{digest([number, *queues])}" for number in range(1, len(parts)))]
    declarations: list[Declaration] = []
    after = every
    for name, part in reversed(list(zip(names, parts, strict=True))):
        declarations.append(Exchange(name, arguments={"alternate-exchange": after}, recreated=name == levels))
        for value, queue in part:
            declarations.append(Binding(name, queue, {"x-match": "all-with-x", LEVEL_HEADER: value}))
        after = name
    return (
        *declarations,
        Exchange(level, "fanout", {"alternate-exchange": every}),
        Binding(level, levels, {}, to_exchange=True),
        Binding(f"{base}.plain", level, {"x-match": "all-with-x", LEVEL_HEADER: None}, to_exchange=True),
    )


def _few(bound: list[Level]) -> Iterator[list[Level]]:
    return (bound[at : at + _BINDINGS_MAX] for at in range(0, len(bound), _BINDINGS_MAX))
