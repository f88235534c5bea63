"""The canary on real brokers: it comes back through a running postdate, is lost without one, and harms no start."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from bridge.app.brokers import broker_of
from bridge.app.canaries import Canaries, probe
from bridge.settings.process_plan import canary_settings
from bridge.telemetry.health import WELL
from tests.bridge_line import BridgeLine
from tests.delay_line import Line
from tests.devstack.kafka import Kafka
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.kafka_line import KafkaLine

pytestmark = pytest.mark.redis

CANARY = {"canary": {"enabled": True, "every": "1s", "delay": "300ms"}}


async def comes_back(line: BridgeLine, **tables: Any) -> None:
    settings = line.loaded({**CANARY, **tables})
    with line.bridge({**CANARY, **tables}).start() as bridge:
        bridge.wait_ready()  # it may declare the canary's parts after that
        await asyncio.to_thread(wait_for, lambda: probe(settings)[0].level == "OK", "the canary comes back", 60)
        canaries = Canaries(settings, [kind for kind in ("rabbitmq", "kafka") if settings.routes_of(kind)])
        (state,) = canaries.states()
        await canaries.once(state)
        assert state.trouble == ""
        assert state.late_s is not None
        assert 0 <= state.late_s < 5


@pytest.mark.rabbitmq
async def test_on_rabbitmq_it_comes_back(rabbitmq_vhost: str, redis_url: str, tmp_path: Path) -> None:
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line:
        await comes_back(line)


@pytest.mark.rabbitmq
async def test_the_rights_on_the_names_of_this_installation_are_enough(
    rabbitmq: RabbitMQ, rabbitmq_vhost: str, redis_url: str, tmp_path: Path
) -> None:
    if not rabbitmq.owned:
        pytest.skip("needs a broker of our own: it makes a user")
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line:
        vhost = unquote(rabbitmq_vhost.rpartition("/")[2])
        own = f"^{line.name}"
        with rabbitmq.user(line.name, "secret", vhost, (rf"{own}\.", rf"{own}|^amq\.default$", own)) as url:
            await comes_back(line, rabbitmq={"url": url.replace("@", ":secret@")})


@pytest.mark.kafka
async def test_on_kafka_it_comes_back(kafka: Kafka, redis_url: str, tmp_path: Path) -> None:
    line = KafkaLine(kafka.url, tmp_path, {}, redis_url)
    try:
        await comes_back(line)
    finally:
        line.close()


@pytest.mark.rabbitmq
async def test_without_a_running_postdate_the_probe_says_what_is_missing(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path
) -> None:
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line:
        (found,) = await asyncio.to_thread(probe, line.loaded(CANARY))
    assert found.level == "FAIL"
    assert "canary's exchanges are missing" in found.text


@pytest.mark.rabbitmq
async def test_a_canary_that_comes_too_late_is_no_dead_letter(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path
) -> None:
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line, line.bridge(CANARY).start() as bridge:
        bridge.wait_ready()
        settings = line.loaded(CANARY)
        route = canary_settings(settings, "rabbitmq")
        # It is given up before it is due.
        late_s = await asyncio.to_thread(broker_of("rabbitmq").canary.round_trip, route, 500, -0.4, lambda: None)
        assert late_s is None
        wait_for(lambda: bridge.report()["delivered"] == 1, "it was delivered")
        assert line.dead() == {}
        bridge.wait_health(WELL)
