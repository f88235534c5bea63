"""What the house needs of the world: a store, sources and sinks. Each method says what it promises.

Ports speak batches. The real adapters and the in-memory ones pass the same suites (``tests/conformance``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim, Delivery, Origin, Outcome, Refusal

#: A loop that keeps a connection to a broker.
Link = Callable[[], Coroutine[None, None, None]]


class Keyed(NamedTuple):
    """A message with its producer's own key: its position in the batch (from 1), its index field, and what to do when
    the key is taken: replace, keep or reject."""

    position: int
    field: bytes
    mode: str


@dataclass(slots=True)
class Batch:
    """What is parked in one shard in one call.

    ``token`` (8 bytes) names the call: the same token again changes nothing. ``messages`` are (id, due ms, envelope).
    ``found`` maps an index field to the ids that may be found by it without ever replacing each other. ``recent`` is 28
    bytes a message, digest and id, and ``recent_max`` how many such the store keeps. ``origins`` are those of the
    messages, in the same places, or none at all: what the store has dealt with before is not parked again. ``owed`` are
    origins of this shard that are to be rejected afterwards: that call still finds them new, whatever was parked here.
    """

    token: bytes
    messages: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    keyed: list[Keyed] = field(default_factory=list)
    found: dict[bytes, bytes] = field(default_factory=dict)
    recent: bytes = b""
    recent_max: int = 0
    origins: list[Origin] = field(default_factory=list)
    owed: list[Origin] = field(default_factory=list)


class Parked(NamedTuple):
    """Positions (from 1) of messages that were not parked: an older one of their key was kept; or the message is to be
    rejected for it; or it was dealt with ``before``, by its origin, and needs nothing more."""

    kept: tuple[int, ...]
    rejected: tuple[int, ...]
    before: tuple[int, ...] = ()


class Claimed(NamedTuple):
    """What a claim took from one shard. ``owner`` names another instance that drains it (then nothing was taken);
    ``next_due_ms`` is the next due moment of what is left, or None; ``newer`` are ids of envelopes of a newer version,
    ``damaged`` are to be buried, each beside the reason, and are claims with nothing but their identity."""

    claims: list[Claim]
    next_due_ms: int | None
    owner: str | None
    ghosts: int
    newer: list[bytes]
    damaged: tuple[tuple[Claim, str], ...] = ()


class Found(NamedTuple):
    """The ids under an index field; or, where they are too many to be an identity, their number."""

    ids: list[bytes]
    unlisted: int


class Release(NamedTuple):
    """A claim to be given back. ``wait_ms`` after now is its next try, None its own due moment, so at once."""

    claim: Claim
    wait_ms: int | None
    tries: int
    reason: str


class Dealt(NamedTuple):
    """``deal`` is the text on which the instances agreed, "" before the first. ``reports`` are the last ones of the
    instances that can deliver."""

    deal: str
    reports: Mapping[str, str]


class Store(Protocol):
    """Where messages wait. Every call is one round trip; safe to repeat; raises or returns ``StoreUnavailable``.

    A call that failed may have been carried out. Cancelling a call leaves it unknown, never half done.
    """

    shards: int
    clock: StoreClock

    async def park(self, batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        """Park a batch in each shard; a shard's answer means durable as configured. One call at a time an instance."""

    async def reject(
        self, shard: int, token: bytes, messages: Sequence[tuple[bytes, bytes, str]], origins: Sequence[Origin] = ()
    ) -> tuple[int, ...]:
        """Keep (id, envelope, reason) as dead letters. ``origins`` as in ``Batch``; the positions (from 1) of messages
        that were dealt with before, and left alone."""

    async def done(self, shard: int, origins: Sequence[Origin]) -> set[Origin]:
        """Those of the origins that were dealt with before: parked, kept away, dead, or a cancellation."""

    async def mark_done(self, shard: int, origins: Sequence[Origin]) -> None:
        """From now on they count as dealt with, as everything of their logs before them does that is not owed."""

    async def recent(self, shard: int) -> list[bytes]:
        """Digests and ids (20 + 8 bytes each, many in a piece) of what was parked lately, oldest first."""

    def new_token(self) -> bytes:
        """Eight bytes that no other call of any process carries."""

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, Found]:
        """What stands under each index field, in all shards, whether parked, claimed or dead."""

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        """Those of the ids that are parked now."""

    async def cancel(self, ids: Sequence[bytes], dead_too: bool) -> dict[bytes, str]:
        """Remove what is parked (and, if asked, dead). Each id's word is what it was: parked, dead, claimed (too late:
        it stays), none."""

    async def claim(
        self, shards: Sequence[int], limit: int, bytes_max: int, lease_ms: int, drain_ms: int, ahead_ms: int = 0
    ) -> dict[int, Claimed | StoreUnavailable]:
        """Take up to ``limit`` messages of each shard that are due, or will be in ``ahead_ms``, in the order of due and
        id, and drain it for ``drain_ms``."""

    async def renew(self, claims: Iterable[Claim], lease_ms: int) -> int:
        """Lengthen leases; how many were still held."""

    async def settle(self, claims: Iterable[Claim]) -> int:
        """Remove what was confirmed; how many were still the caller's."""

    async def release(self, releases: Iterable[Release]) -> int:
        """Park again; how many were still the caller's."""

    async def bury(self, burials: Iterable[tuple[Claim, str]]) -> int:
        """Make dead letters, with reasons; how many were still the caller's."""

    async def recover(self, shards: Sequence[int]) -> int:
        """Park again what has outlived its lease, and what a claim took whose reply never came."""

    async def hand_over(self, shards: Iterable[int]) -> None:
        """Stop draining these shards, so that another instance can start at once."""

    async def meet(self, ttl_ms: int, able: bool, health: str) -> list[str]:
        """Say that this instance is there for ``ttl_ms`` (0: it leaves); names of those that are and can deliver."""

    async def deal(self, read: str, wanted: str) -> Dealt:
        """Agree on which instance drains each shard. ``wanted`` replaces the deal if it is still ``read``; "" only
        asks."""

    async def listen(self, heard: Callable[[int, int], None]) -> None:
        """Call ``heard(shard, due_ms)`` for each hint that a due moment came nearer, until cancelled; 0 means that the
        shard is free. Hints may be lost."""


class Source(Protocol):
    """Where messages come from. It buffers at most what its settings say and then stops reading."""

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """Wait for deliveries and return those there are, at least one. Routes share a batch, and each keeps its order.
        It reconnects by itself."""

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """Those there are now, perhaps none; of the routes ``without`` none. Routes share what they get."""

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries that are durable. Those of a connection that is gone are ignored: they come again."""

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries that are no longer ``alive``."""

    def alive(self, delivery: Delivery) -> bool:
        """Whether accepting it would still be heard; otherwise it will be, or has been, delivered again."""

    def place(self, delivery: Delivery) -> dict[str, object]:
        """Where a delivery was taken from, as facts for the log; none where the broker numbers no messages."""

    def stop(self) -> None:
        """Ask the broker for nothing more. What was taken may still be accepted. What it has handed out and nobody has
        taken yet is still there to be taken, where a broker that gets it back would give it out in another order."""

    def emptied(self) -> bool:
        """After ``stop``: whether nothing more is there to be taken, nor will be."""


class Letter(Protocol):
    """What a sink reads of a message. A ``Claim`` is one as it is, so that nothing is copied.

    ``route`` selects how the sink publishes. Times are Unix milliseconds by the store's clock.
    """

    @property
    def route(self) -> str: ...
    @property
    def public_id(self) -> bytes: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def due_ms(self) -> int: ...
    @property
    def arrived_ms(self) -> int: ...


class Result(NamedTuple):
    """What became of one publish. ``letter`` is the object that was given to ``Sink.publish``."""

    letter: Letter
    outcome: Outcome
    refusal: Refusal | None


class Sink(Protocol):
    """Where messages go. Order of publishing is order of sending."""

    def on_answers(self, answered: Callable[[list[Result]], None]) -> None:
        """Set the listener for results. The wiring calls this once, before the sink connects.

        An empty batch tells the listener that there is room again.
        """

    def ready(self) -> bool:
        """Return whether it may be published to now: connected, and not blocked by the broker."""

    def able(self) -> bool:
        """Return whether it is connected. A broker that blocks publishers blocks every instance, so that counts too."""

    def room(self) -> tuple[int, int]:
        """Return how many messages and bytes may still be sent without an answer."""

    def publish(self, letters: Sequence[Letter]) -> None:
        """Send. The listener gets exactly one ``Result`` for each letter."""
