"""The plan of `postdate plan` against Redis itself, and against three set-ups that run: within 20%."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.redis.connect import connect
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.ports import Batch
from bridge.operate.sizing import PlannedLoad, needs
from bridge.parking.envelope import seal
from bridge.parking.history import HistoryLimits
from bridge.settings import Redis as RedisSettings
from bridge.settings.model import BrokerKind
from tests.bridge_line import BridgeLine
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartRedis
from tests.devstack.kafka import Kafka
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.kafka_line import KafkaLine
from tests.raw_amqp import RawConnection
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.redis

COUNT, BATCH, HOUR_MS = 10_000, 500, 3_600_000
#: Of the set-ups that run: messages that wait, those that are delivered and in the history, and bytes of a body.
PARKED, DELIVERED, SIZE = 10_000, 5_000, 256


def used(server: Redis) -> int:
    with server.client() as client:
        return int(client.info("memory")["used_memory"])


async def park(url: str, size: int, broker: BrokerKind) -> None:
    """Park as a bridge does; on Kafka the origin of each record is kept, too."""
    settings = RedisSettings.model_validate({"url": url})
    store = RedisStore(connect(settings), "sizing", 1, "one", StoreClock(), HistoryLimits(HOUR_MS, 10_000))
    await store.open("none", 0, 10_000)
    now_ms, chance = int(time.time() * 1000), random.Random(1)
    for first in range(0, COUNT, BATCH):
        batch = Batch(store.new_token(), recent_max=10_000)
        for number in range(first, first + BATCH):
            due_ms = now_ms + HOUR_MS + chance.randrange(HOUR_MS)
            envelope = seal(due_ms, now_ms, b"orders", b"", b"", b"x" * size)
            batch.messages.append((chance.randbytes(20), due_ms, envelope))
            if broker == "kafka":
                batch.origins.append((b"orders.delay/0", number))
        await store.park({0: batch})
    await store.close()


@pytest.mark.parametrize(("size", "broker"), [(256, "rabbitmq"), (2000, "kafka"), (20_000, "rabbitmq")])
async def test_the_planned_memory_is_that_of_redis_within_a_fifth(
    start_redis: StartRedis, size: int, broker: BrokerKind
) -> None:
    server = start_redis()
    before = used(server)
    await park(server.url, size, broker)
    load, measured = PlannedLoad(broker, COUNT / 60, size, 60_000), used(server) - before
    planned = load.parked * load.bytes_each
    print(f"{broker}, {size} bytes: planned {planned / COUNT:.0f} a message, measured {measured / COUNT:.0f}")
    assert planned == pytest.approx(measured, rel=0.2)


def planned_bytes(line: BridgeLine, broker: BrokerKind, size: int) -> int:
    """The memory that the plan names for the messages of these tests."""
    load = PlannedLoad(broker, PARKED * 1000 / HOUR_MS, size, HOUR_MS)
    history = {"history": {"max": DELIVERED, "keep": "30d"}}
    return next(need.number for need in needs(load, line.loaded(history)) if need.what == "memory in Redis")


def ran(server: Redis, line: BridgeLine, broker: BrokerKind, publish: Callable[[int, int], None]) -> None:
    """Let a set-up park and deliver, and compare. ``publish(number, delay_ms)`` returns when the broker has all."""
    before = used(server)
    publish(PARKED, HOUR_MS)
    wait_for(lambda: line.waiting() == PARKED, "all are parked", 60)
    publish(DELIVERED, 500)
    wait_for(lambda: sum(bridge.report()["delivered"] for bridge in line.bridges) == DELIVERED, "all are delivered", 60)
    time.sleep(3)  # the history is written once a second
    planned, measured = planned_bytes(line, broker, SIZE), used(server) - before
    print(f"{broker}, instances: {len(line.bridges)}: planned {planned / 1e6:.2f} MB, measured {measured / 1e6:.2f} MB")
    assert planned == pytest.approx(measured, rel=0.2)


@pytest.mark.long
@pytest.mark.rabbitmq
@pytest.mark.parametrize("instances", [1, 2])
def test_the_plan_for_rabbitmq_is_what_instances_use(
    start_redis: StartRedis, rabbitmq: RabbitMQ, tmp_path: Path, instances: int
) -> None:
    server = start_redis()
    with Line(rabbitmq.url, server.url, tmp_path, {"history": {"max": DELIVERED}}) as line:
        for _ in range(instances):
            line.start()

        def publish(number: int, delay_ms: int) -> None:
            with RawConnection(rabbitmq.url) as connection:
                connection.confirm()
                props = Props([delay(delay_ms)], {"delivery_mode": b"\2"}).encode()
                for each in range(number):
                    connection.publish(line.front, b"key.%d" % each, props, random.randbytes(SIZE))
                while max((answer.tag for answer in connection.events(10)), default=0) < number:
                    pass

        ran(server, line, "rabbitmq", publish)


@pytest.mark.long
@pytest.mark.kafka
def test_the_plan_for_kafka_is_what_an_instance_uses(start_redis: StartRedis, kafka: Kafka, tmp_path: Path) -> None:
    server = start_redis()
    line = KafkaLine(kafka.url, tmp_path, {"history": {"max": DELIVERED}}, server.url)
    try:
        line.run().wait_ready()

        def publish(number: int, delay_ms: int) -> None:
            for each in range(number):
                line.produce(random.randbytes(SIZE), [("x-delay", b"%d" % delay_ms)], b"key.%d" % each)
            line.produced()

        ran(server, line, "kafka", publish)
    finally:
        line.close()
