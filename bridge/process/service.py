"""The loops of one bridge process, with a store and without, and the order in which they stop.

A loop handles expected failures (a store or a broker that is away) by itself. Any other error is a mistake in postdate:
then everything stops with exit code 1, and the supervisor restarts the process. Claims come back when their leases
expire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass

import structlog

from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Link, Sink, Source, Store
from bridge.pipeline.claim import Claimer
from bridge.pipeline.history import Historian
from bridge.pipeline.leases import Leases
from bridge.pipeline.park import Parker
from bridge.pipeline.publish import Publisher
from bridge.pipeline.relay import Relay
from bridge.pipeline.settle import Settler
from bridge.pipeline.wake import Wake
from bridge.process.leftovers import LevelsDrain, StoreDrain
from bridge.process.loops import Running
from bridge.process.members import Members
from bridge.process.watchdog import StoreWatch, Watch
from bridge.settings import Settings
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.reconnect import Reconnect

log = structlog.get_logger("postdate")

#: After a subscription of this length the next attempt comes at once.
_LISTENED_S = 10.0
#: Health has these subjects while the store does not answer.
_STORE_AWAY = frozenset({"store", "store claim", "store park", "store settle"})


def broker_connected(broker: str, able: bool, troubles: Mapping[str, str]) -> bool:
    """Return whether a broker is connected and all intakes are consumed. Pure."""
    return able and not any(subject.startswith(f"{broker} intake") for subject in troubles)


def numbers_of(metrics: Metrics, health: Health, clock: StoreClock) -> dict[str, object]:
    """Return the numbers of a frame."""
    offset_s = clock.now_us() / 1e6 - time.time()
    return {"metrics": {**metrics.said(), "attempts": health.attempts}, "clock_offset_s": round(offset_s, 6)}


@dataclass(frozen=True)
class Parts:
    """Everything that runs in one process with a store.

    ``links`` keep the broker's connections. ``historian`` is None where no history is written. ``leaving`` is None
    where the broker itself empties stale levels.
    """

    store: Store
    source: Source
    sink: Sink
    links: tuple[Link, ...]
    parker: Parker
    wake: Wake
    leases: Leases
    claimer: Claimer
    publisher: Publisher
    settler: Settler
    members: Members
    watch: Watch
    store_watch: StoreWatch
    health: Health
    grace_ms: int
    broker: str
    metrics: Metrics
    follow: Callable[[Settings], None]
    historian: Historian | None = None
    leaving: LevelsDrain | None = None


class Service(Running):
    """A process with a store."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.grace_ms)
        self._parts = parts

    def loops(self) -> Sequence[Coroutine[None, None, None]]:
        parts = self._parts
        return (
            *(link() for link in parts.links),
            parts.parker.run(),
            parts.claimer.run(),
            parts.publisher.run(),
            parts.settler.run(),
            parts.members.run(),
            parts.watch.run(),
            parts.store_watch.run(),
            parts.health.run(),
            self._listen(),
            parts.metrics.watch_loop(),
            *([parts.historian.run()] if parts.historian is not None else []),
            *([parts.leaving.run()] if parts.leaving is not None else []),
        )

    def up(self) -> bool:
        return self._parts.sink.able() and not self._parts.health.troubles()

    def sentence(self) -> str:
        return self._parts.health.sentence()

    def marks(self) -> Mapping[str, object]:
        return {"park": self._parts.parker.mark(), "claim": self._parts.claimer.mark()}

    def follow(self, settings: Settings) -> None:
        self._grace_ms = settings.bridge.shutdown_grace
        self._parts.follow(settings)

    def frame(self) -> Mapping[str, object]:
        parts, troubles = self._parts, self._parts.health.troubles()
        peers = {
            "redis": _STORE_AWAY.isdisjoint(troubles),
            parts.broker: broker_connected(parts.broker, parts.sink.able(), troubles),
        }
        parts.metrics.recovered = parts.leases.recovered
        return {"peers": peers, "troubles": troubles, **numbers_of(parts.metrics, parts.health, parts.store.clock)}

    async def _listen(self) -> None:
        """Listen to the store's hints. Without them the look once a second finds everything, but later."""
        reconnect = Reconnect()
        while True:
            started = time.monotonic()
            try:
                await self._parts.store.listen(self._parts.wake.heard)
            except StoreUnavailable:
                if time.monotonic() - started > _LISTENED_S:
                    reconnect.worked()
                await reconnect.wait()

    def take_no_more(self) -> int:
        parts = self._parts
        parts.source.stop()
        parts.parker.stop()
        parts.claimer.stop()
        parts.settler.stop()
        parts.watch.stop()
        if parts.leaving is not None:
            parts.leaving.stop()
        return len(parts.leases)

    def finished(self) -> bool:
        parts = self._parts
        taken_in = parts.source.emptied() and not parts.parker.busy
        drained = parts.leaving is None or parts.leaving.finished()
        return taken_in and drained and not (len(parts.leases) or parts.settler.pending())

    async def leave(self) -> int:
        self._parts.publisher.stop()
        try:
            await asyncio.wait_for(self._parts.members.leave(), 2)
            if self._parts.historian is not None:
                await asyncio.wait_for(self._parts.historian.flush(), 2)
        except (StoreUnavailable, TimeoutError) as error:
            log.warning("could not sign off from the store", error=str(error) or "no answer within 2 s")
        return len(self._parts.leases)


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

    def up(self) -> bool:
        return all(relay.able() for relay in self._parts.relays) and not self._parts.health.troubles()

    def sentence(self) -> str:
        return self._parts.health.sentence()

    def marks(self) -> Mapping[str, object]:
        return {f"relay {number}": relay.mark() for number, relay in enumerate(self._parts.relays, 1)}

    def follow(self, settings: Settings) -> None:
        self._grace_ms = settings.bridge.shutdown_grace
        self._parts.follow(settings)

    def frame(self) -> Mapping[str, object]:
        parts, troubles = self._parts, self._parts.health.troubles()
        able = all(relay.able() for relay in parts.relays)
        peers = {parts.broker: broker_connected(parts.broker, able, troubles)}
        return {"peers": peers, "troubles": troubles, **numbers_of(parts.metrics, parts.health, parts.clock)}

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
