"""A producer that writes in transactions while postdate is killed: every committed record arrives, no aborted one."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition

from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.integration.kafka.clients import PARTITIONS, Clients, running
from tests.integration.kafka.rig import DEADLINE_S

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.long]

ROUNDS, EACH = 4, 30


def lag(clients: Clients, word: str) -> int:
    """How many offsets of an intake the group has not committed."""
    topic, group = clients.intake(word), clients.bridge_group
    admin = kafka_admin.client(clients.url)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, number) for number in range(PARTITIONS)])
    found = admin.list_consumer_group_offsets([asked])[group].result(DEADLINE_S).topic_partitions
    return kafka_admin.count(clients.url, topic) - sum(max(0, int(place.offset)) for place in found)


def test_kills_under_a_transactional_producer_lose_no_committed_record_and_leave_no_lag(
    kafka: Kafka, redis_server: Redis, tmp_path: Path
) -> None:
    with running(kafka, redis_server, tmp_path, ["paid"]) as clients:
        producer = Producer(
            {"bootstrap.servers": clients.url, "transactional.id": clients.intake("paid"), "log_level": 0}
        )
        producer.init_transactions()
        kept: set[bytes | None] = set()
        for round_ in range(ROUNDS):
            for number in range(EACH):
                values = [b"%d %d %d" % (round_, number, place) for place in range(3)]
                producer.begin_transaction()
                for place, value in enumerate(values):
                    producer.produce(
                        clients.intake("paid"), value=value, headers=[("x-delay", b"200")], partition=place
                    )
                assert producer.flush(DEADLINE_S) == 0  # else an abort takes back what was never sent
                if number % 3:
                    producer.commit_transaction(DEADLINE_S)
                    kept.update(values)
                else:
                    producer.abort_transaction(DEADLINE_S)
                if number == EACH // 2:
                    clients.bridge.kill()
                    clients.bridge.start()
        came = clients.read(clients.topic("paid"), lambda found: kept <= {message.value() for _, message in found})
        assert {message.value() for _, message in came} == kept
        wait_for(lambda: lag(clients, "paid") == 0, f"the group has no lag; {clients.bridge.log_tail()}", DEADLINE_S)
