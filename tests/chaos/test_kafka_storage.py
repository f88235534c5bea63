"""Kafka's disk is full, and Kafka removes records before postdate has read them."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.flow import RATE, WINDOW, OpenFlow
from tests.chaos.kafka_line import LedgerLine
from tests.chaos.recovery import settled
from tests.devstack import kafka as kafka_servers
from tests.devstack import kafka_admin
from tests.devstack.fixtures import need
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_java import QUICK
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

WEEK_MS = "604800000"
_REMOVED = re.compile(r"removed unread records.* first_offset=(\d+) next_offset=(\d+)")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system. Only root may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def kafka(disk: Path) -> Iterator[Kafka]:
    """A Kafka on a small disk, which looks every second whether records are older than their topic keeps them."""
    own = {"log.dirs": str(disk / "data"), "log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "0"}
    with need(lambda: kafka_servers.launch(*QUICK, settings=own)) as server:
        yield server


@pytest.mark.parametrize("open_flow", ["kafka"], indirect=True)
def test_a_full_disk_of_kafka_loses_nothing_once_there_is_room(
    open_flow: OpenFlow, redis_server: Redis, kafka: Kafka, disk: Path
) -> None:
    """Kafka ends itself when it cannot write."""
    flow = open_flow(redis_server.url)
    flow.start()
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb") as file:  # Kafka takes a part of what is free
        file.write(bytes(shutil.disk_usage(disk).free))
    wait_for(lambda: not kafka.running(), "Kafka has ended")
    time.sleep(5)
    ballast.unlink()
    kafka.start()
    flow.recover("Kafka had no room")
    flow.go_on(2 * 2 * WINDOW)


@pytest.mark.parametrize("open_flow", ["kafka"], indirect=True)
def test_each_record_that_kafka_removes_before_it_is_read_is_named(open_flow: OpenFlow, redis_server: Redis) -> None:
    flow = open_flow(redis_server.url)
    line = flow.line
    assert isinstance(line, LedgerLine)
    flow.start()
    flow.order("drain", "draining")
    time.sleep(1000 / RATE)
    flow.ledger.stop_producing()
    kafka_admin.set_topic_config(line.url, line.intake, "retention.ms", "1000")
    end = kafka_admin.count(line.url, line.intake)
    wait_for(lambda: kafka_admin.removed(line.url, line.intake) == end, "Kafka has removed the records")
    kafka_admin.set_topic_config(line.url, line.intake, "retention.ms", WEEK_MS)
    arrived = flow.ledger.arrived()
    flow.order("resume", "")
    flow.ledger.produce(RATE, (0, 2000))
    flow.ledger.wait_arrivals(1000)
    flow.ledger.stop_producing()
    verdict = settled(line, flow.ledger, 5)
    named = sum(int(end) - int(first) for first, end in _REMOVED.findall(line.log()))
    print(f"arrived before {arrived}; named {named}; {verdict}")
    assert named == len(verdict.lost) > 0
    assert not [*verdict.early, *verdict.mangled]
    assert any("Kafka removed" in bridge.health() for bridge in flow.bridges)
