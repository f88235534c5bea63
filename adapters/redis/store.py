"""The store on Redis: turns each batch into one script call for its shard, and replies into claims."""

from __future__ import annotations

import asyncio
import secrets
import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from adapters.redis.cluster import Cluster
from adapters.redis.connect import Client, close
from adapters.redis.durability import ask, judge
from adapters.redis.errors import store_errors
from adapters.redis.guard import StoreGuard
from adapters.redis.keys import ShardKeys, StoreKeys
from adapters.redis.runner import Runner
from adapters.redis.scripts import Call, Wait, scripts
from bridge.admin.past import HOUR_KEPT_MS, HOUR_MS, SLOT_KEPT_MS
from bridge.core.clock import StoreClock
from bridge.core.errors import ShardsUnavailable, StoreUnavailable
from bridge.core.message import Claim, Origin, unopened
from bridge.core.orders import RouteOrder, RouteOrders, read_order
from bridge.core.ports import (
    FIRST_HELD,
    Batch,
    Claimed,
    Dealt,
    DeliveryCount,
    Found,
    LetGo,
    Met,
    Parked,
    Piece,
    Release,
    Unheld,
)
from bridge.parking.envelope import DamagedEnvelope, NewerEnvelope, index_field, route_in, tries_and_reached, unseal
from bridge.parking.history import NO_HISTORY, HistoryLimits
from bridge.parking.identity import ID_BYTES, shard_of

_RECOVER_MAX = 500
#: The origin that the reject script gets for a message that has none.
_NO_ORIGIN: Origin = (b"", 0)
_LOST_MAX = 64
#: How much of the bodies Redis reads in one step of unholding, to learn the routes.
_UNHOLD_BYTES = 4 * 1024 * 1024
#: How often a silent subscription is checked, so that a dead one is noticed.
_LISTEN_S = 1.0
#: The offsets hash, as ``lua/include/origins.lua`` keeps and describes it.
_OWED = b"\0owed"
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
        self._client = client
        self._runner = Runner(client)
        self._keys = StoreKeys(prefix, shards, instance)
        self._guard = StoreGuard(client, self._runner, self._keys)
        self._scripts = scripts()
        self._token_head = secrets.token_bytes(4)
        self._token_count = count(1)
        # Claims whose reply never came: shard and token. Only the latest are kept: an outage makes many, and nearly all
        # of them were never carried out. A claim that is forgotten here is recovered when its lease ends.
        self._lost: deque[tuple[int, bytes]] = deque(maxlen=_LOST_MAX)
        self._wait: Wait | None = None

    async def open(self, durability: str, replicas: int, timeout_ms: int) -> tuple[str, ...]:
        """Check the server and agree with it on shards and format. Return the warnings.

        ``timeout_ms`` is the client's own. Raises ``StoreUnavailable``, and ``StoreUnfit`` for a server that can lose
        messages, or for a store with another number of shards.
        """
        wait_ms = max(1, timeout_ms // 2)  # a failed wait must answer before the client's timeout
        verdicts = [judge(server, durability, replicas, wait_ms) for server in await ask(self._client)]
        self._wait = next((verdict.wait for verdict in verdicts if verdict.wait), None)
        await self._guard.agree()
        await self.look_at_clock()
        return tuple(warning for verdict in verdicts for warning in verdict.warnings)

    async def look(self) -> dict[str, str]:
        """Check that it is still the same store and has room. Return a text for each thing, "" where it is fine."""
        return await self._guard.look()

    async def look_at_clock(self) -> None:
        """Observe the store's clock once."""
        client: Any = self._client
        sent = time.monotonic()
        with store_errors():
            seconds, microseconds = await client.time()
        self.clock.observe(sent, time.monotonic(), int(seconds) * 1_000_000 + int(microseconds))

    async def close(self) -> None:
        """Close every connection."""
        await close(self._client)

    # -- parking ---------------------------------------------------------------------------------------------------

    async def park(self, batches: Mapping[int, Batch]) -> dict[int, Parked | StoreUnavailable]:
        """Park each batch in its shard, with the configured durability."""
        park, wait = self._scripts["park"], self._wait
        calls = []
        for shard, batch in batches.items():
            keys = self._keys.shards[shard]
            args: list[Any] = [batch.token, keys.wake, batch.recent, batch.recent_max]
            args += (*self._limits, len(batch.messages))
            for message in batch.messages:
                args += message
            args.append(len(batch.keyed))
            for keyed in batch.keyed:
                args += keyed
            names: tuple[str, ...] = (keys.due, keys.msg, keys.keys, keys.park, keys.recent, keys.counts, keys.why)
            names += (keys.history,)
            args.append(len(batch.origins) + len(batch.owed))
            if args[-1]:
                names += (keys.offsets,)
                args += _origin_args(batch)
            routes = Counter(map(route_in, (message[2] for message in batch.messages)))
            args.append(len(routes))
            for routed in routes.items():
                args += routed
            for field, ids in batch.found.items():
                args += (field, ids)
            calls.append(Call(park, names, args))
        replies = await self._runner.many(calls, wait)
        return {
            shard: reply if isinstance(reply, StoreUnavailable) else Parked(*map(tuple, reply))
            for shard, reply in zip(batches, replies, strict=True)
        }

    async def reject(
        self, shard: int, token: bytes, messages: Sequence[tuple[bytes, bytes, str]], origins: Sequence[Origin] = ()
    ) -> tuple[int, ...]:
        """Keep messages as dead letters, once for each token. Return the positions that were dealt with before."""
        keys = self._keys.shards[shard]
        args: list[Any] = [token, *self._limits]
        for message, origin in zip(messages, origins or [_NO_ORIGIN] * len(messages), strict=True):
            args += (*message, *origin)
        names = (keys.dead, keys.msg, keys.why, keys.reject, keys.counts, keys.offsets, keys.history, keys.keys)
        return tuple(await self._runner.one(Call(self._scripts["reject"], names, args), self._wait))

    async def done(self, shard: int, origins: Sequence[Origin]) -> set[Origin]:
        """Return those origins that were dealt with before, by the offsets hash."""
        client: Any = self._client
        logs = list({log for log, _ in origins})
        with store_errors():
            values = await client.hmget(self._keys.shards[shard].offsets, [*logs, *(log + _OWED for log in logs)])
        marks = {log: int(value or 0) for log, value in zip(logs, values, strict=False)}
        owed = {
            (log, offset)
            for log, packed in zip(logs, values[len(logs) :], strict=True)
            for (offset,) in _OFFSET.iter_unpack(packed or b"")
        }
        return {(log, offset) for log, offset in origins if offset < marks[log]} - owed

    async def mark_done(self, shard: int, origins: Sequence[Origin]) -> None:
        """Record that these origins were dealt with."""
        args = [part for origin in origins for part in origin]
        await self._runner.one(Call(self._scripts["mark_done"], (self._keys.shards[shard].offsets,), args), self._wait)

    async def line_up(self, shard: int, named: Sequence[tuple[bytes, int]]) -> list[int]:
        """Return the due moments of messages that wait for earlier ones with the same name."""
        args = [part for one in named for part in one]
        return list(
            await self._runner.one(Call(self._scripts["line_up"], (self._keys.shards[shard].lines,), args), None)
        )

    async def recent(self, shard: int) -> list[bytes]:
        """Return the recent list without the running number of each entry."""
        client: Any = self._client
        with store_errors():
            entries = await client.lrange(self._keys.shards[shard].recent, 0, -1)
        return [entry[8:] for entry in entries]

    # -- by key -----------------------------------------------------------------------------------------------------

    async def find(self, fields: Sequence[bytes]) -> dict[bytes, Found]:
        """Look up fields of the key index in all shards."""
        client: Any = self._client
        with store_errors():
            rows = await asyncio.gather(*(client.hmget(keys.keys, fields) for keys in self._keys.shards))
        return {field: _found(values) for field, values in zip(fields, zip(*rows, strict=True), strict=True)}

    async def parked(self, ids: Sequence[bytes]) -> set[bytes]:
        """Return those ids that are in the due set."""
        client: Any = self._client
        found: set[bytes] = set()
        with store_errors():
            for shard, some in _ids_by_shard(ids).items():
                scores = await client.zmscore(self._keys.shards[shard].due, some)
                found.update(i for i, score in zip(some, scores, strict=True) if score is not None)
        return found

    async def cancel(
        self, ids: Sequence[bytes], dead_too: bool, replaced: bool = False, reason: str = ""
    ) -> dict[bytes, str]:
        """Delete parked messages, and dead letters if asked. Return what each message was."""
        by_shard = _ids_by_shard(ids)
        first = (int(dead_too), *self._limits, int(replaced), reason)
        calls = []
        for shard, some in by_shard.items():
            keys = self._keys.shards[shard]
            names = (keys.due, keys.msg, keys.dead, keys.keys, keys.why, keys.counts, keys.history)
            calls.append(Call(self._scripts["cancel"], names, (*first, *some)))
        words: dict[bytes, str] = {}
        for some, reply in zip(by_shard.values(), await self._runner.many(calls), strict=True):
            if isinstance(reply, StoreUnavailable):
                raise reply
            words.update(zip(some, (word.decode() for word in reply), strict=True))
        return words

    # -- delivering -------------------------------------------------------------------------------------------------

    async def claim(
        self, shards: Sequence[int], limit: int, bytes_max: int, lease_ms: int, drain_ms: int, ahead_ms: int = 0
    ) -> dict[int, Claimed | StoreUnavailable]:
        """Claim due messages. A call that fails or is cancelled is noted, so that ``recover`` gives it back."""
        token = self.new_token()
        args = (self.instance, drain_ms, token, lease_ms, limit, bytes_max, ahead_ms)
        calls = []
        for shard in shards:
            keys = self._keys.shards[shard]
            calls.append(Call(self._scripts["claim"], (keys.due, keys.msg, keys.claimed, keys.drain), args))
        sent = time.monotonic()
        try:
            replies = await self._runner.many(calls)
        except asyncio.CancelledError:
            self._lost.extend((shard, token) for shard in shards)
            raise
        received = time.monotonic()
        claimed: dict[int, Claimed | StoreUnavailable] = {}
        for shard, reply in zip(shards, replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                self._lost.append((shard, token))
                claimed[shard] = reply
            else:
                self.clock.observe(sent, received, reply[1])
                claimed[shard] = _claimed(shard, reply, token, sent + lease_ms / 1000)
        return claimed

    async def renew(self, claims: Iterable[Claim], lease_ms: int) -> int:
        """Extend leases. Return how many were still held."""
        by_shard = _by_shard((claim, (claim.id + claim.token,)) for claim in claims)
        return await self._sum(
            by_shard,
            (Call(self._scripts["renew"], (keys.claimed,), (lease_ms, *args)) for keys, args in self._each(by_shard)),
        )

    async def settle(self, claims: Iterable[Claim]) -> int:
        """Delete delivered messages. Return how many claims were still held."""
        by_shard = _by_shard_and_route(claims)
        return await self._sum(
            by_shard,
            (
                Call(self._scripts["settle"], (keys.msg, keys.claimed, keys.keys, keys.counts, keys.why), args)
                for keys, args in self._each(by_shard)
            ),
        )

    async def release(self, releases: Iterable[Release]) -> int:
        """Park claimed messages again. Return how many claims were still held."""
        by_shard = _by_shard(
            (r.claim, (r.claim.id + r.claim.token, _wait_ms(r), _tries(r.claim, r.tries), r.reason)) for r in releases
        )
        return await self._sum(
            by_shard,
            (
                Call(
                    self._scripts["release"],
                    (keys.due, keys.msg, keys.claimed, keys.why, keys.counts),
                    (keys.wake, *args),
                )
                for keys, args in self._each(by_shard)
            ),
        )

    async def bury(self, burials: Iterable[tuple[Claim, str]]) -> int:
        """Make claimed messages dead letters. Return how many claims were still held."""
        by_shard = _by_shard(
            (claim, (claim.id + claim.token, _tries(claim, claim.tries), reason)) for claim, reason in burials
        )
        return await self._sum(
            by_shard,
            (
                Call(
                    self._scripts["bury"],
                    (keys.msg, keys.claimed, keys.dead, keys.why, keys.counts, keys.history),
                    (*self._limits, *args),
                )
                for keys, args in self._each(by_shard)
            ),
        )

    async def record(self, pieces: Mapping[int, Sequence[Piece]], most: int) -> dict[int, int | StoreUnavailable]:
        """Write delivered messages into the history of each shard. Return how many entries each keeps."""
        record, keep_ms = self._scripts["record"], self._limits.keep_ms
        calls = []
        for shard, some in pieces.items():
            args = (keep_ms, most, *(part for piece in some for part in piece))
            calls.append(Call(record, (self._keys.shards[shard].history,), args))
        return dict(zip(pieces, await self._runner.many(calls), strict=True))

    async def tally(self, counts: Sequence[DeliveryCount]) -> None:
        """Add to the hashes of slots. The counts of one call are of one day, nearly always."""
        calls: dict[tuple[str, str], list[Any]] = {}
        for slot_ms, route, place, number in counts:
            names = (self._keys.slots(slot_ms), self._keys.hours(slot_ms))
            args = calls.setdefault(names, [SLOT_KEPT_MS, HOUR_KEPT_MS])
            args += (f"{slot_ms} {place} {route}", f"{slot_ms // HOUR_MS * HOUR_MS} {place} {route}", number)
        for names, args in calls.items():
            await self._runner.one(Call(self._scripts["tally"], names, args))

    async def recover(self, shards: Sequence[int]) -> int:
        """Park messages again whose lease expired, and those of claims whose reply was lost."""
        lost = list(self._lost)
        self._lost.clear()
        recover = self._scripts["recover"]
        wanted = [*lost, *((shard, b"") for shard in shards)]
        calls = []
        for shard, token in wanted:
            keys = self._keys.shards[shard]
            calls.append(
                Call(recover, (keys.due, keys.msg, keys.claimed, keys.counts), (keys.wake, _RECOVER_MAX, token))
            )
        try:
            replies = await self._runner.many(calls)
        except asyncio.CancelledError:
            self._lost.extend(lost)
            raise
        self._lost.extend(
            place for place, reply in zip(lost, replies, strict=False) if isinstance(reply, StoreUnavailable)
        )
        return self._added([shard for shard, _ in wanted], replies)

    async def unhold(
        self, shards: Mapping[int, tuple[int, bytes]], paused: Collection[str], limit: int
    ) -> dict[int, Unheld | StoreUnavailable]:
        """Unhold messages of running routes: one step for each shard."""
        calls = []
        for shard, after in shards.items():
            keys = self._keys.shards[shard]
            args = (self.instance, *after, limit, _UNHOLD_BYTES, "", 0, 0, *paused)
            calls.append(Call(self._scripts["unhold"], (keys.due, keys.msg, keys.drain, keys.counts), args))
        replies = await self._runner.many(calls)
        return {
            shard: reply if isinstance(reply, StoreUnavailable) else _unheld(reply)
            for shard, reply in zip(shards, replies, strict=True)
        }

    async def let_go(
        self, route: str, shards: Mapping[int, tuple[tuple[int, bytes], int]], limit: int, gap_us: int
    ) -> dict[int, LetGo | StoreUnavailable]:
        """Unhold messages of one route: one step for each shard."""
        calls = []
        for shard, (after, most) in shards.items():
            keys = self._keys.shards[shard]
            args = (self.instance, *after, limit, _UNHOLD_BYTES, route, most, gap_us)
            calls.append(Call(self._scripts["unhold"], (keys.due, keys.msg, keys.drain, keys.counts), args))
        replies = await self._runner.many(calls)
        return {
            shard: reply if isinstance(reply, StoreUnavailable) else _let_go(reply)
            for shard, reply in zip(shards, replies, strict=True)
        }

    async def tokens(self, route: str, per_s: float, most: int, wanted: int) -> int:
        """Take tokens of a route's bucket."""
        args = (route, 1e6 / per_s, most, wanted)
        return int(await self._runner.one(Call(self._scripts["tokens"], (self._keys.rates,), args)))

    async def parked_by_route(self, routes: Sequence[str]) -> dict[str, int]:
        """Add up the counts of all shards."""
        fields = [b"\0parked\0" + route.encode() for route in routes]
        client: Any = self._client
        with store_errors():
            found = await asyncio.gather(*(client.hmget(keys.counts, fields) for keys in self._keys.shards))
        return {route: sum(int(counts[n] or 0) for counts in found) for n, route in enumerate(routes)}

    # -- between instances ------------------------------------------------------------------------------------------

    async def hand_over(self, shards: Iterable[int]) -> None:
        """Stop draining these shards, so that another instance can start at once."""
        script = self._scripts["hand_over"]
        wanted = list(shards)
        keys = [self._keys.shards[shard] for shard in wanted]
        if wanted:
            await self._sum(wanted, (Call(script, (one.drain,), (self.instance, one.wake)) for one in keys))

    async def orders(self) -> RouteOrders:
        """Return what operators have ordered."""
        client: Any = self._client
        with store_errors():
            return orders_in((await client.hgetall(self._keys.orders)).items())

    async def meet(self, ttl_ms: int, able: bool, health: str) -> Met:
        """Report this instance for ``ttl_ms``. Return the instances that can deliver, and the orders."""
        names, orders = await self._runner.one(
            Call(
                self._scripts["meet"],
                (self._keys.instances, self._keys.health, self._keys.orders),
                (self.instance, ttl_ms, f"{able:d}{health}"),
            )
        )
        pairs = zip(orders[::2], orders[1::2], strict=True)
        return Met([name.decode() for name in names], orders_in(pairs))

    async def deal(self, read: str, wanted: str) -> Dealt:
        """Replace the deal if it is still the one that was read. Return the deal in force."""
        keys = (self._keys.instances, self._keys.health, self._keys.deal)
        now, *reports = await self._runner.one(Call(self._scripts["deal"], keys, (read, wanted)))
        pairs = zip(reports[::2], reports[1::2], strict=True)
        return Dealt(now.decode(), {name.decode(): report.decode() for name, report in pairs})

    async def listen(self, heard: Callable[[int, int], None]) -> None:
        """Pass on the wake hints of all shards until cancelled."""
        shards = {keys.wake.encode(): shard for shard, keys in enumerate(self._keys.shards)}
        client: Any = self._client
        with store_errors():
            async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(*shards)
                while True:
                    message = await pubsub.get_message(timeout=_LISTEN_S)
                    if message is not None:
                        heard(shards[message["channel"]], int(message["data"]))

    # -- pieces -----------------------------------------------------------------------------------------------------

    def new_token(self) -> bytes:
        """Return eight bytes that no other call of any process has."""
        return self._token_head + next(self._token_count).to_bytes(4, "big")

    def _each(self, by_shard: Mapping[int, list[Any]]) -> Iterator[tuple[ShardKeys, list[Any]]]:
        for shard, args in by_shard.items():
            yield self._keys.shards[shard], args

    async def _sum(self, shards: Iterable[int], calls: Iterable[Call]) -> int:
        return self._added(shards, await self._runner.many(list(calls)))

    def _added(self, shards: Iterable[int], replies: Sequence[Any]) -> int:
        """Return the sum of the replies, one for each shard. Raise the first error among them."""
        errors = {n: reply for n, reply in zip(shards, replies, strict=True) if isinstance(reply, StoreUnavailable)}
        if not errors:
            return sum(replies)
        error = next(iter(errors.values()))
        if not isinstance(self._client, Cluster) or len(errors) == self.shards:
            raise error
        worked = sum(reply for reply in replies if not isinstance(reply, StoreUnavailable))
        raise ShardsUnavailable(str(error), frozenset(errors), worked) from error


def orders_in(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, RouteOrder]:
    """Return the orders that the hash holds."""
    return {route.decode("utf-8", "replace"): read_order(text.decode("utf-8", "replace")) for route, text in pairs}


def _unheld(reply: Sequence[Any]) -> Unheld:
    if not reply[0]:
        return Unheld(False, None, FIRST_HELD, frozenset())
    _, _, first_ms, _, *last, rest = *reply[:6], reply[6:]
    routes = frozenset(route.decode("utf-8", "replace") for route in rest)
    return Unheld(True, None if first_ms < 0 else first_ms, (last[0], last[1]), routes)


def _let_go(reply: Sequence[Any]) -> LetGo:
    if not reply[0]:
        return LetGo(False, 0, None, FIRST_HELD, True)
    _, ended, first_ms, moved, *last = reply
    return LetGo(True, moved, None if first_ms < 0 else first_ms, (last[0], last[1]), not ended)


def _wait_ms(release: Release) -> int:
    """Return the wait as release.lua takes it."""
    if release.held:
        return -2
    return -1 if release.wait_ms is None else release.wait_ms


def _origin_args(batch: Batch) -> Iterator[bytes | int]:
    """Return the origins of a batch as park.lua takes them. Raises ``ValueError`` if only some messages have one."""
    if len(batch.origins) != len(batch.messages):
        raise ValueError("an origin for each message of a batch, or for none")
    for origin in (*batch.origins, *batch.owed):
        yield from origin


def _by_shard(rows: Iterable[tuple[Claim, tuple[Any, ...]]]) -> dict[int, list[Any]]:
    by_shard: dict[int, list[Any]] = {}
    for claim, args in rows:
        by_shard.setdefault(claim.shard, []).extend(args)
    return by_shard


def _by_shard_and_route(claims: Iterable[Claim]) -> dict[int, list[Any]]:
    """Return the arguments of settle.lua for each shard."""
    by_shard: dict[int, dict[str, list[bytes]]] = {}
    for claim in claims:
        field = index_field(claim.route.encode(), claim.key) if claim.key else b""
        by_shard.setdefault(claim.shard, {}).setdefault(claim.route, []).extend((claim.id + claim.token, field))
    found: dict[int, list[Any]] = {}
    for shard, by_route in by_shard.items():
        args = found[shard] = [len(by_route)]
        for route, some in by_route.items():
            args += (route, len(some) // 2)
        for some in by_route.values():
            args += some
    return found


def _ids_by_shard(ids: Iterable[bytes]) -> dict[int, list[bytes]]:
    by_shard: dict[int, list[bytes]] = {}
    for message_id in ids:
        by_shard.setdefault(shard_of(message_id), []).append(message_id)
    return by_shard


def _found(values: Iterable[bytes | None]) -> Found:
    ids: list[bytes] = []
    unlisted = 0
    for value in values:
        if value and value[:1] == b"*":
            unlisted += int(value[1:])
        elif value:
            ids += (value[at : at + ID_BYTES] for at in range(0, len(value), ID_BYTES))
    return Found(ids, unlisted)


def _tries(claim: Claim, tries: int) -> int:
    return tries_and_reached(tries, claim.reached)


def _claimed(shard: int, reply: list[Any], token: bytes, lease_ends: float) -> Claimed:
    if not reply[0]:
        return Claimed([], None, reply[2].decode(), 0, [])
    claims, newer, damaged = [], [], []
    now_ms = reply[1] // 1000
    for at in range(4, len(reply), 2):
        message_id = reply[at]
        try:
            due_ms, tries, arrived_ms, route, key, first, payload, reached = unseal(reply[at + 1])
        except NewerEnvelope:
            newer.append(message_id)
            continue
        except DamagedEnvelope as error:
            damaged.append((unopened(message_id, shard, token, lease_ends), str(error)))
            continue
        claims.append(
            Claim(
                message_id,
                shard,
                token,
                due_ms,
                arrived_ms,
                tries,
                route,
                key,
                payload,
                first or message_id,
                lease_ends,
                now_ms,
                0,
                reached,
            )
        )
    return Claimed(claims, reply[2] if reply[2] >= 0 else None, None, reply[3], newer, tuple(damaged))
