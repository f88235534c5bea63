"""The poller of deploy/outbox.md: a row arrives when it is due, and one that is published twice arrives once."""

from __future__ import annotations

import re
import runpy
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.delay_line import Line, blocking
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

ROOT = Path(__file__).parents[2]
POLLER = ROOT / "deploy" / "examples" / "rabbitmq" / "python" / "outbox.py"
PAGE = ROOT / "deploy" / "outbox.md"


class Crash(Exception):
    """The poller dies."""


class Doomed:
    """A database that dies at the first mark of a row."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement.startswith("UPDATE"):
            raise Crash
        return self._database.execute(statement, *values)


@pytest.fixture
def shop() -> Iterator[sqlite3.Connection]:
    """A database with the table of the page."""
    database = sqlite3.connect(":memory:")
    create = re.search(r"CREATE TABLE outbox \(.*?\);", PAGE.read_text(), re.DOTALL)
    assert create
    database.execute(create[0])
    yield database
    database.close()


def test_a_row_that_is_published_twice_is_delivered_once_and_on_time(
    rabbitmq: RabbitMQ, redis_server: Redis, shop: sqlite3.Connection, tmp_path: Path
) -> None:
    poller = runpy.run_path(str(POLLER))
    publish = poller["publish_unsent"]
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line, blocking(rabbitmq.url) as connection:
        line.start()
        channel = connection.channel()
        channel.confirm_delivery()
        # The poller names the exchange of the examples; this line has its own.
        publish_to_line = channel.basic_publish
        channel.basic_publish = lambda exchange, *rest, **more: publish_to_line(line.front, *rest, **more)
        due_ms = int(time.time() * 1000) + 2000
        for number in range(3):
            row = (f"row-{number}", "order.timeout", b"%d" % number, due_ms + number)
            shop.execute("INSERT INTO outbox (id, routing_key, body, deliver_at) VALUES (?, ?, ?, ?)", row)
        with pytest.raises(Crash):
            publish(Doomed(shop), channel)
        assert publish(shop, channel) == 3  # the first row again
        assert publish(shop, channel) == 0
        found = line.receive(3)
        assert [message.body for message in found] == [b"0", b"1", b"2"]
        assert time.time() * 1000 >= due_ms
        assert line.receive_until(1, 1.0) == []
