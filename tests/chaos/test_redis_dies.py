"""Redis is killed, paused, cut off, filled and emptied: what was accepted is delivered, the bridge comes back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from redis.exceptions import RedisError

from tests.bridge_process import Bridge, Tables
from tests.chaos.conftest import OpenLedger, OpenLine, freeze_again_and_again
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line, delay
from tests.devstack.fixtures import StartProxy, StartRedis
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

RATE, LONG_RATE = 500.0, 2000.0
IN_FLIGHT = 200
SMALL: Tables = {"rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}, "redis": {"timeout": "1s"}}


def flowing(line: Line, ledger: Ledger, rate: float = RATE, delays_ms: tuple[int, int] = (0, 1000)) -> Bridge:
    """A bridge in the middle of its work."""
    bridge = line.bridge().start()
    ledger.produce(rate, delays_ms)
    ledger.wait_arrivals(100)
    return bridge


def go_on(line: Line, ledger: Ledger, bridge: Bridge, copies_max: int, more: int = 300) -> None:
    """It has recovered alone, and the promises were kept."""
    ledger.wait_arrivals(more)
    bridge.wait_health("All well.")
    ledger.stop_producing()
    settled(line, ledger, 60).assert_kept(copies_max)


@pytest.mark.parametrize(
    ("rate", "times", "away_s"),
    [(RATE, 1, 0.0), pytest.param(LONG_RATE, 5, 2.0, marks=[pytest.mark.long, pytest.mark.timeout(300)])],
)
def test_a_killed_redis_that_comes_back_with_its_append_only_file_loses_nothing(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis, rate: float, times: int, away_s: float
) -> None:
    redis = start_redis({"appendfsync": "always"})
    line = open_line(SMALL, store_url=redis.url)
    ledger = open_ledger(line)
    bridge = flowing(line, ledger, rate)
    for _ in range(times):
        redis.kill()
        time.sleep(away_s)
        redis.start()
        ledger.wait_arrivals(300)
    go_on(line, ledger, bridge, times * IN_FLIGHT)


@pytest.mark.parametrize(
    ("rate", "seconds"), [(RATE, 2), pytest.param(LONG_RATE, 60, marks=[pytest.mark.long, pytest.mark.timeout(300)])]
)
def test_a_redis_that_is_gone_for_a_while_stops_the_intake_and_nothing_is_lost(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis, rate: float, seconds: float
) -> None:
    redis = start_redis()
    line = open_line(SMALL, store_url=redis.url)
    ledger = open_ledger(line)
    bridge = flowing(line, ledger, rate)
    redis.stop()
    bridge.wait_log("nothing is parked")
    time.sleep(seconds)
    assert bridge.running()
    redis.start()
    go_on(line, ledger, bridge, IN_FLIGHT)


@pytest.mark.long
def test_a_redis_that_stands_still_for_six_seconds_parks_and_claims_nothing_twice(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis
) -> None:
    """Calls time out here and are carried out there; leases run out meanwhile."""
    redis = start_redis()
    line = open_line(SMALL, store_url=redis.url)
    ledger = open_ledger(line)
    bridge = flowing(line, ledger)
    redis.pause()
    time.sleep(6)
    redis.resume()
    go_on(line, ledger, bridge, IN_FLIGHT)


@pytest.mark.long
def test_a_redis_that_stands_still_again_and_again_breaks_no_order_of_a_key(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis
) -> None:
    redis = start_redis()
    line = open_line(SMALL, store_url=redis.url)
    ledger = open_ledger(line, keys=5, grid_ms=100)
    for _ in range(2):
        line.bridge().start().wait_ready()
    ledger.produce(80.0, (0, 4000))
    ledger.wait_arrivals(200)
    freeze_again_and_again(redis)
    ledger.wait_arrivals(200)
    ledger.stop_producing()
    verdict = settled(line, ledger, 60)
    verdict.assert_kept()
    assert verdict.misordered == 0, str(verdict)


def test_a_park_whose_reply_is_lost_parks_once(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis, proxy: StartProxy
) -> None:
    redis = start_redis()
    link = proxy(redis.url)
    line = open_line({"redis": {"timeout": "500ms", "url": link.through(redis.url)}}, store_url=redis.url)
    ledger = open_ledger(line)
    bridge = line.start()
    ledger.produce(300, (7000, 7500), count=600)  # all are parked before the first is due
    for _ in range(3):
        wait_for(lambda: line.stored() > 0, "messages are being parked")
        # The requests go through, and the replies are thrown away; then the connections go.
        link.swallow("down")
        time.sleep(0.2)
        link.drop()
        link.heal()
        time.sleep(0.4)
    ledger.produced()
    assert "nothing is parked" in bridge.log(), "no reply was lost"
    wait_for(lambda: line.stored() >= 600, "everything is parked")
    assert line.stored() == 600, "once"
    settled(line, ledger).assert_kept(copies_max=0)


def test_a_full_redis_delivers_what_it_has_takes_nothing_more_and_says_so(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis
) -> None:
    redis = start_redis()
    line = open_line(store_url=redis.url)
    ledger = open_ledger(line)
    bridge = line.bridge().start()
    ledger.produce(RATE, (2000, 2500), count=500)
    ledger.produced()
    wait_for(lambda: line.waiting() == 500, "all are parked")
    redis.command("CONFIG", "SET", "maxmemory", "1")
    ledger.produce(RATE, (0, 100), count=300)
    ledger.produced()
    bridge.wait_health("Redis is at its maxmemory")
    wait_for(lambda: ledger.arrived() >= 500, "what was parked is delivered")
    assert ledger.arrived() == 500, "and nothing else"
    redis.command("CONFIG", "SET", "maxmemory", "0")
    settled(line, ledger).assert_kept(copies_max=0)
    bridge.wait_health("All well.")


@contextmanager
def over_and_over(order: Callable[[], object], every_s: float) -> Iterator[None]:
    """Repeat an order in the background."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.wait(every_s):
            with suppress(RedisError):
                order()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def test_orders_that_disturb_redis_over_and_over_disturb_nobody(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis
) -> None:
    redis = start_redis()
    line = open_line(SMALL, store_url=redis.url)
    ledger = open_ledger(line)
    bridge = flowing(line, ledger)

    def disturb() -> None:
        redis.command("SCRIPT", "FLUSH")
        redis.command("CLIENT", "KILL", "TYPE", "normal")

    with over_and_over(disturb, 0.3):
        ledger.wait_arrivals(1000)
    go_on(line, ledger, bridge, 5 * IN_FLIGHT)


def test_a_redis_that_somebody_empties_costs_what_was_in_it_and_no_more(
    open_line: OpenLine, open_ledger: OpenLedger, start_redis: StartRedis
) -> None:
    """FLUSHALL is a loss that nobody can mend; the bridge goes on with what comes after it."""
    redis = start_redis()
    line = open_line(store_url=redis.url)
    bridge = line.start()
    line.publish(Props([delay(60_000)]), b"gone")
    wait_for(lambda: line.waiting() == 1, "it is parked")
    for _ in range(2):
        empty(redis, line)
        ledger = open_ledger(line)
        ledger.produce(RATE, (0, 300), count=200)
        ledger.produced()
        settled(line, ledger).assert_kept(copies_max=0)
        ledger.__exit__(None, None, None)
    assert bridge.running()
    bridge.wait_health("Redis was emptied")
    bridge.wait_health("Messages lost: about ")


def empty(redis: Redis, line: Line) -> None:
    redis.command("FLUSHALL")
    assert line.stored() == 0
