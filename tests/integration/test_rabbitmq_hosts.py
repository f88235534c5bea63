"""Several hosts in ``rabbitmq.url``: postdate skips a silent one, and moves to the next when its own dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.rabbitmq.connection import connect, open_link
from bridge.core.errors import BrokerUnavailable
from bridge.settings import RabbitMQ as RabbitSettings
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartProxy
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import free_ports
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.rabbitmq


def with_hosts(url: str, *places: str) -> str:
    who, _, tail = url.partition("@")
    return f"{who}@{','.join(places)}/{tail.partition('/')[2]}"


def place_of(url: str) -> str:
    return url.partition("@")[2].partition("/")[0]


async def run(settings: RabbitSettings) -> None:
    link = await open_link(settings, "test")
    await link.close()


WAYS: dict[str, Callable[[RabbitSettings], None]] = {
    "run": lambda settings: asyncio.run(run(settings)),
    "check": lambda settings: connect(settings, "test", 5).close(),
}


@pytest.mark.parametrize("way", sorted(WAYS))
class TestConnecting:
    def test_a_host_that_does_not_answer_is_skipped(self, way: str, rabbitmq: RabbitMQ) -> None:
        away = f"127.0.0.1:{free_ports(1)[0]}"
        WAYS[way](RabbitSettings.model_validate({"url": with_hosts(rabbitmq.url, away, place_of(rabbitmq.url))}))

    def test_when_no_host_answers_each_is_named_with_its_reason(self, way: str, rabbitmq: RabbitMQ) -> None:
        first, second = (f"127.0.0.1:{port}" for port in free_ports(2))
        with pytest.raises(BrokerUnavailable) as caught:
            WAYS[way](RabbitSettings.model_validate({"url": with_hosts(rabbitmq.url, first, second)}))
        text = str(caught.value)
        assert text.startswith("no host of rabbitmq.url can be used: ")
        assert f"{first} (Connection refused)" in text
        assert f"{second} (Connection refused)" in text


@pytest.mark.redis
def test_a_running_postdate_moves_to_the_next_host_when_its_own_dies(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, proxy: StartProxy
) -> None:
    link = proxy(rabbitmq.url)
    url = with_hosts(rabbitmq.url, f"127.0.0.1:{link.port}", place_of(rabbitmq.url))
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"rabbitmq": {"url": url}}) as line:
        bridge = line.start()
        link.cut()
        bridge.wait_log("nothing is taken from RabbitMQ")
        line.publish(Props([delay(1)], {"delivery_mode": b"\2"}), b"goes on")
        assert line.receive()[0].body == b"goes on"
