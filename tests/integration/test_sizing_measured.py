"""The plan of `postdate plan` against Redis itself: three set-ups, within 20%."""

from __future__ import annotations

import random
import time

import pytest

from adapters.redis.connect import connect
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.ports import Batch
from bridge.operate.sizing import PlannedLoad
from bridge.parking.envelope import seal
from bridge.parking.history import HistoryLimits
from bridge.settings import Redis as RedisSettings
from bridge.settings.model import BrokerKind
from tests.devstack.fixtures import StartRedis
from tests.devstack.redis import Redis

pytestmark = pytest.mark.redis

COUNT, BATCH, HOUR_MS = 10_000, 500, 3_600_000


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
    planned, measured = PlannedLoad(broker, COUNT / 60, size, 60_000).bytes_parked, used(server) - before
    print(f"{broker}, {size} bytes: planned {planned / COUNT:.0f} a message, measured {measured / COUNT:.0f}")
    assert planned == pytest.approx(measured, rel=0.2)
