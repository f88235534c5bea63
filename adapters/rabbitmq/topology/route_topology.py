"""The exchanges, queues and bindings that postdate needs on RabbitMQ. Pure.

The front exchange sends messages with a delay header to the intake queue and all others to the target exchange. That
belongs to the consumers: postdate never declares it. ``topology/declaring.py`` declares the rest.

A retry route has no front exchange. The consumers' queue dead-letters to one exchange for all retry routes, and another
exchange leads from postdate to that queue alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from adapters.rabbitmq.declarations import (
    DELIVERY_LIMIT,
    HAND_OVER_SOON,
    REFUSE_WHEN_FULL,
    Binding,
    Declaration,
    Exchange,
    Queue,
)
from adapters.rabbitmq.failure import back_exchange
from adapters.rabbitmq.levels.waits import LEVEL_HEADER, died_before, front_exchange, plan_waits
from adapters.rabbitmq.native_guard import leads, sort_exchange, sorting, timed_queue
from bridge.delay.header import DUE_HEADERS
from bridge.settings import Route, Settings
from bridge.settings.own_names import EVERY, RETRY, SPREAD


@dataclass(frozen=True, slots=True)
class RouteTopology:
    """The declarations of one route, in the order of declaring: first the queue, then what leads to it.

    Of a retry route, ``front`` is the exchange that gets the dead letters of the consumers' queue.
    """

    route: str
    intake: Queue
    front: Exchange
    binding: Binding
    targets: tuple[Exchange | Queue, ...]
    waits: tuple[Declaration, ...] = ()
    #: With several targets: the exchange that sends undelayed messages to all of them.
    spread: tuple[Declaration, ...] = ()
    last: tuple[Binding, ...] = ()
    unbound: tuple[Binding, ...] = ()
    #: What keeps RabbitMQ's own delays away; only where RabbitMQ has them.
    guard: tuple[Declaration, ...] = ()
    #: Of a retry route: what leads back to the consumers' queue.
    back: tuple[Declaration, ...] = ()

    def declarations(self) -> tuple[Declaration, ...]:
        """Return postdate's own declarations: all but the targets."""
        return self.intake, *self.back, *self.waits, *self.spread, *self.guard, self.front, self.binding, *self.last


def plan(settings: Settings, native: bool = False) -> tuple[RouteTopology, ...]:
    """Return what every RabbitMQ route needs. ``native``: where RabbitMQ delays by itself. There it is more, and
    nothing is less."""
    return tuple(_route(settings, name, native) for name in settings.routes_of("rabbitmq"))


def _route(settings: Settings, name: str, native: bool) -> RouteTopology:
    route = settings.routes[name]
    if route.retries:
        return _retry_route(settings, name, route)
    topology = _delay_route(settings, name, route)
    return _guarded(settings, topology) if native else topology


def _guarded(settings: Settings, topology: RouteTopology) -> RouteTopology:
    """Return a delay route whose messages all pass the exchange that separates what RabbitMQ would delay."""
    intake, front, order = topology.intake.name, topology.front.name, settings.routes[topology.route].order
    binding, *last = leads(front, intake, (topology.binding, *topology.last))
    guard = sorting(intake, intake_queue(timed_queue(intake), "classic", order))
    moved = (replace(unbound, queue=sort_exchange(intake), to_exchange=True) for unbound in topology.unbound)
    return replace(
        topology,
        guard=tuple(part for part in guard if part not in topology.waits),
        binding=binding,
        last=tuple(last),
        unbound=(*moved, *_to_the_intake(settings, topology.route)),
    )


def _to_the_intake(settings: Settings, name: str) -> Iterator[Binding]:
    """Yield the bindings from the front to the intake queue that a RabbitMQ before 4.4 has: of this mode or of another,
    with these dialects or none. AMQP lists no bindings."""
    route = settings.routes[name]
    modes = [route.model_copy(update={"mode": mode}) for mode in ("redis", "levels")]
    variants = [*modes, *(variant.model_copy(update={"dialects": ()}) for variant in modes if route.dialects)]
    for variant in variants:
        yield Binding(route.intercept, settings.queue_of(name), binding_arguments(variant))
    yield died_before(settings, name)


def _retry_route(settings: Settings, name: str, route: Route) -> RouteTopology:
    intake, last = settings.queue_of(name), route.last_target
    back = Exchange(back_exchange(intake), type="fanout")
    return RouteTopology(
        route=name,
        intake=intake_queue(intake, settings.queue_type_of(name), route.order),
        front=Exchange(RETRY, type="direct"),
        binding=Binding(RETRY, intake, {}, key=name),
        targets=(Queue(route.queue, {}, ours=False), *((Exchange(last, type="", ours=False),) if last else ())),
        back=(back, Binding(back.name, route.queue, {}, foreign=True)),
    )


def _delay_route(settings: Settings, name: str, route: Route) -> RouteTopology:
    queue = settings.queue_of(name)
    stored, by_level = route.stored, route.mode == "levels"
    spread = _spread(queue, route.targets) if len(route.targets) > 1 else ()
    rest = spread[0].name if spread else route.target
    front = Exchange(route.intercept, arguments={"alternate-exchange": rest} if rest else {})
    return RouteTopology(
        route=name,
        intake=intake_queue(queue, settings.queue_type_of(name), route.order),
        front=front if stored else front_exchange(settings, name),
        binding=Binding(route.intercept, queue, binding_arguments(route)),
        targets=tuple(Exchange(target, type="", ours=False) for target in route.targets),
        waits=() if stored else plan_waits(settings, name).declarations,
        spread=spread,
        last=(died_before(settings, name),) if by_level else (),
        # A previous ladder or list of queues may have left it: it would lead every level to the intake.
        unbound=(Binding(route.intercept, queue, _every_delay(route)),) if by_level and not _listed(route) else (),
    )


class KeptBindings(NamedTuple):
    """What a running process keeps as it is: bindings without which a delayed or rejected message would be delivered at
    once, or lost; and bindings of earlier that must be gone."""

    bound: tuple[Binding, ...]
    unbound: tuple[Binding, ...]


def kept(settings: Settings, name: str, native: bool = False) -> KeptBindings:
    """Return what the process of a route keeps bound and unbound. ``native`` as in ``plan``."""
    topology = _route(settings, name, native)
    around = {topology.front.name, topology.front.arguments.get("alternate-exchange")}
    if topology.guard:
        around |= {sort_exchange(topology.intake.name), f"{topology.intake.name}.{EVERY}"}
    if topology.waits:
        around.add(plan_waits(settings, name).due)
    bound = tuple(
        part
        for part in topology.declarations()
        if isinstance(part, Binding) and part.exchange in around and not part.foreign
    )
    return KeptBindings(bound, topology.unbound if native else ())


def foreign(settings: Settings, name: str) -> tuple[Binding, ...]:
    """Return the bindings of a route that lead to what belongs to its consumers."""
    declarations = _route(settings, name, native=False).declarations()
    return tuple(part for part in declarations if isinstance(part, Binding) and part.foreign)


def intake_queue(name: str, queue_type: str, order: str) -> Queue:
    """Return the intake queue.

    Two instances that consume one queue would each park every other message, and could park them in another order. So
    only one instance consumes, and RabbitMQ activates the next when it leaves. With ``order`` none, all consume.
    """
    arguments: dict[str, str | int | bool | None] = {"x-queue-type": queue_type}
    if queue_type == "quorum":
        arguments["x-delivery-limit"] = DELIVERY_LIMIT
    if order != "none":
        arguments["x-single-active-consumer"] = True
    more = {**REFUSE_WHEN_FULL, **HAND_OVER_SOON} if queue_type == "quorum" else REFUSE_WHEN_FULL
    return Queue(name, {**arguments, **more})


def _spread(queue: str, targets: Sequence[str]) -> tuple[Exchange, *tuple[Declaration, ...]]:
    """Return what sends an undelayed message to each of several targets: a front exchange has one alternate."""
    every = Exchange(f"{queue}.{SPREAD}", type="fanout")
    return every, *(Binding(every.name, target, {}, to_exchange=True, foreign=True) for target in targets)


def binding_arguments(route: Route) -> dict[str, str | int | bool | None]:
    """Return which messages go to the intake queue. A header without a value (void) matches any value.

    Where RabbitMQ itself reads the level, only the other headers lead here; they overrule the level, as everywhere. On
    a route with a list of queues postdate reads the level: RabbitMQ would deliver to any queue.

    The default exchange cannot be an alternate exchange. RabbitMQ accepts "" as one and then drops every message that
    goes there (tried: 3.10.8 and 4.3.6): since 3.8 that exchange has no bindings and is special only to publishers.
    So with ``deliver_to = ""`` all messages go through postdate, and it delivers those without a delay at once.

    Rejected: a queue with a TTL of 0 that dead-letters to the default exchange. It adds x-death to every undelayed
    message and removes its expiration. Its confirm does not mean that the message is in the consumer's queue. A retry
    through it is a cycle, and the broker drops the message.
    """
    if route.mode == "levels" and not _listed(route):
        return {"x-match": "any-with-x", **dict.fromkeys((*sorted(DUE_HEADERS - {LEVEL_HEADER}), *route.dialects))}
    return _every_delay(route)


def _listed(route: Route) -> bool:
    return not route.target and bool(route.allow_to)


def _every_delay(route: Route) -> dict[str, str | int | bool | None]:
    if not route.target:
        return {"x-match": "all"}
    return {"x-match": "any-with-x", **dict.fromkeys((*sorted(DUE_HEADERS), *route.dialects))}
