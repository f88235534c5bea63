"""The journal's file is moved away under a running postdate: every place says so, and no empty one takes its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.bridge_process import shortened
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.preloaded import run_postdate
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


@pytest.mark.parametrize("write", [pytest.param("before", marks=pytest.mark.long), "behind"])
def test_a_moved_file_is_a_trouble_everywhere_and_only_a_setup_makes_an_empty_journal(
    rabbitmq: RabbitMQ, start_redis: StartRedis, tmp_path: Path, write: str
) -> None:
    redis, file = start_redis(), tmp_path / "journal.db"
    gone, moved = f"the journal's file {file} is missing. If it was moved, move it back", tmp_path / "moved.db"
    with Line(rabbitmq.url, redis.url, tmp_path, {"journal": {"url": f"sqlite:///{file}", "write": write}}) as line:
        line.command = shortened("bridge.pipeline.journal_watch._EVERY_S=1")

        def asked(*words: str) -> str:
            found = run_postdate([*words, "--config", str(line.file())], tmp_path)
            return f"{found.returncode} {found.stdout}{found.stderr}"

        def publish() -> None:
            line.publish(Props([delay(3_600_000)], {"delivery_mode": b"\2"}), b"a message")

        with line.start() as bridge:
            publish()
            wait_for(lambda: line.waiting() == 1, "it is parked")
            wait_for(lambda: re.search(r"there +1", asked("restore", "--dry-run")), "its row")
            file.rename(moved)
            bridge.wait_log(gone, 15)
            publish()
            bridge.wait_health("nothing is parked: " + gone if write == "before" else "lacks accepted messages: 1", 15)
            for command in ("stats", "doctor", "check", "restore"):
                assert gone in asked(command, *(["--dry-run"] if command == "restore" else [])), command
            assert "is missing, and " in asked("setup")
            assert bridge.terminate() == 0
        assert not file.exists()
        with line.bridge().start() as again:
            again.wait_health(f"Waiting for the journal: {gone}", 15)
            assert not file.exists(), "an empty journal would lack what waits"
            moved.rename(file)
            again.wait_health("All well.", 30)
            wait_for(lambda: re.search(r"there +2", asked("restore", "--dry-run")), "both rows")
            redis.command("FLUSHALL")
            asked("restore", "--yes")
            wait_for(lambda: line.waiting() == 2, "both are back")
            assert again.terminate() == 0
