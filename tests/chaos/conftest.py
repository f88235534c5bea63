"""A delayed path with quick reactions, its ledger, and servers that may be hurt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bridge_process import Tables
from tests.chaos.ledger import Ledger
from tests.delay_line import QUICK, Line, merged
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis

OpenLine = Callable[..., Line]
OpenLedger = Callable[[Line], Ledger]


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
    """The accountant of a line; it talks to the broker itself, whatever stands between the bridge and the broker."""
    with ExitStack() as opened:
        yield lambda line: opened.enter_context(Ledger(rabbitmq.url, line.front, line.queue))
