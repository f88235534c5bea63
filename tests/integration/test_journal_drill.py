"""The drill of deploy/journal.md, line by line: Redis loses its data, and everything is back."""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from bridge.cli import run_command
from bridge.pipeline import restore
from tests.bridge_process import ROOT
from tests.delay_line import Line
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.preloaded import run_postdate

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


def drill() -> list[str]:
    """The lines of the drill without their remarks, and the one that says that Redis loses its data."""
    (block,) = re.findall(r"^## Drill.*?```sh\n(.*?)```", (ROOT / "deploy/journal.md").read_text(), re.DOTALL | re.M)
    return [line if line.startswith("#") else line.partition("  #")[0].strip() for line in block.splitlines()]


def test_the_drill_of_the_manual_brings_everything_back(
    start_redis: StartRedis,
    rabbitmq: RabbitMQ,
    journal_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith("POSTDATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(restore, "_SETTLE_S", 0.5)  # nothing is on its way to Redis that it could wait for
    redis = start_redis()
    with Line(rabbitmq.url, redis.url, tmp_path, {"journal": {"url": journal_url}}) as line:
        line.start()
        monkeypatch.setenv("POSTDATE_CONFIG", str(line.file()))
        shown = []
        for command in drill():
            if command.startswith("#"):
                redis.lose_data()
                wait_for(lambda: line.stored() == 0, "an empty Redis")
            elif command.startswith("sleep"):
                time.sleep(float(command.split()[1]))
            else:
                assert run_command(shlex.split(command)[1:]) == 0, (command, capsys.readouterr())
                shown.append(capsys.readouterr().out)
        assert re.search(r"^parked +1$", shown[3], re.M)
        assert ("a drill" in shown[5], "another" in shown[7]) == (True, True)
        assert line.waiting() == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "UPDATE postdate_meta SET value = '99' WHERE name = 'version'",
            "has version 99, and this postdate needs version 2. Upgrade postdate",
        ),
        (
            "UPDATE postdate_meta SET value = 'others' WHERE name = 'rabbitmq key_prefix'",
            'belongs to the store with redis.key_prefix "others"',
        ),
    ],
    ids=["another version", "another cluster"],
)
def test_a_journal_that_does_not_fit_ends_the_start_with_a_sentence(
    rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path, change: str, sentence: str
) -> None:
    file = tmp_path / "journal.db"
    with Line(rabbitmq.url, redis_url, tmp_path, {"journal": {"url": f"sqlite:///{file}"}}) as line:
        line.start().terminate()
        with closing(sqlite3.connect(file)) as journal, journal:
            journal.execute(change)
        refused = line.bridge().start()
        assert refused.wait_end() == 1
        assert f"the journal at {file} {sentence}" in refused.log()
        checked = run_postdate(["check", "--config", str(line.file())], tmp_path)
        assert (checked.returncode, sentence in checked.stdout + checked.stderr) == (1, True)
