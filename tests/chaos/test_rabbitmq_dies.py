"""RabbitMQ is killed, alarmed, closed by its operator, robbed of queues and silenced: the bridge comes back alone."""

from __future__ import annotations

import time

import pytest

from tests.bridge_process import Bridge, Tables
from tests.chaos.conftest import OpenLedger, OpenLine
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line
from tests.devstack.fixtures import StartProxy
from tests.devstack.rabbitmq import RabbitMQ

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

RATE, LONG_RATE = 500.0, 2000.0
IN_FLIGHT = 200
SMALL: Tables = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}}
#: What was parked and not heard accepted, and what was sent and not heard confirmed, each time.
COPIES_MAX = 2 * IN_FLIGHT


def flowing(line: Line, ledger: Ledger, rate: float = RATE, delays_ms: tuple[int, int] = (0, 1000)) -> Bridge:
    """A bridge in the middle of its work."""
    bridge = line.bridge().start()
    ledger.produce(rate, delays_ms)
    ledger.wait_arrivals(100)
    return bridge


@pytest.mark.parametrize(
    ("rate", "times"), [(RATE, 1), pytest.param(LONG_RATE, 5, marks=[pytest.mark.long, pytest.mark.timeout(300)])]
)
def test_a_killed_broker_that_comes_back_loses_nothing(
    open_line: OpenLine, open_ledger: OpenLedger, own_rabbitmq: RabbitMQ, rate: float, times: int
) -> None:
    line = open_line(SMALL)
    ledger = open_ledger(line)
    bridge = flowing(line, ledger, rate)
    own_rabbitmq.remember()
    for _ in range(times):
        own_rabbitmq.kill()
        own_rabbitmq.start()
        print("there after the kill:", own_rabbitmq.names("/"))
        ledger.wait_arrivals(300)
    ledger.stop_producing()
    verdict = settled(line, ledger)
    print(bridge.log())
    verdict.assert_kept(times * COPIES_MAX)
    assert bridge.running()


@pytest.mark.parametrize(
    ("rate", "seconds", "resource"),
    [
        (RATE, 1, "memory"),
        pytest.param(RATE, 10, "disk", marks=pytest.mark.long),
        pytest.param(LONG_RATE, 60, "memory", marks=[pytest.mark.long, pytest.mark.timeout(300)]),
    ],
)
def test_an_alarm_stops_deliveries_with_a_sentence_and_they_go_on_when_it_is_over(
    open_line: OpenLine, open_ledger: OpenLedger, own_rabbitmq: RabbitMQ, rate: float, seconds: float, resource: str
) -> None:
    line = open_line()
    ledger = open_ledger(line)
    bridge = flowing(line, ledger, rate, (0, 3000))
    own_rabbitmq.alarm(True, resource)
    bridge.wait_health("RabbitMQ blocks publishers")
    time.sleep(seconds)
    own_rabbitmq.alarm(False, resource)
    ledger.wait_arrivals(300)
    bridge.wait_health("All well.")
    ledger.stop_producing()
    settled(line, ledger).assert_kept(copies_max=0)


def test_connections_that_the_operator_closes_are_opened_again(
    open_line: OpenLine, open_ledger: OpenLedger, own_rabbitmq: RabbitMQ
) -> None:
    line = open_line(SMALL)
    ledger = open_ledger(line)
    bridge = flowing(line, ledger)
    for _ in range(2):
        own_rabbitmq.ctl("close_all_connections", "--global", "by the operator")
        ledger.wait_arrivals(200)
    ledger.stop_producing()
    settled(line, ledger).assert_kept(2 * COPIES_MAX)
    assert "CONNECTION_FORCED" in bridge.log()


def test_a_target_queue_that_is_deleted_and_made_again_gets_everything(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    line = open_line()
    ledger = open_ledger(line)
    bridge = line.bridge().start()
    ledger.produce(RATE, (3000, 3500), count=300)  # nothing is due before the queue is gone
    ledger.produced()
    line.delete_queue(line.queue)
    bridge.wait_log("unroutable")
    line.declare_target()
    ledger.settle().assert_kept(copies_max=0)


def test_an_intake_queue_that_is_deleted_is_missed_aloud_and_consumed_again_after_setup(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    """Nothing is published meanwhile: with the queue its binding goes, and the front exchange delays nothing."""
    line = open_line()
    bridge = line.start({"bridge": {"setup": False}})  # else it makes the queue again before anyone can look
    line.delete_queue(line.intake)
    bridge.wait_health(f"nothing is taken from the queue {line.intake}")
    time.sleep(1)
    troubles = bridge.log().count(f"nothing is taken from the queue {line.intake}")
    assert troubles <= 3, f"it is said once for each reason, not {troubles} times"
    line.setup()
    bridge.wait_log("well again")
    bridge.wait_health(f"the intake queue {line.intake} of route orders was deleted at ")
    bridge.wait_health(", when it was declared again: delayed messages were delivered at once")
    ledger = open_ledger(line)
    ledger.produce(RATE, (0, 500), count=200)
    ledger.produced()
    ledger.settle().assert_kept(copies_max=0)


def test_an_intake_queue_that_is_deleted_is_made_again_at_once_where_the_bridge_may_do_so(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    line = open_line()
    bridge = line.start()
    line.delete_queue(line.intake)
    bridge.wait_log("nothing is taken from the queue")
    bridge.wait_log("well again")
    ledger = open_ledger(line)
    ledger.produce(RATE, (0, 500), count=200)
    ledger.produced()
    ledger.settle().assert_kept(copies_max=0)


@pytest.mark.parametrize("order", [pytest.param("swallow", marks=pytest.mark.long), "stall"])
def test_a_broker_that_falls_silent_is_given_up_and_found_again(
    open_line: OpenLine, open_ledger: OpenLedger, rabbitmq: RabbitMQ, proxy: StartProxy, order: str
) -> None:
    """Swallowed: what it answers is lost. Stalled: nothing moves, and later everything arrives at once."""
    link = proxy(rabbitmq.url)
    quick = {"url": link.through(rabbitmq.url), "confirm_timeout": "1s", "heartbeat": "2s"}
    line = open_line({"rabbitmq": {**SMALL["rabbitmq"], **quick}})
    ledger = open_ledger(line)
    bridge = flowing(line, ledger)
    if order == "swallow":
        link.swallow("down")
    else:
        link.stall()
    bridge.wait_log("RabbitMQ confirmed nothing for 1 s")
    if order == "swallow":  # no network loses bytes of a connection that lives on: heal when it is given up
        bridge.wait_log("nothing is taken from RabbitMQ: RabbitMQ does not answer")
    link.heal()
    ledger.wait_arrivals(500)
    ledger.stop_producing()
    settled(line, ledger).assert_kept(COPIES_MAX)
