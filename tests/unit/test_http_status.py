"""The overview, the timeline, settings and events, over the memory store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from pydantic import SecretStr

from bridge.http.access import Role
from bridge.http.line import Frame, Processes
from bridge.http.status import facts
from bridge.settings.model import Redis, Route, Settings
from tests.api import AUTH, api, settings

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


async def test_the_overview_says_in_a_sentence_whether_all_is_well() -> None:
    async with api(Role.VIEWER) as client:
        assert (await client.get("/status"))["sentence"] == "All well: 0 parked, none due, nothing overdue."
        await client.stores.store_one("orders", 90_000)
        client.backend.look.forget()
        told = await client.get("/status")
        assert told["sentence"] == "All well: 1 parked, next in 1m 30s, nothing overdue."
        assert (told["well"], told["role"], told["parked"], told["due_5m"]) == (True, "viewer", 1, 0)
        client.stores.memory.clock.advance(95_000)  # type: ignore[attr-defined]
        client.backend.look.forget()
        told = await client.get("/status")
        assert told["well"] is False
        assert told["sentence"].startswith("Overdue: 1, the oldest by 5s. No instance is running")


async def test_the_troubles_of_a_process_on_this_machine_are_told() -> None:
    async with api() as client:
        frame = Frame("a-1", "rabbitmq", 1, "running", "", troubles={"rabbitmq": "connection refused."})
        client.backend.processes = Processes(1)
        client.backend.processes.take(0, frame)
        told = await client.get("/status")
        assert told["troubles"] == [{"instance": "a-1", "subject": "rabbitmq", "text": "connection refused."}]
        assert told["sentence"] == "Trouble: connection refused."


async def test_routes_have_their_counts() -> None:
    async with api() as client:
        await client.stores.store_one("orders")
        await client.bury()
        orders, bills = (await client.get("/routes"))["routes"]
        assert (orders["name"], orders["parked"], orders["dead"]) == ("orders", 1, 1)
        assert (bills["name"], bills["parked"], bills["dead"]) == ("bills", 0, 0)
        assert (await client.get("/routes/orders"))["intercept"] == "orders.delay"
        assert "Did you mean 'orders'?" in (await client.get("/routes/order", 404))["detail"]


async def test_a_route_is_paused_drained_and_resumed_with_who_and_why() -> None:
    async with api() as client:
        paused = await client.call("PUT", "/routes/orders/pause", 202, {"reason": "the bank is down"})
        assert (paused["state"], paused["by"], paused["reason"]) == ("paused", "admin (api)", "the bank is down")
        assert (await client.get("/routes/orders"))["state"] == "paused"
        assert (await client.get("/routes/bills"))["state"] == "running"
        assert (await client.call("PUT", "/routes/orders/drain", 202))["state"] == "draining"
        assert (await client.call("PUT", "/routes/orders/resume", 202))["state"] == "running"
        await client.call("PUT", "/routes/nowhere/pause", 404)
        verbs = [one["verb"] for one in (await client.get("/audit"))["audit"]]
        assert verbs == ["resume", "drain", "pause"]


async def test_a_route_without_a_store_is_not_paused() -> None:
    routes = {"quick": Route(intercept="quick.delay", deliver_to="quick", mode="levels")}
    async with api(given=Settings(routes=routes, auth=AUTH)) as client:
        assert "no store" in (await client.call("PUT", "/routes/quick/pause", 409))["detail"]
        (route,) = (await client.get("/routes"))["routes"]
        assert (route["state"], route["parked"]) == ("running", None)


async def test_the_timeline_has_what_is_due_in_each_step_after_now() -> None:
    async with api() as client:
        for minutes in (1, 1, 30):
            await client.stores.store_one("orders", minutes * 60_000 + 500)
        told = await client.get("/timeline", span="1h")
        assert sum(one["count"] for one in told["due"]) == 3
        assert max(one["count"] for one in told["due"]) == 2
        assert told["due"][0]["at_ms"] == told["now_ms"]
        await client.get("/timeline", 422, span="2h")


async def test_settings_are_shown_with_their_source_and_no_secret() -> None:
    given = settings(redis=Redis(url=SecretStr("redis://user:hunter2@redis.example/0"), password=SecretStr("hunter3")))
    async with api(given=given) as client:
        told = await client.get("/config")
        shown = {one["name"]: one["value"] for one in told["settings"]}
        assert "hunter" not in json.dumps(told)
        assert "admin-token" not in json.dumps(told)
        assert "redis.example" in shown["redis.url"]
        assert shown["bridge.shutdown_grace"] == "25s"
        assert {"routes.orders.intercept", "http.listen"} <= shown.keys()


async def test_instances_and_stats_are_those_of_the_command() -> None:
    async with api() as client:
        await client.stores.store.meet(10_000, True, '{"health": "well"}')
        (one,) = (await client.get("/instances"))["instances"]
        assert (one["name"], one["able"], one["health"]) == ("memory", True, "well")
        assert {"parked", "ever", "instances", "without_store"} <= (await client.get("/stats")).keys()


async def test_events_tell_the_status_and_that_someone_did_something() -> None:
    async with api() as client:
        stream = client.events()
        assert await anext(stream) == "status"
        await client.call("POST", "/messages", 201, {"route": "orders", "routing_key": "", "body": "", "in": "1h"})
        assert await anext(stream) == "audit"
        assert await anext(stream) == "status"
        assert client.backend.events.listeners == 1
        await stream.aclose()
        assert client.backend.events.listeners == 0
        client.backend.events.listeners = 1000
        await client.get("/events", 503)


async def test_many_who_ask_at_once_cause_one_look_at_the_store() -> None:
    async with api() as client:
        looks = 0
        kept = client.stores.kept.stats

        async def stats() -> Any:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0)
            return await kept()

        client.stores.kept.stats = stats  # type: ignore[method-assign]
        await asyncio.gather(*(facts(client.backend, Role.VIEWER) for _ in range(20)))
        assert looks == 1
