"""schemathesis asks every endpoint for every kind of nonsense, with every role: no 5xx, and no write by a viewer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

from bridge.desk.severity import CheckResult, Severity
from bridge.http import status, system
from bridge.http.access import Role
from bridge.http.app import create_app
from bridge.http.backend import Backend
from bridge.http.line import Processes
from bridge.http.status import stream
from bridge.process.http_child import Reloading
from bridge.settings.model import Http
from tests.api import TOKENS, MemoryStores, settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_no_request_makes_the_api_fail_and_no_viewer_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    without_brokers(monkeypatch)
    stores, processes = MemoryStores(), Processes()
    reloads = answering_reloads(processes)
    asyncio.run(fill(stores))
    unlimited = Http(requests_per_second=100_000)
    app = create_app(settings(http=unlimited), stores, processes)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"})

    asked = set()
    for result in schema.get_all_operations():
        operation: Any = result.ok()  # type: ignore[union-attr]  # a wrong document fails here
        ask(operation, lambda: (*counts(stores), len(reloads)))
        asked.add(operation.path.rpartition("/")[2])
    assert asked >= {"levels", "doctor", "events", "reload"}
    assert reloads


def ask(operation: Any, state: Callable[[], tuple[int, ...]]) -> None:
    """Ask one endpoint with made-up values, valid and not, with each role. To make them up takes most of the time."""

    @examples(max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def asked(case: Any) -> None:
        for role in (None, *Role):
            before, response = state(), case.call(headers=headers_of(role))
            where = (role, case.method, case.formatted_path, response.status_code, response.text[:300])
            assert response.status_code < 500, where
            if role in (None, Role.VIEWER):
                assert state() == before, where
            if role is not Role.ADMIN:
                assert state()[-1] == before[-1], where  # no reload
            if not operation.path.startswith("/api/"):
                continue
            if response.status_code >= 400:
                assert "application/problem+json" in str(response.headers.get("content-type")), where
            if role is None or (role is Role.VIEWER and case.method != "GET"):
                assert response.status_code >= 400, where

    asked()


def headers_of(role: Role | None) -> dict[str, str]:
    return {"Host": "localhost", **({"Authorization": f"Bearer {TOKENS[role]}"} if role else {})}


def without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer at once where the API asks brokers, and end the events after the first one."""

    async def first(here: Backend, role: Role) -> AsyncGenerator[str]:
        async with aclosing(stream(here, role)) as events:
            yield await anext(events)

    finding = CheckResult(Severity.WARN, "redis", "it evicts keys", advice="Set maxmemory-policy to noeviction.")
    monkeypatch.setattr(status, "stream", first)
    monkeypatch.setattr(system, "examine_all", lambda settings: [finding])
    monkeypatch.setattr(system, "survey_levels", lambda settings: ([], ["RabbitMQ does not answer."]))
    monkeypatch.setattr(system, "count_intakes", lambda settings: [])


def answering_reloads(processes: Processes) -> list[str]:
    """Let reloads succeed without a bridge. Return the list that grows with each."""
    asked: list[str] = []

    def next_reload() -> asyncio.Future[Reloading]:
        future: asyncio.Future[Reloading] = asyncio.get_running_loop().create_future()
        future.set_result(Reloading(True, 1.0, "Nothing has changed."))
        return future

    processes.ask_reload = lambda: asked.append("reload")
    processes.next_reload = next_reload  # type: ignore[method-assign]
    return asked


async def fill(stores: MemoryStores) -> None:
    for _ in range(20):
        await stores.store_one("orders")


def counts(stores: MemoryStores) -> tuple[int, int]:
    return sum(len(shard.messages) for shard in stores.memory.shards), len(stores.memory.operations)
