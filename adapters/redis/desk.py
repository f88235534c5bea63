"""The admin desk on Redis. It reads with scripts that write nothing, and changes messages with the store's moves."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from adapters.redis import guard
from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.instances import instances_of, losses_of
from adapters.redis.past import RedisPast
from adapters.redis.steps import step_in
from adapters.redis.store import RedisStore
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import FlowRow
from bridge.core.orders import HELD_MS, Actor, RouteOrders, RouteState, ordered
from bridge.core.ports import Found
from bridge.core.state import State
from bridge.desk.numbers import ShardLook, Stats, by_route, lost_instances, overdue_in
from bridge.desk.protocol import OPERATIONS_MAX
from bridge.desk.rows import HEAD_BYTES, Answer, Cursor, Filter, Row, Stored, row_of
from bridge.parking.envelope import index_fields
from bridge.parking.history import NO_HISTORY, HistoryLimits
from bridge.parking.identity import ids_by_shard

#: Places of a shard that the first call reads and that later calls read at most; bytes of envelopes that a call reads.
_PAGE_FIRST, _PAGE_MAX = 20, 500
_PAGE_BYTES = 16 * 1024 * 1024
#: A step that reads more bytes of envelopes than this is followed by a smaller one.
_SCAN_BYTES = 1024 * 1024
_BATCH = 200
#: Begins the fields of what the webhook has reported.
_REPORTED = "webhook_"
#: The look that tells the routes of a shard apart: messages, and bytes of envelopes that Redis reads for it.
_HEADS, _HEADS_BYTES = 64, 1024 * 1024
#: A restore notes at least every few seconds that it is under way.
_RESTORING_MS = 10_000
#: For the estimate of memory: how many shards are measured, and how many fields of a hash Redis samples.
_SHARDS, _SAMPLES = 4, 20


class RedisDesk(RedisPast):
    """The desk of one store."""

    def __init__(
        self,
        client: Client,
        prefix: str,
        shards: int,
        store: RedisStore,
        broker: str = "rabbitmq",
        limits: HistoryLimits = NO_HISTORY,
    ) -> None:
        """``broker`` names the broker whose messages this store holds."""
        super().__init__(client, prefix, shards, broker, limits)
        self._prefix = prefix
        self._store = store

    async def open(self) -> None:
        """Check that the settings fit the store. Writes nothing. Raises ``StoreUnfit``."""
        guard.judge_agreement(await guard.read_agreement(self._client, self._keys.store), self._shards)

    # -- reading ----------------------------------------------------------------------------------------------------

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        """Merge the shards by ``at_ms``, reading each in pages as they are needed."""
        readers = [self._read(shard, state, wanted, after) for shard in range(self._shards)]
        if state is State.PARKED:  # held messages stand behind all others in the due set, but not by their moment
            readers += [self._read(shard, state, wanted, after, held=True) for shard in range(self._shards)]
        firsts = await asyncio.gather(*(anext(reader, None) for reader in readers))
        heads = [(row.at_ms, row.id, place, row) for place, row in enumerate(firsts) if row is not None]
        heapq.heapify(heads)
        while heads:
            *_, place, row = heads[0]
            yield row
            heapq.heappop(heads)
            following = await anext(readers[place], None)
            if following is not None:
                heapq.heappush(heads, (following.at_ms, following.id, place, following))

    async def _read(
        self, shard: int, state: State, wanted: Filter, after: Cursor | None, held: bool = False
    ) -> AsyncIterator[Row]:
        """Iterate over the rows of one shard, or over its ``held`` messages. A page reads twice as much as the last."""
        keys, page = self._keys.shards[shard], _PAGE_FIRST
        start, end, begin = _range(state, wanted, after, held)
        while True:
            if state is State.CLAIMED:
                call = keys.call("page_claims", (start, begin, page, HEAD_BYTES, _PAGE_BYTES))
            else:
                place = keys.due if state is State.PARKED else keys.dead
                call = keys.call("page", (start, end, begin, page, HEAD_BYTES, _PAGE_BYTES), set=place)
            reply = await self._runner.run(call)
            for message_id, *rest in zip(*[iter(reply[3:])] * 5, strict=True):
                if wanted.takes(row := self._row(message_id, state, *rest)):
                    yield row
            start, begin, page = reply[1], reply[2], min(page * 2, _PAGE_MAX)
            if not begin:
                return

    async def identity(self) -> str:
        """Return the key prefix and the id that the store was made with; without the id for one that was never used."""
        agreed = await guard.read_agreement(self._client, self._keys.store)
        return f"{self._prefix}:{agreed['id']:x}" if "id" in agreed else self._prefix

    async def stored(self) -> AsyncIterator[Stored]:
        """Read shard after shard in steps of about ``_SCAN_BYTES``. Raises ``StoreUnavailable`` if a server was
        replaced meanwhile: a cursor means nothing to another one, so messages may be missing."""
        servers = await self._servers()
        for keys in self._keys.shards:
            cursor, count = b"0", _PAGE_FIRST
            while True:
                reply = await self._runner.run(keys.call("scan", (cursor, count)))
                cursor, size = reply[0], sum(map(len, reply[4::5]))
                count = max(1, count // 2) if size > _SCAN_BYTES else min(2 * count, _PAGE_MAX)
                for message_id, state, at, envelope, why in zip(*[iter(reply[1:])] * 5, strict=True):
                    yield Stored(
                        self._row(message_id, State(state.decode()), at, len(envelope), envelope, why), envelope
                    )
                if cursor == b"0":
                    break
        if await self._servers() != servers:
            raise StoreUnavailable("a server of Redis was restarted or replaced meanwhile, so messages may be missing")

    async def _servers(self) -> set[str]:
        with store_errors():
            return await guard.run_ids(self._client)

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        by_shard = self._sorted(ids)
        calls = [self._keys.shards[shard].call("look", (payload_bytes, *some)) for shard, some in by_shard.items()]
        rows: dict[bytes, Row] = {}
        for some, reply in zip(by_shard.values(), await self._runner.all(calls), strict=True):
            fives = zip(*[iter(reply[1:])] * 5, strict=True)
            for message_id, (state, at, size, head, why) in zip(some, fives, strict=True):
                if state != b"none":
                    rows[message_id] = self._row(message_id, State(state.decode()), at, size, head, why)
        return [rows[message_id] for message_id in ids if message_id in rows]

    async def find(self, route: str, key: bytes) -> Found:
        return Found.merged((await self._store.find(index_fields(route.encode(), key))).values())

    # -- changing ---------------------------------------------------------------------------------------------------

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        answers = dict.fromkeys(ids, Answer.NONE)
        known = [message_id for in_shard in self._sorted(ids).values() for message_id in in_shard]
        for at in range(0, len(known), _BATCH):
            words = await self._store.cancel(known[at : at + _BATCH], True, reason=reason)
            answers.update((message_id, Answer(word)) for message_id, word in words.items())
        return answers

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        answers = dict.fromkeys(ids, Answer.NONE)
        for shard, some in self._batches(ids):
            keys = self._keys.shards[shard]
            reply = await self._runner.run(keys.call("reschedule", (keys.wake, due_ms, *some)))
            answers.update((message_id, Answer(word.decode())) for message_id, word in zip(some, reply, strict=True))
        return answers

    async def retry(self, ids: Sequence[bytes]) -> int:
        retried = 0
        for shard, some in self._batches(ids):
            keys = self._keys.shards[shard]
            retried += sum(await self._runner.run(keys.call("retry", (keys.wake, *some))))
        return retried

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        key = f"{self._keys.lead}:{what}"
        with store_errors():
            if ttl_ms and await self._client.set(key, who, nx=True, px=ttl_ms):
                return True
            # A time limit longer than any that is given dates from before the clock stepped back.
            mine = bool(await self._client.get(key) == who.encode())
            if mine or await self._client.pttl(key) > ttl_ms > 0:
                await self._client.pexpire(key, ttl_ms)
            return mine

    async def note_restored(self, messages: int | None = None) -> None:
        """Note the number, or the moment of the end, beside that of the loss."""
        now_ms = await self.now_ms()
        with store_errors():
            if messages:
                await self._client.hincrby(self._keys.store, "restored", messages)
            await self._client.hset(self._keys.store, "restored_ms" if messages is None else "restoring_ms", now_ms)

    async def note_reported(self, numbers: Mapping[str, int]) -> None:
        """Keep it beside the moment of a loss: what takes one takes the other."""
        with store_errors():
            await self._client.hset(
                self._keys.store, mapping={f"{_REPORTED}{name}": number for name, number in numbers.items()}
            )

    async def put_operation(self, name: str, document: str) -> None:
        with store_errors():
            await self._client.hset(self._keys.operations, name, document)
            if await self._client.hlen(self._keys.operations) > OPERATIONS_MAX:
                names = sorted(await self._client.hkeys(self._keys.operations))
                await self._client.hdel(self._keys.operations, *names[:-OPERATIONS_MAX])

    async def operations(self) -> dict[str, str]:
        with store_errors():
            found = await self._client.hgetall(self._keys.operations)
        return {name.decode(): text.decode() for name, text in found.items()}

    async def stats(self) -> Stats:
        heads = [keys.call("heads", (_HEADS, _HEADS_BYTES)) for keys in self._keys.shards]
        replies = await self._runner.all([*(keys.call("count", ()) for keys in self._keys.shards), *heads])
        counted, seen = replies[: self._shards], replies[self._shards :]
        ever: dict[str, int] = {}
        for reply in counted:
            for name, value in guard.counts_in(reply).items():
                if name[:1] != b"\0":
                    ever[name.decode()] = ever.get(name.decode(), 0) + value
        now_ms = max(reply[0] for reply in counted) // 1000
        looks, orders = list(map(_look, counted, seen)), await self._store.orders()
        parked, claimed, dead = (sum(reply[place] for reply in counted) for place in range(1, 4))
        routes = by_route(looks, orders)
        cold = sum(route.cold for route in routes.values())
        next_due_ms = min((reply[5] for reply in counted if reply[5] >= 0), default=None)
        refused = sum(reply[6] for reply in counted)
        with store_errors():
            instances, silent = await instances_of(self._client, self._keys, now_ms)
            losses = await losses_of(self._client, self._keys)
            memory = await guard.memory_of(self._client)
            full = guard.refuses_writes(await guard.persistence_of(self._client))
            made = await guard.read_agreement(self._client, self._keys.store)
            each = await self._bytes_each([sum(reply[1:4]) for reply in counted])
        lost = guard.loss_in(made, now_ms, broker=self._broker)
        found = (full, lost, guard.nearly_full(memory), guard.many_dead(dead))
        warnings = [text for text in found if text]
        return Stats(
            now_ms,
            parked + cold,
            claimed,
            dead,
            overdue_in(looks, orders),
            next_due_ms,
            ever,
            instances,
            memory,
            each,
            refused,
            warnings,
            routes,
            sum(route.held for route in routes.values()),
            silent,
            made.get("instances_lost", 0),
            bool(full),
            guard.costly_loss_ms(made),
            lost_instances(losses, self._broker, now_ms) if instances else {},
            ordered(orders),
            cold,
            {name.removeprefix(_REPORTED): value for name, value in made.items() if name.startswith(_REPORTED)},
            guard.loss_in(made, now_ms, guard.LOSS_IN_HEALTH_MS, self._broker),
            made.get("restored_ms", 0),
            guard.still_lost(made),
            "id" not in made,
            # An instance writes the agreement before it reports or parks.
            shrunk="id" not in made and bool(instances or ever),
            step=step_in(made, now_ms),
            restoring=now_ms - made.get("restoring_ms", 0) < _RESTORING_MS,
        )

    async def orders(self) -> RouteOrders:
        return ordered(await self._store.orders())

    async def order(self, route: str, state: RouteState, by: Actor, reason: str) -> None:
        """Write the order, also while Redis is full."""
        await self._runner.run(self._keys.call("order", (route, state.value, by.who, by.via, reason)))

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        calls = [keys.call("density", bounds_ms) for keys in self._keys.shards]
        return [sum(some) for some in zip(*await self._runner.all(calls), strict=True)]

    async def _bytes_each(self, messages: Sequence[int]) -> int | None:
        """Return a message's size by Redis's estimate for the fullest shards. A managed service may refuse it."""
        fullest = sorted(range(len(messages)), key=messages.__getitem__)[-_SHARDS:]
        total = 0
        try:
            for shard in fullest:
                keys = self._keys.shards[shard]
                for key in (keys.due, keys.messages, keys.claims, keys.dead, keys.index):
                    total += await self._client.memory_usage(key, samples=_SAMPLES) or 0
        except ResponseError:
            return None
        count = sum(messages[shard] for shard in fullest)
        return total // count if count else None

    # -- the past ---------------------------------------------------------------------------------------------------

    async def history_since_ms(self) -> int:
        """Return from which moment on the history is complete: what emptied the store took it, too."""
        made = await guard.read_agreement(self._client, self._keys.store)
        emptied_ms = made["lost_ms"] if "emptied" in made else 0
        return max(emptied_ms, await super().history_since_ms())

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return nothing: only a journal knows it."""
        return []

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _row(self, message_id: bytes, state: State, at: bytes, size: int, head: bytes, why: bytes) -> Row:
        return row_of(
            self._broker, message_id, state, int(float(at)), size, head, why.decode("utf-8", "backslashreplace")
        )

    def _sorted(self, ids: Iterable[bytes]) -> dict[int, list[bytes]]:
        """Return the ids by shard, each once. Ids of shards that this store does not have are left out."""
        return {shard: some for shard, some in ids_by_shard(dict.fromkeys(ids)).items() if shard < self._shards}

    def _batches(self, ids: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
        return [
            (shard, some[at : at + _BATCH])
            for shard, some in self._sorted(ids).items()
            for at in range(0, len(some), _BATCH)
        ]


def _range(state: State, wanted: Filter, after: Cursor | None, held: bool) -> tuple[int | str, int | str, bytes]:
    """Return the scores between which a reader reads, and the id to begin after where the score is the first one.

    A filter on due moments narrows the due set only: the other sets are sorted by other moments.
    """
    by_due = state is State.PARKED
    start = wanted.due_from_ms if by_due else None
    end = wanted.due_before_ms if by_due else None
    begin = b""
    if after is not None and (start is None or after.at_ms >= start):
        start, begin = after.at_ms, after.id
    if held:
        return HELD_MS + (start or 0), "+inf" if end is None else HELD_MS + end, begin
    least = "-inf" if start is None else start
    if not by_due:
        return least, "+inf", begin
    return least, HELD_MS if end is None else end, begin


def _look(counted: Sequence[Any], seen: Sequence[Any]) -> ShardLook:
    """Return what the scripts count and heads say of a shard."""
    _, end_ms, overdue_seen, refused, *heads = seen
    return ShardLook(
        counted[0] // 1000,
        guard.route_counts(counted),
        counted[4],
        _threes(heads),
        end_ms if end_ms >= 0 else None,
        overdue_seen,
        _threes(refused),
        guard.held_since_ms(counted),
    )


def _threes(values: Sequence[Any]) -> dict[str, tuple[int, int]]:
    """Return pairs of numbers by route."""
    threes = zip(*[iter(values)] * 3, strict=True)
    return {route.decode("utf-8", "replace"): (first, second) for route, first, second in threes}
