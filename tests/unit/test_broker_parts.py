"""Each broker has the five parts of ``Broker``. mypy holds their functions to the protocols here."""

from __future__ import annotations

import pytest

from adapters.kafka import broker_canary as kafka_canary
from adapters.kafka import broker_ends as kafka_ends
from adapters.kafka import broker_levels as kafka_levels
from adapters.kafka import broker_payloads as kafka_payloads
from adapters.kafka import broker_topology as kafka_topology
from adapters.rabbitmq import broker_canary, broker_ends, broker_levels, broker_payloads, broker_topology
from bridge.app.brokers import Broker, broker_of
from bridge.settings.model import BrokerKind

BROKERS: dict[BrokerKind, Broker] = {
    "rabbitmq": Broker(broker_ends, broker_topology, broker_levels, broker_payloads, broker_canary),
    "kafka": Broker(kafka_ends, kafka_topology, kafka_levels, kafka_payloads, kafka_canary),
}


@pytest.mark.parametrize("kind", BROKERS)
def test_a_broker_is_found_by_its_kind_with_its_own_parts(kind: BrokerKind) -> None:
    assert broker_of(kind) == BROKERS[kind]
