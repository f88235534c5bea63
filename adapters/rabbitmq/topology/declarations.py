"""What can be declared on RabbitMQ, as values: exchanges, queues, bindings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

Arguments = Mapping[str, str | int | bool | None]

#: RabbitMQ drops a message of a quorum queue after 20 failed deliveries unless told otherwise, from 4.0 on. -1, which
#: means "no limit" there, means "drop it when it comes back the first time" on 3.10 (tried: 3.10.8 and 4.3.6), so the
#: limit is one that no message reaches.
DELIVERY_LIMIT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. ``ours`` is false for the consumers' own, which only has to be there. ``remade`` is one that
    is deleted and made again when it differs: what comes meanwhile has another way."""

    name: str
    type: str = "headers"
    arguments: Arguments = field(default_factory=dict)
    ours: bool = True
    remade: bool = False


#: A full queue refuses what is published to it (basic.nack). By default it drops or dead-letters its oldest message,
#: which RabbitMQ has confirmed. It only matters under a length limit, which postdate never sets and a policy may.
#: A policy that says ``overflow`` itself beats this on a quorum queue, and not on a classic one (tried: 3.10.8, 4.3.6).
REFUSE_WHEN_FULL: Arguments = MappingProxyType({"x-overflow": "reject-publish"})
#: When the node dies to which a consumer is connected, RabbitMQ 4.3 keeps a quorum queue for that consumer for a minute
#: by default: nothing is taken meanwhile, although postdate is back at another node at once (tried: 4.3.6). Older
#: versions hand over at once, and ignore this.
HAND_OVER_SOON: Arguments = MappingProxyType({"x-consumer-disconnected-timeout": 5_000})


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue. ``earlier``: what an earlier postdate declared it with, if that still serves. AMQP cannot change
    the arguments of a queue, and nobody should have to delete one that holds messages."""

    name: str
    arguments: Arguments
    earlier: Arguments | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """What an exchange sends to a queue, or to the exchange called ``queue``. AMQP cannot ask for one, only make it
    again."""

    exchange: str
    queue: str
    arguments: Arguments
    to_exchange: bool = False


Declaration = Exchange | Queue | Binding
