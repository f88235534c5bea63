"""What the desk on Redis reads of the past: the history, counts of deliveries, the audit log, requests."""

from __future__ import annotations

import heapq
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.keys import HOURS_MS, SLOTS_MS, StoreKeys
from adapters.redis.runner import Runner
from adapters.redis.servers import time_us
from bridge.desk.past import (
    AUDIT_MAX,
    HOUR_MS,
    PLACES,
    SLOT_MS,
    AuditEntry,
    PastCursor,
    PastFilter,
    PastSlot,
    Remembered,
    judge_step,
    newest_first,
    read_entry,
)
from bridge.parking.history import HistoryLimits, HistoryRow, unpack_entries
from bridge.parking.identity import ID_BYTES, arrived_ms_of, shard_of

#: Stream entries that the first call reads of a shard and that later calls read at most.
_PAGE_FIRST, _PAGE_MAX = 4, 1000
#: Bytes that a call reads, and that it searches: each takes Redis one or two milliseconds.
_PAGE_BYTES, _SEARCHED_BYTES = 64 * 1024, 256 * 1024
#: A delivery is written down a second later, after an outage of the store more. Pages behind a cursor begin this much
#: after it.
_WRITTEN_WITHIN_MS = 10_000
#: How far the clock of an instance may be off.
_CLOCK_MS = 100


@dataclass(slots=True)
class _PastReader:
    """How far the history of one shard is read: up to the entry ``newest``, "" at its end.

    What was not read yet ended before ``bound_ms``.
    """

    shard: int
    newest: bytes
    bound_ms: float = float("inf")
    page: int = _PAGE_FIRST


class RedisPast:
    """The past of one store, for its desk."""

    def __init__(self, client: Client, prefix: str, shards: int, broker: str, limits: HistoryLimits) -> None:
        self._client: Any = client
        self._runner = Runner(client)
        self._keys = StoreKeys(prefix, shards, "")
        self._shards = shards
        self._broker = broker
        self.limits = limits

    async def now_ms(self) -> int:
        return await time_us(self._client) // 1000

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        """Merge the shards by the end of their messages, reading each in pages as they are needed."""
        until_ms = [moment_ms for moment_ms in (wanted.before_ms, after and after.ended_ms) if moment_ms is not None]
        newest = b"%d" % (min(until_ms) + _WRITTEN_WITHIN_MS) if until_ms else b"+"
        shards: Iterable[int] = range(self._shards)
        if wanted.id is not None:
            shards = [shard_of(wanted.id)] if shard_of(wanted.id) < self._shards else []
        start = (-after.ended_ms, after.id) if after is not None else (-(2**62), b"")
        readers = [_PastReader(shard, newest) for shard in shards]
        found: list[tuple[tuple[int, bytes], int, HistoryRow]] = []
        count, last = 0, start
        while found or readers:
            # A message in an entry that is not read yet may be newer than the newest that was read.
            unread = [reader for reader in readers if not found or found[0][2].ended_ms <= reader.bound_ms]
            if unread:
                for row in await self._read_history(unread, wanted):
                    if wanted.takes(row) and newest_first(row) > start:
                        count += 1
                        heapq.heappush(found, (newest_first(row), count, row))
                readers = [reader for reader in readers if reader.newest]
                continue
            place, _, row = heapq.heappop(found)
            if place != last:  # a call that was repeated after a lost reply writes its messages twice
                yield row
            last = place

    async def _read_history(self, readers: Sequence[_PastReader], wanted: PastFilter) -> list[HistoryRow]:
        """Read the next page of some shards."""
        oldest: bytes = b"-"
        from_ms = wanted.from_ms
        if wanted.id is not None:
            from_ms = max(from_ms or 0, arrived_ms_of(wanted.id))
        if from_ms is not None:
            oldest = b"%d" % max(0, from_ms - _CLOCK_MS)
        needle = wanted.id if wanted.id is not None else wanted.key or b""
        calls = []
        for reader in readers:
            args = (reader.newest, oldest, reader.page, _SEARCHED_BYTES if needle else _PAGE_BYTES, needle)
            calls.append(self._keys.shards[reader.shard].call("history", args))
            reader.page = min(reader.page * 4, _PAGE_MAX)
        rows: list[HistoryRow] = []
        for reader, reply in zip(readers, await self._runner.all(calls), strict=True):
            reader.newest = b"(" + reply[0] if reply[0] else b""
            reader.bound_ms = int(reply[0].partition(b"-")[0]) + _CLOCK_MS if reply[0] else float("-inf")
            for piece in reply[2::2]:
                rows += unpack_entries(piece, self._broker)
        return rows

    async def history_since_ms(self) -> int:
        """Return from which moment on all is there. A shard that had more than its share has lost older entries."""
        since_ms = await self.now_ms() - self.limits.keep_ms
        share = self.limits.most // self._shards
        with store_errors():
            for keys in self._keys.shards:
                first = await self._client.xrange(keys.history, count=1)
                last = await self._client.xrevrange(keys.history, count=1)
                if not first or first[0][1] is None:
                    continue
                kept = _number(last, b"n") + _number(last, b"c") - _number(first, b"n")
                if _number(first, b"n") and kept + _number(first, b"c") >= share:
                    since_ms = max(since_ms, int(first[0][0].partition(b"-")[0]))
        return since_ms

    async def past(self, from_ms: int, to_ms: int, step_ms: int) -> list[PastSlot]:
        first_ms = judge_step(from_ms, step_ms)
        hourly = step_ms % HOUR_MS == 0
        name, width_ms, slot_ms = (
            (self._keys.hours, HOURS_MS, HOUR_MS) if hourly else (self._keys.slots, SLOTS_MS, SLOT_MS)
        )
        end_ms = to_ms // step_ms * step_ms + step_ms - slot_ms
        slots: dict[tuple[int, bytes], list[int]] = {}
        with store_errors():
            starts = range(first_ms // width_ms * width_ms, end_ms + 1, width_ms)
            pipe = self._client.pipeline(transaction=False)
            for start_ms in starts:
                pipe.hgetall(name(start_ms))
            hashes = await pipe.execute() if starts else []
        for counted in hashes:
            for field, number in counted.items():
                at, place, route = field.split(b" ", 2)
                if first_ms <= int(at) <= end_ms:
                    slot = int(at) // step_ms * step_ms, route
                    slots.setdefault(slot, [0] * PLACES)[int(place)] += int(number)
        return [PastSlot(at_ms, route.decode(), tuple(late)) for (at_ms, route), late in sorted(slots.items())]

    async def note(self, entry: AuditEntry) -> None:
        with store_errors():
            await self._client.xadd(
                self._keys.audit, {"e": json.dumps(entry.content())}, maxlen=AUDIT_MAX, approximate=True
            )

    async def audit(self, limit: int, before: str = "") -> list[AuditEntry]:
        """Read the audit log backwards. Raises ValueError for an id that is none."""
        with store_errors():
            found = await self._client.xrevrange(self._keys.audit, f"({before}" if before else "+", count=limit)
        entries = []
        for entry_id, facts in found:
            name = entry_id.decode()
            at_ms = int(name.partition("-")[0])
            entries.append(read_entry({**json.loads(facts[b"e"]), "id": name, "at_ms": at_ms}))
        return entries

    async def remember(self, key: bytes, digest: bytes, message_id: bytes, ttl_ms: int) -> Remembered | None:
        packed = _packed(Remembered(digest, message_id))
        with store_errors():
            known = await self._client.set(self._keys.once(key), packed, px=ttl_ms, nx=True, get=True)
        return _unpacked(known) if known else None

    async def remember_parked(self, key: bytes, request: Remembered, ttl_ms: int) -> None:
        with store_errors():
            await self._client.set(self._keys.once(key), _packed(request), px=ttl_ms)


def _packed(request: Remembered) -> bytes:
    digest, message_id, due_ms = request
    return b"%c%b%b%b" % (len(digest), digest, message_id, b"" if due_ms is None else b"%d" % due_ms)


def _unpacked(raw: bytes) -> Remembered:
    id_at = 1 + raw[0]
    due_at = id_at + ID_BYTES
    return Remembered(raw[1:id_at], raw[id_at:due_at], int(raw[due_at:]) if raw[due_at:] else None)


def _number(entries: Sequence[Any], name: bytes) -> int:
    return int(entries[0][1][name]) if entries else 0
