"""The loops of one bridge process, with a store and without, and the order in which they stop.

A loop handles expected failures (a store or a broker that is away) by itself. Any other error is a mistake in postdate:
then everything stops with exit code 1, and the supervisor restarts the process. Claims come back when their leases
expire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.ports import Link, Sink, Source, Store
from bridge.pipeline.assemble import Stages
from bridge.pipeline.journal_watch import JournalWatch
from bridge.pipeline.journaled import Journaling
from bridge.pipeline.relay import Relay
from bridge.process.drains import LevelsDrain, StoreDrain
from bridge.process.loops import Running
from bridge.process.members import Members
from bridge.process.report import ProcessReport
from bridge.process.watchdog import StoreWatch, Watch
from bridge.settings import Settings
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.reconnect import Reconnect
from bridge.telemetry.subject import STORE_AWAY, Subject

log = structlog.get_logger("postdate")

#: After a subscription of this length the next attempt comes at once.
_LISTENED_S = 10.0


def broker_connected(broker: str, able: bool, troubles: Iterable[Subject]) -> bool:
    """Return whether a broker is connected and all intakes are consumed. Pure."""
    return able and not any(subject.is_intake(broker) for subject in troubles)


def numbers_of(
    metrics: Metrics, health: Health, clock: StoreClock, journal: Mapping[str, float] | None = None
) -> dict[str, object]:
    """Return the numbers of a frame. ``journal``: those of the journal, if there is one."""
    counted = {
        **metrics.as_json(),
        "attempts": health.attempts,
        **({"journal": journal} if journal is not None else {}),
    }
    return {"metrics": counted, "clock_offset_s": round(clock.offset_s(), 6)}


@dataclass(frozen=True)
class Parts:
    """Everything that runs in one process with a store.

    ``links`` keep the broker's connections. ``leaving`` is None where the broker itself empties stale levels.
    """

    store: Store
    source: Source
    sink: Sink[Claim]
    links: tuple[Link, ...]
    stages: Stages
    members: Members
    watch: Watch
    store_watch: StoreWatch
    health: Health
    grace_ms: int
    broker: str
    follow: Callable[[Settings], None]
    leaving: LevelsDrain | None = None
    journaling: Journaling | None = None
    journal_watch: JournalWatch | None = None


class Service(Running):
    """A process with a store."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.grace_ms)
        self._parts = parts
        self._stages = parts.stages

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        parts, stages, journaling = self._parts, self._stages, self._parts.journaling
        optional = (stages.historian, parts.leaving, parts.journal_watch)
        return (
            *(link() for link in parts.links),
            stages.parker.run(),
            stages.claimer.run(),
            stages.publisher.run(),
            stages.settler.run(),
            parts.members.run(),
            parts.watch.run(),
            parts.store_watch.run(),
            parts.health.run(),
            self._listen(),
            stages.metrics.watch_loop(),
            *(part.run() for part in optional if part is not None),
            *(journaling.loops(stages.leases.shards, parts.sink.able, parts.health) if journaling is not None else ()),
        )

    def report(self) -> ProcessReport:
        parts, stages = self._parts, self._stages
        health, able = parts.health, parts.sink.able()
        troubles = health.troubles()
        return ProcessReport(
            up=able and not troubles,
            sentence=health.sentence(),
            marks={"park": stages.parker.mark(), "claim": stages.claimer.mark()},
            troubles=troubles,
            peers={
                "redis": STORE_AWAY.isdisjoint(troubles),
                parts.broker: broker_connected(parts.broker, able, troubles),
            },
            numbers=self._numbers,
            work=self._work,
        )

    def _numbers(self) -> dict[str, object]:
        parts = self._parts
        journal = parts.journaling.numbers() if parts.journaling is not None else None
        numbers = numbers_of(self._stages.metrics, parts.health, parts.store.clock, journal)
        return {**numbers, "store_silent_s": round(parts.store_watch.silent_s(), 3)}

    def _work(self) -> dict[str, object]:
        stages, lateness, watch = self._stages, self._stages.lateness, self._parts.watch
        return {
            "broker": self._parts.broker,
            "shards": sorted(stages.leases.shards()),
            "received": stages.parker.received,
            "delivered": stages.settler.delivered,
            "by_route": stages.metrics.totals(),
            "claimed": len(stages.leases),
            "overdue_s": round(watch.overdue_s, 3),
            "unconfirmed": watch.unconfirmed[0],
            "unconfirmed_s": round(watch.unconfirmed[1], 3),
            "clock_offset_s": round(self._parts.store.clock.offset_s(), 3),
            "lateness_ms": {
                "p50": lateness.percentile_ms(0.5),
                "p99": lateness.percentile_ms(0.99),
                "max": round(lateness.max_ms, 3),
            },
            **stages.ordered.report(),
            **stages.fullness.report(),
        }

    def follow(self, settings: Settings) -> None:
        self._grace_ms = settings.bridge.shutdown_grace
        self._parts.follow(settings)

    async def _listen(self) -> None:
        """Listen to the store's hints. Without them the look once a second finds everything, but later."""
        reconnect = Reconnect()
        while True:
            started = time.monotonic()
            try:
                await self._parts.store.listen(self._stages.wake.heard)
            except StoreUnavailable:
                if time.monotonic() - started > _LISTENED_S:
                    reconnect.worked()
                await reconnect.wait()

    def take_no_more(self) -> int:
        parts, stages = self._parts, self._stages
        parts.source.stop()
        stages.parker.stop()
        stages.claimer.stop()
        stages.settler.stop()
        parts.watch.stop()
        if parts.leaving is not None:
            parts.leaving.stop()
        return len(stages.leases)

    def finished(self) -> bool:
        parts, stages = self._parts, self._stages
        taken_in = parts.source.emptied() and not stages.parker.busy
        drained = parts.leaving is None or parts.leaving.finished()
        return taken_in and drained and not (len(stages.leases) or stages.settler.pending())

    async def leave(self) -> int:
        self._stages.publisher.stop()
        if self.orphaned:
            log.error("the parent process died")
        try:
            await asyncio.wait_for(self._parts.members.leave(self.orphaned), 2)
            if self._stages.historian is not None:
                await asyncio.wait_for(self._stages.historian.flush(), 2)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("could not sign off from the store", error=str(error) or "no answer within 2 s")
        try:
            if self._parts.journaling is not None:
                await asyncio.wait_for(self._parts.journaling.flush(), 5)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("could not write the last journal rows", error=str(error) or "no answer within 5 s")
        return len(self._stages.leases)


@dataclass(frozen=True)
class RelayParts:
    """Everything that runs in one process without a store.

    ``emptying`` is None where a process of the same broker has that store.
    """

    relays: tuple[Relay, ...]
    clock: StoreClock
    health: Health
    grace_ms: int
    broker: str
    metrics: Metrics
    follow: Callable[[Settings], None]
    emptying: StoreDrain | None = None


class RelayService(Running):
    """A process without a store."""

    def __init__(self, parts: RelayParts) -> None:
        super().__init__(parts.grace_ms)
        self._parts = parts

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        return (
            *(loop for relay in self._parts.relays for loop in relay.loops()),
            self._tell_time(),
            self._parts.metrics.watch_loop(),
            self._parts.health.run(),
            *([self._parts.emptying.run()] if self._parts.emptying is not None else []),
        )

    def report(self) -> ProcessReport:
        parts, able = self._parts, all(relay.able() for relay in self._parts.relays)
        troubles = parts.health.troubles()
        return ProcessReport(
            up=able and not troubles,
            sentence=parts.health.sentence(),
            marks={f"relay {number}": relay.mark() for number, relay in enumerate(parts.relays, 1)},
            troubles=troubles,
            peers={parts.broker: broker_connected(parts.broker, able, troubles)},
            numbers=partial(numbers_of, parts.metrics, parts.health, parts.clock),
        )

    def follow(self, settings: Settings) -> None:
        self._grace_ms = settings.bridge.shutdown_grace
        self._parts.follow(settings)

    async def _tell_time(self) -> None:
        """Observe the machine's clock, which is the reference without a store and may be set."""
        while True:
            now_s = time.monotonic()
            self._parts.clock.observe(now_s, now_s, time.time_ns() // 1000)
            await asyncio.sleep(1)

    def take_no_more(self) -> int:
        for relay in self._parts.relays:
            relay.stop()
        emptying = self._parts.emptying
        return self._under_way() + (emptying.take_no_more() if emptying is not None else 0)

    def finished(self) -> bool:
        emptied = self._parts.emptying is None or self._parts.emptying.finished()
        return emptied and all(relay.finished() for relay in self._parts.relays)

    async def leave(self) -> int:
        # What is not accepted goes back when the connection closes.
        emptying = self._parts.emptying
        return self._under_way() + (await emptying.leave() if emptying is not None else 0)

    def _under_way(self) -> int:
        return sum(relay.under_way() for relay in self._parts.relays)
