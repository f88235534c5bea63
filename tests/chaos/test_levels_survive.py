"""Routes without a store: the bridge and RabbitMQ are killed, and nothing is lost or early."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bridge_process import Bridge, Tables
from tests.chaos.conftest import OpenLedger, freeze_again_and_again
from tests.devstack.rabbitmq import RabbitMQ
from tests.level_line import LevelLine, require_native

pytestmark = pytest.mark.rabbitmq

OpenLevels = Callable[..., LevelLine]
RATE, LONG_RATE = 300.0, 2000.0
IN_FLIGHT = 100
SMALL: Tables = {
    "rabbitmq": {"prefetch": IN_FLIGHT, "window": IN_FLIGHT},
    "headers": {"levels": ["100ms", "300ms", "700ms", "1500ms"]},
}
#: What a death may copy: what was sent and not heard accepted, on the way in and on the way out.
COPIES_MAX = 2 * IN_FLIGHT
#: What RabbitMQ could not move on while it was starting it looks at again at such intervals, and moves on at the second
#: look at the latest. On the devstack's own brokers an interval is 20 s.
_TRIES_AGAIN_S = 180
#: How often a test at the high rate does harm.
_HARMS = 3
MODES = pytest.mark.parametrize(
    ("mode", "delays_ms"), [("levels", (0, 1500)), ("ladder", (0, 3000)), ("native", (0, 3000))]
)


@pytest.fixture
def open_levels(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[OpenLevels]:
    """``open_levels(mode)``: set up, without a bridge."""
    with ExitStack() as opened:

        def open_line(mode: str) -> LevelLine:
            if mode == "native":
                require_native(rabbitmq)
            return opened.enter_context(LevelLine(rabbitmq.url, tmp_path, SMALL, mode))

        yield open_line


@MODES
def test_kills_of_the_bridge_at_random_moments_lose_nothing_and_nothing_is_early(
    open_levels: OpenLevels, open_ledger: OpenLedger, mode: str, delays_ms: tuple[int, int]
) -> None:
    line = open_levels(mode)
    ledger = open_ledger(line)
    bridge, seeded, deaths = line.run(), random.Random(5), 4
    ledger.produce(RATE, delays_ms)
    for _ in range(deaths):
        ledger.wait_arrivals(50)
        time.sleep(seeded.uniform(0.0, 0.7))
        bridge.kill()
        bridge.start()
    ledger.wait_arrivals(100)
    ledger.stop_producing()
    ledger.settle().assert_kept(deaths * COPIES_MAX)
    assert bridge.terminate() == 0


@pytest.mark.parametrize(
    ("mode", "delays_ms"),
    [("levels", (0, 1500)), pytest.param("ladder", (0, 3000), marks=pytest.mark.long), ("native", (0, 3000))],
)
@pytest.mark.timeout(500)
def test_a_killed_broker_that_comes_back_loses_nothing_and_nothing_is_early(
    open_levels: OpenLevels,
    open_ledger: OpenLedger,
    own_rabbitmq: RabbitMQ,
    mode: str,
    delays_ms: tuple[int, int],
) -> None:
    line = open_levels(mode)
    ledger = open_ledger(line)
    bridge = line.run()
    ledger.produce(RATE, delays_ms)
    ledger.wait_arrivals(200)
    own_rabbitmq.remember()
    own_rabbitmq.kill()
    own_rabbitmq.start()
    ledger.wait_arrivals(200, 60)
    ledger.stop_producing()
    ledger.settle(2 * _TRIES_AGAIN_S + 20).assert_kept()
    assert bridge.running()


@MODES
@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_alarm_on_memory_delays_messages_and_loses_none(
    open_levels: OpenLevels, open_ledger: OpenLedger, own_rabbitmq: RabbitMQ, mode: str, delays_ms: tuple[int, int]
) -> None:
    line = open_levels(mode)
    ledger = open_ledger(line)
    bridge = line.run()
    ledger.produce(RATE, delays_ms)
    ledger.wait_arrivals(200)
    own_rabbitmq.alarm(True)
    bridge.wait_log("RabbitMQ blocks publishers")
    time.sleep(6)
    own_rabbitmq.alarm(False)
    calm = time.time()
    ledger.wait_arrivals(200)
    ledger.stop_producing()
    ledger.settle().assert_kept(copies_max=0)
    print(f"late at most {ledger.late_after(calm):.1f} s once it was over")


def _freeze(broker: RabbitMQ, bridge: Bridge) -> None:
    freeze_again_and_again(broker)


def _kill_broker(broker: RabbitMQ, bridge: Bridge) -> None:
    broker.remember()
    broker.kill()
    broker.start()


def _kill_bridge(broker: RabbitMQ, bridge: Bridge) -> None:
    bridge.kill()
    bridge.start()


@pytest.mark.parametrize("harm", [_freeze, _kill_broker, _kill_bridge])
@pytest.mark.long
@pytest.mark.timeout(500)
def test_native_delays_at_a_high_rate_lose_nothing_and_nothing_is_early(
    open_levels: OpenLevels,
    open_ledger: OpenLedger,
    own_rabbitmq: RabbitMQ,
    harm: Callable[[RabbitMQ, Bridge], None],
) -> None:
    line = open_levels("native")
    ledger = open_ledger(line)
    bridge = line.run()
    ledger.produce(LONG_RATE, (0, 3000))
    for _ in range(_HARMS):
        ledger.wait_arrivals(2000, 60)
        harm(own_rabbitmq, bridge)
    ledger.wait_arrivals(2000, 60)
    ledger.stop_producing()
    verdict = ledger.settle(2 * _TRIES_AGAIN_S + 20)
    print(verdict)
    verdict.assert_kept(_HARMS * COPIES_MAX)
    assert bridge.running()


def test_a_stop_under_load_ends_with_0_and_leaves_no_copies(open_levels: OpenLevels, open_ledger: OpenLedger) -> None:
    line = open_levels("levels")
    ledger = open_ledger(line)
    bridge = line.run()
    ledger.produce(RATE, (0, 800), count=400)
    ledger.wait_arrivals(100)
    assert bridge.terminate() == 0
    ledger.produced()
    line.run()
    ledger.settle().assert_kept(copies_max=0)
