"""Compares the store, once a second, with what it was a second ago: is it still the same, and has it room?

Somebody may empty it (FLUSHALL), restore an older copy, or point a name at another server; and a failover may lose its
last moments. Each shard counts what ever happened in it, so a number that has gone down tells of all of these.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from adapters.redis.agreement import FORMAT, HEALTH_MS, judge_agreement, loss_in, read_pairs
from adapters.redis.call import Call
from adapters.redis.connect import Client, store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.room import dead_letters, memory_of, nearly_full
from adapters.redis.runner import Runner
from adapters.redis.scripts import scripts
from bridge.core.errors import StoreUnavailable

#: The memory is looked at with every so many looks: it takes a question to every server.
_MEMORY_EVERY = 10


class Mark(NamedTuple):
    """A shard at one look: how much ever happened in it, how much was ever parked, what it holds, and what of it is
    dead."""

    ever: int
    parked: int
    held: int
    dead: int


def lost(before: Mapping[int, Mark], now: Mapping[int, Mark]) -> int | None:
    """Pure: how many messages are gone from the shards whose counts went down, about; None where none did."""
    back = [(before[shard], mark) for shard, mark in now.items() if shard in before and mark.ever < before[shard].ever]
    if not back:
        return None
    return sum(min(old.held, max(0, old.parked - new.parked)) for old, new in back)


class Guard:
    """What one instance knows of the store."""

    def __init__(self, client: Client, runner: Runner, keys: StoreKeys) -> None:
        self._client = client
        self._runner = runner
        self._keys = keys
        self._scripts = scripts()
        self._id = secrets.randbits(62)
        self._agreed = False
        self._marks: dict[int, Mark] = {}
        self._looks = 0
        self._full = ""

    async def agree(self) -> None:
        """Write what the instances must agree on, where it is missing. Raises ``StoreUnfit`` where it is something
        else, and ``StoreUnavailable``."""
        made = await self._read()
        if (
            len(made.keys() & {"format", "shards", "id"}) < 3
        ):  # else nothing is written, so that a full Redis lets us start
            made = await self._write(-1)
        judge_agreement(made, len(self._keys.shards))
        self._id, self._agreed = made["id"], True

    async def look(self) -> dict[str, str]:
        """A sentence for each thing that may be wrong, "" where it is not. Raises as ``agree``."""
        marks, now_ms = await self._count()
        gone = lost(self._marks, marks)
        made = await self._read()
        if self._agreed and made.get("id") != self._id:
            gone = sum(mark.held for mark in self._marks.values()) if gone is None else gone
        if gone is not None or "id" not in made:
            made = await self._write(-1 if gone is None else gone)
        judge_agreement(made, len(self._keys.shards))
        self._id, self._agreed = made["id"], True
        self._marks |= marks
        return {
            "store contents": loss_in(made, now_ms, HEALTH_MS),
            "store memory": await self._memory(),
            "dead letters": dead_letters(sum(mark.dead for mark in self._marks.values())),
        }

    async def _count(self) -> tuple[dict[int, Mark], int]:
        """Every shard that answers, and the store's clock (0 where none does)."""
        count = self._scripts["count"]
        calls = [
            Call(count, (keys.due, keys.claimed, keys.dead, keys.counts, keys.why), ()) for keys in self._keys.shards
        ]
        replies = await self._runner.many(calls)
        answers = {n: reply for n, reply in enumerate(replies) if not isinstance(reply, StoreUnavailable)}
        return {n: _mark(reply) for n, reply in answers.items()}, max(
            (reply[0] // 1000 for reply in answers.values()), default=0
        )

    async def _read(self) -> dict[str, int]:
        client: Any = self._client
        with store_errors():
            return read_pairs(await client.hgetall(self._keys.store))

    async def _write(self, gone: int) -> dict[str, int]:
        args = (FORMAT, len(self._keys.shards), self._id, gone)
        return read_pairs(await self._runner.one(Call(self._scripts["agree"], (self._keys.store,), args)))

    async def _memory(self) -> str:
        if self._looks % _MEMORY_EVERY == 0:
            with store_errors():
                self._full = nearly_full(await memory_of(self._client))
        self._looks += 1
        return self._full


def _mark(reply: Sequence[Any]) -> Mark:
    ever = {name: int(value) for name, value in zip(reply[7::2], reply[8::2], strict=True)}
    return Mark(sum(ever.values()), ever.get(b"parked", 0), sum(reply[1:4]), reply[3])
