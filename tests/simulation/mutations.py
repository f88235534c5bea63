"""Planted mistakes, each a patch of postdate's own objects. The simulation has to find every one.

``make simulate MUTATION=name`` searches from seed 1 on; ``MUTATION=all`` prints the table of ``README.md``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch
from zlib import crc32

from adapters.kafka.delivered import DeliveredKeys
from adapters.kafka.transactional import ShardQueue
from adapters.memory.indexes import Offsets
from adapters.memory.shard import Shard
from bridge.core.clock import StoreClock
from bridge.core.message import Claim
from bridge.core.orders import RouteState, routes_that
from bridge.parking.envelope import route_in
from bridge.parking.redelivery import FirstCopies
from bridge.pipeline import ordered
from bridge.pipeline import round as round_
from bridge.pipeline.full import IntakeGate
from bridge.pipeline.gate import RateGate
from bridge.pipeline.history import Historian
from bridge.pipeline.park import Parker
from bridge.pipeline.publish import Publisher
from bridge.pipeline.recover import Recovery
from bridge.pipeline.relay import Relay
from bridge.pipeline.round import Round
from bridge.pipeline.settle import Settler
from bridge.pipeline.wake import Wake
from tests.simulation import journal_mutations as of_journal
from tests.simulation.plan import Plan, draw
from tests.simulation.run import Outcome, run

SEEDS_MAX = 2000

_Patch = AbstractContextManager[Any]


@dataclass(frozen=True)
class Mutation:
    """A mistake: how to plant it, and the check that finds it.

    ``needs``: faults without which it does no harm, "transactional", "hold", "levels", "journal", "before", "behind" or
    "cold". Plans without them are passed over.
    """

    name: str
    plant: Callable[[], _Patch]
    check: str
    needs: tuple[str, ...] = ()


def _of(plan: Plan) -> set[str]:
    ways = {"transactional": plan.transactional, "levels": plan.levels, "journal": plan.journal, "hold": plan.hold}
    ways |= {plan.journal: plan.journal, "cold": plan.cold_after_ms}
    return {fault.kind for fault in plan.faults} | {way for way, chosen in ways.items() if chosen}


def search(mutation: Mutation, first: int = 1, seeds: int = SEEDS_MAX, without: Collection[str] = ()) -> Outcome | None:
    """Return the first run from ``first`` on that finds a mutation; None if no seed does."""
    journal = not {"journal", "before", "behind", "cold"}.isdisjoint(mutation.needs)
    with mutation.plant():
        for plan in (draw(seed, journal=journal) for seed in range(first, first + seeds)):
            if not _of(plan).issuperset(mutation.needs):
                continue
            outcome = run(plan, without)
            if outcome.broken:
                return outcome
    return None


# -- taking in --------------------------------------------------------------------------------------------------------


def _accepts_before_durable() -> _Patch:
    queue = Parker._queue

    def planted(self: Parker, deliveries: Iterable[Any]) -> Any:
        deliveries = list(deliveries)
        steps = queue(self, deliveries)
        self._source.accept(deliveries)
        return steps

    return patch.object(Parker, "_queue", planted)


def _accepts_before_a_level_has_it() -> _Patch:
    send = Relay._send

    async def planted(self: Relay, waiting: Any) -> None:
        self._source.accept([carried.delivery for carried in waiting])
        await send(self, waiting)

    return patch.object(Relay, "_send", planted)


def _forgets_origins() -> _Patch:
    return patch.object(Offsets, "new", lambda self, origins: [True for _ in origins])


def _forgets_first_ids() -> _Patch:
    return patch.object(FirstCopies, "take", lambda self, digest: b"")


def _forgets_tokens() -> _Patch:
    park = Shard.park

    def planted(self: Shard, instance: str, batch: Any) -> Any:
        self._seen.pop(("park", instance), None)
        return park(self, instance, batch)

    return patch.object(Shard, "park", planted)


def _takes_in_while_draining() -> _Patch:
    return patch.object(IntakeGate, "close", lambda self, *_: None)


def _ignores_cancellations() -> _Patch:
    return patch.object(Round, "_to_cancel", lambda self, *_: [])


def _keeps_what_is_replaced() -> _Patch:
    return patch.object(Shard, "_older_stays", lambda self, *_: False)


def _ignores_priorities() -> _Patch:
    return patch.object(round_, "rank_of", lambda priority: 0)


# -- delivering -------------------------------------------------------------------------------------------------------


def _publishes_ahead() -> _Patch:
    return patch.object(StoreClock, "surely_us", lambda self: self.now_us() + 5_000)


def _wakes_for_no_hint() -> _Patch:
    return patch.object(Wake, "heard", lambda self, shard, due_ms: None)


def _lets_the_later_overtake() -> _Patch:
    add = Publisher.add

    def planted(self: Publisher, claims: Iterable[Any]) -> None:
        add(self, reversed(list(claims)))

    return patch.object(Publisher, "add", planted)


def _drains_for_two() -> _Patch:
    return patch.object(Shard, "owner", lambda self, instance, drain_ms: None)


def _never_recovers() -> _Patch:
    async def planted(self: Recovery) -> None:
        pass

    return patch.object(Recovery, "recover", planted)


def _never_renews() -> _Patch:
    async def planted(self: Recovery) -> None:
        pass

    return patch.object(Recovery, "renew", planted)


def _takes_every_token() -> _Patch:
    async def planted(self: RateGate, route: str, wanted: int) -> int:
        return wanted

    return patch.object(RateGate, "_take", planted)


def _sends_what_is_paused() -> _Patch:
    def planted(orders: Any, state: RouteState) -> frozenset[str]:
        return frozenset() if state is RouteState.PAUSED else routes_that(orders, state)

    return patch.object(ordered, "routes_that", planted)


def _marks_after_the_commit() -> _Patch:
    commit = ShardQueue._commit

    async def planted(self: ShardQueue, session: Any) -> None:
        at_once = session.commit

        async def in_two(flights: Any, keys: Any, codec: Any) -> None:
            await at_once(flights, [], codec)
            await at_once([], keys, codec)

        with patch.object(session, "commit", in_two):
            await commit(self, session)

    return patch.object(ShardQueue, "_commit", planted)


def _forgets_what_was_delivered() -> _Patch:
    return patch.object(DeliveredKeys, "__contains__", lambda self, key: False)


# -- settling ---------------------------------------------------------------------------------------------------------


def _settles_without_a_confirm() -> _Patch:
    def planted(self: Settler, result: Any) -> None:
        self._confirmed.append(result.letter)

    return patch.object(Settler, "_not_delivered", planted)


def _never_settles() -> _Patch:
    async def planted(self: Settler) -> None:
        self._confirmed.clear()

    return patch.object(Settler, "once", planted)


def _releases_what_was_confirmed() -> _Patch:
    settle = Shard.settle

    def planted(self: Shard, claim: Claim) -> bool:
        return settle(self, claim) if crc32(claim.id + claim.token) % 10 else self.release(claim, None, 0, "")

    return patch.object(Shard, "settle", planted)


def _counts_settled_twice() -> _Patch:
    settle = Shard.settle

    def planted(self: Shard, claim: Claim) -> bool:
        route = route_in(self.messages.get(claim.id, b""))
        settled = settle(self, claim)
        if claim.id not in self.messages:
            self._route_add("parked", route, -1)
        return settled

    return patch.object(Shard, "settle", planted)


def _drops_what_is_buried() -> _Patch:
    def planted(self: Shard, claim: Claim, reason: str) -> bool:
        return self.settle(replace(claim, key=b"", route=""))

    return patch.object(Shard, "bury", planted)


def _counts_no_hold() -> _Patch:
    add = Shard._route_add

    def planted(self: Shard, state: str, route: bytes, number: int) -> None:
        if state != "held" or number < 0:
            add(self, state, route, number)

    return patch.object(Shard, "_route_add", planted)


def _writes_no_history() -> _Patch:
    return patch.object(Historian, "confirmed", lambda self, now_ms, claims: None)


# -- operators --------------------------------------------------------------------------------------------------------


def _cancels_what_is_claimed() -> _Patch:
    cancel = Shard.cancel

    def planted(self: Shard, message_id: bytes, *rest: Any) -> str:
        word = cancel(self, message_id, *rest)
        return "parked" if word == "claimed" else word

    return patch.object(Shard, "cancel", planted)


def _never_moves() -> _Patch:
    return patch.object(Shard, "reschedule", lambda self, message_id, due_ms: self.word(message_id))


def _ends_a_line_at_its_moment() -> _Patch:
    line_up = Shard.line_up

    def planted(self: Shard, named: Sequence[tuple[bytes, int]]) -> list[int]:
        now_ms = self.now_ms()
        self.lines = {name: due_ms for name, due_ms in self.lines.items() if due_ms > now_ms}
        return line_up(self, named)

    return patch.object(Shard, "line_up", planted)


def _lines_nothing_up() -> _Patch:
    return patch.object(Shard, "line_up", lambda self, named: [due_ms for _, due_ms in named])


def _retries_twice() -> _Patch:
    retry = Shard.retry

    def planted(self: Shard, message_id: bytes) -> bool:
        moment_ms = self.dead.get(message_id, 0)
        done = retry(self, message_id)
        if done:
            self.dead[message_id] = moment_ms
        return done

    return patch.object(Shard, "retry", planted)


MUTATIONS = {
    mutation.name: mutation
    for mutation in (
        Mutation("accepts before durable", _accepts_before_durable, "lost"),
        Mutation("accepts before a level has it", _accepts_before_a_level_has_it, "lost", ("levels",)),
        Mutation("forgets origins", _forgets_origins, "copies"),
        Mutation("forgets first ids", _forgets_first_ids, "copies", ("acknowledgements lost",)),
        Mutation("forgets tokens", _forgets_tokens, "error"),
        Mutation("takes in while draining", _takes_in_while_draining, "orders", ("drain",)),
        Mutation("ignores cancellations", _ignores_cancellations, "replaced"),
        Mutation("keeps what is replaced", _keeps_what_is_replaced, "replaced"),
        Mutation("ignores priorities", _ignores_priorities, "priorities"),
        Mutation("publishes ahead", _publishes_ahead, "early"),
        Mutation("wakes for no hint", _wakes_for_no_hint, "late"),
        Mutation("lets the later overtake", _lets_the_later_overtake, "order"),
        Mutation("drains for two", _drains_for_two, "drains"),
        Mutation("takes every token", _takes_every_token, "rate"),
        Mutation("sends what is paused", _sends_what_is_paused, "orders", ("pause",)),
        Mutation("marks after the commit", _marks_after_the_commit, "copies", ("transactional", "kill")),
        Mutation("forgets what was delivered", _forgets_what_was_delivered, "copies", ("transactional",)),
        Mutation("never recovers", _never_recovers, "stuck", ("kill",)),
        Mutation("never renews", _never_renews, "copies", ("broker frozen",)),
        Mutation("settles without a confirm", _settles_without_a_confirm, "lost", ("sink disconnected",)),
        Mutation("never settles", _never_settles, "stuck"),
        Mutation("releases what was confirmed", _releases_what_was_confirmed, "copies"),
        Mutation("counts settled twice", _counts_settled_twice, "truth"),
        Mutation("drops what is buried", _drops_what_is_buried, "lost", ("broker refuses for good",)),
        Mutation("counts no hold", _counts_no_hold, "truth", ("pause",)),
        Mutation("writes no history", _writes_no_history, "history"),
        Mutation("cancels what is claimed", _cancels_what_is_claimed, "cancelled", ("cancel",)),
        Mutation("never moves", _never_moves, "early", ("reschedule",)),
        Mutation("retries twice", _retries_twice, "truth", ("broker refuses for good",)),
        Mutation("ends a line at its moment", _ends_a_line_at_its_moment, "order", ("hold",)),
        Mutation("lines nothing up", _lines_nothing_up, "order", ("hold",)),
        Mutation("writes behind, not before", of_journal.writes_behind_what_is_promised_before, "lost", ("before",)),
        Mutation("drops failed rows", of_journal.drops_rows_of_a_failed_write, "lost", ("behind", "journal breaks")),
        Mutation("flushes twice at once", of_journal.flushes_twice_at_once, "error", ("behind", "stop")),
        Mutation("replaces another's row", of_journal.replaces_the_row_of_another_instance, "lost", ("before",)),
        Mutation("begins no log", of_journal.begins_no_log, "truth", ("journal", "store emptied")),
        Mutation("forgets moves", of_journal.forgets_moves_before_they_are_written, "truth", ("journal",)),
        Mutation("never adopts", of_journal.never_adopts, "truth", ("behind", "kill")),
        Mutation("unloads what has no row", of_journal.unloads_what_has_no_row, "truth", ("cold", "behind")),
        Mutation("loads from now on", of_journal.loads_what_is_due_from_now_on, "stuck", ("cold",)),
        Mutation("loads without a fence", of_journal.loads_without_a_fence, "truth", ("cold",)),
        Mutation("loads what has left", of_journal.loads_before_the_log_is_carried, "truth", ("cold",)),
        Mutation("never counts again", of_journal.never_counts_again, "truth", ("cold", "store restored")),
        Mutation("counts what is in both", of_journal.counts_what_is_in_both_tiers, "truth", ("cold",)),
        Mutation("finds keys in one tier", of_journal.finds_keys_in_one_tier, "replaced", ("cold",)),
        Mutation("restores what has left", of_journal.restores_what_has_left, "copies", ("journal",)),
        Mutation("restores at once", of_journal.restores_at_once, "early", ("journal",)),
        Mutation("leaves out a row", of_journal.leaves_out_the_last_row_of_a_page, "stuck", ("journal",)),
        Mutation("takes no turns", of_journal.takes_no_turns, "copies", ("journal",)),
    )
}


#: Mistakes that one check alone finds: without it they survive.
SURVIVES_WITHOUT = (
    "ignores priorities",
    "takes in while draining",
    "writes no history",
    "cancels what is claimed",
    "never moves",
    "lets the later overtake",
)


def survives(mutation: Mutation, first: int) -> bool:
    """Return whether a mutation is not found from a seed on, on which it is, where its check is left out."""
    return search(mutation, first, 20, without=(mutation.check,)) is None


def table(names: Iterable[str]) -> bool:
    """Search for mutations from seed 1 on, and print a row for each. Return whether all were found."""
    found_all = True
    for name in names:
        mutation, began_s = MUTATIONS[name], time.process_time()
        outcome = search(mutation)
        took_s = time.process_time() - began_s
        if outcome is None:
            found_all = False
            print(f"{name} was not found in {SEEDS_MAX} seeds", file=sys.stderr)
            continue
        seed, check = outcome.plan.seed, outcome.broken[0].partition(":")[0]
        alone = ("yes" if survives(mutation, seed) else "no") if name in SURVIVES_WITHOUT else ""
        print(f"| {name} | {seed} | {took_s:.1f} | {check} | {alone} |", flush=True)
    return found_all
