"""schemathesis asks every endpoint for every kind of nonsense, with every role: no 5xx, and no write by a viewer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given
from hypothesis import settings as examples

from bridge.http.access import Role
from bridge.http.app import create_app
from bridge.http.line import Processes
from bridge.settings.model import Http
from tests.api import TOKENS, MemoryStores, settings

pytestmark = pytest.mark.slow

#: They talk to brokers, send signals, or never end.
LEFT_OUT = r"/(levels|doctor|reload|events)$"


@pytest.mark.parametrize("role", [None, *Role])
def test_no_request_makes_the_api_fail_and_no_viewer_writes(role: Role | None) -> None:
    stores = MemoryStores()
    asyncio.run(fill(stores))
    unlimited = Http(requests_per_second=100_000)
    app = create_app(settings(http=unlimited), stores, Processes())
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"}).exclude(
        path_regex=LEFT_OUT
    )
    headers = {"Host": "localhost", **({"Authorization": f"Bearer {TOKENS[role]}"} if role else {})}
    before = counts(stores)

    for result in schema.get_all_operations():
        ask(result.ok(), headers, role)  # type: ignore[union-attr]  # a wrong document fails here
    if role is None or role is Role.VIEWER:
        assert counts(stores) == before


def ask(operation: Any, headers: dict[str, str], role: Role | None) -> None:
    """Ask one endpoint with made-up values, valid and not."""

    @examples(max_examples=12, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE))
    def asked(case: Any) -> None:
        response = case.call(headers=headers)
        where = (case.method, case.formatted_path, response.status_code, response.text[:300])
        assert response.status_code < 500, where
        if not operation.path.startswith("/api/"):
            return
        if response.status_code >= 400:
            assert "application/problem+json" in str(response.headers.get("content-type")), where
        if role is None:
            assert response.status_code >= 400, where
        if role is Role.VIEWER and case.method != "GET":
            assert response.status_code >= 400, where

    asked()


async def fill(stores: MemoryStores) -> None:
    for _ in range(20):
        await stores.store_one("orders")


def counts(stores: MemoryStores) -> tuple[int, int]:
    return sum(len(shard.messages) for shard in stores.memory.shards), len(stores.memory.operations)
