"""Where the messages of a route without a store wait: names and declarations, pure. ``setup.py`` carries them out.

A level is a queue whose messages expire after its time and are dead-lettered with their routing key, so that nothing
ever looks at them while they wait; a ladder is 28 of them, each half as long as the one before, and a message's headers
name those that it stays in. From the last of them it comes to the due queue. There postdate takes it and publishes it
to its destination, mandatory; what postdate has not taken in time, RabbitMQ dead-letters to the destination alone.
Without the due queue, a message that no queue takes would stay in its level for ever, and 32 of those stop a level
(RabbitMQ's dead_letter_worker_consumer_prefetch; tried on 3.10 and 4.3).

Names carry a digest of everything that may not differ, so that changed settings make new queues beside the old ones,
which drain in peace::

    front ──x-delay…──▶ intake queue            every exchange sends what it has no binding for to the one
      │ rest                                    on its right or below (alternate-exchange)
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

from adapters.rabbitmq.topology.declarations import (
    DELIVERY_LIMIT,
    REFUSE_WHEN_FULL,
    Arguments,
    Binding,
    Declaration,
    Exchange,
    Queue,
)
from bridge.delay import ladder
from bridge.delay.duration import write_duration
from bridge.settings import Settings

#: The header that keeps a message in one step of a ladder. Void: only its presence counts.
STEP_HEADERS = tuple(b"x-delay-step-%02d" % step for step in range(ladder.STEPS))
LEVEL_HEADER = "x-delay-level"
#: A level as a producer may write it, and its queue.
Level = tuple[int | str, str]
#: So many bindings an exchange of levels has: RabbitMQ looks at each of them for every message.
_BINDINGS_MAX = 6
#: What a classic queue in which messages wait is declared with: before 3.12 one that is not lazy keeps in memory what
#: waits for hours, and RabbitMQ stands still while it tidies that up; version 2 is its newer storage, the only one from
#: 4.0 on. Both together crash RabbitMQ 3.10 before 3.10.7: ``setup.py`` refuses those.
#: Full, a level refuses: by default it would dead-letter its oldest message, which would be early.
CLASSIC: Arguments = MappingProxyType({"x-queue-mode": "lazy", "x-queue-version": 2, **REFUSE_WHEN_FULL})


@dataclass(frozen=True, slots=True)
class Waits:
    """One route's places: ``ladder`` by step, or ``levels`` by their wait in ms, each an exchange and its queue of the
    same name. ``due`` is empty where RabbitMQ alone does the last hop. Every level's name, also one of settings of
    before, begins with ``level``."""

    level: str
    due: str
    dead: str
    levels: Mapping[int, str]
    ladder: tuple[str, ...]
    declarations: tuple[Declaration, ...]


def plan_waits(settings: Settings, route: str) -> Waits:
    """Pure: the places of a route whose mode is levels or ladder. ``classic``: what its classic queues are declared
    with beside their type; they may be of a time when that was something else."""
    base, target = settings.queue_of(route), settings.routes[route].deliver_to
    dead, level = dead_queue(settings, route), f"{base}.level."
    kind: Arguments = {"x-queue-type": settings.queue_type_of(route)}
    made: list[Declaration] = list(_fanout(dead, {**kind, **REFUSE_WHEN_FULL}))
    due, end = "", target
    if settings.levels.last_hop == "bridge":
        arguments = _due_arguments(settings, route)
        due = end = f"{base}.due.{digest(arguments)}"
        made += _fanout(due, arguments)
    if settings.routes[route].mode == "ladder":
        arguments = _fed_by_queues(_waiting(settings, route))
        steps = tuple(f"{base}.step.{step:02d}.{digest([arguments, end])}" for step in range(ladder.STEPS))
        for step, name in enumerate(steps):
            made += _step(step, name, steps[step - 1] if step else end, arguments)
        return Waits(level, due, dead, {}, steps, (*made, *_plain(base, target)))
    levels = {}
    for level_ms in settings.headers.levels:
        arguments = {**_waiting(settings, route), "x-message-ttl": level_ms, "x-dead-letter-exchange": end}
        levels[level_ms] = name = f"{level}{_written(level_ms)}.{digest(arguments)}"
        made += _fanout(name, arguments)
    made += (*_plain(base, target), *_by_level(base, list(levels.values())))
    return Waits(level, due, dead, levels, (), tuple(made))


def dead_queue(settings: Settings, route: str) -> str:
    """The queue that a route without a store keeps its dead letters in."""
    return f"{settings.queue_of(route)}.dead"


def front_exchange(settings: Settings, route: str) -> Exchange:
    """The front exchange of a route without a store: what it does not send to the intake may have a level.

    On a ladder that exchange only hands on. But the front differs from that of a route with a store, so that such a
    change of the mode is refused: messages would be left in Redis, where nobody looked for them.
    """
    return Exchange(
        settings.routes[route].intercept, arguments={"alternate-exchange": f"{settings.queue_of(route)}.plain"}
    )


def died_before(settings: Settings, route: str) -> Binding:
    """A message with a level that has been dead-lettered before goes through postdate, which takes x-death out:
    RabbitMQ 3 drops what comes to a queue that stands in it for the second time."""
    arguments = {"x-match": "all-with-x", LEVEL_HEADER: None, "x-death": None}
    return Binding(settings.routes[route].intercept, settings.queue_of(route), arguments)


def digest(what: object) -> str:
    """Six hex digits that differ where anything differs."""
    return blake2b(json.dumps(what, sort_keys=True).encode(), digest_size=3).hexdigest()


def _written(level_ms: int) -> str:
    return write_duration(level_ms).replace(" ", "")


def _fanout(name: str, arguments: Arguments) -> tuple[Declaration, ...]:
    """A queue, and an exchange of its name by which a message gets there with any routing key."""
    return Queue(name, arguments), Exchange(name, "fanout"), Binding(name, name, {})


def _waiting(settings: Settings, route: str) -> dict[str, str | int | bool | None]:
    """A queue in which messages wait. At least once: RabbitMQ keeps a message until the next queue has confirmed it."""
    if settings.level_queue_type_of(route) == "classic":
        return {"x-queue-type": "classic", **CLASSIC}
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-strategy": "at-least-once",
        **REFUSE_WHEN_FULL,
        "x-delivery-limit": DELIVERY_LIMIT,
    }


def _fed_by_queues(waiting: Arguments) -> dict[str, str | int | bool | None]:
    """A queue that other queues dead-letter to. A classic one does not ask whether the next one takes the message: what
    that refused would be lost. When it is full, its oldest message goes on instead: early on a ladder, but not lost."""
    dropped = REFUSE_WHEN_FULL if waiting["x-queue-type"] == "classic" else {}
    return {name: value for name, value in waiting.items() if name not in dropped}


def _due_arguments(settings: Settings, route: str) -> dict[str, str | int | bool | None]:
    arguments = {
        **_fed_by_queues(_waiting(settings, route)),
        "x-message-ttl": settings.levels.alone_after,
        "x-dead-letter-exchange": settings.routes[route].deliver_to,
    }
    if settings.routes[route].order != "none":
        arguments["x-single-active-consumer"] = True
    return arguments


def _step(step: int, name: str, after: str, waiting: Arguments) -> tuple[Declaration, ...]:
    """One step: those with its header wait here, and all go on to what comes after."""
    stay = {"x-match": "any-with-x", STEP_HEADERS[step].decode(): None}
    return (
        Queue(name, {**waiting, "x-message-ttl": ladder.step_ms(step), "x-dead-letter-exchange": after}),
        Exchange(name, arguments={"alternate-exchange": after}),
        Binding(name, name, stay),
    )


def _plain(base: str, target: str) -> tuple[Declaration, ...]:
    """What the front hands on to, and through it to the destination. The default exchange cannot be an alternate
    exchange, so what is for it goes to the intake."""
    every = f"{base}.all"
    return (
        Exchange(every, "fanout"),
        Binding(every, base, {}),
        Exchange(f"{base}.plain", arguments={"alternate-exchange": target or every}),
    )


def _by_level(base: str, queues: list[str]) -> tuple[Declaration, ...]:
    """What lets RabbitMQ alone bring a message with ``x-delay-level`` into the queue of its level.

    A changed list of levels replaces ``levels``, whose alternate exchange bears a digest of the list: AMQP can compare
    that and nothing else of an exchange. While it is gone ``level`` sends its messages to the intake, so that none is
    early, twice, or lost. RabbitMQ looks at every binding of an exchange for every message, so each has a few: the next
    ones are those of its alternate exchange, the levels as text last.
    """
    every, level, levels = f"{base}.all", f"{base}.level", f"{base}.levels"
    as_number: list[Level] = list(enumerate(queues, 1))
    as_text: list[Level] = [(str(number), queue) for number, queue in as_number]
    parts = [part for bound in (as_number, as_text) for part in _few(bound)]
    names = [levels, *(f"{levels}.{digest([number, *queues])}" for number in range(1, len(parts)))]
    made: list[Declaration] = []
    after = every
    for name, part in reversed(list(zip(names, parts, strict=True))):
        made.append(Exchange(name, arguments={"alternate-exchange": after}, recreated=name == levels))
        made += (_of_level(name, queue, value) for value, queue in part)
        after = name
    return (
        *made,
        Exchange(level, "fanout", {"alternate-exchange": every}),
        Binding(level, levels, {}, to_exchange=True),
        Binding(f"{base}.plain", level, {"x-match": "all-with-x", LEVEL_HEADER: None}, to_exchange=True),
    )


def _few(bound: list[Level]) -> Iterator[list[Level]]:
    return (bound[at : at + _BINDINGS_MAX] for at in range(0, len(bound), _BINDINGS_MAX))


def _of_level(exchange: str, queue: str, value: str | int) -> Binding:
    return Binding(exchange, queue, {"x-match": "all-with-x", LEVEL_HEADER: value})
