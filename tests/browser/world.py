"""What the page shows in its tests: the real HTTP application, and real bridge processes on memory stores.

Only producers, brokers and Redis are missing. By hand: ``python -m tests.browser.world 8480``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from socket import socket
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import Mock, patch

from starlette.types import Receive, Scope, Send

from adapters.memory import ManualClock, Memory, MemorySink, MemorySource, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from adapters.rabbitmq.refusals import unroutable
from bridge.app import build
from bridge.app.brokers import RedisStore, broker_of
from bridge.app.canaries import CanaryState
from bridge.app.survey import Surveyed
from bridge.core.errors import StoreUnavailable
from bridge.core.message import Claim
from bridge.core.state import State
from bridge.desk.leftovers import Place, Use
from bridge.desk.numbers import ServerMemory, Stats
from bridge.desk.payload import Draft
from bridge.desk.protocol import Desks
from bridge.desk.rows import Answer, Cursor, Filter, Row
from bridge.desk.severity import ok, warn
from bridge.http import system
from bridge.http.app import create_app
from bridge.http.line import Frame, Processes, read_frame
from bridge.http.server import make_server
from bridge.parking.identity import new_instance
from bridge.pipeline.ends import Ends
from bridge.process.frames import FrameLine
from bridge.process.http_child import bind
from bridge.process.report import Report
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import Auth, BrokerKind, Route
from bridge.settings.process_plan import used_stores
from bridge.telemetry.health import Health
from bridge.telemetry.subject import STORE, Subject
from tests.api import HOUR_MS, MemoryStores

T = TypeVar("T")
_AWAY = "Redis does not answer at 127.0.0.1:6379 (Connection refused)"
#: The routes, and how much of the messages each has.
SHARES: Mapping[str, tuple[BrokerKind, int]] = {
    "orders": ("rabbitmq", 8),
    "reminders": ("rabbitmq", 5),
    "webhooks": ("rabbitmq", 2),
    "payments": ("kafka", 4),
    "notifications": ("kafka", 1),
}
ROUTES = {
    name: Route(broker=broker, intercept=f"{name}.delay", deliver_to=name) for name, (broker, _) in SHARES.items()
}
PARKED, DEAD, ENDED = 420, 23, 160
_SHARDS, _PASS_S = 4, 0.2
#: What the broker answers; the last try was refused, too.
UNROUTABLE = unroutable("webhooks", b"webhook.partner-7", "NO_ROUTE")
_REFUSED = replace(UNROUTABLE, lasting=True)
#: What the broker alone tells: levels of a previous mode, and what the doctor finds.
_PLACES = [Place("legacy", "queue", f"legacy.delay.{2**n}", n * 37 % 90, Use.OLD) for n in range(12)]
_FINDINGS = [
    ok("redis", "Redis 7.2.4 answers in 0.2 ms"),
    warn("redis", "maxmemory-policy is allkeys-lru", "redis-cli config set maxmemory-policy noeviction"),
]


class LiveClock(ManualClock):
    """The machine's clock, which also moves by hand."""

    def __init__(self) -> None:
        super().__init__()
        self._now_us = (time.time() - time.monotonic()) * 1e6

    def now_us(self) -> float:
        return time.monotonic() * 1e6 + self._now_us

    def surely_us(self) -> float:
        return self.now_us()


class LookedAtStore(MemoryStore):
    """A memory store with what a process of its own asks of a server."""

    def secret(self) -> bytes:
        return b""

    async def look(self) -> dict[Subject, str]:
        return {}


class SlowDesks(Desks):
    """The desks of both stores, and the memory of their server. Some answers take ``answer_s``."""

    answer_s = 0.0

    async def stats(self) -> Stats:
        await asyncio.sleep(self.answer_s)
        memory = (ServerMemory("127.0.0.1:6379", 812_646_400, 2_147_483_648),)
        return replace(await super().stats(), memory=memory)

    async def rows(self, state: State, wanted: Filter, after: Cursor | None = None) -> AsyncIterator[Row]:
        await asyncio.sleep(self.answer_s)
        async for row in super().rows(state, wanted, after):
            yield row

    async def cancel(self, ids: Sequence[bytes], reason: str = "") -> dict[bytes, Answer]:
        await asyncio.sleep(self.answer_s)
        return await super().cancel(ids, reason)


class MemoryBridge:
    """A bridge process whose broker and store are in memory. Its loops make a pass when they are told to."""

    def __init__(self, process: ProcessPlan, name: str, clock: ManualClock) -> None:
        self.health = Health(lambda: clock.now_us() / 1e6)
        self.store = LookedAtStore(Memory(_SHARDS, clock), name)
        self.source, self.sink = MemorySource(clock), MemorySink[Claim]()
        ends = Ends(self.source, cast("Any", self.sink), (), 1000, 1000, lambda _: 1000)
        broker = SimpleNamespace(open_ends=lambda *_: ends, open_drains=lambda *_: None)
        with patch.object(build, "broker_of", lambda _: SimpleNamespace(ends=broker)):
            store, token = cast("RedisStore", self.store), new_instance()
            self.service = build.build(process, store, {}, clock, name, token, self.health)
        self.stages, self._parts = self.service._stages, self.service._parts
        self._frame = b""
        self._report = Report(None, 0, 60, frames=cast("FrameLine", SimpleNamespace(tell=self._tell)))
        self._report.name, self._report.broker = name, process.broker
        self._report.of(self.service)

    def _tell(self, frame: Mapping[str, object]) -> None:
        self._frame = json.dumps(frame, default=str).encode()

    async def move(self) -> None:
        """Park what came, and deliver what is due."""
        if self.store.memory.away:
            return
        await self.stages.parker.once(self.source.more(1000, 1 << 30))
        await self.stages.claimer.once()
        await self.stages.publisher.once()
        await asyncio.sleep(0)
        await self.stages.settler.once()
        assert self.stages.historian is not None
        await self.stages.historian.flush()

    async def beat(self) -> Frame:
        """Meet the other instances. Return the report for the HTTP process."""
        try:
            await self._parts.members.once()
            away = ""
        except StoreUnavailable as error:
            away = f"the store cannot be reached: {error}"
        self.health.say(STORE, away)
        self._parts.watch.once()
        self._report.look(time.monotonic())
        frame = read_frame(self._frame, time.monotonic())
        assert frame is not None
        return frame

    async def leave(self) -> None:
        await self._parts.members.leave()


class World(MemoryStores):
    """An installation with five routes, served at ``url``."""

    def __init__(self, first_ms: int = 900_000, busy: bool = False) -> None:
        """``first_ms``: when the first message is due. ``busy``: producers go on."""
        self.clock = LiveClock()
        self.chance, self._numbers = Random(7), count(40_000)
        self.url = ""
        #: What the page has asked for.
        self.calls: list[tuple[str, str]] = []
        #: The HTTP process does not answer.
        self.hung = False
        self._first_ms, self._busy = first_ms, busy
        self._settings = Settings(routes=ROUTES)
        self.bridges = {
            process.broker: MemoryBridge(process, f"web-{number}", self.clock)
            for number, process in enumerate(used_stores(self._settings))
        }
        super().__init__(self.bridges["rabbitmq"].store)
        self.desks = SlowDesks([MemoryDesk(bridge.store, broker) for broker, bridge in self.bridges.items()])
        self.kept = self.desks
        self.serve_app()
        self.server = make_server(self._settings, self.processes)
        self.server.config.app = self
        self._one_pass = asyncio.Lock()

    def serve_app(self, auth: Auth | None = None) -> None:
        """Answer by a new application, beside the bridges that are there."""
        self.processes = Processes(len(self.bridges))
        settings = self._settings.model_copy(update={"auth": auth}) if auth else self._settings
        self.app = create_app(settings, self, self.processes, self._canaries)

    def _canaries(self) -> list[CanaryState]:
        now_s = time.monotonic()
        return [CanaryState(broker, now_s, 0.0021, now_s - 12) for broker in self.bridges]

    def store_of(self, broker: BrokerKind) -> MemoryStore:
        return self.bridges[broker].store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stand in front of the application."""
        if scope["type"] == "http" and scope["path"].startswith("/api"):
            self.calls.append((scope["method"], scope["path"]))
            while self.hung:  # noqa: ASYNC110 (a test sets it from another thread)
                await asyncio.sleep(0.05)
        await self.app(scope, receive, send)

    async def serve(self, sockets: list[socket]) -> None:
        """Fill the stores, and serve."""
        self._loop = asyncio.get_running_loop()
        await self._fill()
        running = asyncio.create_task(self._run())
        answers = {"examine_all": _FINDINGS, "survey_levels": Surveyed(_PLACES, []), "count_intakes": ()}
        with patch.multiple(system, **{name: Mock(return_value=answer) for name, answer in answers.items()}):
            await self.server.serve(sockets)
        running.cancel()

    # -- what happens there -------------------------------------------------------------------------------------------

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the thread of the server."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def send(self, after_ms: int, number: int = 1, **more: Any) -> set[str]:
        """Let a producer send messages of the route orders. Return the ids of those that are parked then."""
        before = self.ids_of("parked")

        async def sending() -> None:
            for _ in range(number):
                self._produce(after_ms, "orders", **more)
            await self._pass()

        self.do(sending())
        return self.ids_of("parked") - before

    def lose_redis(self, lost: bool = True) -> None:
        """Let the store not answer, or answer again."""
        for bridge in self.bridges.values():
            bridge.store.memory.away = _AWAY if lost else ""
        self.do(self._pass())

    def lose_rabbitmq(self, lost: bool = True) -> None:
        """Break the connection to RabbitMQ, or connect again."""
        bridge = self.bridges["rabbitmq"]
        bridge.sink.connected = not lost
        bridge.health.say(Subject("rabbitmq", "publish"), "RabbitMQ does not answer" if lost else "")
        self.do(self._pass())

    def freeze_neighbour(self, frozen: bool = True) -> None:
        """Let an instance on another machine be silent from now on, or let it end."""
        self.memory.instances.pop("web-9", None)
        self.memory.lost.clear()
        if frozen:
            self.memory.instances["web-9"] = self.memory.now_ms(), True, "{}"

    def freeze(self) -> None:
        """Leave one instance, which runs on another machine and is frozen."""

        async def freezing() -> None:
            async with self._one_pass:
                await self.bridges["kafka"].leave()
                self.bridges.clear()
            self.serve_app()
            self.clock.advance(14_000)

        self.do(freezing())

    def ids_of(self, state: str) -> set[str]:
        """Return the ids of the messages in a state."""

        async def listing() -> set[str]:
            return {row.id.decode() async for row in self.desks.rows(State(state), Filter())}

        return self.do(listing())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_PASS_S)
            for _ in range(5 * self._busy):
                self._produce(int(self.chance.expovariate(1 / 60_000)))
            await self._pass()

    async def _pass(self) -> None:
        """Let the bridges move what is due, and report."""
        async with self._one_pass:
            for number, bridge in enumerate(self.bridges.values()):
                self.processes.take(number, await bridge.beat())
                await bridge.move()

    async def _move(self) -> None:
        for bridge in self.bridges.values():
            await bridge.move()

    def _produce(self, after: int | str, route: str = "", key: str = "", header: str = "tenant=acme") -> None:
        chance = self.chance
        route = route or chance.choices(list(SHARES), [share for _, share in SHARES.values()])[0]
        broker, number = SHARES[route][0], next(self._numbers)
        key = key or (f"{route[:-1]}-{number}" if chance.random() < 0.85 else "")
        body = {"order": number, "customer": f"c-{number % 977}", "total": "129.90", "card_number": "4711 0815"}
        places = (f"{route[:-1]}.created", None) if broker == "rabbitmq" else (None, str(number))
        draft = Draft(json.dumps(body).encode(), dict([header.split("=")]), *places)
        packed = broker_of(broker).payloads.pack(self._settings, route, draft)
        delay = {"x-delay": after, **({"x-delay-key": key} if key else {})}
        self.bridges[broker].source.feed(packed.payload, delay, route, packed.order_key)

    async def _fill(self) -> None:
        """Live through some hours: messages are delivered, cancelled and refused, and others still wait."""
        chance, sink = self.chance, self.bridges["rabbitmq"].sink
        self.clock.advance(-6.1 * HOUR_MS)
        await self._pass()
        fates = chance.choices(("delivered", "cancelled", "replaced"), (90, 7, 3), k=ENDED)
        fates += ["unroutable"] * (DEAD // 2) + ["bad_header"] * (DEAD - DEAD // 2)
        for fate in chance.sample(fates, ENDED + DEAD):
            wait_ms, late_ms = chance.randrange(1_000, 30_000), chance.lognormvariate(1.6, 1)
            route, key = {"unroutable": ("webhooks", ""), "replaced": ("orders", "order-77")}.get(fate, ("", ""))
            if fate == "unroutable":
                sink.script(_REFUSED)
            elif fate == "replaced":
                self._produce(wait_ms, route, key)
            self._produce("tomorrow" if fate == "bad_header" else wait_ms, route, key)
            await self._move()
            if fate == "cancelled":
                await self.desks.cancel([row.id async for row in self.desks.rows(State.PARKED, Filter())])
            self.clock.advance(wait_ms + late_ms)
            await self._move()
            self.clock.advance(chance.uniform(0, 200_000))
        ahead_ms = time.time() * 1000 - self.clock.now_us() / 1000
        for _ in range(PARKED):
            self._produce(int(ahead_ms + self._first_ms + chance.paretovariate(0.6) * 4_000 % (26 * HOUR_MS)))
        await self._move()
        self.clock.advance(ahead_ms)
        await self._pass()


if __name__ == "__main__":
    asyncio.run(World(4_000, busy=True).serve(bind(f"127.0.0.1:{sys.argv[1]}")))
