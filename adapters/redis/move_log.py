"""The log of moves for the journal: what left a shard, or came back, or got another moment (``lua/include/moved.lua``).

A stream in each shard. The scripts write it in the step that makes the move, so it misses none. It exists only while an
instance reads it, so that a store without a journal pays one question a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from redis.exceptions import ResponseError

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from bridge.core.journal import JournalEntry, LoggedMoves, StoreMove, Written
from bridge.parking.envelope import due_in
from bridge.parking.identity import ID_BYTES, ids_by_shard

#: Without a reader for this time, the log is deleted: the journal was turned off. It was not where rows are written
#: before: then the log of what was parked ends sooner, which grows by 4 GB a day at 2,000 messages a second.
_KEPT_MS, _UNREAD_MS = 7 * 24 * 3_600_000, 3_600_000
_Entries = list[tuple[bytes, dict[bytes, bytes]]]
_BEGINNING = {"m": "start", "i": "", "v": ""}
_PLACE_BITS = 20
_STATES = {
    "delivered": Written.DELIVERED,
    "cancelled": Written.CANCELLED,
    "replaced": Written.REPLACED,
    "dead": Written.DEAD,
    "restored": Written.WAITING,
    "retried": Written.WAITING,
}
#: Their value is a due moment, that of the others a reason.
_DUE = ("rescheduled", "retried")


class RedisMoves:
    """``bridge.core.journal.MoveLog`` on Redis."""

    def __init__(self, client: Client, keys: StoreKeys) -> None:
        self._client: Any = client
        self._runner = Runner(client)
        self._keys = keys.shards

    async def read(
        self,
        shards: Iterable[int],
        limit: int,
        parks: bool = False,
        from_ms: int = 0,
        ends: Mapping[int, bytes] | None = None,
    ) -> dict[int, LoggedMoves]:
        begin, ends = from_ms or "-", ends or {}
        calls = {
            shard: self._client.xrange(self._key(shard, parks), begin, ends.get(shard, "+"), count=limit)
            for shard in shards
        }
        return {
            shard: LoggedMoves(
                [_move(name, facts) for name, facts in entries if facts[b"i"]], [name for name, _ in entries]
            )
            for shard, entries in (await self._entries(calls, parks)).items()
        }

    async def ends(self, shards: Iterable[int]) -> dict[int, bytes]:
        calls = {shard: self._client.xrevrange(self._key(shard, True), count=1) for shard in shards}
        return {shard: entries[0][0] for shard, entries in (await self._entries(calls, True)).items()}

    async def _entries(self, calls: Mapping[int, Any], parks: bool) -> dict[int, _Entries]:
        """Return what a call finds in the log of each shard, unless that is nothing. Logs that are missing begin."""
        with store_errors():
            found = await asyncio.gather(*(self._found(self._key(shard, parks), calls[shard]) for shard in calls))
        return {shard: entries for shard, entries in zip(calls, found, strict=True) if entries}

    async def _found(self, key: str, call: Any) -> _Entries:
        entries, exists = await asyncio.gather(call, self._client.pexpire(key, _KEPT_MS))
        if not exists:
            await self._client.xadd(key, _BEGINNING)
        return cast("_Entries", entries)

    def _key(self, shard: int, parks: bool) -> str:
        return self._keys[shard].parks if parks else self._keys[shard].moved

    async def begun(self) -> bool:
        """Return whether there is a log, and so a journal that reads it. All shards begin theirs together."""
        with store_errors():
            return bool(await self._client.exists(self._key(0, False)))

    async def forget(self, shard: int, names: Sequence[bytes], parks: bool = False) -> None:
        with store_errors():
            await self._client.xdel(self._key(shard, parks), *names)

    async def pass_by(self, places: Mapping[int, int]) -> None:
        """Write an entry at the place. Redis gives all later ones higher ids, whatever its clock shows."""
        with store_errors():
            await asyncio.gather(*(self._pass_by(self._key(shard, False), place) for shard, place in places.items()))

    async def _pass_by(self, key: str, place: int) -> None:
        try:
            await self._client.xadd(key, _BEGINNING, _name(place))
        except ResponseError as error:
            if "equal or smaller" not in str(error):  # the log is beyond the place
                raise

    async def let_parks_end(self, shards: Iterable[int]) -> None:
        """Let the logs of what was parked end in an hour, unless another instance reads them meanwhile."""
        with store_errors():
            await asyncio.gather(
                *(self._client.pexpire(self._keys[shard].parks, _UNREAD_MS, lt=True) for shard in shards)
            )

    async def envelopes(self, ids: Sequence[bytes]) -> list[JournalEntry]:
        by_shard = ids_by_shard(ids)
        with store_errors():
            found = await asyncio.gather(
                *(self._client.hmget(self._keys[shard].messages, wanted) for shard, wanted in by_shard.items())
            )
        pairs = [
            pair
            for wanted, rows in zip(by_shard.values(), found, strict=True)
            for pair in zip(wanted, rows, strict=True)
        ]
        return [JournalEntry(message_id, due_in(row), row) for message_id, row in pairs if row is not None]

    async def known(self, ids: Sequence[bytes]) -> set[bytes]:
        by_shard = ids_by_shard(ids)
        calls = [self._keys[shard].call("look", (0, *some)) for shard, some in by_shard.items()]
        found: set[bytes] = set()
        for some, reply in zip(by_shard.values(), await self._runner.all(calls), strict=True):
            found.update(message_id for message_id, state in zip(some, reply[1::5], strict=True) if state != b"none")
        return found


def _place(at_ms: int, number: int) -> int:
    """Return the place of an entry as a number that sorts.

    After a step back of its clock, Redis keeps the moment and counts on. A number with more bits goes on into the
    moments that follow: at most some milliseconds, which Redis's clock reaches last of all."""
    return (at_ms << _PLACE_BITS) + number


def _name(place: int) -> str:
    return f"{place >> _PLACE_BITS}-{place & (1 << _PLACE_BITS) - 1}"


def _move(name: bytes, facts: dict[bytes, bytes]) -> StoreMove:
    at_ms, number = map(int, name.split(b"-"))
    move, ids, value = facts[b"m"].decode(), facts[b"i"], facts[b"v"].decode("utf-8", "replace")
    return StoreMove(
        [ids[at : at + ID_BYTES] for at in range(0, len(ids), ID_BYTES)],
        _place(at_ms, number),
        at_ms,
        move,
        _STATES.get(move),
        int(value) if move in _DUE else None,
        reason="" if move in _DUE else value,
    )
