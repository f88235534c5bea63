"""Each broker has the five parts of ``Broker``. mypy holds their functions to the protocols here."""

from __future__ import annotations

import pytest

from adapters.kafka import broker_canary as kafka_canary
from adapters.kafka import broker_ends as kafka_ends
from adapters.kafka import broker_levels as kafka_levels
from adapters.kafka import broker_payloads as kafka_payloads
from adapters.kafka import broker_topology as kafka_topology
from adapters.rabbitmq import broker_canary, broker_ends, broker_levels, broker_payloads, broker_topology
from adapters.rabbitmq.raw.payload import unpack
from adapters.rabbitmq.raw.values import describe
from bridge.app.brokers import Broker, broker_of
from bridge.core.errors import SettingsError
from bridge.desk.payload import Draft
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

BROKERS: dict[BrokerKind, Broker] = {
    "rabbitmq": Broker(broker_ends, broker_topology, broker_levels, broker_payloads, broker_canary),
    "kafka": Broker(kafka_ends, kafka_topology, kafka_levels, kafka_payloads, kafka_canary),
}

SENDING = Settings.model_validate(
    {"routes": {"orders": {"broker": "rabbitmq", "intercept": "orders.delay", "deliver_to": "orders"}}}
)


@pytest.mark.parametrize("kind", BROKERS)
def test_a_broker_is_found_by_its_kind_with_its_own_parts(kind: BrokerKind) -> None:
    assert broker_of(kind) == BROKERS[kind]


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (Draft(b"", {}, "k", message_id="ü" * 128), "256 bytes"),
        (Draft(b"", {}, "k", content_type="x" * 300), "300 bytes"),
        (Draft(b"", {"n" * 257: "1"}, "k"), "'nnnnnnnnnnnnnnnnnnnn' … has 257 bytes"),
        (Draft(b"", {"n": "\udcff"}, "k"), "is not UTF-8 text"),
    ],
)
def test_what_amqp_cannot_carry_is_not_sent(draft: Draft, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        broker_payloads.pack(SENDING, "orders", draft)


def test_a_message_made_here_is_persistent_and_has_the_given_properties() -> None:
    packed = broker_payloads.pack(SENDING, "orders", Draft(b"body", {"a": "b"}, "k", message_id="m"))
    _, properties, _ = unpack(packed.payload)
    assert describe(properties) == {"headers": {"a": "b"}, "delivery_mode": 2, "message_id": "m"}
