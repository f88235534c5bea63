"""The source and the sink on a real Kafka keep the promises of their ports."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest

from tests.conformance.kafka_ends_rig import KafkaSinkRig, KafkaSourceRig, TransactionalSinkRig
from tests.conformance.sink_suite import SinkSuite
from tests.conformance.source_suite import SourceSuite
from tests.devstack.kafka import Kafka
from tests.integration.kafka.rig import Topics

pytestmark = pytest.mark.kafka


@pytest.fixture
async def topics(kafka: Kafka) -> AsyncIterator[Topics]:
    """Makes topics that belong to one test alone."""
    async with Topics(kafka.url, f"t{secrets.token_hex(6)}") as made:
        yield made


class TestKafkaSource(SourceSuite):
    @pytest.fixture
    async def source_rig(self, topics: Topics) -> AsyncIterator[KafkaSourceRig]:
        rig = KafkaSourceRig(topics)
        yield rig
        await rig.close()


class TestKafkaSink(SinkSuite):
    @pytest.fixture
    async def sink_rig(self, topics: Topics) -> AsyncIterator[KafkaSinkRig]:
        rig = KafkaSinkRig(topics)
        yield rig
        await rig.close()


class TestTransactionalSink(SinkSuite):
    @pytest.fixture
    async def sink_rig(self, topics: Topics) -> AsyncIterator[TransactionalSinkRig]:
        rig = TransactionalSinkRig(topics)
        yield rig
        await rig.close()
