"""``bridge.admin.desk.Desk`` on Redis: reads by scripts that write nothing, changes by the same moves as the bridge."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from adapters.redis.agreement import judge_agreement, read_agreement
from adapters.redis.call import Call
from adapters.redis.connect import Client, store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from adapters.redis.scripts import scripts
from adapters.redis.stats import sum_up
from adapters.redis.store import RedisStore
from bridge.admin.desk import Filter, Row, Stats
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Found
from bridge.core.state import State
from bridge.parking.envelope import UnopenedEnvelope, index_fields, plain_key, unseal
from bridge.parking.identity import ID_BYTES, shard_of

#: Places read from a shard in the first call and, as more are wanted, at most; the bytes of envelopes a call may touch.
_PAGE_FIRST, _PAGE_MAX = 20, 500
_PAGE_BYTES = 16 * 1024 * 1024
#: Enough of a payload to hold a routing key, which stands first in it, and mostly a record's key, behind its headers.
HEAD_BYTES = 1024
_BATCH = 200


class RedisDesk:
    """See ``bridge.admin.desk.Desk``."""

    def __init__(self, client: Client, prefix: str, shards: int, store: RedisStore, broker: str = "rabbitmq") -> None:
        """``broker`` is the one whose messages this store holds."""
        self._client: Any = client
        self._prefix = prefix
        self._shards = shards
        self._store = store
        self._runner = Runner(client)
        self._keys = StoreKeys(prefix, shards, "")
        self._scripts = scripts()
        self._broker = broker

    async def open(self) -> None:
        """Make sure that these settings are the store's; nothing is written. Raises ``StoreUnfit``."""
        judge_agreement(await read_agreement(self._client, self._prefix), self._shards)

    async def now_ms(self) -> int:
        """See ``bridge.admin.desk.Desk.now_ms``."""
        with store_errors():
            seconds, microseconds = await self._client.time()
        return int(seconds) * 1000 + int(microseconds) // 1000

    # -- looking ----------------------------------------------------------------------------------------------------

    async def rows(self, state: State, wanted: Filter) -> AsyncIterator[Row]:
        """See ``bridge.admin.desk.Desk.rows``."""
        readers = [_Reader(shard) for shard in range(self._shards)]
        heads: list[tuple[int, bytes, int, Row]] = []
        unread = readers
        while True:
            # A shard whose page is used up is read before anything else is given out: it may hold what comes next.
            while unread:
                await self._read(unread, state, wanted)
                for reader in unread:
                    _push(heads, reader)
                unread = [reader for reader in unread if not reader.rows and not reader.ended and not reader.pushed]
            if not heads:
                return
            *_, shard, row = heapq.heappop(heads)
            yield row
            _push(heads, readers[shard])
            if not readers[shard].pushed and not readers[shard].ended:
                unread = [readers[shard]]

    async def _read(self, readers: Sequence[_Reader], state: State, wanted: Filter) -> None:
        # Only the due set is sorted by what a filter on due moments is about.
        by_due = state is State.PARKED
        start = wanted.due_from_ms if by_due and wanted.due_from_ms is not None else "-inf"
        end = wanted.due_before_ms if by_due and wanted.due_before_ms is not None else "+inf"
        calls = []
        for reader in readers:
            keys = self._keys.shards[reader.shard]
            place = {State.PARKED: keys.due, State.CLAIMED: keys.claimed, State.DEAD: keys.dead}[state]
            args = (start, end, reader.skip, reader.page, HEAD_BYTES, _PAGE_BYTES)
            reader.page = min(reader.page * 2, _PAGE_MAX)
            calls.append(Call(self._scripts["page"], (place, keys.msg, keys.why), args))
        for reader, reply in zip(readers, await self._ask(calls), strict=True):
            reader.skip = reply[1]
            fives = zip(*[iter(reply[2:])] * 5, strict=True)
            found = (
                _row(self._broker, one[:ID_BYTES], state, at, size, head, why) for one, at, size, head, why in fives
            )
            reader.rows.extend(row for row in found if _takes(wanted, row, by_due))

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        """See ``bridge.admin.desk.Desk.look``."""
        by_shard = self._sorted(ids)
        calls = []
        for shard, some in by_shard.items():
            keys = self._keys.shards[shard]
            names = (keys.due, keys.msg, keys.claimed, keys.dead, keys.why)
            calls.append(Call(self._scripts["look"], names, (payload_bytes, *some)))
        rows: dict[bytes, Row] = {}
        for some, reply in zip(by_shard.values(), await self._ask(calls), strict=True):
            fives = zip(*[iter(reply[1:])] * 5, strict=True)
            for one, (state, at, size, head, why) in zip(some, fives, strict=True):
                if state != b"none":
                    rows[one] = _row(self._broker, one, State(state.decode()), at, size, head, why)
        return [rows[one] for one in ids if one in rows]

    async def find(self, route: str, key: bytes) -> Found:
        """See ``bridge.admin.desk.Desk.find``."""
        found = await self._store.find(index_fields(route.encode(), key))
        return Found([one for some in found.values() for one in some.ids], sum(one.unlisted for one in found.values()))

    # -- changing ---------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[bytes]) -> dict[bytes, str]:
        """See ``bridge.admin.desk.Desk.cancel``."""
        words: dict[bytes, str] = dict.fromkeys(ids, "none")
        known = [one for some in self._sorted(ids).values() for one in some]
        for at in range(0, len(known), _BATCH):
            words.update(await self._store.cancel(known[at : at + _BATCH], True))
        return words

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, str]:
        """See ``bridge.admin.desk.Desk.reschedule``."""
        words: dict[bytes, str] = dict.fromkeys(ids, "none")
        for shard, some in self._batches(ids):
            keys = self._keys.shards[shard]
            call = Call(self._scripts["reschedule"], (keys.due, keys.msg, keys.dead), (keys.wake, due_ms, *some))
            (reply,) = await self._ask([call])
            words.update(zip(some, (word.decode() for word in reply), strict=True))
        return words

    async def retry(self, ids: Sequence[bytes]) -> int:
        """See ``bridge.admin.desk.Desk.retry``."""
        retried = 0
        for shard, some in self._batches(ids):
            keys = self._keys.shards[shard]
            call = Call(self._scripts["retry"], (keys.due, keys.msg, keys.dead, keys.why), (keys.wake, *some))
            (reply,) = await self._ask([call])
            retried += sum(reply)
        return retried

    async def stats(self) -> Stats:
        """See ``bridge.admin.desk.Desk.stats``."""
        calls = []
        for keys in self._keys.shards:
            calls.append(Call(self._scripts["count"], (keys.due, keys.claimed, keys.dead, keys.counts, keys.why), ()))
        return await sum_up(self._client, self._keys, await self._ask(calls))

    # -- pieces -----------------------------------------------------------------------------------------------------

    async def _ask(self, calls: Sequence[Call]) -> list[Any]:
        replies = await self._runner.many(calls) if calls else []
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply
        return replies

    def _sorted(self, ids: Iterable[bytes]) -> dict[int, list[bytes]]:
        """By shard; an id of a shard that is not there names nothing."""
        by_shard: dict[int, list[bytes]] = {}
        for one in dict.fromkeys(ids):
            if shard_of(one) < self._shards:
                by_shard.setdefault(shard_of(one), []).append(one)
        return by_shard

    def _batches(self, ids: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
        return [
            (shard, some[at : at + _BATCH])
            for shard, some in self._sorted(ids).items()
            for at in range(0, len(some), _BATCH)
        ]


@dataclass(slots=True)
class _Reader:
    """How far one shard is read: the places to skip (-1 at its end), how many to read next, what was read and not given
    out, and whether its next row is among the heads that are compared."""

    shard: int
    skip: int = 0
    page: int = _PAGE_FIRST
    rows: deque[Row] = field(default_factory=deque)
    pushed: bool = False

    @property
    def ended(self) -> bool:
        return self.skip < 0


def _push(heads: list[tuple[int, bytes, int, Row]], reader: _Reader) -> None:
    reader.pushed = bool(reader.rows)
    if reader.rows:
        row = reader.rows.popleft()
        heapq.heappush(heads, (row.at_ms, row.id, reader.shard, row))


def _takes(wanted: Filter, row: Row, by_due: bool) -> bool:
    """A parked message stands where its next try is, and that is what its filter was about."""
    if by_due:
        wanted = Filter(route=wanted.route, key=wanted.key, reason=wanted.reason)
    return wanted.takes(row)


def _row(broker: str, one: bytes, state: State, at: bytes, size: int, head: bytes, why: bytes) -> Row:
    """Of an envelope that cannot be opened all bytes are the payload, and the reason says why, where nothing else
    does."""
    reason, at_ms = why.decode("utf-8", "backslashreplace"), int(float(at))
    try:
        envelope = unseal(head)
    except UnopenedEnvelope as error:
        return Row(one, state, at_ms, at_ms, 0, 0, "", b"", b"", size, head, reason or str(error), "")
    payload_size = size - (len(head) - len(envelope.payload))
    due_ms, tries, arrived_ms, route, key, first, payload = envelope
    key = plain_key(key)
    return Row(one, state, at_ms, due_ms, arrived_ms, tries, route, key, first, payload_size, payload, reason, broker)
