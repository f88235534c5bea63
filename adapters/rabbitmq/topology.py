"""What postdate needs to be there on RabbitMQ: which declarations, and whether the broker has them.

``plan`` is pure. The front exchange sends messages with a delay header to the intake queue and all others to the real
exchange, which belongs to the consumers and is never declared here. ``adapters/rabbitmq/setup.py`` carries it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.header import DUE_HEADERS
from bridge.settings import Route, Settings

Arguments = Mapping[str, str | int | bool | None]

#: RabbitMQ drops a message of a quorum queue after 20 failed deliveries unless told otherwise, from 4.0 on. -1, which
#: means "no limit" there, means "drop it when it comes back the first time" on 3.10 (tried: 3.10.8 and 4.3.6), so the
#: limit is one that no message reaches.
DELIVERY_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. ``ours`` is false for the consumers' own, which only has to be there."""

    name: str
    type: str = "headers"
    arguments: Arguments = field(default_factory=dict)
    ours: bool = True


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue."""

    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Binding:
    """What the front exchange sends to the intake queue. AMQP cannot ask for one, only make it again."""

    exchange: str
    queue: str
    arguments: Arguments


Declaration = Exchange | Queue | Binding


@dataclass(frozen=True, slots=True)
class RouteTopology:
    """The declarations of one route, in the order in which they are made: the queue waits before messages can come."""

    route: str
    intake: Queue
    front: Exchange
    binding: Binding
    target: Exchange

    def declarations(self) -> tuple[Declaration, ...]:
        """What is ours."""
        return self.intake, self.front, self.binding


def plan(settings: Settings) -> tuple[RouteTopology, ...]:
    """Pure: what every RabbitMQ route needs."""
    return tuple(_route(settings, name, route) for name, route in settings.routes.items() if route.broker == "rabbitmq")


def _route(settings: Settings, name: str, route: Route) -> RouteTopology:
    queue = settings.queue_of(name)
    return RouteTopology(
        route=name,
        intake=Queue(queue, intake_arguments(settings.queue_type_of(name), route.order)),
        front=Exchange(route.intercept, arguments=_front_arguments(route.deliver_to)),
        binding=Binding(route.intercept, queue, binding_arguments(route.deliver_to, route.dialects)),
        target=Exchange(route.deliver_to, type="", ours=False),
    )


def intake_arguments(queue_type: str, order: str) -> dict[str, str | int | bool | None]:
    """Pure. Two instances that consume one queue would each park every other message, and what came first could be
    parked second; so one of them consumes, and RabbitMQ lets the next one when it goes. Where order is none, all do."""
    arguments: dict[str, str | int | bool | None] = {"x-queue-type": queue_type}
    if queue_type == "quorum":
        arguments["x-delivery-limit"] = DELIVERY_LIMIT
    if order != "none":
        arguments["x-single-active-consumer"] = True
    return arguments


def _front_arguments(deliver_to: str) -> Arguments:
    return {"alternate-exchange": deliver_to} if deliver_to else {}


def binding_arguments(deliver_to: str, dialects: tuple[str, ...]) -> dict[str, str | int | bool | None]:
    """Pure: which messages go to the intake queue. A header without a value (void) matches whatever its value is.

    The default exchange cannot be an alternate exchange: RabbitMQ takes "" for one and then drops every message that
    goes there (tried: 3.10.8 and 4.3.6), because that exchange has had no bindings since 3.8 and is only special to a
    publisher. So with ``deliver_to = ""`` all messages go through postdate, and those without a delay are delivered at
    once. The other way that the broker's own parts allow, a queue with a TTL of 0 that dead-letters to the default
    exchange, was rejected: it adds x-death to every undelayed message and takes its expiration away, its confirm no
    longer says that the message is in the consumer's queue, and a retry through it is a cycle, which the broker drops.
    """
    if not deliver_to:
        return {"x-match": "all"}
    headers = dict.fromkeys((*sorted(DUE_HEADERS), *dialects))
    return {"x-match": "any-with-x", **headers}
