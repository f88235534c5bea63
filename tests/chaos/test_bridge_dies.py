"""The bridge is killed, stopped and paused at every stage: nothing is lost or early, copies come only as promised."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.bridge_line import LEASE_S
from tests.bridge_process import Bridge
from tests.chaos import victim
from tests.chaos.conftest import OpenLedger, OpenLine
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled, share
from tests.delay_line import Line
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

IN_FLIGHT = 100
SMALL = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}}
#: What a death may copy: what was parked and not accepted, and what was sent and not settled, which is a window full
#: without its confirms and another one that is being settled.
TAKEN, HELD = IN_FLIGHT, 2 * IN_FLIGHT
#: At which time of its stage the victim dies, and how many copies that leaves.
DEATHS = {
    victim.BEFORE_PARK: (2, 0, 0),
    victim.AFTER_PARK: (1, 1, TAKEN),
    victim.AFTER_CLAIM: (2, 0, 0),
    victim.AFTER_PUBLISH: (1, 1, TAKEN + IN_FLIGHT),
    victim.AFTER_CONFIRM: (1, 1, TAKEN + HELD),
}
RATE, LONG_RATE = 500.0, 2000.0
#: RabbitMQ closes the connection of a process that stands still for three of these.
HEARTBEAT_S = 2


def start_victim(line: Line, step: str, nth: int) -> Bridge:
    return line.bridge(command=("tests.chaos.victim", step, str(nth))).start()


@pytest.mark.parametrize("step", victim.STEPS)
def test_a_death_at_this_step_loses_nothing_and_each_copy_bears_the_same_id(
    open_line: OpenLine, open_ledger: OpenLedger, step: str
) -> None:
    nth, copies_min, copies_max = DEATHS[step]
    line = open_line(SMALL)
    ledger = open_ledger(line)
    dying = start_victim(line, step, nth)
    ledger.produce(RATE, (0, 1000), count=500)
    assert dying.wait_end() == -signal.SIGKILL
    restarted = time.time()
    line.bridge().start()
    ledger.produced()
    verdict = settled(line, ledger)
    verdict.assert_kept(copies_max)
    assert verdict.copies >= copies_min
    assert verdict.last_at - restarted < LEASE_S + 10


def test_sigterm_under_load_ends_with_0_and_leaves_no_copies(open_line: OpenLine, open_ledger: OpenLedger) -> None:
    line = open_line()
    ledger = open_ledger(line)
    for _ in range(2):
        bridge = line.bridge().start()
        ledger.produce(RATE, (0, 800), count=500)
        ledger.wait_arrivals(150)
        assert bridge.terminate() == 0
        ledger.produced()
    line.bridge().start()
    settled(line, ledger).assert_kept(copies_max=0)


def freeze(bridge: Bridge, ledger: Ledger, seconds: float) -> None:
    """SIGSTOP under load, SIGCONT so much later."""
    ledger.wait_arrivals(100)
    bridge.pause()
    time.sleep(seconds)
    bridge.resume()


@pytest.mark.long
def test_a_zombie_that_wakes_up_after_its_leases_harms_nothing(open_line: OpenLine, open_ledger: OpenLedger) -> None:
    line = open_line(SMALL)
    ledger = open_ledger(line)
    bridge = line.bridge().start()
    ledger.produce(RATE, (0, 1000))
    freeze(bridge, ledger, 2 * LEASE_S)
    ledger.stop_producing()
    settled(line, ledger).assert_kept(TAKEN + HELD)
    assert bridge.running()


@pytest.mark.long
def test_what_was_on_its_way_to_an_instance_that_froze_is_parked_under_one_id(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    """RabbitMQ closes the connection of the one and gives its messages to the other; then the one wakes up."""
    line = open_line({"rabbitmq": {"heartbeat": f"{HEARTBEAT_S}s"}})
    ledger = open_ledger(line)
    bridges = [line.bridge().start().wait_ready() for _ in range(2)]
    ledger.produce(RATE, (0, 2000))
    for _ in range(2):
        for bridge in bridges:
            freeze(bridge, ledger, 4 * HEARTBEAT_S)
            bridge.wait_health("All well.")
            ledger.wait_arrivals(200)
    ledger.stop_producing()
    settled(line, ledger).assert_kept()


def test_when_one_of_two_instances_is_killed_the_other_delivers_everything(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    line = open_line(SMALL)
    ledger = open_ledger(line)
    first, second = line.bridge().start(), line.bridge().start()
    second.wait_ready()
    ledger.produce(RATE, (0, 1500))
    ledger.wait_arrivals(200)
    first.kill()
    killed = time.time()
    wait_for(lambda: len(second.report().get("shards", [])) == 8, "the second drains all shards", 15)
    ledger.stop_producing()
    verdict = settled(line, ledger)
    verdict.assert_kept(TAKEN + HELD)
    assert verdict.last_at - killed < LEASE_S + 10


def test_when_one_of_two_instances_freezes_the_other_takes_over_and_the_first_comes_back_in_peace(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    line = open_line(SMALL)
    ledger = open_ledger(line)
    first, second = line.bridge().start(), line.bridge().start()
    second.wait_ready()
    ledger.produce(RATE, (0, 1000))
    freeze(first, ledger, 2 * LEASE_S)
    wait_for(lambda: share([first, second]), "they share again")
    ledger.stop_producing()
    settled(line, ledger).assert_kept(TAKEN + HELD)


def kill_at_random(line: Line, ledger: Ledger, deaths: int, seeded: random.Random) -> None:
    """Two instances; one after the other is killed at a random moment of its life, its start included, and replaced."""
    bridges = [line.bridge().start(), line.bridge().start()]
    for n in range(deaths):
        time.sleep(seeded.uniform(0.0, 1.2))
        bridge = bridges[n % 2]
        bridge.kill()
        bridge.start()


def test_kills_at_random_moments_lose_nothing(open_line: OpenLine, open_ledger: OpenLedger) -> None:
    line = open_line(SMALL)
    ledger = open_ledger(line)
    ledger.produce(RATE, (0, 1500))
    kill_at_random(line, ledger, 8, random.Random(8))
    ledger.stop_producing()
    settled(line, ledger).assert_kept(8 * (TAKEN + HELD))


@pytest.mark.long
@pytest.mark.timeout(400)
def test_fifty_kills_at_random_moments_under_full_load_lose_nothing(
    open_line: OpenLine, open_ledger: OpenLedger
) -> None:
    line = open_line()
    ledger = open_ledger(line)
    ledger.produce(LONG_RATE, (0, 5000))
    kill_at_random(line, ledger, 50, random.Random(50))
    ledger.stop_producing()
    ledger.settle(120).assert_kept()
