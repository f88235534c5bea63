"""Tracing in a running postdate: spans reach a collector, and a collector that is away delays nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.delay_line import Line, delay
from tests.devstack.service import free_ports, wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


class Collector:
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        got = self.got = bytearray()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.extend(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def test_a_message_leaves_a_span_for_parking_and_one_for_sending(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with Line(rabbitmq_vhost, redis_url, tmp_path, {"tracing": {"enabled": True}}) as line, line.start():
        line.publish(Props([delay(50)]), b"traced")
        assert line.receive()[0].body == b"traced"
        for name in (f"park {line.front}", f"send {line.target}"):
            wait_for(lambda name=name: name.encode() in collector.got, f"the collector has {name}")  # type: ignore[misc]


def test_a_collector_that_is_away_delays_nothing(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with Line(rabbitmq_vhost, redis_url, tmp_path, {"tracing": {"enabled": True}}) as line, line.start() as bridge:
        for number in range(20):
            line.publish(Props([delay(50)]), str(number).encode())
        assert len(line.receive(20)) == 20
        assert bridge.terminate() == 0
