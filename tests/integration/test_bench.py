"""`postdate bench` from outside, tiny: does it count right, and does it write down everything."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bridge_process import store_client
from tests.integration.test_demo import environment

COMMAND = (sys.executable, "-m", "bridge.cli", "bench", "--quick")
LATENESS = {"p50_ms", "p99_ms", "p999_ms", "max_ms", "growing", "lost", "duplicates", "early", "refused"}


@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_tiny_bench_counts_right_and_writes_everything_down(
    redis_url: str, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    options = ("--only", "rate,backlog", "--rates", "100", "--duration", "1s", "--backlog", "300", "--out", "b.json")
    done = subprocess.run(
        (*COMMAND, *options),
        env=environment(redis_url, rabbitmq_vhost),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rate 100" in done.stdout
    found = json.loads((tmp_path / "b.json").read_text())
    assert {"format", "date", "machine", "versions", "settings", "ok", "rows"} <= found.keys()
    assert found["ok"] is True
    assert found["machine"]["cores"] >= 1
    assert found["versions"].keys() >= {"postdate", "python", "rabbitmq"}
    assert found["settings"]["redis.durability"] == "everysec"
    rows = {row["name"]: row["figures"] for row in found["rows"]}
    assert rows.keys() == {"rate 100", "backlog", "rate 2000 + backlog"}
    assert rows["rate 100"].keys() >= LATENESS
    assert rows["rate 100"]["messages"] == 100
    assert rows["rate 100"]["lost"] == rows["rate 100"]["duplicates"] == rows["rate 100"]["early"] == 0
    assert rows["rate 2000 + backlog"]["messages"] == 2000
    assert rows["backlog"]["bytes_per_message"] > 256
    with store_client(redis_url) as client:
        assert not list(client.scan_iter(match="*postdate.bench.*"))


def test_wrong_numbers_are_refused_with_2_before_anything_is_started(tmp_path: Path) -> None:
    environ = environment("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/")
    for option, value in (("--only", "all"), ("--rates", "fast"), ("--duration", "60")):
        done = subprocess.run(
            (*COMMAND, option, value), env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2, done.stderr
        assert option in done.stderr
