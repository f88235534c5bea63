"""`postdate bench` from outside, tiny: does it count right, and does it write down everything."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.bridge_process import store_client
from tests.devstack.kafka import Kafka
from tests.integration.test_demo import NOBODY, environment, left_on_kafka
from tests.preloaded import run_postdate

COMMAND = ("bench", "--quick")
LATENESS = {"p50_ms", "p99_ms", "p999_ms", "max_ms", "growing", "lost", "duplicates", "early", "refused"}


def benched(environ: Mapping[str, str], folder: Path, *options: str) -> tuple[str, Any]:
    """What a tiny bench prints, and its document."""
    tiny = ("--rates", "100", "--duration", "1s", "--backlog", "300", "--out", "b.json")
    done = run_postdate([*COMMAND, *tiny, *options], folder, environ, 90)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "b.json").read_text())


def rows_of(found: Any, broker: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row["figures"] for row in found["brokers"][broker]["rows"]}


@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_tiny_bench_counts_correctly_and_writes_its_document(
    redis_url: str, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    printed, found = benched(environment(redis_url, rabbitmq_vhost), tmp_path, "--only", "rate,backlog")
    assert "rate 100" in printed
    assert {"format", "date", "machine", "versions", "ok", "brokers"} <= found.keys()
    assert found["ok"] is True
    assert found["machine"]["cores"] >= 1
    assert found["versions"].keys() >= {"postdate", "python", "rabbitmq"}
    assert found["brokers"].keys() == {"rabbitmq"}, "Kafka does not answer, so it is left out"
    assert found["brokers"]["rabbitmq"]["settings"]["redis.durability"] == "everysec"
    rows = rows_of(found, "rabbitmq")
    assert rows.keys() == {"rate 100", "backlog"}
    assert rows["rate 100"].keys() >= LATENESS
    assert rows["rate 100"]["messages"] == 100
    assert rows["rate 100"]["lost"] == rows["rate 100"]["duplicates"] == rows["rate 100"]["early"] == 0
    assert rows["backlog"]["bytes_per_message"] > 256
    with store_client(redis_url) as client:
        assert not list(client.scan_iter(match="*postdate.bench.*"))


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.kafka
def test_the_bench_measures_the_same_on_kafka(redis_url: str, kafka: Kafka, tmp_path: Path) -> None:
    environ = environment(redis_url, f"amqp://{NOBODY}/", kafka.url)
    options = ("--broker", "kafka", "--only", "plain,rate,burst,backlog", "--burst", "3000")
    printed, found = benched(environ, tmp_path, *options)
    assert printed.startswith("Kafka")
    assert found["ok"] is True
    assert found["brokers"]["kafka"]["settings"]["kafka.window"] == 5000
    rows = rows_of(found, "kafka")
    assert rows.keys() == {"plain", "rate 100", "burst 3000", "backlog"}
    assert rows["plain"]["messages"] == 200_000
    assert rows["rate 100"].keys() >= LATENESS
    for name in ("plain", "rate 100", "burst 3000"):
        assert [rows[name][fault] for fault in ("lost", "duplicates", "early")] == [0, 0, 0]
    assert rows["burst 3000"]["disordered"] == 0
    assert rows["burst 3000"]["all_out_ms"] > 0
    assert rows["backlog"]["bytes_per_message"] > 256
    assert left_on_kafka(kafka, "bench") == []
    with store_client(redis_url) as client:
        assert not list(client.scan_iter(match="*postdate.bench.*"))


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.rabbitmq
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /dev/full")
def test_a_full_disk_still_prints_the_table_and_the_error_names_the_file(
    redis_url: str, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    options = ("--broker", "rabbitmq", "--only", "rate", "--rates", "50", "--duration", "1s", "--out", "/dev/full")
    environ = environment(redis_url, rabbitmq_vhost)
    done = run_postdate([*COMMAND, *options], tmp_path, environ)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1].startswith("/dev/full cannot be written (No space left on device)")
    assert "rate 50" in done.stdout


@pytest.mark.redis
def test_a_required_broker_that_does_not_answer_ends_the_bench_with_4(redis_url: str, tmp_path: Path) -> None:
    environ = environment(redis_url, f"amqp://{NOBODY}/")
    for options in (("--broker", "kafka"), ()):
        done = run_postdate([*COMMAND, *options], tmp_path, environ)
        assert done.returncode == 4, done.stderr
        assert f"no broker of {NOBODY} answers" in done.stderr
        assert "make demo" in done.stderr


@pytest.mark.slow
def test_wrong_numbers_are_refused_with_2_before_anything_starts(tmp_path: Path) -> None:
    environ = environment("redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/")
    wrong = (("--only", "all"), ("--rates", "fast"), ("--duration", "60"), ("--burst", "0"))
    for option, value in (*wrong, ("--out", "no/such/folder.json"), ("--out", ".")):
        done = run_postdate([*COMMAND, option, value], tmp_path, environ)
        assert done.returncode == 2, done.stderr
        assert option in done.stderr
