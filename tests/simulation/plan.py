"""What happens in a run, drawn from its seed: load, faults and operators. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

#: Virtual seconds during which producers publish and faults happen.
LOAD_S = 30.0
#: Seeds with a journal, by their rest. Those that failed before there was a journal have other rests.
JOURNALED = (0, 3, 5)
#: Seeds whose retry route keeps the order of a key, by their rest.
HOLDING = 4
#: The cold tier of a run is six times as fast as the fastest of the settings (``cold_after = "1m"``).
COLD_AFTER_MS = 10_000


class Fault(NamedTuple):
    """Something that goes wrong, or that an operator orders, at a moment. ``for_s``: how long, where it ends."""

    at_s: float
    kind: str
    for_s: float
    which: int

    def __str__(self) -> str:
        return f"{self.at_s:7.3f} s  {self.kind} for {self.for_s:.3f} s (instance or route {self.which})"


@dataclass(frozen=True)
class Plan:
    """One run. ``kafka``: logs with one reader each, in place of a queue. ``transactional``: exactly once, on logs.

    ``levels``: without a store, on a queue. ``journal``: when rows are written, "" without one. ``cold_after_ms``:
    what is due later waits in the journal alone; 0: nothing does. ``auto``: instances restore, and no operator.
    ``hold``: the retry route, on logs, keeps the order in which the records of a key failed.
    """

    seed: int
    instances: int
    kafka: bool
    messages: int
    keys: int
    shards: int
    rate: float
    lost: float
    slow: float
    faults: tuple[Fault, ...]
    #: By which part the store's clock is too fast or too slow.
    drift: float = 0.0
    transactional: bool = False
    levels: bool = False
    journal: str = ""
    cold_after_ms: int = 0
    auto: bool = False
    hold: bool = False

    @property
    def calm(self) -> bool:
        """Return whether nothing fails."""
        return not (self.lost or self.slow) and {fault.kind for fault in self.faults} <= _HARMLESS

    def without(self, fault: Fault) -> Plan:
        """Return the same run with one fault less."""
        return replace(self, faults=tuple(other for other in self.faults if other is not fault))


#: The faults and what operators do, and how long each may take, in seconds.
KINDS: dict[str, tuple[float, float]] = {
    "kill": (0.0, 8.0),
    "stop": (0.0, 8.0),
    "join": (0.0, 0.0),
    "freeze": (0.1, 45.0),
    "machine clock": (0.0, 0.0),
    "store frozen": (0.1, 22.0),
    "store away": (0.1, 10.0),
    "store slow": (0.5, 5.0),
    "store loses replies": (0.2, 3.0),
    "store clock": (0.0, 0.0),
    "store emptied": (0.0, 0.0),
    "store fails over": (0.005, 0.5),
    "store restored": (0.5, 10.0),
    "broker frozen": (0.1, 45.0),
    "broker blocked": (0.1, 10.0),
    "sink disconnected": (0.1, 5.0),
    "source disconnected": (0.0, 0.0),
    "broker refuses": (0.2, 5.0),
    "broker refuses for good": (0.2, 5.0),
    "acknowledgements lost": (0.2, 3.0),
    "confirms lost": (0.2, 3.0),
    "channel closed": (0.0, 0.5),
    "rebalance": (0.0, 5.0),
    "pause": (0.5, 10.0),
    "drain": (0.5, 10.0),
    "reload": (0.0, 0.0),
    "route removed": (2.0, 15.0),
    "cancel": (0.0, 0.0),
    "reschedule": (0.0, 0.0),
    "deliver now": (0.0, 0.0),
    "retry": (0.0, 0.0),
    "bulk cancel": (0.0, 0.0),
    "bulk reschedule": (0.0, 0.0),
}

#: What happens to a journal and a cold tier, and to the store because of which there is a journal.
JOURNAL_KINDS: dict[str, tuple[float, float]] = {
    "journal away": (0.2, 10.0),
    "journal slow": (0.5, 6.0),
    "journal frozen": (0.1, 12.0),
    "journal breaks": (0.2, 5.0),
    "restore": (0.0, 0.0),
    "restore killed": (0.01, 3.0),
    "two restores": (0.0, 0.0),
    "store and process die": (0.0, 8.0),
    "loader killed": (0.0, 8.0),
    "loader frozen": (0.1, 30.0),
    "cold tier off": (2.0, 15.0),
    "cancel cold": (0.0, 0.0),
    "reschedule cold": (0.0, 0.0),
    "deliver cold": (0.0, 0.0),
    "cancel undone": (0.0, 0.0),
}
#: Faults that lose what the store has.
UNDOING = ("store emptied", "store fails over", "store restored")
#: What these do to an instance, besides.
MEANS = {"loader killed": "kill", "loader frozen": "freeze", "cold tier off": "stop", "route removed": "stop"}
#: Faults while which moves may not be carried into the journal.
HOLD_UP_MOVES = frozenset(kind for kind in (*KINDS, *JOURNAL_KINDS) if kind.startswith(("store", "journal", "loader")))
HOLD_UP_MOVES |= {"kill", "stop", "join", "freeze", "route removed", "cold tier off"}
_BESIDE_A_JOURNAL = (*UNDOING, *UNDOING, "kill", "stop", "freeze", "store away", "store loses replies", "store frozen")

_HARMLESS = {
    "machine clock",
    "reload",
    "cancel",
    "reschedule",
    "deliver now",
    "retry",
    "bulk cancel",
    "bulk reschedule",
    "restore",
    "two restores",
    "restore killed",
    "cancel cold",
    "reschedule cold",
    "deliver cold",
    "cancel undone",
}
#: What a postdate without a store can meet.
_OF_LEVELS = {"kill", "stop", "join", "freeze", "reload", "broker frozen", "broker blocked", "broker refuses"}
_OF_LEVELS |= {"sink disconnected", "source disconnected", "acknowledgements lost", "confirms lost", "channel closed"}


def draw(seed: int, messages: int = 1000, faults: int = 10, journal: bool = True) -> Plan:
    """Return the plan of a seed. It has a few kinds of faults: many kinds excuse more than they find.

    Without ``journal`` no seed has one.
    """
    random = Random(seed)
    kinds = random.sample(list(KINDS), random.choice((1, 1, 2, 2, 3, 5, len(KINDS))))
    drawn = []
    for _ in range(random.randint(0, 2 * faults)):
        kind = random.choice(kinds)
        least_s, most_s = KINDS[kind]
        # Most faults are short, and some are long.
        for_s = least_s + (most_s - least_s) * random.random() ** 3
        drawn.append(Fault(random.uniform(0, LOAD_S), kind, for_s, random.randrange(3)))
    plan = Plan(
        seed=seed,
        instances=random.randint(1, 3),
        kafka=random.random() < 0.5,
        messages=random.randint(messages // 4, messages),
        keys=random.choice((1, 5, 50)),
        shards=random.choice((1, 2, 4)),
        rate=random.choice((0.0, 0.0, 0.0, 20.0, 200.0)),
        lost=random.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.0005)),
        slow=random.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.01)),
        faults=tuple(sorted(drawn)),
        drift=random.choice((0.0, 0.0, 4e-5, -4e-5)),
    )
    if random.random() < 0.1:
        some = tuple(fault for fault in plan.faults if fault.kind in _OF_LEVELS)
        return replace(plan, kafka=False, levels=True, drift=0.0, faults=some)
    plan = replace(plan, transactional=plan.kafka and random.random() < 0.3, hold=plan.kafka and seed % 8 == HOLDING)
    return _journaled(plan) if journal and seed % 8 in JOURNALED else plan


def _journaled(plan: Plan) -> Plan:
    """Give a plan a journal, and faults of it in place of many of its own."""
    random = Random(f"journal {plan.seed}")
    kinds = random.sample([*JOURNAL_KINDS, *_BESIDE_A_JOURNAL], random.choice((1, 2, 2, 3, 4, 6)))
    share = random.choice((0.0, 0.0, 0.3, 1.0))
    drawn = [fault for fault in plan.faults if random.random() < share]
    for _ in range(random.randint(0, 10)):
        kind = random.choice(kinds)
        least_s, most_s = (KINDS | JOURNAL_KINDS)[kind]
        for_s = least_s + (most_s - least_s) * random.random() ** 3
        drawn.append(Fault(random.uniform(0, LOAD_S + 5.0), kind, for_s, random.randrange(3)))
    return replace(
        plan,
        journal=random.choice(("before", "behind")),
        cold_after_ms=random.choice((0, COLD_AFTER_MS, COLD_AFTER_MS)),
        auto=random.random() < 0.2,
        faults=tuple(sorted(drawn)),
    )
