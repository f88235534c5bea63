"""Redis loses its data under load. `postdate restore` brings back what waited: lost 0, early 0, few copies."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.bridge_line import merged
from tests.bridge_process import Bridge, Tables, shortened
from tests.chaos.conftest import OpenLedger, OpenLine
from tests.chaos.flow import WINDOW, OpenFlow
from tests.chaos.recovery import settled
from tests.devstack.databases import DATABASES
from tests.devstack.fixtures import StartRedis, need
from tests.devstack.service import Service, wait_for
from tests.preloaded import run_postdate

pytestmark = pytest.mark.redis

RATE = 500.0
IN_FLIGHT = 200
#: The copies of one loss: what was in flight, and what left while the journal was this far behind.
BEHIND_S = 2.0
#: An instance tries a failed call again after this time at most, not after five seconds. A restore waits a second more,
#: as it does with those five. The long tests have both as they are.
AGAIN_S = 1.0
SMALL: Tables = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}, "redis": {"timeout": "1s"}}


def rows(file: Path) -> set[bytes]:
    """The ids of all messages in a journal."""
    with closing(sqlite3.connect(file)) as journal:
        return {bytes(message_id) for (message_id,) in journal.execute("SELECT id FROM postdate_message")}


@pytest.mark.rabbitmq
@pytest.mark.parametrize("write", ["before", "behind"])
def test_a_redis_that_lost_its_data_folder_loses_nothing_after_a_restore(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis, tmp_path: Path, write: str
) -> None:
    redis = start_redis()
    file = tmp_path / "journal.db"
    line = open_line(merged(SMALL, {"journal": {"url": f"sqlite:///{file}", "write": write}}), store_url=redis.url)
    line.command = shortened(f"bridge.telemetry.reconnect.MAX_S={AGAIN_S}")
    ledger = open_ledger(line)
    bridge = line.start()
    ledger.produce(RATE, (0, 5000))
    ledger.wait_arrivals(1000)
    bridge.kill()
    accepted = line.ids()
    bridge.start()
    ledger.wait_arrivals(1000)
    # With "behind" a killed instance leaves messages without rows; the next one writes them within a second.
    wait_for(lambda: line.ids() & accepted <= rows(file), "what the killed instance accepted has its rows", 60)
    redis.lose_data()
    time.sleep(BEHIND_S)  # the running instance writes its last rows: a restore sees those that are there
    settle = [f"bridge.pipeline.restore._SETTLE_S={AGAIN_S + 1}"]
    words = ["restore", "--yes", "-o", "json", "--config", str(line.file())]
    done = run_postdate(words, tmp_path, waits=settle)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parked"] > 0
    ledger.wait_arrivals(1000)
    ledger.stop_producing()
    settled(line, ledger, 60).assert_kept(2 * IN_FLIGHT + int(BEHIND_S * RATE))


@pytest.fixture
def start_database(tmp_path: Path) -> Iterator[Callable[[str], tuple[str, Service | None]]]:
    """The URL of a new journal, and its server to kill; SQLite has none."""
    with ExitStack() as started:

        def start(kind: str) -> tuple[str, Service | None]:
            if kind == "sqlite":
                return f"sqlite:///{tmp_path}/journal.db", None
            server = need(lambda: started.enter_context(DATABASES[kind]()))
            return server.url, server

        yield start


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "rate"), [("postgresql", 2000.0), ("mariadb", 500.0), ("sqlite", 500.0)])
def test_kills_of_postdate_database_and_redis_and_a_lost_data_folder_lose_nothing(
    open_flow: OpenFlow,
    start_redis: StartRedis,
    start_database: Callable[[str], tuple[str, Service | None]],
    tmp_path: Path,
    kind: str,
    rate: float,
) -> None:
    """With ``before``. Each copy is of a kill, or of what left while the journal was behind at the loss."""
    redis, (url, database) = start_redis(), start_database(kind)
    flow = open_flow(redis.url, {"journal": {"url": url, "write": "before"}}, keys=50)
    flow.start((0, 8000), rate)
    victims: list[Bridge | Service] = [flow.bridges[0], *([database] if database is not None else []), redis]
    for victim in victims:
        victim.kill()
        time.sleep(1)
        victim.start()
        flow.recover(f"{type(victim).__name__} died")
        flow.ledger.wait_arrivals(1000)
    redis.lose_data()
    time.sleep(2)
    began = time.monotonic()
    ended = run_postdate(["restore", "--yes", "-o", "json", "--config", str(flow.line.file())], tmp_path, timeout_s=120)
    assert ended.returncode == 0, ended.stderr
    print(f"restore, after {time.monotonic() - began:.1f} s: {json.loads(ended.stdout)}")
    flow.ledger.wait_arrivals(1000)
    flow.ledger.stop_producing()
    verdict = settled(flow.line, flow.ledger, 60)
    print(verdict)
    assert (verdict.lost, verdict.early, verdict.mangled, verdict.strangers) == ([], [], [], 0)
    in_flight = 2 * 2 * WINDOW
    assert verdict.copies <= (len(victims) + 1) * in_flight + BEHIND_S * rate
    assert verdict.copies_with_another_id <= in_flight


@pytest.mark.long
@pytest.mark.rabbitmq
@pytest.mark.timeout(400)
@pytest.mark.parametrize("write", ["before", "behind"])
def test_a_database_that_is_away_for_a_minute_is_named_and_nothing_is_lost(
    open_line: OpenLine,
    open_ledger: OpenLedger,
    start_redis: StartRedis,
    start_database: Callable[[str], tuple[str, Service | None]],
    tmp_path: Path,
    write: str,
) -> None:
    """With ``before`` nothing is accepted meanwhile, with ``behind`` everything. What waits in Redis is delivered."""
    redis, (url, database) = start_redis(), start_database("postgresql")
    assert database is not None
    line = open_line(merged(SMALL, {"journal": {"url": url, "write": write}}), store_url=redis.url)
    ledger = open_ledger(line)
    bridge = line.start()
    ledger.produce(RATE, (0, 40_000))
    ledger.wait_arrivals(2000)
    database.kill()
    time.sleep(3)  # what had been accepted and was due is gone
    accepted, arrived = line.stored(), ledger.arrived()
    bridge.wait_health("the journal", 40)
    print(f"{write}: {bridge.health()}")
    time.sleep(55)
    assert ledger.arrived() - arrived > 1000
    assert (line.stored() > accepted) is (write == "behind")
    database.start()
    # What the broker kept leaves at thousands a second, and the copies are counted by the rate of the producer.
    wait_for(lambda: line.depth(line.intake) < RATE, "what waited in the broker is parked", 60)
    bridge.wait_health("All well.", 40)
    ledger.wait_arrivals(1000)
    redis.lose_data()  # what came meanwhile has its rows, too
    time.sleep(2)
    done = run_postdate(["restore", "--yes", "-o", "json", "--config", str(line.file())], tmp_path, timeout_s=120)
    assert done.returncode == 0, done.stderr
    print(json.loads(done.stdout))
    ledger.stop_producing()
    settled(line, ledger, 120).assert_kept(2 * IN_FLIGHT + int(BEHIND_S * RATE))
