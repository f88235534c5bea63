"""Kafka is killed, paused and loses nodes: the bridge waits, comes back by itself, and keeps every promise."""

from __future__ import annotations

import time

import pytest

from tests.bridge_line import merged
from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.kafka_ledger import KafkaLedger
from tests.chaos.kafka_line import PARTITIONS
from tests.chaos.recovery import HEALED_S, go_on
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_cluster import KafkaCluster
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

RATE, LONG_RATE = 500.0, 2000.0
WINDOW = 500
SMALL = {"kafka": {"window": WINDOW, "confirm_timeout": "5s"}}
HELD = 2 * WINDOW


@pytest.mark.long
def test_a_killed_kafka_that_comes_back_loses_nothing(open_kafka_line: OpenKafkaLine, own_kafka: Kafka) -> None:
    line = open_kafka_line(SMALL)
    ledger, bridges = line.flowing(RATE)
    own_kafka.kill()
    own_kafka.start()
    go_on(line, ledger, bridges, HELD)


@pytest.mark.long
@pytest.mark.parametrize("away_s", [0.0, 20.0])
def test_a_kafka_that_is_killed_under_full_load_loses_nothing(
    open_kafka_line: OpenKafkaLine, own_kafka: Kafka, away_s: float
) -> None:
    line = open_kafka_line(SMALL)
    ledger, bridges = line.flowing(LONG_RATE, 2)
    own_kafka.kill()
    time.sleep(away_s)
    own_kafka.start()
    go_on(line, ledger, bridges, 2 * HELD)


@pytest.mark.long
def test_a_kafka_that_stands_still_loses_nothing(open_kafka_line: OpenKafkaLine, own_kafka: Kafka) -> None:
    line = open_kafka_line(SMALL)
    ledger, bridges = line.flowing(LONG_RATE, 2)
    own_kafka.pause()
    bridges[0].wait_log("no broker of")
    time.sleep(15)
    own_kafka.resume()
    go_on(line, ledger, bridges, 2 * HELD)


@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("what", ["coordinator", "leader"])
def test_a_node_that_goes_takes_neither_records_nor_its_group_with_it(
    open_cluster_line: OpenKafkaLine, kafka_cluster: KafkaCluster, what: str
) -> None:
    line = open_cluster_line(SMALL)
    ledger, bridges = line.flowing(LONG_RATE, 2)
    for order in ("kill", "stop"):
        number = (
            kafka_admin.coordinator(line.url, line.name)
            if what == "coordinator"
            else kafka_cluster.leader(line.topic, 0)
        )
        node = kafka_cluster.nodes[number]
        getattr(node, order)()
        ledger.wait_arrivals(int(LONG_RATE * 8), 60)
        node.start()
        kafka_cluster.wait_ok()
    go_on(line, ledger, bridges, 4 * HELD)


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_node_that_stands_still_delays_its_own_partitions_alone_and_not_for_long(
    open_cluster_line: OpenKafkaLine, kafka_cluster: KafkaCluster
) -> None:
    line = open_cluster_line({"kafka": {"window": WINDOW}})
    ledger, bridges = line.flowing(LONG_RATE, 2)
    number = kafka_cluster.leader(line.intake, 0)
    others = ",".join(node.url for other, node in kafka_cluster.nodes.items() if other != number)
    kafka_cluster.nodes[number].pause()

    def is_replaced() -> bool:
        topics = (line.intake, line.topic)
        return all(part.leader != number for t in topics for part in kafka_admin.partitions(others, t).values())

    wait_for(is_replaced, "others lead its partitions")
    go_on(line, ledger, bridges, 4 * HELD)


@pytest.mark.long
@pytest.mark.timeout(280)
def test_too_few_replicas_in_sync_hold_up_their_own_topic_alone_and_lose_nothing(
    open_cluster_line: OpenKafkaLine, kafka_cluster: KafkaCluster
) -> None:
    url = kafka_cluster.url
    intake = kafka_admin.create_topic(url, PARTITIONS)
    target = kafka_admin.create_topic(url, PARTITIONS, {"min.insync.replicas": "3"})
    strict = {"broker": "kafka", "intercept": intake, "deliver_to": target}
    line = open_cluster_line(merged(SMALL, {"routes": {"strict": strict}}))
    with KafkaLedger(url, intake, target, PARTITIONS) as held_up:
        ledger, bridges = line.flowing(RATE)
        held_up.produce(RATE, (0, 2000))
        held_up.wait_arrivals(200)
        kafka_cluster.kill_node(3)
        bridges[0].wait_health("messages of route strict are refused, the last one as few_replicas", 30)
        others = time.time()
        before = held_up.arrived()
        ledger.wait_arrivals(int(RATE * 10), 30)
        assert held_up.arrived() == before
        assert ledger.late_after(others) < HEALED_S
        kafka_cluster.start_node(3)
        kafka_cluster.wait_ok()
        held_up.stop_producing()
        healed = time.time()
        go_on(line, ledger, bridges, 2 * HELD)
        held_up.settle(60).assert_kept(2 * HELD)
        assert held_up.late_after(healed) < HEALED_S
        assert line.dead() == {}
    kafka_admin.delete_topics(url, [intake, target])


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_partition_of_an_intake_without_a_leader_is_named_and_loses_nothing(
    open_cluster_line: OpenKafkaLine, kafka_cluster: KafkaCluster
) -> None:
    line = open_cluster_line(SMALL)
    url, alone = line.url, {"min.insync.replicas": "1"}
    intake = kafka_admin.create_topic(url, 3, alone, replicas=1)
    lonely = {"broker": "kafka", "intercept": intake, "deliver_to": kafka_admin.create_topic(url, 3)}
    line.settings["routes"]["lonely"] = lonely
    with KafkaLedger(url, intake, lonely["deliver_to"], 3) as held_up:
        ledger, bridges = line.flowing(RATE)
        held_up.produce(RATE, (0, 2000))
        held_up.wait_arrivals(200)
        held_up.stop_producing()
        gone = kafka_cluster.leader(intake, 0)
        kafka_cluster.kill_node(gone)
        bridges[0].wait_health(f"nothing is taken from partitions 0 of the topic {intake}: they have no leader", 60)
        kafka_cluster.start_node(gone)
        go_on(line, ledger, bridges, 2 * HELD, HEALED_S + 10)
        held_up.settle(60).assert_kept(2 * HELD)
    kafka_admin.delete_topics(url, [intake, lonely["deliver_to"]])


@pytest.mark.long
@pytest.mark.timeout(280)
def test_a_majority_of_nodes_that_is_gone_stops_everything_and_loses_nothing(
    open_cluster_line: OpenKafkaLine, kafka_cluster: KafkaCluster
) -> None:
    line = open_cluster_line(SMALL)
    ledger, bridges = line.flowing(LONG_RATE, 2)
    kafka_cluster.kill_node(2)
    kafka_cluster.kill_node(3)
    time.sleep(20)
    kafka_cluster.start()
    # What was asked of a node while it came up may have to wait for the end of that request: ten seconds more.
    go_on(line, ledger, bridges, 4 * HELD, HEALED_S + 10)
    assert line.dead() == {}
