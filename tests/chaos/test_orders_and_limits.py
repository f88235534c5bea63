"""Pause, drain, max_parked and lists of destinations, while the store, the broker and an instance freeze and die."""

from __future__ import annotations

import time

import pytest

from tests.chaos.flow import COPIES_MAX, OpenFlow
from tests.chaos.recovery import settled
from tests.devstack.fixtures import StartRedis
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(300)]

#: A route that parks a little less than MAX_PARKED, until an outage leaves it a backlog.
LONG_MS, SLOW_RATE, MAX_PARKED = (3000, 5000), 50.0, 220


@pytest.mark.parametrize(("verb", "word"), [("pause", "paused"), ("drain", "draining")])
def test_an_order_outlives_every_fault_and_its_end_delivers_everything(
    open_flow: OpenFlow, start_redis: StartRedis, verb: str, word: str
) -> None:
    redis = start_redis({"appendfsync": "always"})
    flow = open_flow(redis.url)
    flow.start()
    flow.order(verb, word)
    if verb == "drain":
        wait_for(lambda: flow.line.stored() == 0, "everything that was parked is delivered")
    arrived = -1
    while arrived != (latest := flow.ledger.arrived()):  # what was on its way to the consumer
        arrived = latest
        time.sleep(2)
    flow.disturb(redis)
    assert flow.ledger.arrived() == arrived
    flow.order("resume", "")
    flow.go_on(COPIES_MAX)


def test_a_full_route_loses_nothing_through_every_fault(open_flow: OpenFlow, start_redis: StartRedis) -> None:
    redis = start_redis({"appendfsync": "always"})
    flow = open_flow(redis.url, max_parked=MAX_PARKED)
    flow.start(LONG_MS, SLOW_RATE)
    flow.disturb(redis)
    flow.go_on(COPIES_MAX)
    assert "is full, further ones wait in the broker" in flow.line.log()


def test_a_message_of_a_full_route_is_delivered_or_a_dead_letter_and_a_retry_delivers_those(
    open_flow: OpenFlow, start_redis: StartRedis
) -> None:
    redis = start_redis({"appendfsync": "always"})
    flow = open_flow(redis.url, max_parked=MAX_PARKED, on_full="dead")
    flow.start(LONG_MS, 1.5 * SLOW_RATE)  # more than fits, also without an outage
    flow.disturb(redis)
    flow.ledger.stop_producing()
    dead: dict[str, str] = {}

    def all_ended() -> bool:
        dead.update(flow.line.dead())
        return flow.line.waiting() == 0 and flow.ledger.arrived() + len(dead) >= flow.ledger.confirmed()

    wait_for(all_ended, "each message is delivered or a dead letter")
    assert {reason.partition(":")[0] for reason in dead.values()} == {"full"}
    print(f"dead letters {len(dead)}")
    flow.line.order("retry", "--all", "--yes")
    settled(flow.line, flow.ledger, 60).assert_kept(COPIES_MAX)


def test_each_destination_of_a_list_gets_everything_through_every_fault(
    open_flow: OpenFlow, start_redis: StartRedis
) -> None:
    redis = start_redis({"appendfsync": "always"})
    flow = open_flow(redis.url)
    with flow.beside() as other:
        flow.start()
        flow.disturb(redis)
        flow.go_on(COPIES_MAX)
        other.settle().assert_kept(COPIES_MAX)
