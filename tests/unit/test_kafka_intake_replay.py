"""A replay of the intake where a broker is away."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiokafka import TopicPartition

from adapters.kafka import intake_replay
from adapters.kafka.intake import KafkaIntake
from adapters.kafka.intake_replay import IntakeReplay
from bridge.core.errors import BrokerUnavailable
from bridge.delay.naming import Naming
from bridge.settings import Kafka


async def test_a_topic_whose_leader_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer: Any = MagicMock(end_offsets=AsyncMock(return_value={}), beginning_offsets=AsyncMock(return_value={}))
    monkeypatch.setattr(intake_replay, "new_reader", lambda _: consumer)
    monkeypatch.setattr(intake_replay, "start", AsyncMock())
    monkeypatch.setattr(intake_replay, "ask_leaders", AsyncMock(return_value={}))
    replay = IntakeReplay(Kafka(), [KafkaIntake("orders", Naming("orders.delay", "orders"), frozenset())])
    tps = [TopicPartition("orders.delay", 0)]
    monkeypatch.setattr(replay, "_ask", AsyncMock(return_value=(tps, {})))
    with pytest.raises(BrokerUnavailable, match=r"no broker tells which topic 'orders\.delay' is"):
        await replay.open(0)
