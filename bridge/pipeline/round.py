"""One round of parking: runs of several routes, carried out in a few calls to the store.

A round looks up keys, cancels, parks, rejects, and then marks records as done. The outcome is that of single steps, on
one condition: no step of a run cancels what the same run parks, or replaces it in another shard. ``next_run`` is pure
and keeps that condition. A failed call is repeated with the same token, so that a lost reply parks nothing twice. A
delivery is accepted as soon as it is durable.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from bridge.core.errors import StoreUnavailable
from bridge.core.message import Delivery, Origin
from bridge.core.ports import Batch, DeadBatch, Found, Keyed, Parked, ParkingStore, Source
from bridge.core.reasons import Reason, ReasonKind
from bridge.parking.envelope import found_key, index_field, index_fields, seal
from bridge.parking.identity import Ids, rank_of, shard_of
from bridge.parking.redelivery import FirstCopies, Given
from bridge.pipeline.decide import SAME_KEY, Cancellation, Parking, Rejection, RouteRules, Step, not_unique
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.notices import Notices

PARKED_BEFORE = Reason(ReasonKind.PARKED_BEFORE, "the source delivered it again, and the store has already handled it")

#: A message due later than this can wait a little to be parked with others.
SOON_MS = 100


class Run(NamedTuple):
    """The next steps of a route.

    ``superseded``: deliveries that are not parked because a later one of the run replaces them, with its shard.
    ``heavy``: the run has more work than parking, such as a key to look up or a dead letter.
    """

    steps: list[Step]
    superseded: list[tuple[Delivery, int]]
    heavy: bool


def urgent(steps: Iterable[Step], now_ms: int) -> bool:
    """Return whether a step is due so soon that gathering more first could make it late."""
    return any(
        isinstance(step.decision, Cancellation)
        or (isinstance(step.decision, Parking) and step.decision.due_ms < now_ms + SOON_MS)
        for step in steps
    )


def next_run(waiting: deque[Step], replace: bool, now_ms: int, heavy_max: int) -> Run:
    """Take the next run from the front of a route's queue, as much as its order allows.

    ``heavy_max`` bounds its cancellations, rejections, and messages with keys of their own. ``replace``: the route
    replaces a parked message with the same key.
    """
    superseded: list[Step] = []
    parked: dict[bytes, list[Step]] = {}
    cancelled: dict[bytes, set[int]] = {}
    heavy = count = 0
    for step in waiting:
        decision = step.decision
        if isinstance(decision, Cancellation):
            if heavy == heavy_max or decision.key in parked or found_key(decision.key) in parked:
                break
            heavy += 1
            for key in (decision.key, found_key(decision.key)):
                cancelled.setdefault(key, set()).add(step.shard)
        elif isinstance(decision, Rejection):
            if heavy == heavy_max:
                break
            heavy += 1
        elif decision.key:
            if step.delivery.origin is not None and cancelled.get(decision.key, set()) - {step.shard}:
                break  # another shard marks the cancellation, so a repeat of it would cancel this
            if decision.owned:
                older = parked.get(decision.key, [])
                moves = bool(older) and older[0].shard != step.shard
                if heavy == heavy_max or (moves and not (replace and _leave_no_trace(older, step, now_ms))):
                    break
                heavy += 1
                if moves:
                    superseded += parked.pop(decision.key)
            parked.setdefault(decision.key, []).append(step)
        count += 1
    steps = [waiting.popleft() for _ in range(count)]
    if not superseded:
        return Run(steps, [], heavy > 0)
    left_out = {id(step) for step in superseded}
    heirs = {step.decision.key: step.shard for step in steps if isinstance(step.decision, Parking)}
    replaced = [(step.delivery, heirs[step.decision.key]) for step in superseded if isinstance(step.decision, Parking)]
    return Run([step for step in steps if id(step) not in left_out], replaced, heavy > 0)


def _leave_no_trace(older: Sequence[Step], younger: Step, now_ms: int) -> bool:
    """Return whether messages that are replaced at once need not be parked: no consumer could have got them by then.

    A record of a log is always parked: only the store knows whether the younger one is new.
    """
    return younger.delivery.origin is None and all(
        step.delivery.origin is None and isinstance(step.decision, Parking) and step.decision.due_ms >= now_ms + SOON_MS
        for step in older
    )


@dataclass(frozen=True)
class RoundParts:
    """What every round needs. ``parked(shard, due ms)`` is called with the earliest due moment parked in a shard.

    The store remembers ``recent_max`` messages for redeliveries.
    """

    source: Source
    store: ParkingStore
    routes: Mapping[str, RouteRules]
    ids: Ids
    parked: Callable[[int, int], None]
    recent_max: int
    given: Given
    dead: Notices
    skipped: Notices
    metrics: Metrics


class _Stage(IntEnum):
    """What a shard has to do next. Each stage follows the one before."""

    PARK = 0
    REJECT = 1
    MARK = 2
    DONE = 3


@dataclass(slots=True)
class _Load:
    """What a round does in one shard, and how far it is.

    ``deliveries`` belong to the messages of ``batch``, position by position; ``superseded`` are accepted with them.
    ``quiet`` are records of a log that leave nothing in the store. They are marked when all else is durable.
    """

    batch: Batch
    rejections_token: bytes
    superseded: list[Delivery]
    stage: _Stage = _Stage.PARK
    deliveries: list[Delivery] = field(default_factory=list)
    rejections: list[tuple[Delivery, bytes, bytes, Reason]] = field(default_factory=list)
    quiet: list[Delivery] = field(default_factory=list)

    def go_on(self) -> None:
        """Go on to the next stage with something to do."""
        if self.stage < _Stage.REJECT and self.rejections:
            self.stage = _Stage.REJECT
        else:
            self.stage = _Stage.MARK if self.stage < _Stage.MARK and self.quiet else _Stage.DONE

    def pending(self) -> Iterator[Delivery]:
        """Iterate over the deliveries that are not accepted yet, each once."""
        if self.stage <= _Stage.PARK:
            yield from self.superseded
            yield from self.deliveries
        if self.stage <= _Stage.REJECT:
            yield from (delivery for delivery, *_ in self.rejections)
        if self.stage <= _Stage.MARK:
            yield from self.quiet


class _Keys(NamedTuple):
    """What the store has under the keys of a round.

    ``taken``: keys that must not be parked, because a message in another shard has them. ``refused``: why a
    cancellation, by its key, cancelled nothing.
    """

    taken: set[tuple[str, bytes]]
    refused: dict[tuple[str, bytes], Rejection]


_NOTHING = _Keys(set(), {})


def _rejection(
    delivery: Delivery, message_id: bytes, first: bytes, reason: Reason, key: bytes = b""
) -> tuple[Delivery, bytes, bytes, Reason]:
    """Return the row of a dead letter. Nothing replaces it. It is found by its id, and by ``key``. Its tries are the
    failures of its consumers."""
    arrived_ms, tries = delivery.arrived_ms, delivery.failure.attempt if delivery.failure else 0
    envelope = seal(arrived_ms, arrived_ms, delivery.route.encode(), key, first, delivery.payload, tries)
    return delivery, message_id, envelope, reason


class Round:
    """The calls of one round. Repeat ``attempt`` until it succeeds, or as long as ``pending`` has living deliveries."""

    def __init__(self, runs: Sequence[Run], parts: RoundParts) -> None:
        self._parts = parts
        self._source, self._store = parts.source, parts.store
        self._steps = [step for run in runs for step in run.steps]
        self._superseded: dict[int, list[Delivery]] = {}
        for run in runs:
            for delivery, shard in run.superseded:
                self._superseded.setdefault(shard, []).append(delivery)
        self._heavy = any(run.heavy for run in runs)
        self._lines = any(_holds(parts.routes[run.steps[0].delivery.route]) for run in runs if run.steps)
        #: By shard; None until the steps are sorted.
        self._loads: dict[int, _Load] | None = None

    def pending(self) -> Iterator[Delivery]:
        """Iterate over the deliveries that are neither accepted nor dropped, each once."""
        if self._loads is not None:
            return chain.from_iterable(load.pending() for load in self._loads.values())
        return chain((step.delivery for step in self._steps), chain.from_iterable(self._superseded.values()))

    async def attempt(self) -> None:
        """Continue to the end. Raises ``StoreUnavailable``; the next attempt does not repeat what succeeded."""
        if self._loads is None:
            self._leave_dead()
            if self._lines:
                await self._line_up()
                self._lines = False  # a second look would let the first record of a key wait for the second
            firsts = await self._first_copies()
            self._loads = self._sorted(firsts, await self._free_keys() if self._heavy else _NOTHING)
        failed = await self._park(self._loads)
        for shard, load in self._loads.items():
            if load.stage is _Stage.REJECT:
                await self._reject(shard, load)
        if failed is not None:
            raise failed
        for shard, load in self._loads.items():
            if load.stage is _Stage.MARK:
                await self._mark(shard, load)

    def _leave_dead(self) -> None:
        """Drop deliveries of lost connections.

        They are delivered again, perhaps to another instance, which may have gone on from there. To carry them out
        here as well could undo what came after them.
        """
        alive = self._source.alive
        dead = [step.delivery for step in self._steps if not alive(step.delivery)]
        for shard, older in tuple(self._superseded.items()):
            dead += (delivery for delivery in older if not alive(delivery))
            self._superseded[shard] = [delivery for delivery in older if alive(delivery)]
        if dead:
            self._steps = [step for step in self._steps if alive(step.delivery)]
            self._source.drop(dead)

    async def _line_up(self) -> None:
        """Postpone messages behind earlier ones with the same key, on routes that want it."""
        by_shard: dict[int, list[int]] = {}
        for number, step in enumerate(self._steps):
            rules = self._parts.routes[step.delivery.route]
            if _holds(rules) and step.delivery.message_id is not None and isinstance(step.decision, Parking):
                by_shard.setdefault(step.shard, []).append(number)
        for shard, numbers in by_shard.items():
            named = [_named(self._steps[number]) for number in numbers]
            for number, due_ms in zip(numbers, await self._store.line_up(shard, named), strict=True):
                step = self._steps[number]
                assert isinstance(step.decision, Parking)
                self._steps[number] = step._replace(decision=step.decision._replace(due_ms=due_ms))

    # -- what the store has -----------------------------------------------------------------------------------------

    async def _first_copies(self) -> FirstCopies:
        """Ask the store for recently parked messages, if the round has redelivered ones."""
        firsts = FirstCopies(self._parts.given.is_held)
        shards: set[int] = set()
        for step in self._steps:
            if step.delivery.redelivered:
                spread = self._parts.routes[step.delivery.route].order == "none"
                shards.update(range(self._store.shards) if spread else (step.shard,))
        for shard in sorted(shards):
            firsts.learn(await self._store.recent(shard))
        return firsts

    async def _free_keys(self) -> _Keys:
        """Look up all keys of the round, and cancel what its cancellations and its new keys replace.

        What a new key replaces in another shard is cancelled before the new one is parked. After a crash in between,
        the source delivers the new one again. Steps already handled cancel nothing. The store names them only
        after the lookup, so what the lookup found is older than every new step.
        """
        fields = {n: _fields(step) for n, step in enumerate(self._steps)}
        fields = {n: found for n, found in fields.items() if found}
        if not fields:
            return _NOTHING
        found = await self._store.find(list(dict.fromkeys(field for some in fields.values() for field in some)))
        done = await self._done([self._steps[n] for n in fields])
        keys, asked = _Keys(set(), {}), dict[bytes, tuple[str, bytes]]()
        gone, replaced = dict[bytes, str](), dict[bytes, None]()
        for n, some in fields.items():
            step = self._steps[n]
            if step.delivery.origin in done or not self._source.alive(step.delivery):
                continue
            if isinstance(step.decision, Cancellation):
                route = step.delivery.route
                gone.update(dict.fromkeys(self._to_cancel(route, step.decision.key, some, found, keys), route))
                continue
            elsewhere = [message_id for message_id in found[some[0]].ids if shard_of(message_id) != step.shard]
            if self._parts.routes[step.delivery.route].on_same_key == "replace":
                replaced.update(dict.fromkeys(elsewhere))
            else:
                assert isinstance(step.decision, Parking)
                asked.update(dict.fromkeys(elsewhere, (step.delivery.route, step.decision.key)))
        if gone:
            for message_id, was in (await self._store.cancel(list(gone), False, reason="by its producer")).items():
                self._parts.metrics.routes[gone[message_id]].cancelled += was == "parked"
        if replaced:
            await self._store.cancel(list(replaced), False, replaced=True)
        if asked:
            keys.taken.update(asked[message_id] for message_id in await self._store.parked(list(asked)))
        return keys

    def _to_cancel(
        self, route: str, key: bytes, fields: Sequence[bytes], found: Mapping[bytes, Found], keys: _Keys
    ) -> list[bytes]:
        """Return everything parked under the key, in all shards; nothing where the key is no identity."""
        ids = [message_id for field in fields for message_id in found[field].ids]
        unlisted = sum(found[field].unlisted for field in fields)
        if unlisted and not ids:
            keys.refused[route, key] = not_unique(key, unlisted)
        return ids

    async def _done(self, steps: Sequence[Step]) -> set[Origin]:
        """Return the origins of those steps that were handled before."""
        by_shard: dict[int, list[Origin]] = {}
        for step in steps:
            if step.delivery.origin is not None:
                by_shard.setdefault(step.shard, []).append(step.delivery.origin)
        done: set[Origin] = set()
        for shard, origins in by_shard.items():
            done |= await self._store.done(shard, origins)
        return done

    # -- from steps to calls ----------------------------------------------------------------------------------------

    def _sorted(self, firsts: FirstCopies, keys: _Keys) -> dict[int, _Load]:
        """Return the steps as calls. Accept at once what RabbitMQ delivered and needs no call.

        The acknowledgement of a cancellation must not come after that of a newer message. If it were lost, the
        redelivered cancellation would cancel the newer message.
        """
        self._leave_dead()
        loads = dict[int, _Load]()
        over: list[Delivery] = []
        for step in self._steps:
            load = loads.get(step.shard)
            if load is None:
                batch = Batch(self._store.new_token(), recent_max=self._parts.recent_max)
                older = self._superseded.get(step.shard, [])
                load = loads[step.shard] = _Load(batch, self._store.new_token(), older)
            if self._leaves_nothing(step, keys):
                (over if step.delivery.origin is None else load.quiet).append(step.delivery)
            else:
                self._add(load, step, firsts, keys)
        for load in loads.values():
            if not load.batch.messages:
                load.go_on()
        self._source.accept(over)
        return loads

    def _leaves_nothing(self, step: Step, keys: _Keys) -> bool:
        """Return whether a step is a finished cancellation, or an older message in another shard is kept."""
        delivery, decision = step.delivery, step.decision
        if isinstance(decision, Cancellation):
            return (delivery.route, decision.key) not in keys.refused
        keeps = self._parts.routes[delivery.route].on_same_key == "keep"
        return keeps and isinstance(decision, Parking) and _is_taken(delivery, decision, keys)

    def _add(self, load: _Load, step: Step, firsts: FirstCopies, keys: _Keys) -> None:
        delivery, decision, shard = step
        if isinstance(decision, Cancellation):
            decision = keys.refused[delivery.route, decision.key]
        message_id = self._parts.ids.next(delivery.arrived_ms, shard, rank_of(delivery.priority))
        first = firsts.take(delivery.digest) if delivery.redelivered else b""
        if first:
            self._parts.given.note(first, delivery)
        route = delivery.route.encode()
        arrived_ms = delivery.arrived_ms
        if isinstance(decision, Parking) and _is_taken(delivery, decision, keys):
            decision = Rejection(SAME_KEY)
        if isinstance(decision, Rejection):
            load.rejections.append(_rejection(delivery, message_id, first, decision.reason, decision.key))
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
            mode = self._parts.routes[delivery.route].on_same_key
            batch.keyed.append(Keyed(len(batch.messages), index_field(route, key), mode))
        elif key:
            field = index_field(route, key)
            batch.found[field] = batch.found.get(field, b"") + message_id

    # -- the calls --------------------------------------------------------------------------------------------------

    async def _park(self, loads: Mapping[int, _Load]) -> StoreUnavailable | None:
        """Park in all shards. Accept a shard's deliveries as soon as they are durable. Return the error of a shard."""
        batches = {shard: load.batch for shard, load in loads.items() if load.stage is _Stage.PARK}
        if not batches:
            return None
        failed: StoreUnavailable | None = None
        began_s = time.monotonic()
        replies = await self._store.park(batches)
        self._parts.metrics.store_s["park"].add(time.monotonic() - began_s)
        durable: list[Delivery] = []
        for shard, reply in replies.items():
            if isinstance(reply, StoreUnavailable):
                failed = reply
            else:
                durable += loads[shard].superseded  # first: redelivered, it would replace the newer one
                durable += self._note_parked(shard, loads[shard], reply)
        self._source.accept(durable)  # of all shards together, so that their tags make one run
        return failed

    async def _reject(self, shard: int, load: _Load) -> None:
        rejected = [delivery for delivery, *_ in load.rejections]
        origins = [delivery.origin for delivery in rejected if delivery.origin is not None]
        rows = [(message_id, envelope, str(reason)) for _, message_id, envelope, reason in load.rejections]
        before = await self._store.reject(shard, DeadBatch(load.rejections_token, rows, origins))
        self._source.accept(rejected)
        load.go_on()
        for n, (delivery, message_id, _, reason) in enumerate(load.rejections, 1):
            if n not in before:
                self._parts.dead.tell("dead letter", delivery.route, reason, id=message_id.decode())
                self._parts.metrics.routes[delivery.route].died(reason.kind, on_arrival=True)

    def _note_parked(self, shard: int, load: _Load, reply: Parked) -> list[Delivery]:
        """Count what is parked, and return what may be accepted now. Those whose key is taken are rejected first."""
        messages = load.batch.messages
        for position in reply.rejected:
            delivery, message_id = load.deliveries[position - 1], messages[position - 1][0]
            load.rejections.append(_rejection(delivery, message_id, b"", SAME_KEY))
        for position in reply.before:
            delivery = load.deliveries[position - 1]
            self._parts.skipped.tell("skipped", delivery.route, PARKED_BEFORE, **self._source.place(delivery))
            self._parts.metrics.routes[delivery.route].deduplicated += 1
        unparked = {*reply.kept, *reply.rejected, *reply.before}
        self._parts.metrics.parked(d.route for n, d in enumerate(load.deliveries, 1) if n not in unparked)
        away = set(reply.rejected)
        self._parts.parked(shard, min(due_ms for _, due_ms, _ in messages))
        load.go_on()
        return [d for n, d in enumerate(load.deliveries, 1) if n not in away] if away else load.deliveries

    async def _mark(self, shard: int, load: _Load) -> None:
        """Mark records of a log that leave nothing in the store, so that the mark is durable. Then accept them."""
        origins = [delivery.origin for delivery in load.quiet if delivery.origin is not None]
        await self._store.mark_done(shard, origins)
        self._source.accept(load.quiet)
        load.go_on()


def _holds(rules: RouteRules) -> bool:
    return rules.schedule is not None and rules.schedule.hold


def _named(step: Step) -> tuple[bytes, int]:
    """Return what ``ParkingStore.line_up`` needs of a step. A key may be large, so the name has a digest of it."""
    delivery, decision = step.delivery, step.decision
    assert isinstance(decision, Parking)
    digest = blake2b(delivery.message_id or b"", digest_size=12).digest()
    return delivery.route.encode() + b"\0" + digest, decision.due_ms


def _is_taken(delivery: Delivery, parking: Parking, keys: _Keys) -> bool:
    return parking.owned and (delivery.route, parking.key) in keys.taken


def _fields(step: Step) -> tuple[bytes, ...]:
    """Return the index fields to look up for a step."""
    decision, route = step.decision, step.delivery.route.encode()
    if isinstance(decision, Cancellation):
        return index_fields(route, decision.key)
    if isinstance(decision, Parking) and decision.owned:
        return (index_field(route, decision.key),)
    return ()
