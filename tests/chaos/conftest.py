"""Delayed paths with quick reactions, and their ledgers, on servers that may be killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.bridge_line import QUICK, merged
from tests.bridge_process import Tables
from tests.chaos.flow import BROKERS, OpenFlow, flow_opener
from tests.chaos.kafka_line import PARTITIONS, LedgerLine
from tests.chaos.ledger import Ledger
from tests.delay_line import Line
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_cluster import KafkaCluster
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import Service

OpenLine = Callable[..., Line]
OpenLedger = Callable[..., Ledger]
OpenKafkaLine = Callable[..., LedgerLine]
#: Freezes that outlive ``redis.timeout``, and the time between two of them.
FREEZES_S, BETWEEN_S = (4, 12, 22), 3


def freeze_again_and_again(server: Service) -> None:
    """Let a server stand still several times, with too little between for every loop to get well."""
    for seconds in FREEZES_S:
        server.pause()
        time.sleep(seconds)
        server.resume()
        time.sleep(BETWEEN_S)


@pytest.fixture
def open_line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[OpenLine]:
    """``open_line(settings, broker_url=..., store_url=...)``: set up, without a bridge."""
    with ExitStack() as opened:

        def open_one(settings: Tables | None = None, broker_url: str = "", store_url: str = "") -> Line:
            wanted = merged(QUICK, settings or {})
            line = Line(broker_url or rabbitmq.url, store_url or redis_server.url, tmp_path, wanted)
            return opened.enter_context(line)

        yield open_one


@pytest.fixture
def open_ledger(rabbitmq: RabbitMQ) -> Iterator[OpenLedger]:
    """The ledger of a line. It talks to the broker directly, past any proxy of the bridge."""
    with ExitStack() as opened:
        yield lambda line, **how: opened.enter_context(Ledger(rabbitmq.url, line.front, line.queue, **how))


@contextmanager
def kafka_lines(url: str, store_url: str, folder: Path) -> Iterator[tuple[OpenKafkaLine, list[LedgerLine]]]:
    """A function that opens lines, and the lines it opened. Bridges end with the block, topics stay."""
    lines: list[LedgerLine] = []
    with ExitStack() as opened:

        def open_one(
            settings: Tables | None = None,
            broker_url: str = "",
            store_url: str = store_url,
            partitions: int = PARTITIONS,
        ) -> LedgerLine:
            line = LedgerLine(url, store_url, folder, settings, broker_url, partitions)
            lines.append(opened.enter_context(line))
            return line

        yield open_one, lines


@pytest.fixture
def open_kafka_line(kafka: Kafka, redis_server: Redis, tmp_path: Path) -> Iterator[OpenKafkaLine]:
    """``open_kafka_line(settings, broker_url=..., store_url=...)``: its topics, without a bridge. The bridges
    use ``broker_url``, for example through a proxy."""
    with kafka_lines(kafka.url, redis_server.url, tmp_path) as (open_one, lines):
        yield open_one
    if kafka.owned:
        kafka.resume()
        kafka.start()
    for line in lines:
        line.delete()


@pytest.fixture
def open_cluster_line(kafka_cluster: KafkaCluster, redis_server: Redis, tmp_path: Path) -> Iterator[OpenKafkaLine]:
    """The same on three nodes."""
    with kafka_lines(kafka_cluster.url, redis_server.url, tmp_path) as (open_one, lines):
        yield open_one
    kafka_cluster.heal()
    for line in lines:
        line.delete()


@pytest.fixture(params=BROKERS)
def open_flow(request: pytest.FixtureRequest) -> OpenFlow:
    """``open_flow(store_url, settings, **route)`` on each broker: set up, without a bridge."""
    return flow_opener(request)
