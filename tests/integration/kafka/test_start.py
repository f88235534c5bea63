"""A start with one broker away: the routes of the other run, and page, probes and commands name what is missing."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bridge.cli import run_command
from tests.bridge_line import QUICK, merged
from tests.delay_line import Line, delay
from tests.devstack.kafka import Kafka
from tests.devstack.proxy import ThreadedProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports, wait_for
from tests.http_line import HttpLine
from tests.kafka_line import KafkaLine
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.kafka, pytest.mark.rabbitmq, pytest.mark.redis]


def test_a_broker_that_is_away_at_the_start_stops_no_route_of_the_other_and_is_named_until_it_comes(
    kafka: Kafka, rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (port,), http, server = free_ports(1), HttpLine(), urlsplit(rabbitmq.url)
    rabbit, away = Line(rabbitmq.url, redis_url, tmp_path), f"RabbitMQ does not answer at 127.0.0.1:{port}"
    rabbit.declare_target()
    rabbit._delete += [("exchange", rabbit.front), ("queue", rabbit.intake)]
    closed = {"rabbitmq": {"url": rabbitmq.url.replace(server.netloc, f"guest:guest@127.0.0.1:{port}")}}
    own = merged(merged(QUICK, http.settings), merged(closed, {"routes": rabbit.settings["routes"]}))
    with ExitStack() as ends, KafkaLine(kafka.url, tmp_path, own, redis_url) as line:
        ends.push(rabbit)
        bridge = line.bridge().start()
        wait_for(lambda: http.get("/readyz?route=payments").status == 200, "Kafka's route is ready", 40)
        line.produce(b"later", [("x-delay", b"1000")])
        line.produced()
        assert [came.value for came in line.consume(1)] == [b"later"]

        assert http.get("/readyz?route=orders").status == 503
        for path in ("/readyz?verbose", "/api/v1/status"):
            text = http.get(path).text
            assert away in text, path
            assert "no instance is running" not in text, path
        run_command(["stats", "--config", str(line.file())])
        assert away in capsys.readouterr().out

        with ThreadedProxy("127.0.0.1", server.port or 5672, port):
            http.wait("/readyz", 200, 40)
            rabbit.publish(Props([delay(500)], {"delivery_mode": b"\2"}), b"at last")
            assert [message.body for message in rabbit.receive(1)] == [b"at last"]
            assert bridge.terminate() == 0
        line.delete()
