"""Two instances on Kafka share the work, however many partitions a topic has, and keep each key's order meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.bridge_line import SHARDS
from tests.bridge_process import Bridge, store_client
from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.kafka_line import LedgerLine
from tests.chaos.recovery import settled
from tests.devstack.service import wait_for
from tests.kafka_line import ROUTE

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

RATE = 500.0
COUNT = 6000
#: Of three shards, as of three partitions, one instance has two at any moment: the third one changes sides every ten
#: seconds, so it takes twice as long until each has its part.
TURNS = 2
FAIR = (0.35, 0.65)


def delivered(bridges: Sequence[Bridge], count: int) -> list[int]:
    """How many each instance has delivered, once they have reported all of them."""

    def said() -> list[int]:
        return [int(bridge.report().get("delivered", 0)) for bridge in bridges]

    wait_for(lambda: sum(said()) >= count, f"{count} deliveries are reported, not {said()}", 20)
    return said()


def parked_in(line: LedgerLine) -> list[int]:
    """How many messages were ever parked in each shard."""
    with store_client(line.store_url) as client:
        counts = [client.hget(f"{{{line.name}.kafka:{shard}}}:counts", "parked") for shard in range(SHARDS)]
    return [int(count or 0) for count in counts]


def share_of(line: LedgerLine, count: int) -> float:
    """The part of ``count`` records that the first of two instances delivers. They keep the promises and the order."""
    ledger = line.ledger()
    bridges = [line.bridge().start(), line.bridge().start()]
    for bridge in bridges:
        bridge.wait_ready()
    ledger.produce(RATE, (0, 2000), count=count)
    ledger.produced(60 + count / RATE)
    verdict = settled(line, ledger)
    verdict.assert_kept(copies_max=0)
    assert verdict.misordered == 0, str(verdict)
    each = delivered(bridges, count)
    print(f"delivered {each}, parked in the shards {parked_in(line)}")
    return each[0] / sum(each)


@pytest.mark.parametrize(
    "partitions", [4, *(pytest.param(number, marks=pytest.mark.long) for number in (2, 3, 6, 8, 12))]
)
def test_two_instances_share_the_records_of_a_topic(open_kafka_line: OpenKafkaLine, partitions: int) -> None:
    low, high = FAIR
    count = TURNS * COUNT if partitions == 3 else COUNT
    assert low <= share_of(open_kafka_line(partitions=partitions), count) <= high


@pytest.mark.long
def test_transactions_keep_the_order_of_each_key_while_shards_change_sides(open_kafka_line: OpenKafkaLine) -> None:
    share_of(open_kafka_line({"kafka": {"release": "transactional"}}, partitions=3), TURNS * COUNT)


@pytest.mark.long
def test_a_topic_of_one_partition_is_one_shard_and_one_instance_delivers_it(open_kafka_line: OpenKafkaLine) -> None:
    line = open_kafka_line(partitions=1)
    part = share_of(line, COUNT // 2)
    assert min(part, 1 - part) < 0.1, "it moves once, when the second instance comes"
    assert sum(count > 0 for count in parked_in(line)) == 1


def test_without_an_order_the_records_of_one_partition_are_spread(open_kafka_line: OpenKafkaLine) -> None:
    line = open_kafka_line({"routes": {ROUTE: {"order": "none"}}}, partitions=1)
    ledger = line.ledger()
    bridges = [line.bridge().start().wait_ready(), line.bridge().start().wait_ready()]
    ledger.produce(RATE, (0, 2000), count=2000)
    ledger.produced()
    settled(line, ledger).assert_kept(copies_max=0)
    parked = parked_in(line)
    assert min(parked) > 0.5 * 2000 / SHARDS, parked
    low, high = FAIR
    assert low <= delivered(bridges, 2000)[0] / 2000 <= high
