"""What the instruments need of a broker and of the store. Adapters offer it in their ``lab``.

Together with ``bridge.lab.load`` this is all that an adapter's lab may import from ``bridge.lab``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bridge.lab.load import Got, Load, Sent

#: Called by a consumer with each message's body and headers.
Received = Callable[[bytes, Mapping[str, Any]], None]


@dataclass(frozen=True)
class RunNames:
    """Names that only one run uses on the broker and in the store. Everything under them is deleted at the end.

    Producers publish to ``front``, the route delivers to ``target``, consumers read ``queue`` (the target itself on a
    broker without queues). ``prefix`` starts the store's keys and names the consumer group.
    """

    front: str
    target: str
    queue: str
    intake: str
    prefix: str


class BenchNumbers(NamedTuple):
    """Fields of ``BenchPlan`` in which a broker differs from RabbitMQ, in a full run and in a quick one."""

    full: Mapping[str, Any]
    quick: Mapping[str, Any]


class StoredMessage(NamedTuple):
    """A message in the store. ``state`` is parked, claimed or dead; ``due_ms`` is Unix milliseconds."""

    state: str
    due_ms: int
    reason: str
    payload: bytes


class Generator(Protocol):
    """Publishes one load."""

    def run(self, confirmed: Callable[[int], None]) -> Sent:
        """Publish all messages; report the confirmed count now and then. Raises ``BrokerUnavailable``."""


class Meter(Protocol):
    """Consumes one load, from the moment it is created."""

    def run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        """Count until all have arrived and ``linger_s`` has passed, or until ``over``.

        Reports the received count now and then. Raises ``BrokerUnavailable``.
        """


class Producer(Protocol):
    """The demo's producer."""

    def publish(self, body: bytes, headers: Mapping[str, str | int]) -> None:
        """Publish one message and wait for its confirm. Raises ``BrokerUnavailable``."""

    def close(self) -> None:
        """Close the connection."""


class Consumer(Protocol):
    """The demo's consumer."""

    def close(self) -> None:
        """Stop consuming."""


class TrialBroker(AbstractContextManager["TrialBroker"], Protocol):
    """A broker with the objects of one run. Every method raises ``BrokerUnavailable`` and ``Refused``."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Programs that influence the figures, and their versions."""

    def create(self) -> None:
        """Create the destination that the route delivers to."""

    def consumed(self) -> bool:
        """Whether the bridge has started to consume its intake."""

    def delete(self) -> None:
        """Delete everything of this run that exists."""


@runtime_checkable
class ComparableBroker(TrialBroker, Protocol):
    """A broker on which ``compare`` can run."""

    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each server in the settings."""

    def waiting(self, queue: str) -> int:
        """The number of messages ready in a queue; 0 if it does not exist."""

    def declare(self) -> None:
        """Create the objects of the route, as ``postdate setup`` does."""

    def create_front(self, mode: str) -> None:
        """Create what a mode without postdate needs in front of the destination."""

    def why_not(self, mode: str) -> str:
        """Why this broker cannot run a mode; "" if it can. Afterwards the connection may be closed."""


class BrokerLab(Protocol):
    """A broker's part of the instruments. It is pickled into the processes of generator and meter."""

    def trial(self, names: RunNames) -> TrialBroker:
        """Connect, without creating anything. Raises ``BrokerUnavailable``."""

    def producer(self, front: str) -> Producer:
        """Connect the demo's producer. Raises ``BrokerUnavailable``."""

    def consumer(self, queue: str, received: Received) -> Consumer:
        """Start the demo's consumer. Raises ``BrokerUnavailable``."""

    def generator(self, load: Load) -> Generator:
        """Connect a generator. Raises ``BrokerUnavailable``."""

    def meter(self, load: Load) -> Meter:
        """Start a meter. Raises ``BrokerUnavailable``."""
