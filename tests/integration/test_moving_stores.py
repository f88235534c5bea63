"""`postdate export` and `postdate import` on real stores: between standalone and Cluster, and while postdate runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.cli import run_command
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.integration.test_levels_commands import Shell
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

SETTINGS = """
[redis]
url = "{url}"
key_prefix = "{prefix}"
shards = {shards}
durability = "none"
[routes.orders]
intercept = "orders.delay"
deliver_to = "orders"
[routes.bills]
broker = "kafka"
intercept = "bills.delay"
deliver_to = "bills"
"""

#: Runs a command on a settings file. Returns exit code, output and remarks.
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in [name for name in os.environ if name.startswith("POSTDATE_")]:
        monkeypatch.delenv(name)

    def run(config: Path, *words: str) -> tuple[int, str, str]:
        code = run_command([*words, "--config", str(config)])
        return code, *capsys.readouterr()

    return run


def place(folder: Path, url: str, prefix: str, shards: int) -> Path:
    file = folder / f"{prefix.strip(':')}.toml"
    file.write_text(SETTINGS.format(url=url, prefix=prefix, shards=shards))
    file.chmod(0o600)
    return file


def listed(run: Run, config: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run(config, "list", "--all", "-o", "json")[1])
    return [{**row, "wait": ""} for row in rows]


def body(run: Run, config: Path, message_id: str) -> str:
    return run(config, "show", message_id, "-o", "json")[1].partition('"now_ms"')[0].replace(message_id, "")


def test_a_file_moves_the_messages_of_both_brokers_from_standalone_to_cluster_and_back(
    redis_url: str, redis_cluster_url: str, key_prefix: str, tmp_path: Path, run: Run
) -> None:
    first = place(tmp_path, redis_url, f"{key_prefix}a", 8)
    second = place(tmp_path, redis_cluster_url, f"{key_prefix}b", 8)
    third = place(tmp_path, redis_url, f"{key_prefix}c", 3)
    for n in range(12):
        broker = ("orders", "--routing-key", f"k{n}") if n % 2 else ("bills", "--record-key", f"k{n}")
        assert (
            run(first, "send", broker[0], f"body {n} é", *broker[1:], "--in", f"{n + 60}m", "--key", f"o-{n}")[0] == 0
        )
    code, text, said = run(first, "export")
    assert (code, said) == (0, "Messages: 12.\n")
    (entry,) = [row for row in json.loads(run(first, "audit", "-o", "json")[1]) if row["verb"] == "export"]
    assert (entry["what"], entry["messages"]) == ("all messages", 12)
    file = tmp_path / "all.jsonl"
    file.write_text(text)

    code, out, said = run(second, "import", str(file), "--dry-run", "-o", "json")
    assert (code, json.loads(out)["parked"], listed(run, second)) == (0, 12, [])
    assert "Nothing was changed" in said
    assert "Which messages were delivered after the export is not known." in said
    assert json.loads(run(second, "import", str(file), "-o", "json")[1])["parked"] == 12
    assert listed(run, second) == listed(run, first)
    code, out, _ = run(second, "import", str(file), "-o", "json")
    assert (code, json.loads(out)["parked"], json.loads(out)["there"]) == (0, 0, 12)
    for row in listed(run, first):
        assert body(run, second, row["id"]) == body(run, first, row["id"])
        assert run(second, "show", "--key", row["key"], "--route", row["route"])[0] == 0

    file.write_text(run(second, "export", "--route", "bills")[1])
    assert json.loads(run(third, "import", str(file), "-o", "json")[1])["parked"] == 6
    moved = {row["key"]: row for row in listed(run, third)}
    for row in listed(run, first):
        if row["route"] == "bills":
            other = moved[row["key"]]
            assert row["id"] in (other["id"], other.get("first_copy"))
            assert {**other, "id": "", "first_copy": ""} == {**row, "id": "", "first_copy": ""}


def test_messages_come_back_from_a_file_after_redis_was_emptied_while_postdate_runs(
    rabbitmq: RabbitMQ, start_redis: StartRedis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    redis = start_redis()
    with Line(rabbitmq.url, redis.url, tmp_path, {}) as line, line.start() as bridge:
        shell, file = Shell(line, capsys), tmp_path / "backup.jsonl"
        for n in range(50):
            props = Props([delay(6000), (b"n", "I", n.to_bytes(4, "big"))], {"delivery_mode": b"\2"})
            line.publish(props, bytes(range(256)) * (1 + n), f"key.{n}".encode())
        wait_for(lambda: line.waiting() == 50, "all are parked")
        file.write_text(shell("export"))
        redis.command("FLUSHALL")
        wait_for(lambda: b"shards" in agreement(redis, line), "postdate has written the agreement again")
        facts = json.loads(shell("import", str(file), "-o", "json"))
        assert (facts["parked"], facts["complete"]) == (50, True)
        got = line.receive(50)
        assert sorted(len(message.body) for message in got) == [256 * (1 + n) for n in range(50)]
        ids = {json.loads(text)["id"] for text in file.read_text().splitlines()[1:-1]}
        assert {message.properties.partition(b"\x0ax-delay-idS")[2][4:24].decode() for message in got} == ids
        assert line.receive_until(1, 1.0) == []
        assert bridge.terminate() == 0


def agreement(redis: Any, line: Line) -> dict[bytes, bytes]:
    with redis.client() as client:
        return dict(client.hgetall(f"{{{line.name}}}:store"))
