"""The store on Redis: turns each batch into one script call for its shard, and replies into claims."""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from adapters.redis.cluster import Cluster
from adapters.redis.connect import Client, close
from adapters.redis.durability import ask, judge
from adapters.redis.errors import store_errors
from adapters.redis.guard import StoreGuard
from adapters.redis.keys import StoreKeys
from adapters.redis.move_log import RedisMoves
from adapters.redis.runner import Runner
from adapters.redis.scripts import Call, Wait
from adapters.redis.servers import observe
from adapters.redis.tiers import RedisTiers, parked_in
from bridge.core import ports
from bridge.core.clock import StoreClock
from bridge.core.errors import ShardsUnavailable, StoreUnavailable
from bridge.core.message import Claim, Origin
from bridge.core.orders import RouteOrder, RouteOrders, read_order
from bridge.core.roll import Roll
from bridge.desk.past import HOUR_KEPT_MS, HOUR_MS, SLOT_KEPT_MS
from bridge.parking.envelope import index_field, route_in, tries_and_reached
from bridge.parking.history import NO_HISTORY, HistoryLimits
from bridge.parking.identity import ID_BYTES, ids_by_shard
from bridge.parking.opening import claimed_from

_RECOVER_MAX = 500
#: A claim extends the drain of its shard where less than this part of the time is left.
_FRESH = 7 / 8
#: The numbers of a call to park and to claim, and how many of its keys the script needs in a usual call.
_PARK, _PARK_KEYS = struct.Struct(">8s7I2QB"), 6
_CLAIM, _CLAIM_KEYS = struct.Struct(">8s3I2QB"), 4
_SETTLE_KEYS = 6
#: The origin that the reject script gets for a message that has none.
_NO_ORIGIN: Origin = (b"", 0)
#: How much of the bodies Redis reads in one step through held messages, to learn the routes.
_LET_GO_BYTES = 4 * 1024 * 1024
#: How often a silent subscription is checked, so that a dead one is noticed.
_LISTEN_S = 1.0
#: The offsets hash, as ``lua/include/origins.lua`` keeps and describes it.
_OWED, _FIRST = b"\0owed", b"\0first"
_OFFSET = struct.Struct(">Q")


class RedisStore:
    """``bridge.core.ports.Store`` on Redis or Valkey."""

    def __init__(
        self,
        client: Client,
        prefix: str,
        shards: int,
        instance: str,
        clock: StoreClock,
        limits: HistoryLimits = NO_HISTORY,
    ) -> None:
        self.shards = shards
        self._limits = limits
        self.instance = instance
        self.clock = clock
        #: The connections, for a desk of the same store, too.
        self.client: Any = client
        self._runner = Runner(client)
        self._keys = StoreKeys(prefix, shards, instance)
        self._guard = StoreGuard(client, self._runner, self._keys, clock)
        self.look, self.loss = self._guard.look, self._guard.loss
        self.moves = RedisMoves(client, self._keys)
        self.tiers = RedisTiers(client, self._keys)
        self._token_head = secrets.token_bytes(4)
        self._token_count = count(1)
        #: By shard, the first and the last token of the claims whose reply never came, since the last one that came.
        self._lost: dict[int, tuple[bytes, bytes]] = {}
        #: By shard, until when this instance surely drains it (monotonic seconds).
        self._drained: dict[int, float] = {}
        self._wait: Wait | None = None
        #: After this time without a reply the client gives a call up, in microseconds.
        self._timeout_us = 0
        self._roll = Roll()
        #: The clock of the server that keeps the list of instances. In a Cluster the others may differ from it.
        self._meetings = StoreClock()

    async def open(self, durability: str, replicas: int, timeout_ms: int) -> tuple[str, ...]:
        """Check the server and agree with it on shards and format. Return the warnings.

        ``timeout_ms`` is the client's own. Raises ``StoreUnavailable``, and ``StoreUnfit`` for a server that can lose
        messages, or for a store with another number of shards.
        """
        self._timeout_us = timeout_ms * 1000
        wait_ms = max(1, timeout_ms // 2)  # a failed wait must answer before the client's timeout
        verdicts = [judge(server, durability, replicas, wait_ms) for server in await ask(self.client)]
        self._wait = next((verdict.wait for verdict in verdicts if verdict.wait), None)
        await self._guard.agree()
        await self.look_at_clock()
        return tuple(warning for verdict in verdicts for warning in verdict.warnings)

    def secret(self) -> bytes:
        """Return what signs retry states: random, and the same in every instance of an open store."""
        return b"%d" % self._guard.secret

    async def look_at_clock(self) -> None:
        await observe(self.client, self.clock)

    async def close(self) -> None:
        await close(self.client)

    # -- parking ---------------------------------------------------------------------------------------------------

    async def park(self, batches: Mapping[int, ports.Batch]) -> dict[int, ports.Parked | StoreUnavailable]:
        calls, now_s = [], time.monotonic()
        for shard, batch in batches.items():
            keys = self._keys.shards[shard]
            wake = "" if shard in self._drained and self._drained[shard] > now_s else keys.wake
            routes = Counter(map(route_in, (message[2] for message in batch.messages)))
            ranges = _ranges(batch) if batch.origins or batch.owed else ()
            call = _PARK.pack(
                batch.token,
                int(self.clock.now_us() // 1_000_000),
                batch.recent_max,
                len(batch.messages),
                len(batch.keyed),
                len(ranges) // 3,
                len(routes),
                self._limits.most,
                self._limits.keep_ms,
                min((message[1] for message in batch.messages), default=0),
                batch.once + 2 * batch.logs + 8 * batch.again,
            )
            caller = self.instance + " once" * batch.once
            args: list[Any] = [call + batch.mark, caller, wake, batch.recent]
            for message in batch.messages:
                args += message
            for keyed in batch.keyed:
                args += keyed
            args += ranges
            for routed in routes.items():
                args += routed
            for field, ids in batch.found.items():
                args += (field, ids)
            plain = not (batch.keyed or batch.found or batch.mark)
            calls.append(keys.call("park", args, _PARK_KEYS + bool(batch.logs) if plain else None))
        replies = await self._runner.many(calls, self._wait)
        return {
            shard: reply if isinstance(reply, StoreUnavailable) else parked_in(reply)
            for shard, reply in zip(batches, replies, strict=True)
        }

    async def reject(self, shard: int, dead: ports.DeadBatch) -> tuple[int, ...]:
        args: list[Any] = [dead.token, *self._limits, int(dead.restored)]
        for message, origin in zip(dead.messages, dead.origins or [_NO_ORIGIN] * len(dead.messages), strict=True):
            args += (*message, *origin)
        return tuple(await self._runner.run(self._keys.shards[shard].call("reject", args), self._wait))

    async def done(self, shard: int, origins: Sequence[Origin]) -> set[Origin]:
        logs = list({log for log, _ in origins})
        with store_errors():
            values = await self.client.hmget(self._keys.shards[shard].offsets, [*logs, *(log + _OWED for log in logs)])
        marks = {log: int(value or 0) for log, value in zip(logs, values, strict=False)}
        owed = {
            (log, offset)
            for log, packed in zip(logs, values[len(logs) :], strict=True)
            for (offset,) in _OFFSET.iter_unpack(packed or b"")
        }
        return {(log, offset) for log, offset in origins if offset < marks[log]} - owed

    async def firsts(self, shard: int, logs: Sequence[bytes]) -> dict[bytes, int]:
        with store_errors():
            values = await self.client.hmget(self._keys.shards[shard].offsets, [log + _FIRST for log in logs])
        return {log: int(value) for log, value in zip(logs, values, strict=True) if value is not None}

    async def mark_done(self, shard: int, origins: Sequence[Origin]) -> None:
        args = [part for origin in origins for part in origin]
        await self._runner.run(self._keys.shards[shard].call("mark_done", args), self._wait)

    async def line_up(self, shard: int, named: Sequence[tuple[bytes, int]]) -> list[int]:
        args = [part for pair in named for part in pair]
        return list(await self._runner.run(self._keys.shards[shard].call("line_up", args), None))

    async def recent(self, shard: int) -> list[bytes]:
        """Return the recent list without the running number of each entry."""
        with store_errors():
            entries = await self.client.lrange(self._keys.shards[shard].recent, 0, -1)
        return [entry[8:] for entry in entries]

    # -- by key -----------------------------------------------------------------------------------------------------

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, ports.Found]:
        with store_errors():
            rows = await asyncio.gather(*(self.client.hmget(keys.index, fields) for keys in self._keys.shards))
        return {field: _found(values) for field, values in zip(fields, zip(*rows, strict=True), strict=True)}

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        found: set[bytes] = set()
        with store_errors():
            for shard, some in ids_by_shard(ids).items():
                scores = await self.client.zmscore(self._keys.shards[shard].due, some)
                found.update(i for i, score in zip(some, scores, strict=True) if score is not None)
        return found

    async def cancel(
        self, ids: Sequence[bytes], dead_too: bool, replaced: bool = False, reason: str = ""
    ) -> dict[bytes, str]:
        by_shard = ids_by_shard(ids)
        first = (int(dead_too), *self._limits, int(replaced), reason)
        calls = [self._keys.shards[shard].call("cancel", (*first, *some)) for shard, some in by_shard.items()]
        words: dict[bytes, str] = {}
        for some, reply in zip(by_shard.values(), await self._runner.all(calls), strict=True):
            words.update(zip(some, (word.decode() for word in reply), strict=True))
        return words

    # -- delivering -------------------------------------------------------------------------------------------------

    async def claim(
        self, shards: Sequence[int], limit: int, bytes_max: int, lease_ms: int, drain_ms: int, ahead_ms: int = 0
    ) -> dict[int, ports.Claimed | StoreUnavailable]:
        """Claim due messages. A call that fails or is cancelled is noted, and given back before the next claim; not one
        with a ``limit`` of 0, which takes none and may run beside a claim."""
        token = self.new_token()
        until_us = int(self.clock.now_us()) + self._timeout_us
        keys, lost, sent = self._keys.shards, dict(self._lost), time.monotonic()
        fresh_s, drain_s = sent + drain_ms / 1000 * _FRESH, sent + drain_ms / 1000
        longer = [shard for shard in shards if self._drained.get(shard, 0.0) < fresh_s]
        calls = []
        for shard in shards:
            call = _CLAIM.pack(token, drain_ms, lease_ms, ahead_ms, until_us, bytes_max, shard in longer)
            args = (self.instance, call, limit, *lost.get(shard, ()))
            calls.append(keys[shard].call("claim", args, None if shard in lost else _CLAIM_KEYS))
        try:
            replies = await self._runner.many(calls)
        except asyncio.CancelledError:
            self._lose(shards if limit else (), token)
            raise
        received = time.monotonic()
        claimed: dict[int, ports.Claimed | StoreUnavailable] = {}
        for shard, reply in zip(shards, replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                self._lose((shard,) if limit else (), token)
                claimed[shard] = reply
            else:
                self._given_back(shard, lost.get(shard))
                self.clock.observe(sent, received, reply[1])
                claimed[shard] = _claimed(shard, reply, token, sent + lease_ms / 1000)
                if not reply[0]:
                    self._drained.pop(shard, None)
                elif shard in longer and reply[2]:  # 0: given up by the clock, and nothing was done
                    self._drained[shard] = drain_s
        return claimed

    async def renew(self, claims: Iterable[Claim], lease_ms: int) -> int:
        groups = _groups(claims)
        by_shard = {shard: [part for token, _, ids in rows for part in (token, ids)] for shard, rows in groups.items()}
        return await self._each("renew", by_shard, lease_ms)

    async def settle(self, claims: Iterable[Claim]) -> int:
        claims = list(claims)
        by_shard: dict[int, list[Any]] = {}
        for shard, groups in _groups(claims, by_route=True).items():
            by_shard[shard] = [len(groups), *(part for group in groups for part in group)]
        found = _found_by(claims)
        for (shard, field), ids in found.items():
            by_shard[shard] += (field, b"".join(ids))
        keyed, keys = {shard for shard, _ in found}, self._keys.shards
        calls = [
            keys[shard].call("settle", args, None if shard in keyed else _SETTLE_KEYS)
            for shard, args in by_shard.items()
        ]
        return await self._sum(by_shard, calls)

    async def release(self, releases: Iterable[ports.Release]) -> int:
        by_shard = _by_shard(
            (
                claim,
                (
                    claim.id + claim.token,
                    -1 if wait_ms is None else wait_ms,
                    tries_and_reached(tries, claim.reached),
                    reason,
                ),
            )
            for claim, wait_ms, tries, reason in releases
        )
        keys = self._keys.shards
        return await self._sum(
            by_shard, (keys[shard].call("release", (keys[shard].wake, *args)) for shard, args in by_shard.items())
        )

    async def bury(self, burials: Iterable[tuple[Claim, str]]) -> int:
        by_shard = _by_shard(
            (claim, (claim.id + claim.token, tries_and_reached(claim.tries, claim.reached), reason))
            for claim, reason in burials
        )
        return await self._each("bury", by_shard, *self._limits)

    async def record(self, pieces: Mapping[int, Sequence[ports.Piece]], most: int) -> dict[int, int | StoreUnavailable]:
        keep_ms = self._limits.keep_ms
        calls = []
        for shard, some in pieces.items():
            args = (keep_ms, most, *(part for piece in some for part in piece))
            calls.append(self._keys.shards[shard].call("record", args))
        return dict(zip(pieces, await self._runner.many(calls), strict=True))

    async def tally(self, counts: Sequence[ports.DeliveryCount]) -> None:
        """Add to the hashes of slots. The counts of one call are of one day, nearly always."""
        calls: dict[tuple[str, str], list[Any]] = {}
        for slot_ms, route, place, number in counts:
            names = (self._keys.slots(slot_ms), self._keys.hours(slot_ms))
            args = calls.setdefault(names, [SLOT_KEPT_MS, HOUR_KEPT_MS])
            args += (f"{slot_ms} {place} {route}", f"{slot_ms // HOUR_MS * HOUR_MS} {place} {route}", number)
        for (slots, hours), args in calls.items():
            await self._runner.run(self._keys.call("tally", args, slots=slots, hours=hours))

    async def recover(self, shards: Sequence[int], lease_ms: int) -> int:
        """Park messages again whose lease expired, and in other shards those of claims whose reply was lost.

        In ``shards``, which this instance drains, the next claim gives them back: nothing may leave in between.
        """
        given_back = await self._give_back([shard for shard in self._lost if shard not in shards])
        return given_back + await self._sum(shards, (self._recovery(shard, lease_ms) for shard in shards))

    def _recovery(self, shard: int, lease_ms: int, first: bytes = b"", last: bytes = b"") -> Call:
        keys = self._keys.shards[shard]
        return keys.call("recover", (keys.wake, _RECOVER_MAX, first, last, lease_ms))

    async def _give_back(self, shards: Sequence[int]) -> int:
        """Park messages again that were claimed by calls whose reply was lost."""
        lost = {shard: self._lost[shard] for shard in shards}
        replies = await self._runner.many([self._recovery(shard, 0, *lost[shard]) for shard in shards])
        for shard, reply in zip(shards, replies, strict=True):
            if not isinstance(reply, StoreUnavailable):
                self._given_back(shard, lost[shard])
        return self._added(shards, replies)

    def _given_back(self, shard: int, lost: tuple[bytes, bytes] | None) -> None:
        """Forget the claims that a call gave back, but none that was lost since that call was sent."""
        if self._lost.get(shard) == lost:
            self._lost.pop(shard, None)

    def _lose(self, shards: Iterable[int], token: bytes) -> None:
        for shard in shards:
            first, _ = self._lost.get(shard, (token, token))
            self._lost[shard] = first, token

    async def hold(self, holds: Iterable[tuple[Claim, str | None]]) -> int:
        rows = ((claim, (claim.id + claim.token, "=" if why is None else why)) for claim, why in holds)
        return await self._each("hold", _by_shard(rows))

    async def let_go(
        self, steps: Mapping[int, ports.HeldStep], limit: int, gap_us: int = 0
    ) -> dict[int, ports.LetGo | StoreUnavailable]:
        calls = []
        for shard, (after, most, others) in steps.items():
            args: list[Any] = [self.instance, *after, limit, _LET_GO_BYTES, gap_us, int(others)]
            for routed in most.items():
                args += routed
            calls.append(self._keys.shards[shard].call("let_go", args))
        replies = await self._runner.many(calls)
        return {
            shard: reply if isinstance(reply, StoreUnavailable) else _let_go(reply)
            for shard, reply in zip(steps, replies, strict=True)
        }

    async def tokens(self, route: str, per_s: float, most: int, wanted: int) -> int:
        args = (route, 1e6 / per_s, most, wanted)
        return int(await self._runner.run(self._keys.call("tokens", args)))

    async def parked_by_route(self, routes: Sequence[str]) -> dict[str, int]:
        fields = [b"\0%b\0%b" % (state, route.encode()) for route in routes for state in (b"parked", b"cold")]
        with store_errors():
            found = await asyncio.gather(*(self.client.hmget(keys.counts, fields) for keys in self._keys.shards))
        return {
            route: sum(int(number or 0) for counts in found for number in counts[2 * n : 2 * n + 2])
            for n, route in enumerate(routes)
        }

    # -- between instances ------------------------------------------------------------------------------------------

    async def hand_over(self, shards: Iterable[int]) -> None:
        wanted = list(shards)
        for shard in wanted:
            self._drained.pop(shard, None)
        await self._give_back([shard for shard in wanted if shard in self._lost])
        keys = [self._keys.shards[shard] for shard in wanted]
        if wanted:
            await self._sum(wanted, (shard.call("hand_over", (self.instance, shard.wake)) for shard in keys))

    async def orders(self) -> RouteOrders:
        with store_errors():
            return orders_in((await self.client.hgetall(self._keys.orders)).items())

    async def meet(self, ttl_ms: int, able: bool, health: str) -> ports.Met:
        sent = time.monotonic()
        args = [self.instance, ttl_ms, f"{able:d}{health}"]
        for silent in self._roll.silent(sent).items():
            args += silent
        now_us, rows, orders = await self._runner.run(self._keys.call("meet", args))
        received = time.monotonic()
        stepped_us = self._meetings.observe(sent, received, now_us)
        beats = {name.decode(): beat for name, beat in zip(rows[::3], rows[1::3], strict=True)}
        running = self._roll.running(beats, ttl_ms, now_us // 1000, received)
        unable = {name.decode() for name, able in zip(rows[::3], rows[2::3], strict=True) if not able}
        pairs = zip(orders[::2], orders[1::2], strict=True)
        return ports.Met([name for name in running if name not in unable], orders_in(pairs), stepped_us / 1e6)

    async def deal(self, read: str, wanted: str) -> ports.Dealt:
        now, *reports = await self._runner.run(self._keys.call("deal", (read, wanted)))
        pairs = zip(reports[::2], reports[1::2], strict=True)
        return ports.Dealt(now.decode(), {name.decode(): report.decode() for name, report in pairs})

    async def listen(self, heard: Callable[[int, int], None]) -> None:
        shards = {keys.wake.encode(): shard for shard, keys in enumerate(self._keys.shards)}
        with store_errors():
            async with self.client.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(*shards)
                while True:
                    message = await pubsub.get_message(timeout=_LISTEN_S)
                    if message is not None:
                        heard(shards[message["channel"]], int(message["data"]))

    # -- pieces -----------------------------------------------------------------------------------------------------

    def new_token(self) -> bytes:
        return self._token_head + next(self._token_count).to_bytes(4, "big")

    async def _each(self, script: str, by_shard: Mapping[int, list[Any]], *first: Any) -> int:
        """Run a script in each shard, with the ``first`` arguments and its own. Return the sum of the replies."""
        keys = self._keys.shards
        return await self._sum(
            by_shard, (keys[shard].call(script, (*first, *args)) for shard, args in by_shard.items())
        )

    async def _sum(self, shards: Iterable[int], calls: Iterable[Call]) -> int:
        return self._added(shards, await self._runner.many(list(calls)))

    def _added(self, shards: Iterable[int], replies: Sequence[Any]) -> int:
        """Return the sum of the replies, one for each shard. Raise the first error among them."""
        errors = {n: reply for n, reply in zip(shards, replies, strict=True) if isinstance(reply, StoreUnavailable)}
        if not errors:
            return sum(replies)
        error = next(iter(errors.values()))
        if not isinstance(self.client, Cluster) or len(errors) == self.shards:
            raise error
        worked = sum(reply for reply in replies if not isinstance(reply, StoreUnavailable))
        raise ShardsUnavailable(str(error), frozenset(errors), worked) from error


def orders_in(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, RouteOrder]:
    """Return the orders that the hash holds."""
    return {route.decode("utf-8", "replace"): read_order(text.decode("utf-8", "replace")) for route, text in pairs}


def _let_go(reply: Sequence[Any]) -> ports.LetGo:
    if not reply[0]:
        return ports.LetGo(False, 0, None, ports.FIRST_HELD, False, frozenset())
    _, moved, first_ms, last_ms, last_id, ended, *rest = reply
    routes = frozenset(route.decode("utf-8", "replace") for route in rest)
    return ports.LetGo(True, moved, None if first_ms < 0 else first_ms, (last_ms, last_id), bool(ended), routes)


def _ranges(batch: ports.Batch) -> list[bytes | int]:
    """Return the origins of a batch as ranges: log, first offset, number. Those of the messages come first.

    Raises ``ValueError`` if only some messages have one.
    """
    if len(batch.origins) != len(batch.messages):
        raise ValueError("an origin for each message of a batch, or for none")
    ranges: list[bytes | int] = []
    for origins in (batch.origins, batch.owed):
        last, after = b"", -1
        for log, offset in origins:
            if offset == after and log == last:
                ranges[-1] += 1  # type: ignore[operator]
            else:
                ranges += (log, offset, 1)
                last = log
            after = offset + 1
    return ranges


def _by_shard(rows: Iterable[tuple[Claim, tuple[Any, ...]]]) -> dict[int, list[Any]]:
    by_shard: dict[int, list[Any]] = {}
    for claim, args in rows:
        by_shard.setdefault(claim.shard, []).extend(args)
    return by_shard


def _groups(claims: Iterable[Claim], by_route: bool = False) -> dict[int, list[tuple[bytes, str, bytes]]]:
    """Return claim token, route ("" unless ``by_route``) and ids of the messages, by shard."""
    ids: dict[tuple[int, bytes, str], list[bytes]] = {}
    for claim in claims:
        ids.setdefault((claim.shard, claim.token, claim.route if by_route else ""), []).append(claim.id)
    groups: dict[int, list[tuple[bytes, str, bytes]]] = {}
    for (shard, token, route), listed in ids.items():
        groups.setdefault(shard, []).append((token, route, b"".join(listed)))
    return groups


def _found_by(claims: Iterable[Claim]) -> dict[tuple[int, bytes], list[bytes]]:
    """Return the ids of messages with a key, by shard and index field."""
    found: dict[tuple[int, bytes], list[bytes]] = {}
    for claim in claims:
        if claim.key:
            found.setdefault((claim.shard, index_field(claim.route.encode(), claim.key)), []).append(claim.id)
    return found


def _found(values: Iterable[bytes | None]) -> ports.Found:
    ids: list[bytes] = []
    unlisted = 0
    for value in values:
        if value and value[:1] == b"*":
            unlisted += int(value[1:])
        elif value:
            ids += (value[at : at + ID_BYTES] for at in range(0, len(value), ID_BYTES))
    return ports.Found(ids, unlisted)


def _claimed(shard: int, reply: list[Any], token: bytes, lease_ends: float) -> ports.Claimed:
    if not reply[0]:
        return ports.Claimed([], None, reply[2].decode(), 0, [])
    now_us, next_ms, ghosts, ids = reply[1:5]
    next_due_ms = next_ms if next_ms >= 0 else None
    return claimed_from(ids, reply[5:], shard, token, lease_ends, now_us // 1000, next_due_ms, ghosts)
