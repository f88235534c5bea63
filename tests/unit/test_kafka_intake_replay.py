"""A replay of the intake where a broker is away, and of records with impossible timestamps."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest
from aiokafka import TopicPartition

from adapters.kafka import intake_replay
from adapters.kafka.intake import KafkaIntake, Partition, StartOffset
from adapters.kafka.intake_replay import IntakeReplay
from adapters.kafka.topology.topic_ids import TopicId
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


async def test_a_record_from_a_clock_that_counts_microseconds_arrived_with_the_one_before_it() -> None:
    """Counted from its own timestamp, a message without a delay would be parked for thousands of years."""
    place, now_ms = TopicPartition("orders.delay", 0), int(time.time() * 1000)
    stamps = [now_ms * 1000, now_ms - 5000, now_ms * 1000, now_ms - 3000, -1]
    records = [
        SimpleNamespace(partition=0, offset=at, timestamp=stamp, key=None, value=b"", headers=())
        for at, stamp in enumerate(stamps)
    ]
    intake = KafkaIntake("orders", Naming("orders.delay", "orders"), frozenset())
    replay = IntakeReplay(Kafka(), [intake])
    replay._consumer = MagicMock(getmany=AsyncMock(return_value={place: records}))
    replay._parts = {place: Partition(place, intake, TopicId("cluster", "01"), StartOffset(0))}
    replay._begin, replay._end = {place: 0}, {place: len(records)}
    first, *others = [delivery.arrived_ms async for delivery in replay.records()]
    assert now_ms <= first <= now_ms + 60_000, "nothing tells when it arrived"
    assert others == [now_ms - 5000, now_ms - 5000, now_ms - 3000, 0]
