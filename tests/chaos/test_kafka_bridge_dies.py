"""On Kafka, bridges are killed, stopped, paused and joined by others: nothing is parked twice, and only what was on its
way out is copied."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.bridge_line import LEASE_S
from tests.bridge_process import Bridge
from tests.chaos import victim
from tests.chaos.conftest import OpenKafkaLine
from tests.chaos.kafka_line import LedgerLine
from tests.chaos.recovery import HEALED_S, settled, share
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

WINDOW = 200
SMALL = {"kafka": {"window": WINDOW}}
#: What a death may copy: a window without its answers, and another one that is being settled.
HELD = 2 * WINDOW
#: At which time of its stage the victim dies, and how many copies that leaves.
DEATHS = {
    victim.BEFORE_PARK: (2, 0, 0),
    # The acceptance comes after the answers of all shards: what one has parked may be published while another is slow.
    victim.AFTER_PARK: (1, 0, HELD),
    victim.AFTER_CLAIM: (2, 0, 0),
    victim.AFTER_PUBLISH: (3, 1, HELD),
    victim.AFTER_CONFIRM: (3, 1, HELD),
}
RATE, LONG_RATE = 500.0, 2000.0
OFTEN = (victim.AFTER_PARK, victim.AFTER_PUBLISH)


def start_victim(line: LedgerLine, step: str, nth: int) -> Bridge:
    return line.bridge(SMALL, ("tests.chaos.victim", step, str(nth))).start()


@pytest.mark.parametrize(
    "step", [step if step in OFTEN else pytest.param(step, marks=pytest.mark.long) for step in victim.STEPS]
)
def test_a_death_at_this_step_parks_nothing_twice_and_copies_only_what_was_on_its_way(
    open_kafka_line: OpenKafkaLine, step: str
) -> None:
    nth, copies_min, copies_max = DEATHS[step]
    line = open_kafka_line()
    ledger = line.ledger()
    dying = start_victim(line, step, nth)
    ledger.produce(RATE, (0, 1000), count=1000)
    assert dying.wait_end() == -signal.SIGKILL
    restarted = time.time()
    line.bridge(SMALL).start()
    ledger.produced()
    verdict = settled(line, ledger)
    verdict.assert_kept(copies_max)
    assert verdict.copies >= copies_min
    assert verdict.misordered <= HELD, "only what was taken over may lose its place"
    assert ledger.late_after(restarted) < HEALED_S


@pytest.mark.long
def test_an_instance_that_joins_and_leaves_loses_copies_and_misorders_nothing(open_kafka_line: OpenKafkaLine) -> None:
    line = open_kafka_line()
    ledger, _ = line.flowing(LONG_RATE, 2)
    for _ in range(2):
        third = line.bridge().start().wait_ready()
        ledger.wait_arrivals(6000)
        assert third.report()["received"] > 0, "it has had no part"
        assert third.terminate() == 0
        ledger.wait_arrivals(3000)
    ledger.stop_producing()
    verdict = settled(line, ledger)
    verdict.assert_kept(copies_max=0)
    assert verdict.misordered == 0, str(verdict)


@pytest.mark.long
def test_when_one_of_two_instances_is_killed_the_other_delivers_everything(open_kafka_line: OpenKafkaLine) -> None:
    line = open_kafka_line(SMALL)
    ledger, (first, second) = line.flowing(LONG_RATE, 2)
    first.kill()
    killed = time.time()
    wait_for(lambda: len(second.report().get("shards", [])) == 8, "the second drains all shards", 15)
    ledger.wait_arrivals(12_000)
    ledger.stop_producing()
    settled(line, ledger).assert_kept(HELD)
    assert ledger.late_after(killed) < HEALED_S


@pytest.mark.long
def test_one_that_stands_still_past_its_session_and_its_leases_harms_nothing(open_kafka_line: OpenKafkaLine) -> None:
    line = open_kafka_line(SMALL)
    ledger, (first, second) = line.flowing(LONG_RATE, 2)
    first.pause()
    time.sleep(2 * LEASE_S)
    first.resume()
    resumed = time.time()
    wait_for(lambda: share([first, second]), "they share again")
    ledger.wait_arrivals(4000)
    ledger.stop_producing()
    settled(line, ledger).assert_kept(HELD)
    assert first.running()
    assert ledger.late_after(resumed) < HEALED_S


@pytest.mark.long
@pytest.mark.timeout(280)
def test_kills_at_random_moments_under_full_load_lose_nothing(open_kafka_line: OpenKafkaLine) -> None:
    line = open_kafka_line(SMALL)
    seeded, kills = random.Random(8), 15
    ledger, bridges = line.flowing(LONG_RATE, 2)
    for number in range(kills):
        time.sleep(seeded.uniform(0.0, 4.0))
        bridges[number % 2].kill()
        bridges[number % 2].start()
    healed = time.time()
    ledger.stop_producing()
    settled(line, ledger, 60).assert_kept(kills * HELD)
    assert ledger.late_after(healed) < HEALED_S
