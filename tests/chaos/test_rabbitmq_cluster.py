"""A RabbitMQ cluster of three nodes, all of them in ``rabbitmq.url``: a node dies or freezes, and deliveries go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_line import QUICK, merged
from tests.bridge_process import Bridge, Tables
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line
from tests.devstack.rabbitmq_cluster import RabbitCluster
from tests.devstack.redis import Redis

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

RATE = 100.0
IN_FLIGHT = 200
#: A frozen node is given up after its peers' net tick, a minute by default, or after postdate's heartbeat: the ledger
#: waits for the arrivals that come then.
GONE_ON_S = 90.0


class ReplicatedLine(Line):
    """One whose consumers' queue survives the death of a node, as the intake does."""

    def declare_target(self, arguments: Tables | None = None) -> None:
        super().declare_target(arguments or {"x-queue-type": "quorum"})


@pytest.fixture
def line(rabbitmq_cluster: RabbitCluster, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    """A bridge that knows all nodes; the ledger and the declarations are on the last one, which lives."""
    several = {"rabbitmq": {"url": rabbitmq_cluster.url, "prefetch": IN_FLIGHT, "window": IN_FLIGHT}}
    with ReplicatedLine(rabbitmq_cluster.nodes[-1].url, redis_server.url, tmp_path, merged(QUICK, several)) as line:
        yield line


@pytest.fixture
def ledger(line: Line) -> Iterator[Ledger]:
    with Ledger(line.broker_url, line.front, line.queue) as ledger:
        yield ledger


def flowing(line: Line, ledger: Ledger) -> Bridge:
    bridge = line.start()
    ledger.produce(RATE, (0, 1000))
    ledger.wait_arrivals(100)
    return bridge


def test_the_node_that_postdate_is_connected_to_dies_and_the_next_one_is_used(
    line: Line, ledger: Ledger, rabbitmq_cluster: RabbitCluster
) -> None:
    bridge = flowing(line, ledger)
    rabbitmq_cluster.nodes[0].kill()
    began = time.monotonic()
    ledger.wait_arrivals(300, GONE_ON_S)
    took_s = time.monotonic() - began
    bridge.wait_health("All well.")
    ledger.stop_producing()
    settled(line, ledger).assert_kept(2 * IN_FLIGHT)
    assert took_s < GONE_ON_S / 2, f"300 messages after the death took {took_s:.0f} s"


def test_the_node_that_postdate_is_connected_to_freezes_and_the_next_one_is_used(
    line: Line, ledger: Ledger, rabbitmq_cluster: RabbitCluster
) -> None:
    flowing(line, ledger)
    rabbitmq_cluster.nodes[0].pause()
    ledger.wait_arrivals(300, GONE_ON_S)
    rabbitmq_cluster.nodes[0].resume()
    ledger.stop_producing()
    settled(line, ledger).assert_kept(4 * IN_FLIGHT)
