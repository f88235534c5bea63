"""The interfaces that the pipeline needs: a store, sources and sinks. Each method states its promise.

Ports speak batches. Every adapter passes the suite of its port (``tests/conformance``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim, Delivery, Origin, Outcome, Refusal
from bridge.core.orders import RouteOrders

#: A loop that keeps a connection to a broker.
Link = Callable[[], Coroutine[None, None, None]]


class Keyed(NamedTuple):
    """A message with its producer's own key: its position in the batch (from 1) and its index field.

    ``mode`` says what to do if the key is taken: replace, keep or reject.
    """

    position: int
    field: bytes
    mode: str


@dataclass(slots=True)
class Batch:
    """What is parked in one shard in one call.

    ``token`` (8 bytes) names the call: a second call with it changes nothing. ``messages`` are (id, due ms, envelope).
    ``found`` maps an index field to ids that can be looked up by it and never replace each other. ``recent`` has 28
    bytes a message, digest and id; the store keeps at least ``recent_max`` of them. ``origins`` has one for each
    message, or is empty: the store does not park again what it has handled. ``owed`` are origins of this shard that the
    caller rejects afterwards: that call still finds them new, whatever was parked here. ``once``: a message whose id
    the store has, in any state, counts as handled before. One such call and one other may be repeated side by side.
    ``again``: a restore may have read the rows of its messages. One whose id the store has was put back meanwhile: it
    stays as it is, and counts as parked.
    ``mark``: nothing is parked if the shard has another one (``bridge.core.journal.Tiers``), and the reply is
    ``TierMoved``. ``logs``: the number of logs that the shard begins if it has none, because the store was emptied: 1
    for that of moves, 2 with that of what was parked. With ``once``, the log of moves names what was parked: its row
    may say that it ended. ``rivals``: ids of rows of the journal for the same records, each with the id of a message of
    this call.
    """

    token: bytes
    messages: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    keyed: list[Keyed] = field(default_factory=list)
    found: dict[bytes, bytes] = field(default_factory=dict)
    recent: bytes = b""
    recent_max: int = 0
    origins: list[Origin] = field(default_factory=list)
    owed: list[Origin] = field(default_factory=list)
    once: bool = False
    again: bool = False
    mark: bytes = b""
    logs: int = 0
    rivals: dict[bytes, bytes] = field(default_factory=dict)


class DeadBatch(NamedTuple):
    """What is kept as dead letters in one shard in one call: (id, envelope, reason). ``token`` and ``origins`` as in
    ``Batch``. ``restored``: they do not count as new, because they were dead letters before."""

    token: bytes
    messages: Sequence[tuple[bytes, bytes, str]]
    origins: Sequence[Origin] = ()
    restored: bool = False


class Parked(NamedTuple):
    """Positions (from 1) of messages that were not parked.

    ``kept``: an older message with the key was kept. ``rejected``: the message is to be rejected for it. ``before``:
    the store handled its origin before, or has its id (``Batch.once``), so nothing is left to do.
    """

    kept: tuple[int, ...]
    rejected: tuple[int, ...]
    before: tuple[int, ...] = ()


class Loss(NamedTuple):
    """The store was emptied or replaced by an older copy; an instance saw it at ``at_ms``.

    When an instance looked last before it, all that was due before ``from_ms`` (0: unknown) had left, except what was
    being sent, and ``older`` messages that were held or refused.
    """

    at_ms: int
    from_ms: int
    older: int


class Claimed(NamedTuple):
    """What a claim took from one shard.

    ``owner`` names another instance that drains it; then nothing was taken. ``next_due_ms`` is the next due moment of
    the remaining messages, or None. ``ghosts`` counts ids without a message. ``newer`` are ids of envelopes of a newer
    version. ``damaged`` are claims with an identity only; each is to be buried with the reason beside it.
    """

    claims: list[Claim]
    next_due_ms: int | None
    owner: str | None
    ghosts: int
    newer: list[bytes]
    damaged: tuple[tuple[Claim, str], ...] = ()


class Found(NamedTuple):
    """The ids of an index field; or their number, where they are too many to be an identity."""

    ids: list[bytes]
    unlisted: int

    @classmethod
    def merged(cls, parts: Collection[Found]) -> Found:
        """Return what several fields or shards have."""
        return cls([message_id for part in parts for message_id in part.ids], sum(part.unlisted for part in parts))


class Release(NamedTuple):
    """A claim to be given back. ``wait_ms`` from now is its next try; None: at its due moment, so at once."""

    claim: Claim
    wait_ms: int | None
    tries: int
    reason: str


#: Before every held message.
FIRST_HELD = (-1, b"")


class HeldStep(NamedTuple):
    """Which held messages of a shard are let go next: those after the due moment and id ``after``.

    ``most``: by route, how many messages may go, each of them from now on. ``others``: all messages of other routes may
    go, each at its own due moment.
    """

    after: tuple[int, bytes]
    most: Mapping[str, int]
    others: bool


class LetGo(NamedTuple):
    """What a step did. ``owned``: False if another instance drains the shard; then nothing was done.

    ``first_ms``: when the first of the ``moved`` ones is due; None if there is none. ``last``: the due moment and id up
    to which nothing is held that the step could let go. ``ended``: there is nothing held after that. ``rest``: all
    routes with held messages.
    """

    owned: bool
    moved: int
    first_ms: int | None
    last: tuple[int, bytes]
    ended: bool
    rest: frozenset[str]


class Met(NamedTuple):
    """The instances that can deliver, and what operators have ordered.

    ``stepped_s``: by how much the store's clock stepped since the last meeting.
    """

    able: list[str]
    orders: RouteOrders
    stepped_s: float = 0.0


class Piece(NamedTuple):
    """Entries of the history, packed one after the other (``bridge.parking.history``), and their number."""

    entries: int
    data: bytes


class DeliveryCount(NamedTuple):
    """Deliveries of a route to be counted: the start of their slot, and the place of their class of lateness."""

    slot_ms: int
    route: str
    place: int
    number: int


class Dealt(NamedTuple):
    """``deal`` is the text on which the instances agreed, "" before the first deal.

    ``reports`` are the latest of the instances that can deliver.
    """

    deal: str
    reports: Mapping[str, str]


class ParkingStore(Protocol):
    """The way in: parking once, and what producers find, cancel and replace by key."""

    shards: int
    clock: StoreClock

    async def park(self, batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        """Park a batch in each shard. A shard's answer means durable as configured. An instance makes one call
        at a time."""

    async def reject(self, shard: int, dead: DeadBatch) -> tuple[int, ...]:
        """Keep dead letters. Return the positions (from 1) of messages that were handled before, or whose id the store
        has."""

    async def done(self, shard: int, origins: Sequence[Origin]) -> set[Origin]:
        """Return those of the origins that were handled before: parked, kept away, dead, or a cancellation."""

    async def firsts(self, shard: int, logs: Sequence[bytes]) -> dict[bytes, int]:
        """Return the lowest offset of each log that was parked in the shard, since the store was new or emptied."""

    async def loss(self) -> Loss | None:
        """Return the last loss that an instance saw; None if none did."""

    async def mark_done(self, shard: int, origins: Sequence[Origin]) -> None:
        """Mark origins as handled, and with them all earlier records of their logs that are not owed."""

    async def line_up(self, shard: int, named: Sequence[tuple[bytes, int]]) -> list[int]:
        """Let messages wait for earlier ones with the same name. ``named``: names and due moments, in their order.

        Return the due moment of each: its own, or the latest one of that name, if that came less than a minute before
        the moments of this call.
        """

    async def recent(self, shard: int) -> list[bytes]:
        """Return digests and ids (8 + 20 bytes each, many in a piece) of recently parked messages, oldest first."""

    def new_token(self) -> bytes:
        """Return eight bytes that no other call of any process uses."""

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, Found]:
        """Return the messages of each index field in all shards, whether parked, claimed or dead."""

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        """Return those of the ids that are parked now."""

    async def cancel(
        self, ids: Sequence[bytes], dead_too: bool, replaced: bool = False, reason: str = ""
    ) -> dict[bytes, str]:
        """Remove parked messages and, if asked, dead ones.

        ``replaced`` and ``reason`` are for the history: a message with the same key takes their place.
        Return for each id what it was: parked, dead, claimed (too late: it stays), none.
        """


class DeliveringStore(Protocol):
    """The way out: claims and their leases, and what is held on the way."""

    async def claim(
        self, shards: Sequence[int], limit: int, bytes_max: int, lease_ms: int, drain_ms: int, ahead_ms: int = 0
    ) -> dict[int, Claimed | StoreUnavailable]:
        """Take messages that are due, or will be within ``ahead_ms``, in the order of due moment and id.

        ``limit`` and ``bytes_max`` bound what each shard returns. The caller drains the shards for ``drain_ms``.
        """

    async def renew(self, claims: Iterable[Claim], lease_ms: int) -> int:
        """Extend leases. Return how many were still held."""

    async def settle(self, claims: Iterable[Claim]) -> int:
        """Remove confirmed messages. Return how many were still the caller's."""

    async def release(self, releases: Iterable[Release]) -> int:
        """Park messages again. Return how many were still the caller's."""

    async def hold(self, holds: Iterable[tuple[Claim, str | None]]) -> int:
        """Keep messages of routes that are paused, at their rate or missing, in the order of due moment and id, until
        ``let_go``. One with a reason counts as refused, one with "" does not, and with None it counts as before.
        Return how many were still the caller's."""

    async def let_go(
        self, steps: Mapping[int, HeldStep], limit: int, gap_us: int = 0
    ) -> dict[int, LetGo | StoreUnavailable]:
        """Let held messages be due again, in their order. One step for each shard, by the instance that drains it.

        ``limit`` bounds the messages looked at. Messages that are due from now on are ``gap_us`` apart.
        """

    async def tokens(self, route: str, per_s: float, most: int, wanted: int) -> int:
        """Take up to ``wanted`` tokens of a route's bucket, which fills with ``per_s`` up to ``most``. Return how many
        there were. All instances share the bucket."""

    async def bury(self, burials: Iterable[tuple[Claim, str]]) -> int:
        """Make dead letters, with reasons. Return how many were still the caller's."""

    async def recover(self, shards: Sequence[int], lease_ms: int) -> int:
        """Park again what expired leases hold, and what was claimed by a call whose reply was lost.

        ``lease_ms`` is the length of a lease, and the caller drains the shards. A lease that ends later than in that
        time is cut to it, and a drain is removed: the store's clock stepped back since they were taken.
        """

    async def hand_over(self, shards: Iterable[int]) -> None:
        """Stop draining these shards, so that another instance can start at once."""


class InstanceStore(Protocol):
    """What the instances of a store learn from each other."""

    shards: int

    async def meet(self, ttl_ms: int, able: bool, health: str) -> Met:
        """Announce this instance for ``ttl_ms`` (0: it leaves). Learn who can deliver, and what was ordered.

        Other instances count until their announcements have not changed for ``ttl_ms``, by the caller's monotonic
        clock. A step of the store's clock neither keeps a dead instance nor removes a living one.
        """

    async def deal(self, read: str, wanted: str) -> Dealt:
        """Agree on which instance drains each shard.

        ``wanted`` replaces the deal if it is still ``read``; "" only asks.
        """

    async def orders(self) -> RouteOrders:
        """Return what operators have ordered."""

    async def listen(self, heard: Callable[[int, int], None]) -> None:
        """Call ``heard(shard, due_ms)`` for each hint of a nearer due moment, until cancelled. Hints may be lost.

        A moment of 0 means that no instance drains the shard.
        """


class CountingStore(Protocol):
    """What is counted, and written down of messages that left."""

    shards: int

    async def record(self, pieces: Mapping[int, Sequence[Piece]], most: int) -> dict[int, int | StoreUnavailable]:
        """Write delivered messages into the history of each shard, and shorten it to ``most`` entries.

        Return how many entries each shard keeps. A shard without pieces is only shortened. Moves write all else.
        """

    async def tally(self, counts: Sequence[DeliveryCount]) -> None:
        """Add to the counts of deliveries."""

    async def parked_by_route(self, routes: Sequence[str]) -> dict[str, int]:
        """Return how many messages of each route are parked or claimed, in all shards."""


class Store(ParkingStore, DeliveringStore, InstanceStore, CountingStore, Protocol):
    """Where messages wait. Every call is one round trip; safe to repeat; raises or returns ``StoreUnavailable``.

    A call that failed may have been carried out. Cancelling a call leaves it unknown, never half done.
    """


class Source(Protocol):
    """Where messages come from. Its buffer has a limit; at the limit it stops reading. It reconnects by itself."""

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        """Wait for deliveries and return at least one. Routes share a batch, and each keeps its order."""

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        """Return the deliveries that are there now, except of the routes ``without``. Routes share the batch."""

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge durable deliveries. Those of a lost connection are ignored: they are delivered again."""

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        """Forget deliveries that are no longer ``alive``."""

    def alive(self, delivery: Delivery) -> bool:
        """Return whether the delivery can still be acknowledged. If not, the broker delivers the message again."""

    def place(self, delivery: Delivery) -> dict[str, object]:
        """Return where a delivery was taken from, for the log; empty where the broker numbers no messages."""

    def close_intakes(self, routes: Collection[str]) -> None:
        """Take nothing in for these routes until a call without them; the others go on. Each call replaces the last.

        What was received stays in the buffer to be taken, if giving it back would change its order.
        """

    def stop(self) -> None:
        """Ask the broker for nothing more. Taken deliveries may still be accepted.

        Deliveries in the buffer stay there to be taken, if giving them back would change their order.
        """

    def emptied(self) -> bool:
        """Return, after ``stop``, whether nothing is left to take and nothing will come."""


class Letter(Protocol):
    """What a sink reads of a message. A ``Claim`` is one as it is, so that nothing is copied.

    ``route`` selects how the sink publishes. Times are Unix milliseconds by the store's clock.
    """

    route: str
    public_id: bytes
    payload: bytes
    due_ms: int
    arrived_ms: int


L = TypeVar("L", bound=Letter)


class Result(NamedTuple, Generic[L]):
    """What became of one publish. ``letter`` is the object that was given to ``Sink.publish``."""

    letter: L
    outcome: Outcome
    refusal: Refusal | None


class Sink(Protocol[L]):
    """Where messages go. Order of publishing is order of sending."""

    def on_answers(self, answered: Callable[[list[Result[L]]], None]) -> None:
        """Set the listener for results. The wiring calls this once, before the sink connects.

        An empty batch tells the listener that there is room again.
        """

    def able(self) -> bool:
        """Return whether it is connected. A blocked sink counts as able: the broker blocks every instance. So does one
        that opens another channel on its connection."""

    def open(self) -> bool:
        """Return whether it is able and has a channel. Without one, what waits goes back to the store."""

    def room(self) -> tuple[int, int]:
        """Return how many messages and bytes may still be sent without an answer."""

    def publish(self, letters: Sequence[L]) -> None:
        """Send. The listener gets exactly one ``Result`` for each letter."""
