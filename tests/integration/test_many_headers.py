"""A producer that writes header tables of tiny entries: his messages become dead letters, and delay nobody."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.cli import run_command
from tests.bridge_line import merged
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.raw_amqp import parts
from tests.unit.raw_properties import Entry, Props, encode_entry

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

REASON = "bad_header: it has more than 1000 header entries (limits.header_entries)"
FLOOD: list[Entry] = [delay(100), *[(b"", "V", b"")] * 65_000]


def postdate(line: Line, *words: str) -> float:
    """Run a command of the line's own postdate; the seconds of CPU it took."""
    began = time.process_time()
    assert run_command([*words, "--config", str(line.file())]) == 0
    return time.process_time() - began


def test_a_flood_of_tiny_headers_becomes_dead_letters_and_delays_no_other_message(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path) as line:
        bridge = line.start()
        for _ in range(20):
            line.publish(Props(FLOOD))
        line.publish(Props([delay(0)]), b"neighbour")
        assert [message.body for message in line.receive(1, deadline_s=1.0)] == [b"neighbour"]
        assert set(line.wait_dead(20)) == {REASON}

        message_id = next(iter(line.dead()))
        assert postdate(line, "show", message_id) < 5
        assert postdate(line, "list", "--state", "dead") < 5
        postdate(line, "retry", message_id)
        line.publish(Props([delay(0)]), b"another")
        assert [message.body for message in line.receive(1, deadline_s=1.0)] == [b"another"]
        assert set(line.wait_dead(20)) == {REASON}

        bridge.terminate()
        line.settings = merged(line.settings, {"limits": {"header_entries": 100_000}, "headers": {"audit": False}})
        line.start()
        postdate(line, "retry", message_id)
        [message] = line.receive(1)
        assert b"".join(parts(message.properties).headers) == b"".join(map(encode_entry, FLOOD[1:]))
