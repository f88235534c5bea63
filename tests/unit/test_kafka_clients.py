"""A client that is given up leaves no task behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator

from adapters.kafka import client
from adapters.kafka.client import give_up_consumer


async def test_a_consumer_that_does_not_close_in_time_leaves_no_task_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "_CLOSE_S", 0.05)
    monkeypatch.setattr(AIOKafkaClient, "coordinator_lookup", silent)
    consumer: Any = AIOKafkaConsumer(group_id="postdate", enable_auto_commit=False)
    consumer._coordinator = GroupCoordinator(consumer._client, consumer._subscription, group_id="postdate")
    consumer._fetcher = Fetcher(consumer._client, consumer._subscription)
    consumer._subscription.subscribe(topics={"orders.delay"})
    consumer._coordinator.member_id = "postdate-1"
    consumer._coordinator._start_heartbeat_task()
    await asyncio.sleep(0)
    await give_up_consumer(consumer)
    assert asyncio.all_tasks() == {asyncio.current_task()}
