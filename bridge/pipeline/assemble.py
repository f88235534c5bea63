"""Wire the stages of one process with a store: store, ends and rules in, stages out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from bridge.core.message import Claim
from bridge.core.orders import RouteOrders
from bridge.core.ports import ParkingStore, Sink, Source, Store
from bridge.parking.history import HistoryLimits
from bridge.parking.identity import Ids
from bridge.pipeline.claim import Claimer, ClaimRules
from bridge.pipeline.decide import RouteRules
from bridge.pipeline.full import Fullness, IntakeGate, ParkedLimit
from bridge.pipeline.gate import RateGate
from bridge.pipeline.history import Historian
from bridge.pipeline.leases import Leases
from bridge.pipeline.ordered import Ordered
from bridge.pipeline.park import Parker, ParkLimits
from bridge.pipeline.publish import Publisher
from bridge.pipeline.recover import Recovery
from bridge.pipeline.settle import RetryRules, Settler
from bridge.pipeline.unopened import Unopened
from bridge.pipeline.wake import Wake
from bridge.telemetry.health import Health
from bridge.telemetry.lateness import Lateness
from bridge.telemetry.metrics import Metrics


@dataclass(frozen=True)
class PipelineRules:
    """What the stages know of the settings.

    ``rates``: messages per second of routes with a limit. ``parked``: how much may wait. ``history`` is None where none
    is written; routes for which ``unrecorded`` is true are left out of it. Messages due within ``ahead_ms`` are claimed
    together.
    """

    routes: Mapping[str, RouteRules]
    claim: ClaimRules
    retry: RetryRules
    park: ParkLimits
    rates: Mapping[str, float] = field(default_factory=dict)
    parked: Mapping[str, ParkedLimit] = field(default_factory=dict)
    history: HistoryLimits | None = None
    unrecorded: Callable[[str], bool] = lambda _: False
    ahead_ms: int = 8


@dataclass(frozen=True)
class Stages:
    """The stages of a process, and what they share."""

    wake: Wake
    leases: Leases
    recovery: Recovery
    ordered: Ordered
    fullness: Fullness
    historian: Historian | None
    lateness: Lateness
    metrics: Metrics
    parker: Parker
    gate: RateGate
    claimer: Claimer
    publisher: Publisher
    settler: Settler

    def follow(self, rules: PipelineRules) -> None:
        """Take over the live rules of a reload."""
        self.parker.follow(rules.routes, rules.park.recent_max)
        self.leases.elsewhere.found(rules.routes)
        self.settler.follow(rules.retry)
        self.claimer.follow(rules.claim)
        self.gate.follow(rules.rates)
        self.fullness.follow(rules.parked)


def assemble(
    store: Store,
    source: Source,
    sink: Sink[Claim],
    rules: PipelineRules,
    ids: Ids,
    orders: RouteOrders,
    health: Health,
    metrics: Metrics,
    parking: ParkingStore | None = None,
) -> Stages:
    """Return the stages, which have these ``orders`` now. The sink's answers go to the publisher.

    ``parking`` is the store with its journal, if there is one."""
    clock, lateness = store.clock, Lateness()
    wake = Wake(clock, rules.ahead_ms)
    lease_ms = rules.claim.lease_ms
    leases = Leases(store, wake)
    recovery = Recovery(store, leases, lease_ms, rules.claim.drain_ms, metrics)
    historian = Historian(store, clock, rules.history, rules.unrecorded) if rules.history is not None else None
    settler = Settler(store, clock, rules.retry, lateness, leases, health, metrics, historian)
    publisher = Publisher(sink, settler, leases, wake, clock, metrics)
    sink.on_answers(publisher.answered)
    intake_gate = IntakeGate(source.close_intakes)
    ordered = Ordered(orders, partial(intake_gate.close, "drained"), wake.nudge)
    fullness = Fullness(store, rules.parked, intake_gate, health)
    gate = RateGate(store, clock, wake, ordered, leases.elsewhere, rules.rates)
    unopened = Unopened(settler.bury, health, metrics, 4 * lease_ms / 1000)
    claimer = Claimer(store, wake, leases, publisher, rules.claim, health, gate, unopened, metrics)
    parker = Parker(source, parking or store, rules.routes, ids, wake.heard, health, rules.park, metrics, fullness)
    return Stages(
        wake,
        leases,
        recovery,
        ordered,
        fullness,
        historian,
        lateness,
        metrics,
        parker,
        gate,
        claimer,
        publisher,
        settler,
    )
