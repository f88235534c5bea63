"""What producers published and operators asked, against what consumers received. It knows nothing of postdate's code.

``judge`` returns a sentence for each promise that was broken. ``CHECKS`` has the promises by name. What the promises
exclude (``deploy/promises.md``, ``deploy/high-availability.md``) is excluded here, and nothing else.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import inf

from bridge.core.journal import Written
from bridge.core.orders import RouteState
from bridge.parking.history import PastState
from tests.simulation.broker import Arrived, Published
from tests.simulation.plan import MEANS, UNDOING
from tests.simulation.servers import Network
from tests.simulation.store import START_S
from tests.simulation.world import ADOPTED_S, RATED_ROUTE, Deed, World

_UNDONE = {*UNDOING, "store and process die"}
#: Faults that keep rows from being written, and cold messages from coming back in time.
JOURNAL_HOLDS_UP = {"journal away", "journal slow", "journal frozen", "journal breaks"}
#: Faults after which a copy may come: the named windows of the README.
COPIES_AFTER = _UNDONE | {
    "kill",
    "stop",
    "freeze",
    "store frozen",
    "store slow",
    "store loses replies",
    "sink disconnected",
    "confirms lost",
    "channel closed",
}
#: On a queue, what was not acknowledged comes again.
COPIES_OF_A_QUEUE = {"source disconnected", "acknowledgements lost"}
#: Faults after which a few messages may lose their place: a takeover, a redelivery, an older state.
REORDERS = _UNDONE | {"kill", "stop", "freeze", "sink disconnected", "broker frozen", "store clock"}
REORDERS |= {"confirms lost", "channel closed", "rebalance"}
REORDERS_A_QUEUE = {"source disconnected", "acknowledgements lost", "store away", "store slow", "store loses replies"}
#: Faults that delay what was sent, or let several instances count with different moments.
_LATE = REORDERS | REORDERS_A_QUEUE | {"broker blocked", "store frozen", "store clock"}
#: Faults during which an instance does not hear of an order, or the broker not of what was done before it.
_DEAF = _UNDONE | {"freeze", "store frozen", "store away", "store slow", "store loses replies", "acknowledgements lost"}
_DEAF |= {"broker frozen", "broker blocked", "loader killed", "cold tier off", *JOURNAL_HOLDS_UP}
#: How late (ms) a message may be where nothing fails; with a cold tier, in which each batch with keys is looked up.
_LATE_MS, _LATE_COLD_MS, _DRIFT_MS = 150, 1000, 10
#: Messages are claimed this long (ms) before their moment, and sent by the clock of the claim.
_CLAIMED_AHEAD_MS = 8
#: How long a claim and its reply take together, where some are slow.
_SLOW_CLAIM_S = 2 * Network.slow_s
#: A process notices a step of the store's clock within about a second.
_NOTICED_S = 3.0
#: How long a lease lasts, how long a pass over the leases may take, and how long a shard that moves waits for confirms.
_LEASE_MS, _LOOK_S, _ANSWERED_S = 15_000, 0.1, 30.0
#: A row is written behind within this time.
_WRITTEN_S = 1.5
#: An instance follows an order within about a second.
_FOLLOWED_S = 3.0
#: The most that leaves at once of a route with a rate, in seconds of it; and what is on its way.
_BUCKET_S, _ON_THE_WAY = 0.1, 5


class Ledger:
    """What is known of a run, by number and by id."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        kinds = {fault.kind for fault in world.plan.faults}
        self.kinds = kinds | {MEANS[kind] for kind in kinds & MEANS.keys()}
        self.published = world.published
        self.accepted = world.broker.accepted
        self.arrived: dict[int, list[Arrived]] = {}
        for arrival in world.broker.arrived:
            self.arrived.setdefault(arrival.number, []).append(arrival)
        self.deeds: dict[int, list[Deed]] = {}
        for deed in world.deeds:
            self.deeds.setdefault(deed.number, []).append(deed)

    def shaky(self) -> bool:
        """Return whether any answer may be late or lost at any time."""
        return bool(self.plan.lost or self.plan.slow)

    def undone_after(self, at_s: float) -> bool:
        """Return whether the store may have lost what happened at this moment, or a claim just before it: its instance
        still has the message, and sends it whatever was ordered since, once the broker takes it."""
        after_s = _NOTICED_S + self.lasts_s("broker")
        return any(lost.from_s - _NOTICED_S <= at_s <= lost.until_s + after_s for lost in self.world.undone)

    def lasts_s(self, *kinds: str) -> float:
        """Return for how long faults of these kinds may hold up what is under way."""
        return sum(fault.for_s for fault in self.plan.faults if fault.kind.startswith(kinds))

    def died_together(self, number: int) -> bool:
        """Return whether the store lost a message while its row died with the process that parked it: it was written
        behind, and parked within the last second before the process stood still. Another process may have accepted it,
        which got it from the broker again."""
        accepted = self.accepted.get(number)
        if self.plan.journal != "behind" or accepted is None:
            return False
        held_up_s = sum(fault.for_s + _NOTICED_S for fault in self.plan.faults if fault.kind in JOURNAL_HOLDS_UP)
        adopted_s = ADOPTED_S + sum(fault.for_s for fault in self.plan.faults)
        return any(
            process.killed
            and accepted.at_s > process.still_s - _WRITTEN_S - held_up_s
            and any(at_s < process.still_s + adopted_s for at_s in self.world.lost_s.get(number, ()))
            for process in (instance.process for instance in self.world.instances)
        )

    @cached_property
    def named(self) -> dict[tuple[str, bytes], list[Published]]:
        """What cancels or replaces others, by route and key, in the order of publishing."""
        found: dict[tuple[str, bytes], list[Published]] = {}
        for message in self.published:
            if message.name or message.cancels:
                found.setdefault((message.route, message.name or message.cancels), []).append(message)
        return found

    def enders(self, message: Published) -> list[Published]:
        """Return what may have cancelled or replaced a message: later ones; in another partition, any."""
        if not message.name:
            return []
        return [
            other
            for other in self.named[message.route, message.name]
            if other.number > message.number or (self.plan.kafka and other.key != message.key)
        ]

    def replaced_by_older(self, message: Published) -> bool:
        """Return whether an older message may have replaced a message: a queue delivered it again, an instance that
        stopped carried it out after its successor had accepted the newer one, or a restore took it for the younger."""
        named = self.named[message.route, message.name] if message.name else ()
        older = [other.number for other in named if other.number < message.number]
        again = self.world.broker.again
        return any(
            number in again or self._carried_out_late(number, message) or self._looks_younger(number, message)
            for number in older
        )

    def _looks_younger(self, number: int, message: Published) -> bool:
        """By the moments in their ids: after a step back, an instance goes on from the latest moment that it saw."""
        before, after = self.accepted.get(message.number), self.accepted.get(number)
        if before is None or after is None or not (self.plan.auto or self.world.restores):
            return False
        shown_ms = self.world.store.clock.highest_ms(0.0, after.at_s)
        return after.at_s < before.at_s and shown_ms > before.at_ms

    def _carried_out_late(self, number: int, message: Published) -> bool:
        before, after = self.accepted.get(message.number), self.accepted.get(number)
        hands_over = "stop" in self.kinds and not self.plan.kafka
        acks_s = Network.slow_s if self.plan.slow else Network.most_s  # they may overtake each other
        return hands_over and before is not None and after is not None and after.at_s > before.at_s - acks_s

    def loads_late(self) -> bool:
        """Return whether cold messages may come back after their moment, because store or journal were away."""
        away = JOURNAL_HOLDS_UP | {"store away", "store slow", "store frozen", "store loses replies"}
        return bool(self.plan.cold_after_ms) and not away.isdisjoint(self.kinds)

    def parked_twice(self) -> bool:
        """Return whether a message may be parked after the broker delivered it again: it then gets two ids."""
        if self.plan.kafka:
            return not _UNDONE.isdisjoint(self.kinds)
        slow = bool(self.plan.slow) or self.plan.journal == "before"  # the transaction comes before the call
        slow = slow or not self.kinds.isdisjoint({"store slow", "store frozen"})
        again = not self.kinds.isdisjoint({"kill", "stop", "source disconnected", "acknowledgements lost"})
        return "freeze" in self.kinds or (slow and again) or not _UNDONE.isdisjoint(self.kinds)


def judge(world: World, without: Collection[str] = ()) -> list[str]:
    """Return what is broken. The checks ``without`` are left out."""
    ledger = Ledger(world)
    return [f"{name}: {text}" for name, check in CHECKS.items() if name not in without for text in check(ledger)]


def _first(found: Sequence[object]) -> str:
    return f"{len(found)}, first {list(found[:5])}"


def _lost(ledger: Ledger) -> Iterator[str]:
    """Everything arrives, unless someone cancelled or replaced it, or the store itself lost it."""
    lost = [
        message.number
        for message in ledger.published
        if message.number not in ledger.arrived
        and not message.cancels
        and message.number not in ledger.world.gone
        and not ledger.died_together(message.number)
        and not (message.number in ledger.world.broker.dead and "broker refuses" in ledger.kinds)
        and not ledger.enders(message)
        and not ledger.replaced_by_older(message)
        and not any(
            _cancelled(deed) and deed.asked_s >= ledger.world.brought_back_s.get(message.number, 0.0)
            for deed in ledger.deeds.get(message.number, ())
        )
    ]
    if lost:
        yield f"{_first(lost)} of {len(ledger.published)}"


def _cancelled(deed: Deed) -> bool:
    """Return whether a deed may have cancelled its message."""
    return deed.verb == "cancel" and (deed.answered_s is None or deed.word in ("parked", "dead"))


def _early(ledger: Ledger) -> Iterator[str]:
    """Nothing leaves before the store's clock has shown its moment."""
    early = []
    for rows in ledger.arrived.values():
        message = ledger.published[rows[0].number]
        for row in rows:
            due_ms = _due_ms(ledger, message, row)
            shown_ms = ledger.world.store.clock.highest_ms(message.at_s, row.at_s)
            if shown_ms < due_ms - 0.5 - _ahead_ms(ledger, row):
                early.append((row.number, round(due_ms - shown_ms, 1)))
    if early:
        yield f"{_first(early)} (number, ms)"


def _ahead_ms(ledger: Ledger, row: Arrived) -> float:
    """Return by how much a message may be ahead that was claimed a moment before the store's clock stepped back."""
    steps, slow = ledger.world.store.clock.steps, bool(ledger.plan.slow) or "store slow" in ledger.kinds
    from_s = row.sent_s - (_SLOW_CLAIM_S if slow else 0.01)
    return _CLAIMED_AHEAD_MS * any(ms < 0 and from_s <= at_s <= row.at_s for at_s, ms in steps)


def _due_ms(ledger: Ledger, message: Published, row: Arrived) -> float:
    """Return the least moment of an arrival: its own, or the one that an operator gave this id."""
    due_ms = message.due_ms
    if message.relative and (not ledger.plan.kafka or message.attempt):
        # A delay counts from when its message came.
        until_s = ledger.accepted[message.number].at_s if message.number in ledger.accepted else inf
        due_ms -= _unnoticed_ms(ledger, message) + _stepped_back_ms(ledger, message.at_s, until_s)
    for deed in ledger.deeds.get(message.number, ()):
        if deed.id != row.id or deed.verb == "cancel" or deed.asked_s > row.at_s:
            continue
        moment_ms = 0.0 if deed.verb == "retry" else deed.moment_ms
        answered = deed.answered_s is not None and deed.answered_s < row.sent_s
        changed = answered and deed.word == "parked" and not ledger.undone_after(deed.asked_s)
        if changed and not _overlap(deed, ledger.deeds[message.number]):
            due_ms = moment_ms
        elif deed.word in ("parked", ""):
            due_ms = min(due_ms, moment_ms)
    return due_ms


def _overlap(deed: Deed, deeds: Sequence[Deed]) -> bool:
    """Return whether another deed was asked before and answered later: then either may have been the last."""
    return any(
        other.id == deed.id and other.asked_s < deed.asked_s and (other.answered_s or inf) > deed.asked_s
        for other in deeds
    )


def _unnoticed_ms(ledger: Ledger, message: Published) -> float:
    """Return by how much the store's clock stepped forward before a message came, unnoticed by any process."""
    still_s = sum(fault.for_s for fault in ledger.plan.faults if MEANS.get(fault.kind, fault.kind) in _LATE)
    from_s = message.at_s - _NOTICED_S - still_s
    return sum(max(0.0, ms) for at_s, ms in ledger.world.store.clock.steps if from_s <= at_s <= message.at_s)


def _stepped_back_ms(ledger: Ledger, from_s: float, to_s: float) -> float:
    """Return by how much the store's clock stepped back between two moments."""
    return sum(max(0.0, -ms) for at_s, ms in ledger.world.store.clock.steps if from_s <= at_s <= to_s)


def _copies(ledger: Ledger) -> Iterator[str]:
    """A message arrives once, except in the named windows, and its copies have its id."""
    twice = {number: rows for number, rows in ledger.arrived.items() if len(rows) > 1 and not _moved_on(ledger, rows)}
    windows = COPIES_AFTER | (set() if ledger.plan.kafka else COPIES_OF_A_QUEUE)
    if ledger.plan.transactional:
        windows = _UNDONE
    if twice and windows.isdisjoint(ledger.kinds) and (ledger.plan.transactional or not ledger.shaky()):
        yield f"outside of every window: {_first(sorted(twice))}"
    if twice and ledger.plan.journal and (late := _outside_of_losses(ledger, twice)):
        yield f"outside of every loss: {_first(late)}"
    strange = [number for number, rows in twice.items() if len({row.public_id for row in rows}) > 1]
    if strange and not ledger.parked_twice():
        yield f"with another id: {_first(strange)}"
    most = max(map(len, ledger.arrived.values()), default=0)
    hops = 2 if ledger.plan.levels else 1  # what went to a level twice comes back twice, and each may leave twice
    if most > hops * (2 + len(ledger.plan.faults)):
        yield f"more than faults: {most}"


def _moved_on(ledger: Ledger, rows: Sequence[Arrived]) -> bool:
    """Return whether each copy left in a window of its own kind: the shard of a message moved to another instance after
    30 s without a confirm, or the clock stepped forward by a lease within the look for expired ones."""
    if ledger.plan.transactional:
        return False
    leaps = [at_s for at_s, ms in ledger.world.store.clock.steps if ms >= _LEASE_MS]
    return all(
        (
            row.instance != before.instance
            and row.sent_s - before.sent_s >= _ANSWERED_S
            and "broker frozen" in ledger.kinds
        )
        or any(before.sent_s <= at_s <= row.sent_s <= at_s + _LOOK_S for at_s in leaps)
        for before, row in pairwise(sorted(rows, key=lambda row: row.sent_s))
    )


def _outside_of_losses(ledger: Ledger, twice: Mapping[int, list[Arrived]]) -> list[int]:
    """Return what came again under its id, although it left well before a loss or after it: the journal knew that,
    unless the store was away. Only where nothing else makes copies. A loss during a restore takes its turn, and another
    restore may do the same."""
    windows = (COPIES_AFTER | COPIES_OF_A_QUEUE) - set(UNDOING)
    if ledger.shaky() or not windows.isdisjoint(ledger.kinds):
        return []
    before_s = _NOTICED_S + ledger.lasts_s("store away", "store frozen", "store slow")
    spans = [(lost.from_s - before_s, lost.at_s + _NOTICED_S) for lost in ledger.world.undone]
    for at_s, process in ledger.world.turns_lost if len(ledger.world.restores) > 1 else ():
        end_s = ledger.world.restored_s.get(process.name, process.still_s if process.killed else inf)
        spans.append((at_s, end_s + _NOTICED_S))
    return [
        number
        for number, rows in sorted(twice.items())
        if any(row.public_id == rows[0].public_id for row in rows[1:])
        and not ledger.world.behind_its_row(number)
        and not any(from_s <= rows[0].at_s and rows[0].sent_s <= to_s for from_s, to_s in spans)
    ]


def _order(ledger: Ledger) -> Iterator[str]:
    """Messages of one key, moment and priority leave in the order in which they were published; with ``hold``, those
    of a key that failed, in the order in which they did."""
    reorders = REORDERS | (set() if ledger.plan.kafka else REORDERS_A_QUEUE)
    if ledger.shaky() or ledger.loads_late() or not reorders.isdisjoint(ledger.kinds):
        return
    lines: dict[tuple[str, bytes, float, int | None], list[Published]] = defaultdict(list)
    for message in _in_line(ledger):
        failed = bool(message.attempt)
        lines[message.route, message.key, 0.0 if failed else message.due_ms, message.priority].append(message)
    broken = []
    for line in lines.values():
        latest = -1
        for message in line:
            place = ledger.arrived[message.number][0].place
            if place < latest:
                broken.append(message.number)
            latest = max(latest, place)
    if broken:
        yield f"left after a later one of their key: {_first(broken)}"


def _in_line(ledger: Ledger) -> Iterator[Published]:
    """Yield the messages that have a place: with a moment of their own, or held, never refused, and left alone."""
    for message in ledger.published:
        if (
            ("x-deliver-at" in message.headers or (ledger.plan.hold and message.attempt))
            and message.number in ledger.arrived
            and message.number not in ledger.world.broker.refused
            and message.number not in ledger.deeds
            and not _came_late_to_a_rate(ledger, message)
        ):
            yield message


def _came_late_to_a_rate(ledger: Ledger, message: Published) -> bool:
    """Return whether a message of a route with a rate was parked after its moment: it may pass those let go."""
    accepted = ledger.accepted.get(message.number)
    limited = ledger.plan.rate and message.route == RATED_ROUTE
    return bool(limited) and accepted is not None and accepted.at_ms > message.due_ms


def _priorities(ledger: Ledger) -> Iterator[str]:
    """Of one key and one moment, and parked well before it, the higher priority leaves first."""
    if ledger.shaky() or ledger.loads_late() or not _LATE.isdisjoint(ledger.kinds):
        return
    lines: dict[tuple[str, bytes, float], list[Published]] = defaultdict(list)
    for message in _in_line(ledger):
        accepted = ledger.accepted.get(message.number)
        if message.priority is not None and accepted is not None and accepted.at_ms < message.due_ms - 50:
            lines[message.route, message.key, message.due_ms].append(message)
    broken = []
    for line in lines.values():
        line.sort(key=lambda message: ledger.arrived[message.number][0].place)
        ranks = [message.priority or 0 for message in line]
        if ranks != sorted(ranks, reverse=True):
            broken.append([message.number for message in line])
    if broken:
        yield f"a lower one left first: {_first(broken)}"


def _cancellations(ledger: Ledger) -> Iterator[str]:
    """What an operator cancelled is not sent after the answer."""
    broken = [
        deed.number
        for deed in ledger.world.deeds
        if deed.answered_s is not None
        and _cancelled(deed)
        and deed.number not in ledger.world.maybe_back
        and not ledger.undone_after(deed.asked_s)
        and any(row.id == deed.id and row.sent_s > deed.answered_s for row in ledger.arrived.get(deed.number, ()))
    ]
    if broken:
        yield f"cancelled, and sent afterwards: {_first(broken)}"


def _replacements(ledger: Ledger) -> Iterator[str]:
    """What waits, and is cancelled or replaced by its producer well before its moment, does not arrive."""
    if ledger.parked_twice():
        return
    broken = []
    for message in ledger.published:
        if not message.name or message.number not in ledger.arrived or message.number in ledger.deeds:
            continue
        parked = ledger.accepted.get(message.number)
        for other in ledger.enders(message):
            ended = ledger.accepted.get(other.number)
            if parked is None or ended is None or ledger.undone_after(ended.at_s) or _stepped(ledger, message):
                continue
            sent = any(row.sent_s > ended.at_s for row in ledger.arrived[message.number])
            # What was claimed when the other came is not ended by it. A step back may release it afterwards.
            latest_ms = ended.at_ms + _stepped_back_ms(ledger, parked.at_s, ended.at_s)
            if sent and parked.at_s < other.at_s and latest_ms < message.due_ms - 100:
                broken.append((message.number, other.number))
    if broken:
        yield f"ended by its producer, and delivered: {_first(broken)} (number, by)"


def _stepped(ledger: Ledger, message: Published) -> bool:
    """Return whether the moment of a message is not certain, because the store's clock stepped."""
    return bool(ledger.world.store.clock.steps) and message.relative


def _rates(ledger: Ledger) -> Iterator[str]:
    """In no second more of a route is sent than its rate allows."""
    rate = ledger.plan.rate
    if not rate or ledger.shaky() or not (_LATE | {"store loses replies"}).isdisjoint(ledger.kinds):
        return
    sent_s = sorted(row.sent_s for row in ledger.world.broker.arrived if row.route == RATED_ROUTE)
    most = max((bisect_left(sent_s, at_s + 1.0) - place for place, at_s in enumerate(sent_s)), default=0)
    if most > rate * (1 + _BUCKET_S) + _ON_THE_WAY:
        yield f"{most} in a second, and {rate:g} are allowed"


def _pauses(ledger: Ledger) -> Iterator[str]:
    """A paused route sends nothing, and a draining one takes nothing in, a moment after the order."""
    if ledger.shaky() or not _DEAF.isdisjoint(ledger.kinds):
        return
    for route, state, from_s, to_s in ((o.route, o.state, o.from_s, o.to_s) for o in ledger.world.orders):
        from_s += _FOLLOWED_S
        if state is RouteState.PAUSED:
            sent = [
                row.number for row in ledger.world.broker.arrived if row.route == route and from_s < row.sent_s < to_s
            ]
            if sent:
                yield f"{route} was paused at {from_s:.1f} s, and sent {_first(sent)}"
        elif state is RouteState.DRAINING:
            accepted = ((number, row.at_s) for number, row in ledger.accepted.items())
            taken = [n for n, at_s in accepted if from_s < at_s < to_s and ledger.published[n].route == route]
            if taken:
                yield f"{route} drained at {from_s:.1f} s, and took in {_first(taken)}"


def _history(ledger: Ledger) -> Iterator[str]:
    """The history has what arrived, and nothing else."""
    if ledger.plan.levels:
        return
    rows = [row for shard in ledger.world.store.memory.shards for row in shard.history]
    sent = {row.id: row.number for row in ledger.world.broker.arrived}
    written = {row.id for row in rows if row.state is PastState.DELIVERED}
    if untrue := sorted(written - sent.keys()):
        yield f"delivered, and nothing arrived: {_first(untrue)}"
    ended = {row.id for row in rows if row.state in (PastState.CANCELLED, PastState.REPLACED)}
    # What is not confirmed for 30 s is parked again when its shard moves, and can be cancelled or replaced.
    ended -= {row.id for row in ledger.world.broker.arrived if row.at_s - row.sent_s >= _ANSWERED_S}
    if (
        ended & sent.keys()
        and "cancel undone" not in ledger.kinds
        and COPIES_AFTER.isdisjoint(ledger.kinds)
        and not ledger.shaky()
    ):
        yield f"ended, and arrived: {_first(sorted(sent[message_id] for message_id in ended & sent.keys()))}"
    missing = sorted(sent[message_id] for message_id in sent.keys() - written)
    if missing and COPIES_AFTER.isdisjoint(ledger.kinds) and not ledger.shaky():
        yield f"arrived, and not written: {_first(missing)}"


def _rows(ledger: Ledger) -> Iterator[str]:
    """Where no process died and nothing was lost, the journal has what arrived, and says so."""
    if ledger.world.journal is None or ledger.shaky() or not COPIES_AFTER.isdisjoint(ledger.kinds):
        return
    rows = ledger.world.journal.memory.rows
    found = {arrival.number: rows.get(arrival.id) for arrival in ledger.world.broker.arrived}
    lacking = sorted(
        number
        for number, row in found.items()
        if row is None or not row.message.envelope or row.message.state is not Written.DELIVERED
    )
    if lacking:
        yield f"arrived, and the journal does not say so: {_first(lacking)}"


def _late(ledger: Ledger) -> Iterator[str]:
    """Where nothing fails, what is not held leaves within moments."""
    if not ledger.plan.calm:
        return
    late = [
        (message.number, round(rows[0].at_ms - at_ms))
        for message in ledger.published
        if (rows := ledger.arrived.get(message.number)) and message.number not in ledger.deeds
        if not (ledger.plan.rate and message.route == RATED_ROUTE) and not (ledger.plan.hold and message.attempt)
        for at_ms in [max(message.due_ms, (START_S + message.at_s) * 1000 - _DRIFT_MS)]
        if rows[0].at_ms - at_ms > (_LATE_COLD_MS if ledger.plan.cold_after_ms else _LATE_MS)
    ]
    if late:
        yield f"{_first(late)} (number, ms)"


def _truth(ledger: Ledger) -> Iterator[str]:
    """Every message was in one state at any time, and the counts were equal to the truth."""
    yield from ledger.world.wrong[:2]


def _drains(ledger: Ledger) -> Iterator[str]:
    """One instance at a time claims from a shard."""
    yield from ledger.world.store.drained_twice[:2]


CHECKS: dict[str, Callable[[Ledger], Iterator[str]]] = {
    "lost": _lost,
    "early": _early,
    "copies": _copies,
    "order": _order,
    "priorities": _priorities,
    "cancelled": _cancellations,
    "replaced": _replacements,
    "rate": _rates,
    "orders": _pauses,
    "history": _history,
    "journal": _rows,
    "late": _late,
    "truth": _truth,
    "drains": _drains,
}
