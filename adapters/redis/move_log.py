"""The log of moves for the journal: what left a shard, or came back, or got another moment (``lua/include/moved.lua``).

A stream in each shard. The scripts write it in the step that makes the move, so it misses none. It exists only while an
instance reads it, so that a store without a journal pays one question a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import JournalEntry, LoggedMoves, StoreMove, Written
from bridge.parking.envelope import due_in
from bridge.parking.identity import ID_BYTES, ids_by_shard

#: Without a reader for this time, the log is deleted: the journal was turned off. It was not where rows are written
#: before: then the log of what was parked ends sooner, which grows by 4 GB a day at 2,000 messages a second.
_KEPT_MS, _UNREAD_MS = 7 * 24 * 3_600_000, 3_600_000
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
        self, shards: Iterable[int], limit: int, parks: bool = False, from_ms: int = 0, before_ms: int = 0
    ) -> dict[int, LoggedMoves]:
        wanted, span = list(shards), (from_ms or "-", before_ms - 1 if before_ms else "+")
        with store_errors():
            found = await asyncio.gather(*(self._read(self._key(shard, parks), span, limit) for shard in wanted))
        return {shard: logged for shard, logged in zip(wanted, found, strict=True) if logged is not None}

    async def _read(self, key: str, span: tuple[int | str, int | str], limit: int) -> LoggedMoves | None:
        entries, exists = await asyncio.gather(
            self._client.xrange(key, *span, count=limit), self._client.pexpire(key, _KEPT_MS)
        )
        if not exists:
            await self._client.xadd(key, _BEGINNING)
        moves = [_move(name, facts) for name, facts in entries if facts[b"i"]]
        return LoggedMoves(moves, [name for name, _ in entries]) if entries else None

    def _key(self, shard: int, parks: bool) -> str:
        return self._keys[shard].parks if parks else self._keys[shard].moved

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
        for some, reply in zip(by_shard.values(), await self._runner.many(calls), strict=True):
            if isinstance(reply, StoreUnavailable):
                raise reply
            found.update(message_id for message_id, state in zip(some, reply[1::5], strict=True) if state != b"none")
        return found


def _parts(name: bytes) -> tuple[int, int]:
    """Return the moment (ms) and the number of an entry."""
    at_ms, number = name.split(b"-")
    return int(at_ms), int(number)


def _place(at_ms: int, number: int) -> int:
    """Return the place of an entry as a number that sorts.

    After a step back of its clock, Redis keeps the moment and counts on. A number with more bits goes on into the
    moments that follow: at most some milliseconds, which Redis's clock reaches last of all."""
    return (at_ms << _PLACE_BITS) + number


def _name(place: int) -> str:
    return f"{place >> _PLACE_BITS}-{place & (1 << _PLACE_BITS) - 1}"


def _move(name: bytes, facts: dict[bytes, bytes]) -> StoreMove:
    at_ms, number = _parts(name)
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
