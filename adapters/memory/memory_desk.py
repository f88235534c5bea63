"""The admin desk on the memory store."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from adapters.memory.shard import Shard, refused_member
from adapters.memory.store import MemoryStore
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import FlowRow
from bridge.core.orders import HELD_MS, Actor, RouteOrder, RouteOrders, RouteState, ordered
from bridge.core.ports import Found
from bridge.core.roll import believable
from bridge.core.state import State
from bridge.desk.numbers import ShardLook, Stats, by_route, lost_instances, overdue_in
from bridge.desk.past import PLACES, AuditEntry, PastCursor, PastFilter, PastSlot, Remembered, judge_step, newest_first
from bridge.desk.protocol import OPERATIONS_MAX
from bridge.desk.rows import HEAD_BYTES, Answer, Cursor, Filter, Row, Stored, row_of
from bridge.parking.envelope import index_fields, route_in
from bridge.parking.history import HistoryRow
from bridge.parking.identity import ID_BYTES, shard_of


class MemoryDesk:
    """``bridge.desk.protocol.Desk`` on one memory store."""

    def __init__(self, store: MemoryStore, broker: str = "rabbitmq") -> None:
        """``broker`` names the broker whose messages this store holds."""
        self._store = store
        self._memory = store.memory
        self._broker = broker
        self.limits = store.memory.limits

    async def now_ms(self) -> int:
        return self._memory.now_ms()

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        self._check()
        found = [self._row(message_id, state, at_ms) for at_ms, message_id in self._places(state)]
        for row in sorted(found, key=lambda row: (row.at_ms, row.id)):
            if wanted.takes(row) and (after is None or (row.at_ms, row.id) > after):
                yield _cut(row, HEAD_BYTES)

    async def identity(self) -> str:
        return "memory"

    async def stored(self) -> AsyncIterator[Stored]:
        for shard in self._memory.shards:
            for message_id in tuple(shard.messages):
                self._check()
                if (envelope := shard.messages.get(message_id)) is not None:
                    state = State(shard.word(message_id))
                    at_ms = max(0, shard.due.at_ms(message_id)) or shard.dead.get(message_id, 0)
                    yield Stored(self._row(message_id, state, at_ms), envelope)

    async def look(self, ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
        self._check()
        states = (State.PARKED, State.CLAIMED, State.DEAD)
        found = {message_id: (state, at_ms) for state in states for at_ms, message_id in self._places(state)}
        return [
            _cut(self._row(message_id, *found[message_id]), payload_bytes) for message_id in ids if message_id in found
        ]

    async def find(self, route: str, key: bytes) -> Found:
        return Found.merged((await self._store.find(index_fields(route.encode(), key))).values())

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        words = await self._store.cancel(self._known(ids), True, reason=reason)
        return {message_id: Answer(words.get(message_id, "none")) for message_id in ids}

    async def reschedule(self, ids: Sequence[bytes], due_ms: int) -> dict[bytes, Answer]:
        words = await self._store.reschedule(self._known(ids), due_ms)
        return {message_id: Answer(words.get(message_id, "none")) for message_id in ids}

    async def retry(self, ids: Sequence[bytes]) -> int:
        return await self._store.retry(self._known(ids))

    async def lead(self, what: str, who: str, ttl_ms: int) -> bool:
        self._check()
        now_ms = self._memory.now_ms()
        holder, ends_ms = self._memory.leads.get(what, (who, 0))
        if holder != who and ends_ms > now_ms:
            self._memory.leads[what] = holder, min(ends_ms, now_ms + (ttl_ms or ends_ms))
            return False
        self._memory.leads[what] = who, now_ms + ttl_ms
        return True

    async def note_restored(self, messages: int | None = None) -> None:
        self._check()
        self._memory.restored += messages or 0
        if messages is None:
            self._memory.loss = None

    async def note_reported(self, numbers: Mapping[str, int]) -> None:
        self._check()
        self._memory.reported = dict(numbers)

    async def put_operation(self, name: str, document: str) -> None:
        self._check()
        self._memory.operations[name] = document
        for name in sorted(self._memory.operations)[:-OPERATIONS_MAX]:
            del self._memory.operations[name]

    async def operations(self) -> dict[str, str]:
        self._check()
        return dict(self._memory.operations)

    async def stats(self) -> Stats:
        self._check()
        now_ms, shards = self._memory.now_ms(), self._memory.shards
        ever: Counter[str] = Counter()
        for shard in shards:
            ever.update(shard.counts)
        dues = [at_ms for shard in shards for at_ms, _ in shard.due]
        looks = [_look_at(shard, now_ms) for shard in shards]
        orders = self._memory.orders
        routes = by_route(looks, orders)
        reports = {name: (instance[0], _report(*instance[1:])) for name, instance in self._memory.instances.items()}
        running = {name: said for name, (until_ms, said) in reports.items() if believable(until_ms, now_ms, said)}
        lost = {name: at_ms for name, (at_ms, _) in self._memory.lost.items()}
        return Stats(
            now_ms=now_ms,
            parked=len(dues) + sum(route.cold for route in routes.values()),
            cold=sum(route.cold for route in routes.values()),
            claimed=sum(len(shard.claimed) for shard in shards),
            dead=sum(len(shard.dead) for shard in shards),
            overdue=overdue_in(looks, orders),
            next_due_ms=min((at_ms for at_ms in dues if at_ms < HELD_MS), default=None),
            ever={name: number for name, number in ever.items() if number},
            instances=running,
            memory=(),
            refused=sum(len(shard.refused) for shard in shards),
            held=sum(route.held for route in routes.values()),
            by_route=routes,
            silent={name: max(0, now_ms - until_ms) for name, (until_ms, _) in reports.items() if name not in running},
            instances_lost=self._memory.instances_lost,
            lost=lost_instances(lost, self._broker, now_ms) if running else {},
            orders=ordered(orders),
            reported=self._memory.reported,
        )

    async def orders(self) -> RouteOrders:
        return ordered(await self._store.orders())

    async def order(self, route: str, state: RouteState, by: Actor, reason: str) -> None:
        self._check()
        orders, now_ms = self._memory.orders, self._memory.now_ms()
        before = orders.pop(route, RouteOrder(RouteState.RUNNING, now_ms, by, ""))
        same = before.state is state
        ended = before.state is RouteState.PAUSED and not same
        pauses = (*before.pauses, (before.since_ms, now_ms))[-8:] if ended else before.pauses
        if state is not RouteState.RUNNING or pauses:
            orders[route] = RouteOrder(state, before.since_ms if same else now_ms, by, reason, pauses)

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        self._check()
        dues_ms = [at_ms for shard in self._memory.shards for at_ms, _ in shard.due]
        return [sum(first <= at_ms < end for at_ms in dues_ms) for first, end in pairwise(bounds_ms)]

    # -- the past ---------------------------------------------------------------------------------------------------

    async def history(self, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        self._check()
        start = (-after.ended_ms, after.id) if after is not None else (-(2**62), b"")
        found = [replace(row, broker=self._broker) for shard in self._memory.shards for row in shard.history]
        for row in dict.fromkeys(sorted(found, key=newest_first)):  # a call that was repeated wrote them twice
            if newest_first(row) > start and wanted.takes(row):
                yield row

    async def history_since_ms(self) -> int:
        self._check()
        return self._memory.now_ms() - self.limits.keep_ms

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return nothing: only a journal knows it."""
        return []

    async def past(self, from_ms: int, to_ms: int, step_ms: int) -> list[PastSlot]:
        self._check()
        first_ms = judge_step(from_ms, step_ms)
        slots: dict[tuple[int, str], list[int]] = {}
        for (slot_ms, route, place), count in self._memory.tallies.items():
            at_ms = slot_ms // step_ms * step_ms
            if first_ms <= at_ms <= to_ms:
                slots.setdefault((at_ms, route), [0] * PLACES)[place] += count
        return [PastSlot(at_ms, route, tuple(late)) for (at_ms, route), late in sorted(slots.items())]

    async def note(self, entry: AuditEntry) -> None:
        self._check()
        number = len(self._memory.audit) + 1
        self._memory.audit.append(replace(entry, id=f"{number:09}", at_ms=self._memory.now_ms()))

    async def audit(self, limit: int, before: str = "") -> list[AuditEntry]:
        self._check()
        return [entry for entry in reversed(self._memory.audit) if not before or entry.id < before][:limit]

    async def remember(self, key: bytes, digest: bytes, message_id: bytes, ttl_ms: int) -> Remembered | None:
        self._check()
        until_ms, known = self._memory.remembered.get(key, (0, None))
        if known is not None and self._memory.now_ms() < until_ms:
            return known
        self._memory.remembered[key] = self._memory.now_ms() + ttl_ms, Remembered(digest, message_id)
        return None

    async def remember_parked(self, key: bytes, request: Remembered, ttl_ms: int) -> None:
        self._check()
        self._memory.remembered[key] = self._memory.now_ms() + ttl_ms, request

    def _check(self) -> None:
        if self._memory.away:
            raise StoreUnavailable(self._memory.away)

    def _known(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return each id once. Ids of shards that this store does not have are left out."""
        return [message_id for message_id in dict.fromkeys(ids) if shard_of(message_id) < len(self._memory.shards)]

    def _places(self, state: State) -> Iterator[tuple[int, bytes]]:
        """Iterate over the messages in one state: ``Row.at_ms`` and id. Ids without a message are left out."""
        for shard in self._memory.shards:
            places = {
                # Held ones too: the row tells those apart.
                State.PARKED: {message_id: at_ms for at_ms, message_id in shard.due},
                State.CLAIMED: {member[:ID_BYTES]: ends_ms for member, ends_ms in shard.claimed.items()},
                State.DEAD: shard.dead,
            }
            yield from (
                (at_ms, message_id) for message_id, at_ms in places[state].items() if message_id in shard.messages
            )

    def _row(self, message_id: bytes, state: State, at_ms: int) -> Row:
        shard = self._memory.shards[shard_of(message_id)]
        envelope = shard.messages[message_id]
        return row_of(self._broker, message_id, state, at_ms, len(envelope), envelope, shard.why.get(message_id, ""))


def _look_at(shard: Shard, now_ms: int) -> ShardLook:
    """Look at the whole shard."""
    heads: dict[str, tuple[int, int]] = {}
    for at_ms, message_id in shard.due:
        if at_ms >= HELD_MS:
            break
        envelope = shard.messages.get(message_id, b"")
        route, refused = route_in(envelope).decode(), refused_member(message_id, envelope) in shard.refused
        first_ms, overdue = heads.get(route, (at_ms, 0))
        heads[route] = (first_ms, overdue + (at_ms < now_ms and not refused))
    counts = {(state, route.decode()): number for (state, route), number in shard.routes.items()}
    waiting: dict[str, tuple[int, int]] = {}
    for member in sorted(shard.refused, reverse=True):
        route, due_ms = member[:-29].decode(), int.from_bytes(member[-28:-20], "big")
        waiting[route] = (waiting.get(route, (0, 0))[0] + 1, due_ms)
    overdue = sum(at_ms < now_ms for at_ms, _ in shard.due)
    held: dict[str, int] = {}
    for at_ms, message_id in shard.due.held():
        held.setdefault(route_in(shard.messages.get(message_id, b"")).decode(), at_ms)
    return ShardLook(now_ms, counts, overdue, heads, None, overdue, waiting, held)


def _cut(row: Row, payload_bytes: int) -> Row:
    return row if payload_bytes < 0 else replace(row, payload=row.payload[:payload_bytes])


def _report(able: bool, text: str) -> Mapping[str, object]:
    return {"able": able, **json.loads(text or "{}")}
