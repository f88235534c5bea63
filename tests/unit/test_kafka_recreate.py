"""postdate recreates a deleted Kafka topic unless the settings forbid it."""

from __future__ import annotations

import asyncio

import pytest

from adapters.kafka import broker_topology
from bridge.app.brokers import broker_of
from bridge.app.build import mending
from bridge.settings import Settings
from bridge.telemetry.health import Health


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_deleted_topic_is_recreated_only_if_bridge_setup_allows_it(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = asyncio.Event()
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(broker_topology, "redeclare", lambda settings: loop.call_soon_threadsafe(made.set))
    kafka = {"broker": "kafka", "intercept": "a.delay", "deliver_to": "a"}
    settings = Settings.model_validate({"bridge": {"setup": allowed}, "routes": {"a": kafka}})
    mend = mending(broker_of("kafka"), lambda: settings, Health())
    mend()
    if allowed:
        await asyncio.wait_for(made.wait(), 5)
    else:
        assert asyncio.all_tasks() == {asyncio.current_task()}  # nothing has begun
