"""What the instruments need of a broker and of the store. Adapters offer it in their ``lab``.

Together with ``bridge.lab.load`` this is all that an adapter's lab may import from ``bridge.lab``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bridge.lab.load import Got, Load, Sent
from bridge.settings import Settings

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


class StoredMessage(NamedTuple):
    """A message in the store. ``state`` is parked, claimed or dead; ``due_ms`` is Unix milliseconds."""

    state: str
    due_ms: int
    reason: str
    payload: bytes


class Producer(Protocol):
    """The demo's producer: a plain client, which does not know postdate."""

    def publish(self, body: bytes, headers: Mapping[str, str | int]) -> None:
        """Publish one message and wait for its confirm. Raises ``BrokerUnavailable``."""

    def close(self) -> None:
        """Close the connection."""


class Consumer(Protocol):
    """The demo's consumer, which reads from the moment it is created: a plain client, which does not know postdate."""

    def close(self) -> None:
        """Stop consuming and close the connection."""


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


class BrokerLab(NamedTuple):
    """A broker's part of the instruments, pickled into the processes of a load. All it opens raises
    ``BrokerUnavailable``.

    - ``trial`` connects without creating anything. ``producer`` publishes to a front, ``consumer`` reads a queue.
    - ``generate`` publishes a load: it connects, calls ``start``, which waits until it may begin, and reports the
      confirmed count now and then.
    - ``measure`` counts a load: it calls ``consumes`` as soon as it would see a message, reports the received count now
      and then, and ends when the tally is complete, or ``over``.
    - ``full`` and ``quick`` are the fields of ``BenchPlan`` in which a broker differs from RabbitMQ.
    """

    names: Callable[[str], RunNames]
    trial: Callable[[Settings, RunNames], TrialBroker]
    producer: Callable[[Settings, str], Producer]
    consumer: Callable[[Settings, str, Received], Consumer]
    generate: Callable[[Settings, Load, Callable[[], object], Callable[[int], None]], Sent]
    measure: Callable[[Settings, Load, Callable[[], object], Callable[[], bool], Callable[[int], None]], Got]
    full: Mapping[str, Any] = {}
    quick: Mapping[str, Any] = {}
