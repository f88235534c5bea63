"""Which brokers hide the delay headers of AMQP 1.0 messages from RabbitMQ's bindings."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.rabbitmq.protocols import packed_headers
from bridge.settings import Settings, load

PLUGINS = ("rabbitmq_management", "rabbitmq_amqp1_0")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    routes = {
        "orders": {"intercept": "orders.delay", "deliver_to": "orders"},
        "queues": {"intercept": "later", "deliver_to": ""},
        "again": {"kind": "retry", "queue": "work", "schedule": ["1s"]},
    }
    return load(None, {}, {f"routes.{name}": route for name, route in routes.items()})


@pytest.mark.parametrize("version", ["3.10.8", "3.13.7"])
def test_on_rabbitmq_3_a_binding_misses_the_headers_that_the_plugin_packs(settings: Settings, version: str) -> None:
    ((route, text),) = packed_headers(settings, version, PLUGINS)
    assert route == "orders", "through the others, every message passes postdate, or none is delayed"
    assert text.startswith(f"RabbitMQ {version} with plugin rabbitmq_amqp1_0 packs the delay headers")


@pytest.mark.parametrize(("version", "plugins"), [("3.10.8", PLUGINS[:1]), ("4.3.6", PLUGINS), ("", PLUGINS)])
def test_without_the_plugin_and_on_rabbitmq_4_nothing_is_said(
    settings: Settings, version: str, plugins: tuple[str, ...]
) -> None:
    assert packed_headers(settings, version, plugins) == []
