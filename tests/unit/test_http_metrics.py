"""/metrics over the memory store: what it says while the store is away."""

from __future__ import annotations

import pytest

from bridge.http import metrics
from tests.api import api

pytestmark = pytest.mark.slow


async def test_while_the_store_is_away_no_gauge_of_the_store_has_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_FRESH_S", 0.0)
    async with api() as client:
        await client.stores.store_one("orders", 90_000)

        async def samples() -> dict[str, str]:
            lines = (await client.client.get("/metrics")).text.splitlines()
            return dict(line.split(" ") for line in lines if not line.startswith("#"))

        there = await samples()
        assert there['postdate_parked_messages{route="orders"}'] == "1.0"
        client.stores.memory.away = "Redis does not answer"
        away = await samples()
        assert away['postdate_connection_up{peer="redis"}'] == "0.0"
        client.stores.memory.away = ""
        assert (await samples()).keys() == there.keys()
    gone = {name.partition("{")[0] for name in there.keys() - away.keys()}
    assert {"postdate_oldest_overdue_seconds", "postdate_parked_messages", "postdate_instances"} <= gone
    assert {"postdate_due_messages", "postdate_route_paused", "postdate_store_memory_bytes"} <= gone
    assert "postdate_build_info" not in gone
