"""The source and the sink on a real RabbitMQ keep the promises of their ports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conformance.rabbitmq_ends_rig import RabbitSinkRig, RabbitSourceRig
from tests.conformance.sink_suite import SinkSuite
from tests.conformance.source_suite import SourceSuite
from tests.devstack.fixtures import StartProxy
from tests.devstack.rabbitmq import RabbitMQ

pytestmark = pytest.mark.rabbitmq


class TestRabbitSource(SourceSuite):
    @pytest.fixture
    async def source_rig(
        self, rabbitmq: RabbitMQ, proxy: StartProxy, key_prefix: str
    ) -> AsyncIterator[RabbitSourceRig]:
        rig = RabbitSourceRig(rabbitmq.url, proxy(rabbitmq.url), key_prefix)
        yield rig
        await rig.close()


class TestRabbitSink(SinkSuite):
    @pytest.fixture
    async def sink_rig(self, rabbitmq: RabbitMQ, proxy: StartProxy, key_prefix: str) -> AsyncIterator[RabbitSinkRig]:
        rig = RabbitSinkRig(rabbitmq.url, proxy(rabbitmq.url), key_prefix)
        yield rig
        await rig.close()
