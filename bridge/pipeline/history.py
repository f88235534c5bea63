"""Write the history of delivered messages: the historian. The store's moves write what ends in another way.

It never slows or stops delivery. The settler hands over whole batches. The historian packs them some milliseconds
later, in slices, and writes once a second, or as soon as it has 2,000: one call for each shard. What does not fit into
its bounded buffer, because the store is away or full, is dropped, and a log line counts it. A crash loses the last
second.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import CountingStore, DeliveryCount, Piece
from bridge.desk.past import PLACES, SLOT_MS
from bridge.parking.history import DELIVERED, HELD, PIECE_MAX, HistoryLimits, pack_head, pack_let_go, text_field
from bridge.telemetry.lateness import LATENESS_BOUNDS_MS

log = structlog.get_logger("postdate")

#: Entries are gathered for this time, or up to this number, and then written. Claims wait behind the calls: 10,000
#: entries keep Redis busy for 5 ms, in which messages would be late, and 2,000 for one.
_GATHER_S, _GATHER_MAX = 1.0, 2_000
#: Claims are packed in slices, each a third of a millisecond of work, this far apart, so that bodies are not held for
#: long. A turn of the event loop between slices (``sleep(0)``) was rejected: it breaks what sockets bring into smaller
#: pieces, and a burst of 20,000 took a tenth longer.
_PACK_S, _PACK_SOON_S = 0.02, 0.005
_SLICE = 500
#: Messages that wait to be written, and counts of slots, at most.
_WAITING_MAX, _COUNTS_MAX = 50_000, 10_000
#: How often the shards are counted, and how often a log line reports what was dropped.
_COUNT_S, _NOTICE_S = 10.0, 10.0

_EMPTY = b"\0"
_LENGTHS = [bytes((number,)) for number in range(256)]
#: The class of lateness of each whole millisecond up to about a second.
_PLACES = [bisect_left(LATENESS_BOUNDS_MS, late) for late in range(1001)]


def share_of(kept: Sequence[int], most: int) -> int:
    """Return how many entries each shard may keep, so that all together keep about ``most``. Pure.

    What shards with few entries leave goes to the others: with ``order = "route"`` one shard has all of them.
    """
    left = most
    for place, count in enumerate(sorted(kept)):
        share = left // (len(kept) - place)
        if count > share:
            return share
        left -= count
    return max(kept, default=0) + left


class Historian:
    """Gathers deliveries and writes them."""

    def __init__(
        self,
        store: CountingStore,
        clock: StoreClock,
        limits: HistoryLimits,
        skips: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``skips(route)``: a route whose messages are of no interest."""
        self._store = store
        self._clock = clock
        self._limits = limits
        self._skips = skips
        self._event = asyncio.Event()
        self._batches: deque[tuple[int, Sequence[Claim]]] = deque()
        self._packed: dict[int, list[bytes]] = {}
        self._unwritten: dict[int, list[Piece]] = {}
        self._counts: dict[tuple[int, str], list[int]] = {}
        self._routes: dict[str, bytes] = {}
        self._kept: dict[int, int] = {}
        self._share = limits.most
        self._since_count = 0
        self._counted_at = self._told_at = 0.0
        self._waiting = self._dropped = 0

    def confirmed(self, now_ms: int, claims: Sequence[Claim]) -> None:
        """Take claims that the broker confirmed now. The caller does not change the list afterwards."""
        if self._waiting + len(claims) > _WAITING_MAX:
            self._dropped += len(claims)
        else:
            self._waiting += len(claims)
            self._batches.append((now_ms, claims))
        self._event.set()

    async def run(self) -> None:
        while True:
            await self._event.wait()
            until = time.monotonic() + _GATHER_S
            while time.monotonic() < until and sum(map(len, self._packed.values())) < _GATHER_MAX:
                await asyncio.sleep(_PACK_SOON_S if self._batches else _PACK_S)
                self._pack(_SLICE)
            self._event.clear()
            await self._write_packed()
            if self._batches:
                self._event.set()

    async def flush(self) -> None:
        """Write everything now. What the store does not take stays, and the next call repeats it."""
        self._pack(_WAITING_MAX)
        await self._write_packed()

    async def _write_packed(self) -> None:
        for shard, entries in self._packed.items():
            pieces = self._unwritten.setdefault(shard, [])
            for at in range(0, len(entries), PIECE_MAX):
                some = entries[at : at + PIECE_MAX]
                pieces.append(Piece(len(some), b"".join(some)))
        self._packed = {}
        await self._write()
        try:
            await self._tally()
        except StoreUnavailable:
            self._event.set()
        self._tell()

    def _pack(self, most: int) -> None:
        """Pack batches until there are ``most`` claims or more."""
        while self._batches and most > 0:
            ended_ms, claims = self._batches.popleft()
            self._pack_batch(ended_ms, claims)
            most -= len(claims)

    def _pack_batch(self, ended_ms: int, claims: Sequence[Claim]) -> None:
        routes, packed, slot_ms = self._routes, self._packed, ended_ms // SLOT_MS * SLOT_MS
        for claim in claims:
            name, key = claim.route, claim.key
            route = routes.get(name)
            if route is None:
                route = routes[name] = b"" if self._skips(name) else text_field(name.encode())
            if not route:
                self._waiting -= 1
                continue
            late = ended_ms - claim.late_from_ms
            counts = self._counts.get((slot_ms, name))
            if counts is None:
                counts = self._counts[slot_ms, name] = [0] * PLACES
            counts[_PLACES[late] if 0 <= late <= 1000 else bisect_left(LATENESS_BOUNDS_MS, late)] += 1
            held = claim.let_go_ms > claim.due_ms
            head = pack_head(
                HELD if held else DELIVERED,
                claim.tries,
                len(claim.payload),
                claim.arrived_ms,
                claim.due_ms,
                claim.claimed_ms,
                claim.published_ms,
                ended_ms,
                claim.id,
            )
            entries = packed.get(claim.shard)
            if entries is None:
                entries = packed[claim.shard] = []
            end = pack_let_go(claim.let_go_ms) if held else _EMPTY
            entries.append(head + route + _LENGTHS[len(key)] + key + end)

    async def _write(self) -> None:
        """Write one call for each shard; now and then also to shards without entries, to count and shorten them."""
        now_s = time.monotonic()
        pieces: dict[int, list[Piece]] = {shard: some for shard, some in self._unwritten.items() if some}
        self._since_count += sum(piece.entries for some in pieces.values() for piece in some)
        if now_s - self._counted_at > _COUNT_S or self._since_count * 10 > self._limits.most:
            self._counted_at, self._since_count = now_s, 0
            pieces = {shard: pieces.get(shard, []) for shard in range(self._store.shards)}
        if not pieces:
            return
        replies = await self._store.record(pieces, self._share)
        for shard, reply in replies.items():
            if isinstance(reply, StoreUnavailable):
                self._event.set()
                continue
            self._kept[shard] = reply
            self._waiting -= sum(piece.entries for piece in self._unwritten.pop(shard, ()))
        if len(self._kept) == self._store.shards:
            self._share = share_of(list(self._kept.values()), self._limits.most)

    async def _tally(self) -> None:
        """Add to the counts of slots."""
        if len(self._counts) > _COUNTS_MAX:
            self._counts.clear()
        counts = dict(self._counts)
        rows = [
            DeliveryCount(slot_ms, route, place, number)
            for (slot_ms, route), numbers in counts.items()
            for place, number in enumerate(numbers)
            if number
        ]
        if rows:
            self._counts = {}
            try:
                await self._store.tally(rows)
            except StoreUnavailable:
                for slot, numbers in counts.items():
                    newer = self._counts.get(slot, [0] * PLACES)
                    self._counts[slot] = [old + new for old, new in zip(numbers, newer, strict=True)]
                raise

    def _tell(self) -> None:
        now_s = time.monotonic()
        if self._dropped and now_s - self._told_at > _NOTICE_S:
            log.warning(
                "history entries dropped",
                messages=self._dropped,
                reason="the store is away or full; they were delivered",
            )
            self._dropped, self._told_at = 0, now_s
