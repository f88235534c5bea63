"""RabbitMQ blocks publishers by an alarm on memory or disk, and other faults come while it lasts."""

from __future__ import annotations

import pytest

from tests.chaos.flow import COPIES_MAX, OpenFlow, freeze
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import ALARMS, RabbitMQ

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]


@pytest.mark.parametrize("open_flow", ["rabbitmq"], indirect=True)
@pytest.mark.parametrize("resource", ALARMS)
def test_faults_during_an_alarm_deliver_nothing_and_lose_nothing(
    open_flow: OpenFlow, start_redis: StartRedis, own_rabbitmq: RabbitMQ, resource: str
) -> None:
    redis = start_redis({"appendfsync": "always"})
    flow = open_flow(redis.url)
    flow.start()
    own_rabbitmq.alarm(True, resource)
    for bridge in flow.bridges:
        bridge.wait_health("RabbitMQ blocks publishers")
    arrived = flow.ledger.arrived()
    freeze(redis)
    freeze(flow.bridges[0])
    flow.bridges[0].kill()
    flow.bridges[0].start()
    redis.kill()
    redis.start()
    freeze(own_rabbitmq)
    assert flow.ledger.arrived() == arrived
    own_rabbitmq.alarm(False, resource)
    flow.recover("an alarm and five faults")
    flow.go_on(COPIES_MAX)
