"""A RabbitMQ 3 that hides the headers of AMQP 1.0 messages is named by `check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.rabbitmq.broker_topology import judge_policies
from bridge.settings import load
from tests.devstack.fixtures import need
from tests.devstack.rabbitmq import RabbitMQ, find_place, launch
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.long]


@pytest.fixture
def broker() -> Iterator[RabbitMQ]:
    plugins = sorted(Path(need(find_place).plugins).glob("rabbitmq_amqp1_0-3.*"))
    if not plugins:
        pytest.skip("this machine's RabbitMQ is no 3.x with the plugin rabbitmq_amqp1_0")
    with launch(management=True, plugin=plugins[0]) as server:
        yield server


def test_check_names_a_broker_that_packs_the_headers_of_amqp_1_0(broker: RabbitMQ) -> None:
    connection = {"rabbitmq.url": broker.url, "rabbitmq.management_url": broker.management_url}
    route = {"routes.orders": {"intercept": "orders.delay", "deliver_to": "orders"}}
    settings = load(None, {}, {**connection, **route})
    wait_for(lambda: judge_policies(settings), "a warning: the API lists a node's plugins some seconds after its start")
    ((name, text),) = judge_policies(settings)
    assert name == "orders"
    assert text.startswith(f"RabbitMQ {broker.version} with plugin rabbitmq_amqp1_0 packs the delay headers")
