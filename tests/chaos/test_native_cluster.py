"""Native delays on a cluster of three nodes: the node of the queue in which messages arrive, or wait, dies."""

from __future__ import annotations

import struct
import time
from pathlib import Path

import pytest

from adapters.rabbitmq import native_guard
from bridge.delay.header import NATIVE
from tests import natively
from tests.bridge_line import QUICK, merged
from tests.bridge_process import Tables
from tests.chaos.test_rabbitmq_cluster import GONE_ON_S, ReplicatedLine
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.rabbitmq_cluster import RabbitCluster
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.level_line import LevelLine, require_native
from tests.unit.raw_properties import Entry, Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(400)]

NATIVELY = ("tests.natively",)
#: RabbitMQ takes over a minute to answer for a classic queue on a node that is down.
START_S = 200.0


class ReplicatedLevelLine(LevelLine):
    """One whose consumers' queue survives the death of a node."""

    def declare_target(self, arguments: Tables | None = None) -> None:
        super().declare_target(arguments or {"x-queue-type": "quorum"})


def at(due_ms: int) -> Entry:
    return (NATIVE.encode(), "l", struct.pack(">q", due_ms))


def put(line: Line, due_ms: int, *headers: Entry) -> None:
    """Publish a message whose body is its due moment."""
    line.publish(Props(list(headers), {"delivery_mode": b"\2"}), b"%d" % due_ms)


def holder(cluster: RabbitCluster, queue: str) -> RabbitMQ:
    """The node that has a classic queue, or leads a quorum queue."""
    rows = cluster.nodes[-1].ctl("list_queues", "--no-table-headers", "name", "pid").splitlines()
    process = next(pid for name, _, pid in (row.partition("\t") for row in rows) if name == queue)
    return next(node for node in cluster.nodes if f"<{node.node_name}." in process)


def receive_all(line: Line, dues_ms: list[int], deadline_s: float = GONE_ON_S) -> None:
    """Assert that each message comes, and none early. A message may come twice."""
    missing, until = {b"%d" % due_ms for due_ms in dues_ms}, time.monotonic() + deadline_s
    while missing:
        assert time.monotonic() < until, f"missing: {len(missing)} of {len(dues_ms)}; {line.log_tails()}"
        for message in line.receive_until(len(missing), 1):
            assert message.at * 1000 >= int(message.body), "early"
            missing.discard(message.body)


def test_while_the_node_of_the_timed_queue_is_down_all_that_waits_is_delivered_and_postdate_starts(
    rabbitmq_cluster: RabbitCluster, redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that RabbitMQ 4.4 would delay by itself come in by a classic queue, which is on one node."""
    monkeypatch.setattr(native_guard, "FIRST", natively.ANY)
    several = {"rabbitmq": {"url": rabbitmq_cluster.url}}
    with ReplicatedLine(rabbitmq_cluster.nodes[-1].url, redis_server.url, tmp_path, merged(QUICK, several)) as line:
        bridge, timed = line.bridge(command=NATIVELY).start().wait_ready(), native_guard.timed_queue(line.intake)
        dues_ms = [int(time.time() * 1000) + 8_000 + 100 * number for number in range(100)]
        for due_ms in dues_ms:
            put(line, due_ms, at(due_ms))
        wait_for(lambda: line.waiting() == len(dues_ms), "all are parked")
        bridge.kill()
        left_ms = int(time.time() * 1000) + 1
        put(line, left_ms, at(left_ms))
        node = holder(rabbitmq_cluster, timed)
        assert node is not rabbitmq_cluster.nodes[-1], "the line's own node has to live"
        node.kill()
        bridge = line.bridge(command=NATIVELY).start()
        bridge.wait_log("is a classic queue on a node that is down", START_S)
        other_ms = int(time.time() * 1000) + 500
        put(line, other_ms, delay(500))
        receive_all(line, [*dues_ms, other_ms], START_S)
        node.start()
        receive_all(line, [left_ms])


def test_in_mode_native_the_leader_of_the_waiting_messages_dies_and_none_is_lost_or_early(
    rabbitmq_cluster: RabbitCluster, tmp_path: Path
) -> None:
    require_native(rabbitmq_cluster.nodes[0])
    several = {"rabbitmq": {"url": rabbitmq_cluster.url}}
    with ReplicatedLevelLine(rabbitmq_cluster.nodes[-1].url, tmp_path, several, mode="native") as line:
        line.run()
        dues_ms = [int(time.time() * 1000) + 5_000 + 50 * number for number in range(400)]
        for due_ms in dues_ms:
            put(line, due_ms, (b"x-deliver-at", "l", struct.pack(">q", due_ms)))
        node = holder(rabbitmq_cluster, line.places().native)
        assert node is not rabbitmq_cluster.nodes[-1], "the line's own node has to live"
        node.kill()
        receive_all(line, dues_ms)
        node.start()
