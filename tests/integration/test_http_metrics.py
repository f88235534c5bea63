"""/metrics of a running bridge: what was counted, what waits, and what it says while the store is away."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import FRESH_PAGE, HttpLine
from tests.unit.raw_properties import Entry, Props

pytestmark = pytest.mark.rabbitmq


def samples(http: HttpLine) -> dict[str, float]:
    """All samples of the page, by name and labels."""
    told = http.get("/metrics")
    assert told.status == 200, told
    lines = (line.rpartition(" ") for line in told.text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def wait_sample(http: HttpLine, name: str, value: float) -> None:
    """Wait until a sample has this value."""
    wait_for(lambda: samples(http).get(name) == value, f"{name} is {value}; now {samples(http).get(name)}")


@pytest.mark.parametrize("workers", [1, 2])
def test_one_page_counts_for_all_processes(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, workers: int
) -> None:
    http = HttpLine()
    settings = {**http.settings, "bridge": {"workers": workers}}
    with Line(rabbitmq.url, redis_server.url, tmp_path, settings) as line:
        line.command = FRESH_PAGE
        bridge = line.bridge().start()
        http.wait("/readyz", 200)
        route = next(iter(line.settings["routes"]))
        zero = samples(http)
        assert zero[f'postdate_received_total{{route="{route}"}}'] == 0
        assert zero[f'postdate_dead_total{{reason="unroutable",route="{route}"}}'] == 0
        assert zero[f'postdate_lateness_seconds_bucket{{le="0.001",route="{route}"}}'] == 0
        for number in range(5):
            line.publish(Props([delay(20)]), b"%d" % number, b"key.%d" % number)
        bad: Entry = (b"x-delay", "S", b"\0\0\0\4soon")
        line.publish(Props([bad]), b"bad")
        line.receive(5)
        line.publish(Props([delay(600_000)]), b"later")
        wait_sample(http, f'postdate_published_total{{broker="rabbitmq",outcome="confirmed",route="{route}"}}', 5)
        wait_sample(http, f'postdate_received_total{{route="{route}"}}', 7)
        wait_sample(http, f'postdate_parked_total{{route="{route}"}}', 6)
        wait_sample(http, f'postdate_rejected_total{{reason="bad_header",route="{route}"}}', 1)
        wait_sample(http, f'postdate_dead_messages{{route="{route}"}}', 1)
        wait_sample(http, f'postdate_parked_messages{{route="{route}"}}', 1)
        found = samples(http)
        assert found['postdate_due_messages{within="10m"}'] == 1
        assert found['postdate_due_messages{within="1m"}'] == 0
        assert found[f'postdate_lateness_seconds_count{{route="{route}"}}'] == 5
        assert found[f'postdate_oldest_overdue_seconds{{route="{route}"}}'] == 0
        assert found['postdate_connection_up{peer="redis"}'] == found['postdate_connection_up{peer="rabbitmq"}'] == 1
        assert found["postdate_store_memory_bytes"] > 0
        assert bridge.terminate() == 0


def test_the_page_answers_while_the_store_is_away(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    http = HttpLine()
    settings = {**http.settings, "redis": {"timeout": "1s"}}
    with Line(rabbitmq.url, redis_server.url, tmp_path, settings) as line:
        line.command = FRESH_PAGE
        line.start()
        http.wait("/readyz", 200)
        line.publish(Props([delay(600_000)]), b"later")
        wait_for(lambda: _parked(http) == 1, "one message is parked")
        redis_server.pause()
        try:
            wait_for(lambda: samples(http)['postdate_connection_up{peer="redis"}'] == 0, "the store is away", 30)
            assert "postdate_parked_messages{" not in http.get("/metrics").text
            assert http.get("/livez").status == 200
            assert http.wait("/readyz", 503).text.startswith("not ok\nTrouble: ")
        finally:
            redis_server.resume()
        http.wait("/readyz", 200)


def _parked(http: HttpLine) -> float:
    return next(value for name, value in samples(http).items() if re.match(r"postdate_parked_messages\{", name))
