"""A client that follows all topics goes on to do so, when aiokafka asks for the leader of a partition."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient

from adapters.kafka.sessions import lasting
from bridge.settings import Kafka


@pytest.mark.parametrize(("followed", "after"), [((), set()), (("orders.delay",), {"orders.delay", "bills.delay"})])
async def test_a_partition_without_a_known_leader_narrows_no_client_of_all_topics(
    followed: tuple[str, ...], after: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = AIOKafkaClient()
    lasting(client, Kafka())
    asked: list[None] = []
    monkeypatch.setattr(type(client), "force_metadata_update", lambda _: asked.append(None))
    client.set_topics(followed)
    asked.clear()
    client.add_topic("bills.delay")
    assert (client._topics, asked) == (after, [None])
    await client.close()
