"""Redis loses its data under load. `postdate restore` brings back what waited: lost 0, early 0, few copies."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.bridge_line import merged
from tests.bridge_process import Tables
from tests.chaos.conftest import OpenLedger, OpenLine
from tests.chaos.recovery import settled
from tests.devstack.fixtures import StartRedis
from tests.preloaded import run_postdate

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

RATE = 500.0
IN_FLIGHT = 200
#: The copies of one loss: what was in flight, and what left while the journal was this far behind.
BEHIND_S = 2.0
SMALL: Tables = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}, "redis": {"timeout": "1s"}}


@pytest.mark.parametrize("write", ["before", "behind"])
def test_a_redis_that_lost_its_data_folder_loses_nothing_after_a_restore(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis, tmp_path: Path, write: str
) -> None:
    redis = start_redis()
    journal: Tables = {"journal": {"url": f"sqlite:///{tmp_path}/journal.db", "write": write}}
    line = open_line(merged(SMALL, journal), store_url=redis.url)
    ledger = open_ledger(line)
    bridge = line.start()
    ledger.produce(RATE, (0, 8000))
    ledger.wait_arrivals(1000)
    bridge.kill()
    bridge.start()
    ledger.wait_arrivals(1000)
    redis.lose_data()
    time.sleep(2)
    done = run_postdate(["restore", "--yes", "-o", "json", "--config", str(line.file())], tmp_path)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    ledger.wait_arrivals(1000)
    ledger.stop_producing()
    settled(line, ledger, 60).assert_kept(2 * IN_FLIGHT + int(BEHIND_S * RATE))
