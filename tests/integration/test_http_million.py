"""A million parked messages: lists, filters, the overview, cancelling by key, and bulk, over a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median
from typing import Any

import httpx
import pytest

from adapters.redis.connect import close, connect
from adapters.redis.store import RedisStore
from bridge.app.brokers import broker_of
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Batch, Keyed
from bridge.desk.payload import Draft
from bridge.http.app import create_app
from bridge.http.line import Processes
from bridge.operate.stores import KeptStores
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids
from bridge.settings import Redis as RedisSettings
from bridge.settings import Settings
from bridge.settings.model import Auth
from tests.api import ADMIN, AUTH, HOUR_MS, ROUTES
from tests.devstack.redis import Redis

pytestmark = [pytest.mark.redis, pytest.mark.long]

COUNT, SHARDS, BATCH = 1_000_000, 8, 500
#: Of these many, one is on the route "bills".
RARE = 10_000


def given(redis: Redis) -> Settings:
    section = RedisSettings.model_validate({"url": redis.url, "durability": "none", "timeout": "30s"})
    return Settings(routes=ROUTES, redis=section, auth=Auth(**AUTH.model_dump()))


async def fill(settings: Settings, count: int) -> None:
    """Park messages, due from an hour on, one each millisecond. Each has a key."""
    client, clock, ids = connect(settings.redis), StoreClock(), Ids("tester")
    store = RedisStore(client, settings.redis.key_prefix, SHARDS, "filler", clock)
    await store.open("none", 1, 30_000)
    now_ms = clock.now_ms()
    payload = broker_of("rabbitmq").payloads.pack(settings, "orders", Draft(b"x" * 100, {"tenant": "a"}, "new")).payload
    for at in range(0, count, BATCH * SHARDS):
        batches = {}
        for shard in range(SHARDS):
            batch = Batch(store.new_token())
            for place in range(BATCH):
                number = at + shard * BATCH + place
                route, key = b"bills" if number % RARE == 0 else b"orders", f"key-{number}".encode()
                due_ms = now_ms + HOUR_MS + number
                envelope = seal(due_ms, now_ms, route, key, b"", payload)
                batch.messages.append((ids.next(now_ms, shard), due_ms, envelope))
                batch.keyed.append(Keyed(len(batch.messages), index_field(route, key), "replace"))
            batches[shard] = batch
        answers = await store.park(batches)
        assert not any(isinstance(answer, StoreUnavailable) for answer in answers.values()), answers
    await close(client)


async def timed(call: Callable[[], Awaitable[httpx.Response]], runs: int = 5) -> tuple[float, Any]:
    """The median time in ms, and the last answer."""
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        answer = await call()
        took.append((time.perf_counter() - began) * 1000)
        assert answer.status_code < 300, answer.text
    return median(took), answer.json()


async def until(client: httpx.AsyncClient, message_id: str, holds: Callable[[Any], bool]) -> Any:
    """The operation as soon as it is as expected, asked for ten times a second."""
    while True:
        if holds(found := (await client.get(f"/operations/{message_id}")).json()):
            return found
        await asyncio.sleep(0.1)


async def test_a_million_parked_messages_are_listed_filtered_and_cancelled_quickly(
    redis_server: Redis, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = given(redis_server)
    began = time.perf_counter()
    await fill(settings, COUNT)
    figures = {f"parked {COUNT} in s": time.perf_counter() - began}
    app = create_app(settings, KeptStores(settings), Processes())
    headers = {"Authorization": f"Bearer {ADMIN}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost/api/v1", headers=headers) as client:
        number = 0

        async def get(path: str, most_ms: float, **params: Any) -> Any:
            figures[f"{path} {params or ''} ms"], found = await timed(lambda: client.get(path, params=params))
            limits[f"{path} {params or ''} ms"] = most_ms
            return found

        limits: dict[str, float] = {}
        first = await get("/messages", 200)
        assert len(first["messages"]) == 50
        assert len((await get("/messages", 200, cursor=first["next"]))["messages"]) == 50
        await get("/messages", 200, limit=200)
        assert (await get("/messages", 250, route="bills"))["looked_at"] > 0
        assert len((await get("/messages", 200, key="key-777777"))["messages"]) == 1
        assert len((await get("/messages", 200, due_after="1h10m"))["messages"]) == 50
        await get("/messages", 250, header="tenant=b")
        await get("/messages", 250, min_size=100_000)
        assert (await get("/status", 300))["parked"] == COUNT
        await get("/timeline", 300, span="24h")

        async def uncached(path: str) -> httpx.Response:
            app.state.backend.look.forget()
            return await client.get(path)

        for path in ("/status", "/timeline?span=24h"):
            name = f"{path} uncached ms"
            figures[name], _ = await timed(partial(uncached, path))
            limits[name] = 300
        await get("/search", 200, q="key-500000")

        async def cancel() -> httpx.Response:
            nonlocal number
            number += 1
            return await client.delete(f"/keys/key-{number}", params={"route": "orders"})

        figures["cancel by key ms"], _ = await timed(cancel, 20)
        limits["cancel by key ms"] = 20
        asked = {"verb": "cancel", "filter": {"route": "orders", "due_before": f"{HOUR_MS + 101_000}ms"}}
        figures["dry run ms"], dry = await timed(lambda: client.post("/bulk", json={**asked, "dry_run": True}), 1)
        began = time.perf_counter()
        started = (await client.post("/bulk", json=asked)).json()
        steps: set[int] = set()

        def ended(found: Any) -> bool:
            steps.add(found["done"])
            return bool(found["state"] != "running")

        operation = await until(client, started["id"], ended)
        figures["bulk cancel messages"], figures["bulk cancel s"] = operation["done"], time.perf_counter() - began
        assert operation["state"] == "done"
        assert operation["done"] >= 100_000 - 100
        assert len(steps) > 5, "it tells its progress"
        started = (await client.post("/bulk", json={"verb": "cancel", "filter": {"state": "parked"}})).json()
        await until(client, started["id"], lambda found: found["done"] > 0)
        began = time.perf_counter()
        await client.delete(f"/operations/{started['id']}")
        operation = await until(client, started["id"], lambda found: found["state"] != "running")
        figures["stop s"] = time.perf_counter() - began
        assert operation["state"] == "stopped"
        assert operation["done"] < operation["total"]
    with capsys.disabled():
        print("".join(f"\n  {name}: {value:.1f}" for name, value in figures.items()), dry["count"])
    slow = {name: (figures[name], most) for name, most in limits.items() if figures[name] > most}
    assert slow == {}
