"""Checks that a store is the one it was, has the agreed shape, and has room.

What all instances must agree on is written in the hash {postdate}:store, beside the last loss that one of them saw.
Once a second an instance compares the store with what it was a second ago. Someone may have emptied it (FLUSHALL),
restored an older copy, or pointed a host name at another server, and a failover may lose the last moments. Each shard
counts everything that ever happened in it, so all of these show as a count that has gone down.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import structlog

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from adapters.redis.servers import servers
from adapters.redis.steps import ClockSteps
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable, StoreUnfit
from bridge.core.ports import Loss
from bridge.delay.duration import write_moment
from bridge.desk.numbers import SAME_LOSS_MS, ServerMemory
from bridge.telemetry.subject import STORE_CONTENTS, Subject

log = structlog.get_logger("postdate")

#: The layout of the keys and of the envelope. The first instance that opens a store of an older format raises it, and
#: instances of the older postdate stop. In format 1 each message had a lease of its own, which ``recover`` still ends.
FORMAT = 2
#: How long a loss is reported: by ``check`` and ``stats``, and in the health of the instances.
LOSS_SHOWN_MS, LOSS_IN_HEALTH_MS = 24 * 3_600_000, 3_600_000
#: And by all, where no message seems lost: a failover that took back the last moves and nothing that was parked.
MOVES_LOST_SHOWN_MS = 600_000
#: From this part of maxmemory on postdate warns. At all of it nothing new is parked.
_NEARLY = 0.8
#: Above this number postdate warns of dead letters: they stay until someone retries or cancels them.
_MANY_DEAD = 10_000
#: Memory is read with every tenth look, because it takes a question to every server; with each while it is a trouble.
_MEMORY_EVERY = 10
_SECRET_BITS = 128
#: After a change of the format instances of the older postdate, which look once a second, stop within this time.
_STOPPED_S = 3.0
_AGREED = {"format", "shards", "id", "secret"}


class Mark(NamedTuple):
    """A shard at one look: total moves, total parked, messages held now, and the dead letters among them. ``due``: the
    total delivered, and the messages that are due now."""

    ever: int
    parked: int
    held: int
    dead: int
    due: int = 0


def lost(before: Mapping[int, Mark], now: Mapping[int, Mark]) -> int | None:
    """Return about how many messages are gone from shards whose counts went down; None if none did. Pure."""
    back = [(before[shard], mark) for shard, mark in now.items() if shard in before and mark.ever < before[shard].ever]
    if not back:
        return None
    return sum(min(old.held, max(0, old.parked - new.parked)) for old, new in back)


class Seen(NamedTuple):
    """What one look tells, should it be the last before a loss.

    All that was due before ``until_ms`` had left, except what was being sent, and ``older`` messages that were held or
    refused. ``until_ms`` is 0 where no shard answered.
    """

    until_ms: int = 0
    older: int = 0


def seen_in(replies: Sequence[Sequence[Any]]) -> Seen:
    """Return what the replies of ``lua/desk/count.lua`` tell. Pure."""
    moments_ms = [reply[0] // 1000 for reply in replies] + [reply[5] for reply in replies if reply[5] >= 0]
    return Seen(min(moments_ms, default=0), sum(reply[6] + reply[7] for reply in replies))


def unrestored(known: Mapping[str, int], made: Mapping[str, int], now_ms: int) -> Mapping[str, int]:
    """Return the note of an earlier loss, which a new note has to repeat; {} for none. Pure.

    ``known``: the last note that this instance saw. ``made``: the note in the store, which may be the new one.
    """
    noted_ms = known.get("lost_ms", 0)
    same = made.get("lost_ms") == noted_ms and now_ms - noted_ms < SAME_LOSS_MS
    return known if costly_loss_ms(known) and not same else {}


# -- the agreement -----------------------------------------------------------------------------------------------------


def judge_agreement(made: Mapping[str, int], shards: int) -> None:
    """Raise ``StoreUnfit`` for a store with a newer format or another number of shards. Pure."""
    if made.get("format", FORMAT) > FORMAT:
        raise StoreUnfit(f"the store has format {made['format']}, and this postdate reads formats up to {FORMAT}")
    if made.get("shards", shards) != shards:
        raise StoreUnfit(
            f"the store was made with {made['shards']} shards and redis.shards is {shards}. "
            f"Set redis.shards = {made['shards']}, or use another redis.key_prefix"
        )


def loss_in(made: Mapping[str, int], now_ms: int, shown_ms: int = LOSS_SHOWN_MS, broker: str = "") -> str:
    """Describe the last loss, without a full stop; "" if there was none within ``shown_ms``. Pure.

    ``broker``: whose store it is, for a reader of several.
    """
    restored, costly_ms, whose = made.get("restored", 0), costly_loss_ms(made), f" ({broker})" if broker else ""
    if "lost_ms" not in made or _is_restored(made):
        return ""
    if now_ms - made["lost_ms"] >= (shown_ms if costly_ms else MOVES_LOST_SHOWN_MS):
        return ""
    cost = "No parked message seems to be lost. What was delivered just before may come again"
    if costly_ms and not made.get("lost"):  # each instance counts once a second, and may have seen none yet
        cost = "Messages lost: about 0, and any that were parked in its last second"
    elif costly_ms and restored:
        cost = f"Messages still lost: about {still_lost(made)}. Restored: {restored}"
    elif costly_ms:  # the broker may still confirm what was being sent
        cost = f"Messages lost: about {made['lost']}, with those that were being sent"
    at = write_moment(made["lost_ms"])
    return f"Redis was emptied, or replaced by an older copy of its data, noticed at {at}{whose}. {cost}"


def still_lost(made: Mapping[str, int]) -> int:
    """Return about how many messages of the last loss no restore has brought back. Pure."""
    return max(0, made.get("lost", 0) - made.get("restored", 0))


def costly_loss_ms(made: Mapping[str, int]) -> int:
    """Return when the last loss was (Unix ms), if messages are lost by it and no restore has ended it; else 0. Pure."""
    costly = (made.get("lost") or "emptied" in made) and not _is_restored(made)
    return made.get("lost_ms", 0) if costly else 0


def _is_restored(made: Mapping[str, int]) -> bool:
    """Return whether a restore brought back everything since the last loss."""
    return made.get("restored_ms", -1) >= made.get("lost_ms", 0)


def last_loss(agreed: Mapping[str, int]) -> Loss | None:
    """Return the last loss that an instance saw. Pure."""
    if "lost_ms" not in agreed:
        return None
    return Loss(agreed["lost_ms"], agreed.get("lost_from_ms", 0), agreed.get("lost_older", 0))


def _pairs(rows: Mapping[bytes, bytes] | list[bytes]) -> dict[str, int]:
    """Return the fields of the hash, as HGETALL or as a script gives them."""
    pairs = rows.items() if isinstance(rows, Mapping) else zip(rows[::2], rows[1::2], strict=True)
    return {key.decode(): int(value) for key, value in pairs}


async def read_agreement(client: Any, key: str) -> dict[str, int]:
    """Return what the store was made with; empty for one that was never used. Raises ``StoreUnavailable``."""
    with store_errors():
        return _pairs(await client.hgetall(key))


# -- the room ----------------------------------------------------------------------------------------------------------


def refuses_writes(persistence: Mapping[str, Any]) -> str:
    """Say that a server takes no writes because its disk is full, without a full stop; "" for one that does. Pure."""
    if not persistence.get("aof_enabled") or persistence.get("aof_last_write_status", "ok") == "ok":
        return ""
    return "Redis could not write its append-only file, so it refuses writes. Free disk space on its machine"


def nearly_full(memory: Sequence[ServerMemory]) -> str:
    """Warn of the fullest server, without a full stop; "" if all have room. Pure."""
    limited = [server for server in memory if server.most]
    fullest = max(limited, key=lambda server: server.used / server.most, default=None)
    if fullest is None or fullest.used < _NEARLY * fullest.most:
        return ""
    percent = fullest.used * 100 // fullest.most
    return f"{fullest.server} uses {percent}% of its maxmemory. At 100% nothing new is parked. Give it more memory"


def many_dead(count: int) -> str:
    """Warn of many dead letters, without a full stop; "" if they are few. Pure."""
    if count <= _MANY_DEAD:
        return ""
    return f"dead letters: {count}. They use memory until you retry or cancel them: `postdate list --state dead`"


async def memory_of(client: Any) -> list[ServerMemory]:
    """Return the memory of every server that holds data. Raises what redis-py raises."""
    found = {name: await client.info("memory", **where) for name, where in (await servers(client)).items()}
    return [
        ServerMemory(name or "Redis", int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)))
        for name, info in found.items()
    ]


async def run_ids(client: Any) -> set[str]:
    """Return the id of the present run of every server that holds data. Raises what redis-py raises."""
    return {str((await client.info("server", **where)).get("run_id")) for where in (await servers(client)).values()}


async def persistence_of(client: Any) -> Mapping[str, Any]:
    """Return what a single server says about its files; nothing for a Cluster. Raises what redis-py raises."""
    return dict(await client.info("persistence")) if "" in await servers(client) else {}


# -- the guard ---------------------------------------------------------------------------------------------------------


class StoreGuard:
    """What one instance knows of the store."""

    def __init__(self, client: Client, runner: Runner, keys: StoreKeys, clock: StoreClock) -> None:
        self._client = client
        self._runner = runner
        self._keys = keys
        self._id = secrets.randbits(62)
        #: Signs retry states; every instance has the one that is in the store.
        self.secret = secrets.randbits(_SECRET_BITS)
        #: The agreement, as this instance saw it last: a loss takes the note of the last loss with it.
        self._made: Mapping[str, int] = {}
        self._marks: dict[int, Mark] = {}
        self._seen = Seen()
        self._looks = 0
        self._full = ""
        self._steps = ClockSteps(client, runner, keys, clock)

    async def agree(self) -> None:
        """Write what the instances must agree on where it is missing.

        Raises ``StoreUnfit`` if it says something else, and ``StoreUnavailable``.
        """
        made = await self._read()
        # A complete one is not written again, so that postdate starts while Redis is full.
        older = made.get("format", FORMAT) < FORMAT
        if older or not made.keys() >= _AGREED:
            made = await self._write()
        self._take(made)
        if older:
            log.warning("the store has a new format", format=FORMAT, risk="an older postdate stops, and refuses it")
            await asyncio.sleep(_STOPPED_S)

    async def loss(self) -> Loss | None:
        return last_loss(await self._read())

    async def look(self) -> dict[Subject, str]:
        """Return a text for each thing that may be wrong, "" where nothing is. Raises as ``agree``."""
        marks, now_ms, by_ms, seen = await self._count()
        gone = lost(self._marks, marks)
        made = await self._read()
        if by_ms:
            due = sum(mark.due - self._marks[shard].due for shard, mark in marks.items() if shard in self._marks)
            made = _pairs(await self._steps.note(made, now_ms, by_ms, max(0, due)))
        emptied = bool(self._made) and made.get("id") != self._id
        if emptied:
            gone = sum(mark.held for mark in self._marks.values()) if gone is None else gone
        if gone is not None:
            made = await self._write(gone, emptied, unrestored(self._made, made, now_ms))
        elif not made.keys() >= _AGREED:
            made = await self._write()
        self._take(made)
        self._marks |= marks
        self._seen = seen if seen.until_ms else self._seen
        return {
            STORE_CONTENTS: loss_in(made, now_ms, LOSS_IN_HEALTH_MS),
            Subject("store", "memory"): await self._memory(),
            Subject("dead letters"): many_dead(sum(mark.dead for mark in self._marks.values())),
        }

    def _take(self, made: Mapping[str, int]) -> None:
        judge_agreement(made, len(self._keys.shards))
        self._id, self.secret, self._made = made["id"], made["secret"], made

    async def _count(self) -> tuple[dict[int, Mark], int, int, Seen]:
        """Return a mark for every shard that answers, the store's clock (0 if none answers), by how much it stepped
        (ms), and what the look tells of a loss after it."""
        sent = time.monotonic()
        replies = await self._runner.many([keys.call("count", ()) for keys in self._keys.shards])
        received = time.monotonic()
        answers = {n: reply for n, reply in enumerate(replies) if not isinstance(reply, StoreUnavailable)}
        now_ms = max((reply[0] // 1000 for reply in answers.values()), default=0)
        # In a Cluster the clocks of the nodes may differ, so one shard speaks for all.
        by_ms = self._steps.observe(sent, received, answers[0][0]) if 0 in answers else 0
        return {n: _mark(reply) for n, reply in answers.items()}, now_ms, by_ms, seen_in(list(answers.values()))

    async def _read(self) -> dict[str, int]:
        return await read_agreement(self._client, self._keys.store)

    async def _write(
        self, gone: int = -1, emptied: bool = False, earlier: Mapping[str, int] = MappingProxyType({})
    ) -> dict[str, int]:
        """Write the agreement, and a loss of ``gone`` messages (-1: none) together with an ``earlier`` one."""
        gone, emptied = gone + still_lost(earlier), emptied or "emptied" in earlier
        moments_ms = filter(None, (self._seen.until_ms, earlier.get("lost_from_ms")))
        seen = min(moments_ms, default=0), self._seen.older + earlier.get("lost_older", 0)
        args = (FORMAT, len(self._keys.shards), self._id, gone, self.secret, *seen, int(emptied))
        return _pairs(await self._runner.run(self._keys.call("agree", args)))

    async def _memory(self) -> str:
        if self._full or self._looks % _MEMORY_EVERY == 0:
            with store_errors():
                self._full = nearly_full(await memory_of(self._client))
        self._looks += 1
        return self._full


def counts_in(reply: Sequence[Any]) -> dict[bytes, int]:
    """Return the totals and the counts by route from the reply of ``lua/desk/count.lua``."""
    return {name: int(value) for name, value in zip(reply[8::2], reply[9::2], strict=True)}


def route_counts(reply: Sequence[Any]) -> dict[tuple[str, str], int]:
    """Return the counts by state and route from that reply; parked includes claimed.

    A message deleted by hand stays counted. So no route counts more than the shard has.
    """
    most = {"parked": reply[1] + reply[2], "held": reply[1], "dead": reply[3], "cold": sys.maxsize}
    counts = {}
    for name, number in counts_in(reply).items():
        if name[:1] == b"\0":
            state, _, route = name[1:].decode("utf-8", "replace").partition("\0")
            if number := min(number, most.get(state, 0)):
                counts[state, route] = number
    return counts


def held_since_ms(reply: Sequence[Any]) -> dict[str, int]:
    """Return for each route with held messages a moment before which none was due, from that reply."""
    head = b"\0held_ms\0"
    moments = counts_in(reply).items()
    return {
        name.removeprefix(head).decode("utf-8", "replace"): ms // 2 for name, ms in moments if name.startswith(head)
    }


def _mark(reply: Sequence[Any]) -> Mark:
    ever = {name: value for name, value in counts_in(reply).items() if name[:1] != b"\0"}
    due = ever.get(b"delivered", 0) + reply[2] + reply[4]  # claimed, and overdue
    return Mark(sum(ever.values()), ever.get(b"parked", 0), sum(reply[1:4]), reply[3], due)
