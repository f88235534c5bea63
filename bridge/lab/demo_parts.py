"""One broker's part of ``demo``: its bridge, its producer and consumer, and what is seen of its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self

from bridge.lab.demo.fate import Act, Arrival, Fate
from bridge.lab.demo.story import orders
from bridge.lab.trial.config import new_names, trial_settings
from bridge.lab.trial.open import Trial
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

Received = Callable[[bytes, Mapping[str, Any]], None]

#: What the messages are called, after the routes of the README.
_NOUNS: Mapping[BrokerKind, str] = {"rabbitmq": "order", "kafka": "payment"}


class Producer(Protocol):
    """Any program that publishes."""

    def publish(self, body: bytes, headers: Mapping[str, str | int]) -> None:
        """One message. It is at the broker when this returns. Raises ``BrokerUnavailable``."""

    def close(self) -> None:
        """Close the connection."""


class Consumer(Protocol):
    """Any program that consumes."""

    def close(self) -> None:
        """Stop consuming."""


class Part:
    """A running bridge on one broker with a producer and a consumer; the end of the ``with`` block removes all of it.

    Raises what ``Trial`` raises.
    """

    def __init__(self, settings: Settings, broker: BrokerKind) -> None:
        self.broker = broker
        names = new_names("demo", broker)
        # The messages of a demo may be lost, so a Redis that writes nothing to its disk will do.
        own = trial_settings(
            settings,
            names,
            broker=broker,
            redis={"durability": "none", "shards": 1},
            bridge={"workers": 1, "shutdown_grace": 2000},
            headers={"audit": True, "on_bad": "dead", "on_same_key": "replace"},
            log={"level": "warning"},
        )
        self._trial = Trial(own, names)

    def __enter__(self) -> Self:
        with ExitStack() as ends:
            trial = ends.enter_context(self._trial)
            self.act = Act(trial.title, [])
            self._producer = open_producer(trial.settings, trial.names.front)
            ends.callback(self._producer.close)
            ends.callback(open_consumer(trial.settings, trial.names.queue, self._received).close)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()

    def send(self, now_ms: float) -> None:
        """All messages of a demo that begins now."""
        self.act.fates.extend(Fate(order) for order in orders(round(now_ms), _NOUNS[self.broker]))
        for fate in self.act.fates:
            fate.sent_ms = self.now_ms()
            self._producer.publish(fate.order.name.encode(), fate.order.headers)

    def cancel(self) -> None:
        """The one that has a key."""
        for fate in self.act.fates:
            if fate.order.key is not None:
                self._producer.publish(b"", {"x-delay-cancel": fate.order.key})
                fate.cancel_sent = True

    def look(self) -> None:
        """What the store has of each message now."""
        trial = self._trial
        trial.bridge.check()
        trial.wait_for(trial.store.look_at_clock())
        found = trial.sightings()
        for fate in self.act.fates:
            fate.see(found.get(fate.order.name.encode()))

    def settled(self) -> bool:
        """Whether nothing more is expected."""
        return all(fate.settled(self.now_ms()) for fate in self.act.fates)

    def now_ms(self) -> float:
        """Unix milliseconds by the store's clock."""
        return self._trial.now_ms()

    def _received(self, body: bytes, headers: Mapping[str, Any]) -> None:
        at_ms = self.now_ms()
        due_ms = headers.get("x-delay-due")
        for fate in self.act.fates:
            if fate.order.name.encode() == body:
                fate.arrivals.append(Arrival(at_ms, None if due_ms is None else int(due_ms)))


def open_producer(settings: Settings, front: str) -> Producer:
    """The producer of the settings' broker. Raises ``BrokerUnavailable``."""
    if settings.broker == "kafka":
        from adapters.kafka.lab.actors import Producer as RecordProducer

        return RecordProducer(settings.kafka, front)
    from adapters.rabbitmq.lab.actors import Producer as MessageProducer

    return MessageProducer(settings.rabbitmq, front)


def open_consumer(settings: Settings, queue: str, received: Received) -> Consumer:
    """The consumer of the settings' broker. Raises ``BrokerUnavailable``."""
    if settings.broker == "kafka":
        from adapters.kafka.lab.actors import Consumer as RecordConsumer

        return RecordConsumer(settings.kafka, queue, received)
    from adapters.rabbitmq.lab.actors import Consumer as MessageConsumer

    return MessageConsumer(settings.rabbitmq, queue, received)
