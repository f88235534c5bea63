"""`postdate plan`: what a load needs, and whether what runs is enough."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bridge.cli import run_command
from bridge.operate.documents import MemoryFacts, StatsFacts
from bridge.operate.sizing import PlannedLoad, compared, needs
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

ROOT = Path(__file__).parents[2]
WEEK_MS = 7 * 86_400_000
WEEKLY = PlannedLoad("rabbitmq", 500, 2000, WEEK_MS)


def numbers(load: PlannedLoad) -> dict[str, int]:
    return {need.what: need.number for need in needs(load, Settings())}


def stats(memory: int, processes: int, each: int | None) -> StatsFacts:
    facts = dict.fromkeys(("parked", "held", "claimed", "dead", "overdue", "refused_waiting"), 0)
    given = {"well": True, "sentence": "", "now": "", "oldest_overdue_ms": 0, "next_due": None, "ever": {}}
    servers = [MemoryFacts(server="redis", used=1, max=memory)]
    lists = {
        "warnings": [],
        "routes": [],
        "instances": [{"broker": "rabbitmq"}] * processes + [{"broker": "kafka"}],
        "memory": servers,
    }
    return StatsFacts.model_validate({**facts, **given, **lists, "bytes_per_message": each})


def test_a_week_of_500_a_second_is_302_million_messages() -> None:
    found = numbers(WEEKLY)
    assert found["parked messages"] == 302_400_000
    assert found["memory in Redis"] == pytest.approx(302_400_000 * 2410, rel=0.01)
    assert found["processes"] == 2
    assert found["shards"] == 8


def test_a_high_rate_needs_instances_and_shards() -> None:
    found = numbers(PlannedLoad("kafka", 40_000, 256, 60_000))
    assert (found["processes"], found["shards"], found["Redis servers"], found["partitions"]) == (4, 16, 2, 8)


@pytest.mark.parametrize(("broker", "columns"), [("rabbitmq", 1), ("kafka", 2)])
def test_the_bytes_for_a_message_are_those_of_the_manual(broker: BrokerKind, columns: int) -> None:
    page = (ROOT / "deploy" / "README.md").read_text()
    row = re.search(r"^\| Redis 7\.0 of Debian \| (\d+) \| \d+ \| (\d+) \| \d+ \|$", page, re.MULTILINE)
    assert row
    assert PlannedLoad(broker, 1, 256, 1000).bytes_each == pytest.approx(int(row[columns]), rel=0.1)


def test_memory_beyond_a_usual_machine_points_to_a_cluster() -> None:
    def servers(load: PlannedLoad) -> str:
        return next(need.because for need in needs(load, Settings()) if need.what == "Redis servers")

    assert "memory is much for one machine: use a Redis Cluster" in servers(WEEKLY)
    assert "much" not in servers(PlannedLoad("rabbitmq", 500, 2000, 60_000))


def test_what_runs_is_compared_with_the_processes_of_this_broker_alone() -> None:
    load = PlannedLoad("rabbitmq", 100, 256, 3_600_000)
    good = stats(2**30, 2, load.bytes_each)
    assert all(enough for enough, _ in compared(load, Settings(), good))
    for poor in (stats(2**20, 2, None), stats(0, 2, None), stats(2**30, 1, None), stats(2**30, 2, 2000)):
        assert [enough for enough, _ in compared(load, Settings(), poor)].count(False) == 1


def test_the_command_prints_rows_and_refuses_a_size_without_a_unit(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["plan", "--rate", "500", "--size", "2kB", "--delay", "7d", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["what"] for row in rows} >= {"memory in Redis", "maxmemory", "processes", "shards"}
    assert run_command(["plan", "--rate", "500", "--size", "2000", "--delay", "7d"]) == 2
    assert run_command(["plan", "--rate", "500", "--delay", "soon"]) == 2
