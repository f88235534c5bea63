"""/metrics: what the bridge processes counted, and one cheap look at the store every few seconds.

The numbers of all processes are added up, so that one page serves for all workers. While the store is away, its
gauges have no samples: an old number would pass for a new. ``postdate_connection_up{peer="redis"}`` is 0. A loss is a
moment and no number: it keeps its sample.
"""

from __future__ import annotations

import asyncio
import math
import platform
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from bridge.app.canaries import CanaryState
from bridge.core.errors import PostdateError, StoreSilent
from bridge.core.message import Outcome
from bridge.core.orders import RouteState, routes_that
from bridge.core.reasons import ARRIVAL_KINDS, ReasonKind
from bridge.desk.numbers import RouteStats, Stats
from bridge.desk.protocol import Desk
from bridge.http.line import Processes
from bridge.operate.describe import full_routes
from bridge.operate.verbs import RESTORE, VERBS
from bridge.settings import Settings
from bridge.telemetry.lateness import LATENESS_BOUNDS_MS
from bridge.telemetry.metrics import DELAY_BOUNDS_MS, STAGE_BOUNDS_S, STORE_CALLS

#: The store is asked at most this often, and an answer that takes longer than ``_WAIT_S`` is left for the next page.
_FRESH_S = 5.0
_WAIT_S = 2.0
#: The windows of ``postdate_due_messages``, in milliseconds.
_WITHIN_MS = {"1m": 60_000, "10m": 600_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000}
#: Opens the desk of all stores, or returns the open one. Raises as a command does.
OpenDesk = Callable[[], Awaitable[Desk]]
_COUNTERS: dict[str, str] = {**{verb.name: verb.counter for verb in VERBS}, RESTORE: "restored"}


class StoreGauges:
    """The last look at the store."""

    def __init__(self, open_desk: OpenDesk) -> None:
        self._open_desk = open_desk
        self._looked_s = -_FRESH_S
        self._looking: asyncio.Future[None] | None = None
        self.stats: Stats | None = None
        self.due: Sequence[int] = ()
        self.up = False
        #: It did not answer in time, and so may be well.
        self.silent = False

    async def refresh(self) -> None:
        """Look, unless the last look is fresh. A store that does not answer soon is left to a later page."""
        if self._looking is None and time.monotonic() - self._looked_s >= _FRESH_S:
            self._looked_s = time.monotonic()
            self._looking = asyncio.ensure_future(self._look())
        if self._looking is not None:
            done, _ = await asyncio.wait([self._looking], timeout=_WAIT_S)
            if not done:
                self.up, self.silent = False, True

    async def _look(self) -> None:
        try:
            desk = await self._open_desk()
            self.stats = await desk.stats()
            self.due = await desk.density([0, *(self.stats.now_ms + within_ms for within_ms in _WITHIN_MS.values())])
            self.up = True
        except PostdateError as error:
            self.up, self.silent = False, isinstance(error, StoreSilent)
        finally:
            self._looking = None


class MetricsPage(Collector):
    """Makes the metrics of one page."""

    def __init__(
        self,
        settings: Settings,
        processes: Processes,
        store: StoreGauges,
        canaries: Callable[[], Iterable[CanaryState]],
    ) -> None:
        self._settings = settings
        self._processes = processes
        self._store = store
        self._canaries = canaries
        self._stored = [name for name, route in settings.routes.items() if route.stored]

    def collect(self) -> Iterator[Metric]:
        """Yield every metric."""
        yield from self._own()
        if len(self._processes):
            numbers = self._processes.totals()
            yield from self._counted(numbers.get("routes", {}))
            yield from self._stages(numbers)
            yield from self._loops(numbers)
            if journal := numbers.get("journal"):
                yield from self._journal(journal, self._processes.now("journal"))
        yield self._connections()
        yield self._troubles()
        if self._store.stats is not None:
            text = "When Redis was last found without messages that it had (Unix s); 0: never, or all are restored."
            # Also while the store is away: the alert would end, and begin again.
            yield _gauge("postdate_store_loss_timestamp_seconds", text, self._store.stats.lost_ms / 1000)
        if self._store.up and self._store.stats is not None:
            yield from self._routes_now(self._store.stats)
            yield from self._store_now(self._store.stats)
        yield from _canary(self._canaries(), self._processes)

    def _own(self) -> Iterator[Metric]:
        modes = {"redis" if route.stored else "levels" for route in self._settings.routes.values()}
        facts = {
            "version": version("postdate"),
            "python": platform.python_version(),
            "parking": ",".join(sorted(modes)),
        }
        yield _gauges("postdate_build_info", "Always 1. The labels tell what runs.", [*facts], {(*facts.values(),): 1})
        reloading = self._processes.reloading
        text = "1 if the last reload of the settings worked, or none was asked for."
        yield _gauge("postdate_config_last_reload_successful", text, float(reloading.worked))
        text = "When settings were last loaded (Unix seconds)."
        yield _gauge("postdate_config_last_reload_success_timestamp_seconds", text, self._processes.loaded_at_s)
        ready = not self._processes.not_ready() and (self._store_up() or not self._stored)
        yield _gauge("postdate_ready", "1 if /readyz answers 200.", float(ready))

    def _store_up(self) -> bool:
        """Return whether the store answers: this process, or the instances where this one is busy."""
        return self._store.up or (self._store.silent and self._processes.store_answers())

    # -- what the processes counted -----------------------------------------------------------------------------------

    def _counted(self, numbers: Mapping[str, Any]) -> Iterator[Metric]:
        texts = {
            "received": "Messages taken from the sources.",
            "parked": "Messages parked durably.",
            "passed": "Messages without a delay header, passed straight on.",
            "deduplicated": "Records that the source delivered again and that were not parked twice.",
        }
        routes = self._settings.routes
        for name, text in texts.items():
            counts = {(route,): numbers.get(route, {}).get(name, 0) for route in routes}
            yield _counters(f"postdate_{name}", text, ["route"], counts)
        answers = {
            (name, route.broker, outcome.value): numbers.get(name, {}).get(outcome.value, 0)
            for name, route in routes.items()
            for outcome in Outcome
        }
        text = "Answers of the broker to publishes."
        yield _counters("postdate_published", text, ["route", "broker", "outcome"], answers)
        yield self._by_reason("rejected", "Messages that became dead letters on arrival.", numbers, ARRIVAL_KINDS)
        yield self._by_reason("dead", "Messages that became dead letters.", numbers, list(ReasonKind))
        yield from self._verbs(numbers)
        late = "Publish confirmed minus due, or minus the end of a hold by a pause or max_rate."
        yield self._histogram("postdate_lateness_seconds", late, numbers, "lateness_ms", LATENESS_BOUNDS_MS)
        held = "How long a pause or max_rate held delivered messages after they were due."
        yield self._histogram("postdate_held_seconds", held, numbers, "held_ms", DELAY_BOUNDS_MS)
        asked = "The delays that producers ask for."
        yield self._histogram("postdate_requested_delay_seconds", asked, numbers, "delay_ms", DELAY_BOUNDS_MS)

    def _by_reason(self, name: str, text: str, numbers: Mapping[str, Any], kinds: Iterable[ReasonKind]) -> Metric:
        counts = {route: numbers.get(route, {}).get(name, {}) for route in self._settings.routes}
        samples = {(route, kind.value): counts[route].get(kind.value, 0) for route in counts for kind in kinds}
        return _counters(f"postdate_{name}", text, ["route", "reason"], samples)

    def _verbs(self, numbers: Mapping[str, Any]) -> Iterator[Metric]:
        """Yield what verbs did: by this process's API, and cancellations by header."""
        for verb, name in _COUNTERS.items():
            by_header = sum(counts.get(name, 0) for counts in numbers.values())
            counts = {("api",): self._processes.verbs[verb], ("message",): by_header}
            yield _counters(f"postdate_{name}", f"Messages that the verb {verb} acted on.", ["via"], counts)

    def _histogram(
        self, name: str, text: str, numbers: Mapping[str, Any], key: str, bounds_ms: Sequence[float]
    ) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["route"])
        bounds_s = [bound_ms / 1000 for bound_ms in bounds_ms]
        for route in self._settings.routes:
            counts = numbers.get(route, {}).get(key) or [0] * (len(bounds_s) + 2)
            family.add_metric([route], _buckets(bounds_s, counts), counts[-1] / 1000)
        return family

    def _stages(self, numbers: Mapping[str, Any]) -> Iterator[Metric]:
        text = "Time from the decision to the durable write of one round, retries included."
        yield _stage("postdate_park_seconds", text, numbers.get("park_s"))
        text = "Time from publish to the broker's answer, of one message at a time."
        yield _stage("postdate_publish_seconds", text, numbers.get("publish_s"))
        family = HistogramMetricFamily("postdate_store_operation_seconds", "Calls to the store.", labels=["op"])
        for call in STORE_CALLS:
            counts = numbers.get("store_s", {}).get(call) or [0] * (len(STAGE_BOUNDS_S) + 2)
            family.add_metric([call], _buckets(STAGE_BOUNDS_S, counts), counts[-1])
        yield family

    def _loops(self, numbers: Mapping[str, Any]) -> Iterator[Metric]:
        yield _stage(
            "postdate_loop_lag_seconds", "How late the event loops of the processes are.", numbers.get("lag_s")
        )
        text = "Claims whose lease ran out, parked again: possible duplicates."
        yield _counter("postdate_recovered", text, numbers.get("recovered", 0))
        yield _counter("postdate_damaged", "Stored messages that cannot be opened.", numbers.get("damaged", 0))
        text = "The store's clock minus this machine's, of the process where it is largest."
        yield _gauge("postdate_clock_offset_seconds", text, self._processes.clock_offset_s())
        attempts = {
            (peer, outcome): count
            for peer in dict.fromkeys(route.broker for route in self._settings.routes.values())
            for outcome, count in zip(
                ("connected", "failed"), numbers.get("attempts", {}).get(peer, (0, 0)), strict=True
            )
        }
        text = "Attempts to connect to a broker."
        yield _counters("postdate_connection_attempts", text, ["peer", "outcome"], attempts)

    def _journal(self, ever: Mapping[str, float], now: Sequence[Mapping[str, float]]) -> Iterator[Metric]:
        text = "Accepted messages that are not in the journal yet."
        waiting = sum(numbers["unwritten"] for numbers in now)
        yield _gauge("postdate_journal_unwritten_messages", text, waiting)
        texts = {
            "unwritten_s": ("unwritten_age", "Age of the oldest of them."),
            "behind_s": ("behind", "Age of the oldest move that is not in the journal; no sample while Redis is away."),
            "loader_s": ("loader_behind", "By how much cold messages come back too late, at most."),
        }
        for name, (metric, text) in texts.items():
            known = [numbers[name] for numbers in now if name in numbers]
            if known:  # a sum of ages would be no age
                yield _gauge(f"postdate_journal_{metric}_seconds", text, max(known))
        yield _counter("postdate_journal_errors", "Calls that the journal's database refused.", ever["errors"])
        yield _counter("postdate_journal_dropped", "Messages that never got a row.", ever["dropped"])

    # -- now ----------------------------------------------------------------------------------------------------------

    def _connections(self) -> Metric:
        used = [route.broker for route in self._settings.routes.values()] if len(self._processes) else []
        peers: dict[str, bool] = {**dict.fromkeys(used, False), **self._processes.peers()}
        if self._stored:
            peers["redis"] = peers.get("redis", True) and self._store_up()
        text = "1 if every process is connected to this server."
        return _gauges("postdate_connection_up", text, ["peer"], {(peer,): peers[peer] for peer in sorted(peers)})

    def _troubles(self) -> Metric:
        subjects = {subject for frame in self._processes.frames() for subject in frame.troubles}
        counts = Counter((subject.peer, subject.part) for subject in subjects)
        return _gauges("postdate_troubles", "Troubles of this instance, by subject.", ["peer", "part"], counts)

    def _routes_now(self, stats: Stats) -> Iterator[Metric]:
        texts: dict[str, tuple[str, Callable[[RouteStats], float]]] = {
            "oldest_overdue_seconds": (
                "How long the oldest overdue message has been due; 0 for none. Claimed: postdate_unconfirmed_seconds.",
                lambda counts: counts.oldest_overdue_ms / 1000,
            ),
            "overdue_messages": (
                "Messages that are due and not delivered: refused ones too, held ones not.",
                lambda counts: counts.overdue,
            ),
            "refused_messages": (
                "Messages that the broker refused and that wait for another try.",
                lambda counts: counts.refused,
            ),
            "parked_messages": ("Messages that wait, held and claimed ones included.", lambda counts: counts.parked),
            "held_messages": (
                "Due messages that wait: their route is paused, at its max_rate or missing.",
                lambda counts: counts.held,
            ),
            "oldest_held_seconds": (
                "Age of the oldest held message since its due moment; 0 if none is held.",
                lambda counts: counts.oldest_held_ms / 1000,
            ),
            "dead_messages": ("Dead letters.", lambda counts: counts.dead),
            "cold_messages": ("Of those that wait, the ones that the journal alone has.", lambda counts: counts.cold),
        }
        numbers = {route: stats.by_route.get(route, RouteStats()) for route in self._stored}
        for name, (text, value) in texts.items():
            yield _by_route(name, text, {route: value(counts) for route, counts in numbers.items()})
        text = "When the next message is due (Unix seconds); no sample if none waits."
        due_ms = {route: counts.next_due_ms for route, counts in numbers.items()}
        due_s = {route: next_ms / 1000 for route, next_ms in due_ms.items() if next_ms is not None}
        yield _by_route("next_due_timestamp_seconds", text, due_s)
        paused, draining = (routes_that(stats.orders, state) for state in (RouteState.PAUSED, RouteState.DRAINING))
        full, routes = full_routes(stats), self._settings.routes
        text = "1 while an operator holds the route."
        yield _by_route("route_paused", text, {route: route in paused for route in routes})
        text = "1 while an operator lets the route take nothing in."
        yield _by_route("route_draining", text, {route: route in draining for route in routes})
        text = "1 while max_parked is reached."
        yield _by_route("route_full", text, {route: route in full for route in self._stored})

    def _store_now(self, stats: Stats) -> Iterator[Metric]:
        due = {(within,): number for within, number in zip(_WITHIN_MS, accumulate(self._store.due), strict=False)}
        yield _gauges("postdate_due_messages", "Parked messages due within a time.", ["within"], due)
        yield _gauge("postdate_instances", "Instances that report, by the store.", len(stats.instances))
        text = "Instances that stopped reporting without leaving, and were removed."
        yield _counter("postdate_instances_lost", text, stats.instances_lost)
        text = "Instances that were lost within an hour, and whose place no other one took; a few at most."
        yield _gauge("postdate_instances_missing", text, len(stats.lost))
        text = "For how long the oldest published message has waited for a broker's answer; 0 below a second."
        yield _gauge("postdate_unconfirmed_seconds", text, stats.unconfirmed_s)
        yield _gauge("postdate_claimed_messages", "Messages that an instance is delivering.", stats.claimed)
        messages = stats.waiting + stats.dead - stats.cold
        if stats.bytes_each is not None or not messages:
            text = "Memory of all stored messages in Redis, estimated from a sample."
            yield _gauge("postdate_parked_bytes", text, (stats.bytes_each or 0) * messages)
        text = "Memory that Redis uses, over all its servers."
        yield _gauge("postdate_store_memory_bytes", text, sum(memory.used for memory in stats.memory))
        text = "maxmemory of Redis, over all its servers; 0 without a limit."
        yield _gauge("postdate_store_memory_limit_bytes", text, sum(memory.most for memory in stats.memory))


def metrics_routes(
    settings: Settings, processes: Processes, open_desk: OpenDesk, canaries: Callable[[], Iterable[CanaryState]] = tuple
) -> APIRouter:
    """Return /metrics. The middleware judges the token."""
    routes = APIRouter(tags=["metrics"])
    store = StoreGauges(open_desk)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MetricsPage(settings, processes, store, canaries))

    @routes.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def metrics(request: Request) -> Response:
        if settings.uses_store:
            await store.refresh()
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": kind})

    return routes


def _gauges(name: str, text: str, labels: Sequence[str], samples: Mapping[Any, float]) -> Metric:
    """Return a gauge with samples by the values of the labels, as tuples."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, number in samples.items():
        family.add_metric(values, float(number))
    return family


def _counters(name: str, text: str, labels: Sequence[str], samples: Mapping[Any, float]) -> Metric:
    """Return a counter with samples by the values of the labels, as tuples."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in samples.items():
        family.add_metric(values, number)
    return family


def _by_route(name: str, text: str, samples: Mapping[str, float]) -> Metric:
    return _gauges(f"postdate_{name}", text, ["route"], {(route,): number for route, number in samples.items()})


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _stage(name: str, text: str, counts: Sequence[float] | None) -> Metric:
    counts = counts or [0] * (len(STAGE_BOUNDS_S) + 2)
    return HistogramMetricFamily(name, text, _buckets(STAGE_BOUNDS_S, counts), counts[-1])


def _buckets(bounds: Sequence[float], counts: Sequence[float]) -> list[tuple[str, float]]:
    """Return the classes of a snapshot as Prometheus has them: each with the sum of all before. Pure."""
    found, total = [], 0.0
    for bound, count in zip((*bounds, float("inf")), counts[:-1], strict=True):
        total += count
        found.append(("+Inf" if math.isinf(bound) else repr(float(bound)), total))
    return found


def _canary(states: Iterable[CanaryState], processes: Processes) -> Iterator[Metric]:
    known = {(state.broker,): (state.late_s, state.success_s) for state in states}
    late_s = {broker: late_s for broker, (late_s, _) in known.items() if late_s is not None}
    yield _gauges("postdate_canary_lateness_seconds", "Lateness of the last canary.", ["broker"], late_s)
    text = "When a canary last came back (Unix seconds); 0 if none did."
    success_s = {broker: processes.moment_ms(at_s) / 1000 if at_s else 0 for broker, (_, at_s) in known.items()}
    yield _gauges("postdate_canary_last_success_timestamp_seconds", text, ["broker"], success_s)
