"""What the suite needs of a store beyond its port: open it several times, let time pass, look inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from bridge.core.message import Claim, Origin
from bridge.core.ports import Batch, Claimed, Keyed, Parked, Store
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids

SHARDS = 4
HOUR_MS = 3_600_000
LEASE_MS = 60_000
DRAIN_MS = 60_000
#: (id, due ms, envelope), as ``Batch`` has it.
Message = tuple[bytes, int, bytes]


class Rig(ABC):
    """A store under test."""

    def __init__(self) -> None:
        self._ids = Ids("tester")

    @abstractmethod
    async def open(self, instance: str = "a") -> Store:
        """The store as one instance sees it."""

    @abstractmethod
    async def now_ms(self) -> int:
        """The store's clock."""

    @abstractmethod
    async def after_ms(self, ms: int) -> None:
        """Time passes."""

    @abstractmethod
    async def after_leases(self) -> None:
        """Time passes until every lease, drain and membership has ended."""

    @abstractmethod
    async def stretch(self, ms: int) -> None:
        """Let every lease, drain and membership end later, as after a step of the clock back. Negative: forward."""

    @abstractmethod
    async def tamper(self, message_id: bytes, envelope: bytes | None) -> None:
        """Change or delete an envelope behind the store's back."""

    @abstractmethod
    async def envelope(self, message_id: bytes) -> bytes | None:
        """The envelope as it is kept."""

    @abstractmethod
    async def word(self, message_id: bytes) -> str:
        """The state of a message: parked, claimed, dead or none."""

    @abstractmethod
    async def reasons(self, shard: int = 0) -> dict[bytes, str]:
        """The last reason of each message that has one."""

    @abstractmethod
    async def index_fields(self, shard: int = 0) -> set[bytes]:
        """The fields of the key index that hold something."""

    @abstractmethod
    async def counts(self, shard: int = 0) -> dict[str, int]:
        """Lifetime counters (parked, delivered, ...); a zero may be missing."""

    @abstractmethod
    async def retry(self, store: Store, message_id: bytes) -> bool:
        """Make this move."""

    @abstractmethod
    async def reschedule(self, store: Store, message_id: bytes, due_ms: int) -> str:
        """Make this move."""

    @abstractmethod
    def lose_reply(self, store: Store) -> None:
        """Lose the reply of this instance's next call, which is carried out."""

    # -- messages ---------------------------------------------------------------------------------------------------

    def message(
        self,
        due_ms: int,
        shard: int = 0,
        route: bytes = b"orders",
        key: bytes = b"",
        payload: bytes = b"body",
        first: bytes = b"",
    ) -> Message:
        """A new message with an id of its own; ids rise in the order of these calls."""
        return self._ids.next(due_ms, shard), due_ms, seal(due_ms, due_ms - 1000, route, key, first, payload)

    async def overdue(self, number: int = 1, **how: bytes) -> list[Message]:
        """Messages of one due moment that has passed."""
        due_ms = await self.now_ms() - 1
        return [self.message(due_ms, **how) for _ in range(number)]  # type: ignore[arg-type]

    async def claimed(self, store: Store, number: int = 1) -> list[Claim]:
        """Messages that this instance has just claimed."""
        await park(store, *(await self.overdue(number)))
        return (await claim(store)).claims


async def park(
    store: Store,
    *messages: Message,
    shard: int = 0,
    token: bytes | None = None,
    found: dict[bytes, bytes] | None = None,
    keyed: Sequence[Keyed] = (),
    recent: bytes = b"",
    recent_max: int = 0,
    origins: Sequence[Origin] = (),
    owed: Sequence[Origin] = (),
    once: bool = False,
) -> Parked:
    """Park in one shard; a failure is raised."""
    batch = Batch(token or store.new_token(), list(messages), list(keyed), found or {}, recent, recent_max)
    batch.origins, batch.owed, batch.once = list(origins), list(owed), once
    reply = (await store.park({shard: batch}))[shard]
    if not isinstance(reply, Parked):
        raise reply
    return reply


async def park_keyed(store: Store, message: Message, key: bytes, mode: str, route: bytes = b"orders") -> Parked:
    """Park one message under its producer's own key."""
    return await park(store, message, keyed=[Keyed(1, index_field(route, key), mode)])


async def claim(store: Store, shard: int = 0, limit: int = 100, bytes_max: int = 1 << 30, ahead_ms: int = 0) -> Claimed:
    """Claim from one shard; a failure is raised."""
    reply = (await store.claim([shard], limit, bytes_max, LEASE_MS, DRAIN_MS, ahead_ms))[shard]
    if not isinstance(reply, Claimed):
        raise reply
    return reply


def ids(claimed: Claimed) -> list[bytes]:
    """The ids that were claimed, in order."""
    return [claim.id for claim in claimed.claims]
