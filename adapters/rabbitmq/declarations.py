"""What can be declared on RabbitMQ, as values: exchanges, queues, bindings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Arguments = Mapping[str, str | int | bool | None]

#: From 4.0 on, RabbitMQ drops a message of a quorum queue after 20 failed deliveries by default. -1 means "no limit"
#: there, but "drop it at the first redelivery" on 3.10 (tried: 3.10.8 and 4.3.6). So this is a limit that no message
#: reaches.
DELIVERY_LIMIT = 2**31 - 1
#: A full queue refuses what is published to it (basic.nack). By default it drops or dead-letters its oldest message,
#: which RabbitMQ has confirmed. This matters only under a length limit, which postdate never sets and a policy may.
#: An ``overflow`` in a policy overrules this on a quorum queue, and not on a classic one (tried: 3.10.8, 4.3.6).
REFUSE_WHEN_FULL: Arguments = MappingProxyType({"x-overflow": "reject-publish"})
#: When the node of a consumer dies, RabbitMQ 4.3 reserves a quorum queue for that consumer for a minute by default,
#: although postdate reconnects to another node at once (tried: 4.3.6). Older versions hand over at
#: once, and ignore this.
HAND_OVER_SOON: Arguments = MappingProxyType({"x-consumer-disconnected-timeout": 5_000})


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange. ``ours`` is false for the consumers' own, which postdate never declares.

    ``recreated``: where it differs, ``declare`` deletes and declares it again, because its messages meanwhile take
    another path.
    """

    name: str
    type: str = "headers"
    arguments: Arguments = field(default_factory=dict)
    ours: bool = True
    recreated: bool = False


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue. AMQP cannot change the arguments of one that exists.

    ``ours`` is false for a queue of the consumers', which postdate never declares. ``delays``: it has to hold messages
    by itself, which RabbitMQ does from 4.4 on.
    """

    name: str
    arguments: Arguments = field(default_factory=dict)
    ours: bool = True
    delays: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue, or to the exchange called ``queue``.

    AMQP cannot ask for a binding, only declare it again. ``foreign``: it leads to what belongs to the consumers, and so
    may be missing. RabbitMQ refuses the binding then, and forgets it when they delete that. ``key``: the routing key.
    """

    exchange: str
    queue: str
    arguments: Arguments = field(default_factory=dict)
    to_exchange: bool = False
    foreign: bool = False
    key: str = ""

    def bind(self, channel: Any, **options: Any) -> None:
        """Declare it on a channel of pika's, whose methods take these ``options``."""
        bind = channel.exchange_bind if self.to_exchange else channel.queue_bind
        bind(self.queue, self.exchange, self.key, dict(self.arguments), **options)

    def unbind(self, channel: Any, **options: Any) -> None:
        """Remove it, as ``bind``."""
        unbind = channel.exchange_unbind if self.to_exchange else channel.queue_unbind
        unbind(self.queue, self.exchange, self.key, dict(self.arguments), **options)


Declaration = Exchange | Queue | Binding
