"""The way in: takes deliveries, reads their headers, parks them durably, and only then accepts them from the source.

What is to happen to each delivery is decided by ``bridge.decide``. The loop takes a batch, goes through it in order,
and repeats a call to the store with the same token until it is answered, so that a lost reply parks nothing twice. One
batch is under way at a time; while it is, the next one gathers in the source's buffer, so the batches grow with the
load by themselves.

Where deliveries have an origin, the store passes over what it has dealt with, and takes an offset that it has gone
beyond for such. So nothing of a log may be parked after something of it went back to the source unparked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import structlog

from bridge.decide import SAME_KEY, Cancellation, Parking, Rejection, RouteRules, Step, decide, not_unique, runs, urgent
from bridge.envelope import index_field, index_fields, seal
from bridge.errors import StoreUnavailable
from bridge.health import Health
from bridge.identity import Ids, shard_of
from bridge.message import Delivery, Origin
from bridge.neighbours import Neighbours
from bridge.notices import Notices
from bridge.ports import Batch, Keyed, Parked, Source, Store
from bridge.reconnect import Reconnect
from bridge.redelivery import FirstCopies
from bridge.shard import shard_for, shard_of_record

log = structlog.get_logger("postdate")

#: The reason in the log, of which the first word is its kind.
PARKED_BEFORE = "parked_before: the source gave it again, and the store has dealt with it"
#: Messages that can wait, wait so long for others to be parked with: a call costs the same for one and for fifty.
_GATHER_S = 0.016


@dataclass(frozen=True)
class ParkLimits:
    """How much goes in one call (messages, bytes), and how many messages the store remembers for redeliveries."""

    batch_max: int
    batch_bytes: int
    recent_max: int


class _Load:
    """What goes to one shard in one call, and the deliveries it came from, position by position."""

    __slots__ = ("batch", "deliveries", "kept_away", "rejections", "rejections_token")

    def __init__(self, tokens: tuple[bytes, bytes], recent_max: int) -> None:
        self.batch = Batch(tokens[0], recent_max=recent_max)
        self.rejections_token = tokens[1]
        self.deliveries: list[Delivery] = []
        self.rejections: list[tuple[Delivery, bytes, bytes, str]] = []
        self.kept_away: list[Delivery] = []


def _rejection(delivery: Delivery, message_id: bytes, first: bytes, reason: str) -> tuple[Delivery, bytes, bytes, str]:
    """A dead letter from the start. It has no key: nothing replaces it, and it is found by its id."""
    arrived_ms = delivery.arrived_ms
    envelope = seal(arrived_ms, arrived_ms, delivery.route.encode(), b"", first, delivery.payload)
    return delivery, message_id, envelope, reason


def _deliveries_of_run(run: Sequence[Step]) -> list[Delivery]:
    return [step.delivery for step in run]


def _deliveries_waiting(loads: Mapping[int, _Load]) -> list[Delivery]:
    """What is not accepted yet: ``_send`` empties the batch of a shard that is parked."""
    waiting: list[Delivery] = []
    for load in loads.values():
        waiting += load.deliveries if load.batch.messages else ()
        waiting += (row[0] for row in load.rejections)
        waiting += load.kept_away
    return waiting


class Parker:
    """The loop on the way in."""

    def __init__(
        self,
        source: Source,
        store: Store,
        routes: Mapping[str, RouteRules],
        ids: Ids,
        parked: Callable[[int, int], None],
        health: Health,
        limits: ParkLimits,
    ) -> None:
        """``parked(shard, due ms)`` is told of the earliest due moment that was parked in a shard."""
        self._source = source
        self._store = store
        self._routes = routes
        self._ids = ids
        self._parked = parked
        self._health = health
        self._limits = limits
        self._dead = Notices(log.warning)
        self._passed_over = Notices(log.info)
        self._neighbours = Neighbours()
        self._spread = 0
        #: Set when the process stops: what the store does not take now goes back to the source.
        self.stopping = False
        #: Something went back to the source for that, and so does all that comes after it.
        self._gave_up = False
        #: Deliveries are in hand that are not accepted yet.
        self.busy = False
        self.received = 0
        self._failures = 0

    def mark(self) -> object:
        """What changes with every turn of the loop, and every failure of the store; None where nothing is in hand."""
        return (self.received, self._failures) if self.busy else None

    async def run(self) -> None:
        """Park until cancelled."""
        with closing(self._dead), closing(self._passed_over):
            while True:
                await self._next_batch()

    async def _next_batch(self) -> None:
        limits = self._limits
        self.busy = False
        steps = [self._step(delivery) for delivery in await self._source.take(limits.batch_max, limits.batch_bytes)]
        self.busy = True
        if len(steps) < limits.batch_max and not urgent(steps, self._store.clock.now_ms()):
            await asyncio.sleep(_GATHER_S)
            steps += map(self._step, self._source.more(limits.batch_max - len(steps), limits.batch_bytes))
        self.received += len(steps)
        await self.carry_out(steps)

    async def park(self, deliveries: Sequence[Delivery]) -> None:
        """One pass: everything in ``deliveries`` is parked, rejected or has cancelled something, and is accepted."""
        await self.carry_out([self._step(delivery) for delivery in deliveries])

    async def carry_out(self, steps: Sequence[Step]) -> None:
        """What ``park`` does, when it is decided."""
        for whole_run in runs(steps):
            run = self._still_heard(whole_run) if whole_run[0].delivery.origin is not None else whole_run
            if not run:
                continue
            if isinstance(run[0].decision, Cancellation):
                await self._until_answered(partial(_deliveries_of_run, run), partial(self._cancel, run))
                if isinstance(run[0].decision, Cancellation):
                    continue
            loads: dict[int, _Load] = {}
            if await self._until_answered(partial(_deliveries_of_run, run), partial(self._load, run, loads)):
                await self._until_answered(partial(_deliveries_waiting, loads), partial(self._send, loads))
        self._health.say("store intake", "")

    def _step(self, delivery: Delivery) -> Step:
        rules = self._routes[delivery.route]
        if rules.order == "route":
            shard = shard_for(delivery.route.encode(), self._store.shards)
        elif rules.order == "key":
            shard = shard_for(delivery.order_key, self._store.shards)
        elif delivery.origin is not None:  # each shard has its own mark for the log
            shard = shard_of_record(*delivery.origin, self._store.shards)
        else:
            self._spread += 1
            shard = (self._spread // self._limits.batch_max) % self._store.shards
        decision = decide(delivery, rules)
        if delivery.origin is not None and isinstance(decision, Parking) and decision.relative:
            due_ms = self._neighbours.due_ms(delivery.origin[0], decision.due_ms)
            if due_ms != decision.due_ms:  # seldom, and a new tuple for every record costs a microsecond
                decision = decision._replace(due_ms=due_ms)
        return Step(delivery, decision, shard)

    def _still_heard(self, run: list[Step]) -> list[Step]:
        """The steps of a run that are alive; the rest goes back, because what came before it may have gone back."""
        alive = [step for step in run if self._source.alive(step.delivery)]
        if len(alive) < len(run):
            self._source.drop([step.delivery for step in run if not self._source.alive(step.delivery)])
        return alive

    async def _until_answered(
        self, waiting: Callable[[], list[Delivery]], attempt: Callable[[], Awaitable[None]]
    ) -> bool:
        """Repeat until the store has answered (True), or until nobody would hear our accepting it: then it comes again.

        ``waiting`` are the deliveries that are neither accepted nor dropped: a source counts each of them once.
        """
        reconnect, failed = Reconnect(), self._gave_up
        while any(map(self._source.alive, waiting())) and not (self.stopping and failed):
            try:
                await attempt()
            except StoreUnavailable as error:
                failed = True
                self._failures += 1
                self._health.say("store intake", f"nothing is parked: {error}")
                await reconnect.wait()
            else:
                return True
        self._gave_up = self.stopping and failed
        self._source.drop(waiting())
        return False

    # -- one attempt each -------------------------------------------------------------------------------------------

    async def _load(self, run: Sequence[Step], loads: dict[int, _Load]) -> None:
        """Sort a run into shards, knowing what the store has under its keys and of its redelivered messages."""
        firsts = await self._first_copies(run)
        taken = await self._taken_elsewhere(run)
        loads.clear()
        for step in run:
            load = loads.get(step.shard)
            if load is None:
                tokens = (self._store.new_token(), self._store.new_token())
                load = loads[step.shard] = _Load(tokens, self._limits.recent_max)
            self._add(load, step, firsts, taken)

    def _add(self, load: _Load, step: Step, firsts: FirstCopies, taken: set[tuple[str, bytes]]) -> None:
        delivery, decision, shard = step
        message_id = self._ids.next(delivery.arrived_ms, shard)
        first = firsts.take(delivery.digest) if delivery.redelivered else b""
        route = delivery.route.encode()
        arrived_ms = delivery.arrived_ms
        if isinstance(decision, Parking) and decision.owned and (delivery.route, decision.key) in taken:
            if self._routes[delivery.route].on_same_key == "keep":
                load.kept_away.append(delivery)
                return
            decision = Rejection(SAME_KEY)
        if not isinstance(decision, Parking):
            assert isinstance(decision, Rejection)
            load.rejections.append(_rejection(delivery, message_id, first, decision.reason))
            if delivery.origin is not None:
                load.batch.owed.append(delivery.origin)
            return
        due_ms, key, owned, _ = decision
        batch = load.batch
        batch.messages.append((message_id, due_ms, seal(due_ms, arrived_ms, route, key, first, delivery.payload)))
        if delivery.origin is None:
            batch.recent += delivery.digest + (first or message_id)
        else:
            batch.origins.append(delivery.origin)
        load.deliveries.append(delivery)
        if owned:
            mode = self._routes[delivery.route].on_same_key
            batch.keyed.append(Keyed(len(batch.messages), index_field(route, key), mode))
        elif key:
            field = index_field(route, key)
            batch.found[field] = batch.found.get(field, b"") + message_id

    async def _first_copies(self, run: Sequence[Step]) -> FirstCopies:
        """Only redelivered messages need it, so the store is asked only when there are any."""
        firsts = FirstCopies()
        shards: set[int] = set()
        for step in run:
            if step.delivery.redelivered:
                spread = self._routes[step.delivery.route].order == "none"
                shards.update(range(self._store.shards) if spread else (step.shard,))
        for shard in sorted(shards):
            firsts.learn(await self._store.recent(shard))
        return firsts

    async def _taken_elsewhere(self, run: Sequence[Step]) -> set[tuple[str, bytes]]:
        """The keys of this run that must not be parked, because a message in another shard has them.

        Those to be replaced are cancelled there before the new one is parked: a crash in between leaves the new one
        with the source, which delivers it again. A step that was dealt with before has had its say. That is asked after
        the look under the keys: what was found then is older than a step that is new now, however late the cancellation
        comes.
        """
        owned = [
            (index_field(step.delivery.route.encode(), step.decision.key), step)
            for step in run
            if isinstance(step.decision, Parking) and step.decision.owned
        ]
        if not owned:
            return set()
        found = await self._store.find(list(dict(owned)))
        done = await self._done([step for _, step in owned])
        owners = {field: step for field, step in owned if step.delivery.origin not in done}
        elsewhere = {
            field: [i for i in found[field].ids if shard_of(i) != step.shard] for field, step in owners.items()
        }
        replaced = [f for f, step in owners.items() if self._routes[step.delivery.route].on_same_key == "replace"]
        await self._store.cancel([message_id for field in replaced for message_id in elsewhere.pop(field)], False)
        waiting = await self._store.parked([message_id for ids in elsewhere.values() for message_id in ids])
        return {
            (owners[field].delivery.route, field.partition(b"\0")[2])
            for field, ids in elsewhere.items()
            if waiting.intersection(ids)
        }

    async def _done(self, steps: Sequence[Step]) -> set[Origin]:
        """The origins of those steps that were dealt with before; the store is asked only where there are any."""
        by_shard: dict[int, list[Origin]] = {}
        for step in steps:
            if step.delivery.origin is not None:
                by_shard.setdefault(step.shard, []).append(step.delivery.origin)
        done: set[Origin] = set()
        for shard, origins in by_shard.items():
            done |= await self._store.done(shard, origins)
        return done

    async def _send(self, loads: dict[int, _Load]) -> None:
        """Park and reject; a shard's deliveries are accepted as soon as they are durable, and leave ``loads``."""
        failed: StoreUnavailable | None = None
        batches = {shard: load.batch for shard, load in loads.items() if load.batch.messages}
        replies = await self._store.park(batches) if batches else {}
        durable: list[Delivery] = []
        for shard, reply in replies.items():
            if isinstance(reply, StoreUnavailable):
                failed = reply
            else:
                durable += self._durable(shard, loads[shard], reply)
        self._source.accept(durable)  # of all shards together, so that their tags make one run
        for shard, load in tuple(loads.items()):
            if load.batch.messages:
                continue
            if load.rejections:
                await self._reject(shard, load)
            if load.kept_away:
                await self._keep_away(shard, load.kept_away)
            del loads[shard]
        if failed is not None:
            raise failed

    async def _reject(self, shard: int, load: _Load) -> None:
        rejected = [row[0] for row in load.rejections]
        origins = [delivery.origin for delivery in rejected if delivery.origin is not None]
        rows = [row[1:] for row in load.rejections]
        before = await self._store.reject(shard, load.rejections_token, rows, origins)
        self._source.accept(rejected)
        for n, (delivery, message_id, _, reason) in enumerate(load.rejections, 1):
            if n not in before:
                self._dead.tell("dead letter", delivery.route, reason, id=message_id.decode())
        load.rejections = []

    async def _keep_away(self, shard: int, kept_away: Sequence[Delivery]) -> None:
        """Accept deliveries that give way to a message in another shard. Last, as the mark covers all before it."""
        for origin in dict(delivery.origin for delivery in kept_away if delivery.origin is not None).items():
            await self._store.mark_done(shard, origin)
        self._source.accept(kept_away)

    def _durable(self, shard: int, load: _Load, reply: Parked) -> list[Delivery]:
        """What may be accepted now; those whose key is taken are to be rejected first."""
        messages = load.batch.messages
        for position in reply.rejected:
            delivery, message_id = load.deliveries[position - 1], messages[position - 1][0]
            load.rejections.append(_rejection(delivery, message_id, b"", SAME_KEY))
        for position in reply.before:
            delivery = load.deliveries[position - 1]
            self._passed_over.tell("passed over", delivery.route, PARKED_BEFORE, **self._source.place(delivery))
        away = set(reply.rejected)
        self._parked(shard, min(due_ms for _, due_ms, _ in messages))
        load.batch = Batch(load.batch.token)
        return [d for n, d in enumerate(load.deliveries, 1) if n not in away] if away else load.deliveries

    async def _cancel(self, run: list[Step]) -> None:
        """Cancel in-band: everything parked under the key, in whichever shard. One that is on its way stays.

        Where the key is no identity, nothing is cancelled and the step becomes a rejection. As in ``_taken_elsewhere``
        the look comes before the question whether the step is new: what came after it is never cancelled by it.
        """
        delivery, decision, shard = run[0]
        assert isinstance(decision, Cancellation)
        found = await self._store.find(index_fields(delivery.route.encode(), decision.key))
        if not await self._done(run):
            ids = [message_id for one in found.values() for message_id in one.ids]
            unlisted = sum(one.unlisted for one in found.values())
            if unlisted and not ids:
                run[0] = run[0]._replace(decision=not_unique(decision.key, unlisted))
                return
            await self._store.cancel(ids, False)
        if delivery.origin is not None:
            await self._store.mark_done(shard, delivery.origin)  # done or not, so that the mark is durable
        self._source.accept([delivery])
