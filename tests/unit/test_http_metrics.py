"""/metrics over the memory store: while the store is away, and the journal's ages of several processes."""

from __future__ import annotations

import pytest

from bridge.http import metrics
from bridge.http.line import Frame, Processes
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
    assert not {"postdate_build_info", "postdate_store_loss_timestamp_seconds"} & gone


async def test_while_redis_is_away_how_far_the_journal_is_behind_has_no_sample() -> None:
    processes = Processes(1)
    journal = {"unwritten": 3, "errors": 1, "dropped": 2, "unwritten_s": 1.0, "loader_s": 0.0}
    processes.take(0, Frame("a", "rabbitmq", "running", metrics={"journal": journal}))
    async with api(processes=processes) as client:
        text = (await client.client.get("/metrics")).text
    assert "postdate_journal_unwritten_age_seconds 1.0" in text
    assert "postdate_journal_behind_seconds" not in text


async def test_the_ages_of_the_journal_are_those_of_the_oldest_process_and_not_their_sum() -> None:
    processes = Processes(2)
    for line, process, behind_s in ((0, "dead", 500.0), (0, "a", 14.0), (1, "b", 14.8)):
        ages = {"unwritten_s": behind_s, "behind_s": behind_s, "loader_s": behind_s}
        journal = {"unwritten": 3, "errors": 1, "dropped": 2, **ages}
        processes.take(line, Frame(process, "rabbitmq", "running", metrics={"journal": journal}))
    async with api(processes=processes) as client:
        lines = (await client.client.get("/metrics")).text.splitlines()
    found = dict(line.split(" ") for line in lines if line.startswith("postdate_journal_") and "_created" not in line)
    assert found == {
        "postdate_journal_unwritten_messages": "6.0",
        "postdate_journal_unwritten_age_seconds": "14.8",
        "postdate_journal_behind_seconds": "14.8",
        "postdate_journal_loader_behind_seconds": "14.8",
        "postdate_journal_errors_total": "3.0",
        "postdate_journal_dropped_total": "6.0",
    }
