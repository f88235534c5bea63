"""Two processes on one key prefix whose routes differ, as in every rolling change of routes: what one of them has a
route for is delivered in time, and untouched by the other."""

from __future__ import annotations

import copy
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.bridge_line import QUICK
from tests.bridge_process import Bridge
from tests.chaos.ledger import Ledger
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

#: Messages a second of each of two routes, and how many in all.
FLOW_RATE, FLOW = 400.0, 4000
DELAY_MS = 1500
TAKEOVER_MS = 2000
#: How late a message may be that the wrong instance claims first.
LATE_S = 1.0
#: The same while that instance does not know of the other yet: it learns of it within a second and releases the
#: message, which the other then claims. Far below the lease, which an unreleased message waits for.
UNKNOWN_LATE_S = 4.0


class Two(Line):
    """The routes ``orders`` and ``invoices``, and bridges that have one of them or both."""

    def __init__(self, broker_url: str, store_url: str, folder: Path) -> None:
        super().__init__(broker_url, store_url, folder, QUICK)
        self.fronts = {"orders": self.front, "invoices": self.add_route("invoices")}
        self.queues = {"orders": self.queue, "invoices": f"{self.name}.invoices.consumers"}

    def declare_target(self, arguments: object = None) -> None:
        super().declare_target()
        self.declare_exchange(f"{self.name}.invoices.target")
        self.declare_queue(self.queues["invoices"])
        self.bind(self.queues["invoices"], f"{self.name}.invoices.target")

    def having(self, *routes: str) -> Bridge:
        """A bridge with these routes only, that is ready."""
        settings = copy.deepcopy(self.settings)
        settings["routes"] = {route: settings["routes"][route] for route in routes}
        name = f"{self.name}-{'-'.join(routes)}-{secrets.token_hex(2)}"
        bridge = self._open.enter_context(Bridge(self.folder, settings, name=name)).start()
        wait_for(lambda: bridge.report().get("health") == "All well.", bridge.log_tail())
        return bridge

    def publish_to(self, route: str, numbers: Sequence[int], delay_ms: int = DELAY_MS) -> None:
        """Numbered messages, each with an order key of its own."""
        props = Props([delay(delay_ms)], {"delivery_mode": b"\2"})
        for number in numbers:
            self.publish(props, b"%s %d" % (route.encode(), number), b"key.%d" % number, self.fronts[route])

    def receive_from(self, route: str, count: int, since: float, delay_ms: int = DELAY_MS) -> float:
        """All messages of a route; how late the last one was, in seconds, counted from ``since``."""
        messages = self.receive(count, 15, self.queues[route])
        assert len({message.body for message in messages}) == count
        assert all(message.body.startswith(route.encode()) for message in messages)
        return max(message.at for message in messages) - since - delay_ms / 1000


@pytest.fixture
def two(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Two]:
    with Two(rabbitmq.url, redis_server.url, tmp_path) as line:
        yield line


def both_in_time(line: Two) -> None:
    """Forty messages, twenty of each route, arrive within a second of being due, and leave no trace of a refusal."""
    line.publish_to("orders", range(20))
    line.publish_to("invoices", range(20))
    published = time.time()
    late = {route: line.receive_from(route, 20, published) for route in ("orders", "invoices")}
    print("late at most", {route: f"{seconds:.3f} s" for route, seconds in late.items()})
    assert max(late.values()) < LATE_S
    assert line.receive_until(1, 0.5) == [], "no copies"
    assert line.dead() == {}


def test_one_that_has_a_route_more_than_the_other_delivers_it(two: Two) -> None:
    bridges = [two.having("orders"), two.having("orders", "invoices")]
    both_in_time(two)
    assert not any("] refused" in bridge.log() for bridge in bridges)


def test_two_that_share_no_route_deliver_each_its_own(two: Two) -> None:
    bridges = [two.having("orders"), two.having("invoices")]
    both_in_time(two)
    assert not any("] refused" in bridge.log() for bridge in bridges)


def test_messages_of_a_route_that_starts_this_moment_do_not_wait_for_a_lease(two: Two) -> None:
    """The others do not know it yet."""
    two.having("orders")
    second = two.having("orders", "invoices")
    assert second.terminate() == 0
    time_ms = 50
    two.publish_to("invoices", range(20), time_ms)
    two.having("orders", "invoices")
    started = time.time()
    assert two.receive_from("invoices", 20, started, 0) < UNKNOWN_LATE_S


def test_a_rolling_rename_delivers_while_one_has_the_old_name_and_names_what_is_left(two: Two) -> None:
    first, second = two.having("orders"), two.having("orders")
    two.publish_to("orders", range(20), 3000)
    published = time.time()
    assert first.terminate() == 0
    renamed = two.having("invoices")
    assert two.receive_from("orders", 20, published, 3000) < LATE_S
    two.publish_to("orders", range(20, 25), 2000)
    wait_for(lambda: two.waiting() == 5, "they are parked")
    assert second.terminate() == 0
    renamed.wait_health("route orders are refused")
    wait_for(lambda: two.waiting() == 5, "they wait, but for the moments in which an instance claims them")
    assert two.dead() == {}


@pytest.mark.parametrize("routes", [("orders",), ("invoices",)], ids=["the same routes", "other routes"])
def test_an_instance_that_freezes_keeps_its_shards_for_the_takeover_time_and_no_longer(
    two: Two, routes: tuple[str, ...]
) -> None:
    frozen, other = two.having(*routes), two.having("orders")
    wait_for(lambda: all(bridge.report()["shards"] for bridge in (frozen, other)), "both drain shards")
    delay_ms = TAKEOVER_MS + 1500
    two.publish_to("orders", range(40), delay_ms)
    published = time.time()
    wait_for(lambda: two.waiting() == 40, "they are parked")
    frozen.pause()
    assert two.receive_from("orders", 40, published, delay_ms) < LATE_S
    wait_for(lambda: len(other.report()["shards"]) == 8, "it reports the shards that it drains", 15)
    frozen.resume()
    two.publish_to("orders", range(40), 500)
    assert two.receive_from("orders", 40, time.time(), 500) < LATE_S


def receipts_by_due(ledger: Ledger) -> list[float]:
    """How late each message was, in seconds."""
    return sorted(receipts[0].at - receipts[0].due for receipts in ledger._receipts.values())


@pytest.mark.long
@pytest.mark.parametrize("first", [("orders",), ("orders", "invoices")], ids=["none in common", "one has both"])
def test_a_flow_of_two_routes_between_two_instances_is_in_time(two: Two, first: tuple[str, ...]) -> None:
    two.having(*first), two.having("invoices")
    with ExitStack() as opened:
        ledgers = {
            route: opened.enter_context(Ledger(two.broker_url, two.fronts[route], two.queues[route]))
            for route in ("orders", "invoices")
        }
        for ledger in ledgers.values():
            ledger.produce(FLOW_RATE, (0, 2000), count=FLOW)
        for ledger in ledgers.values():
            ledger.produced()
        for route, ledger in ledgers.items():
            verdict = ledger.settle(30)
            late = receipts_by_due(ledger)
            print(route, f"late p50 {late[len(late) // 2]:.3f} s, p99 {late[len(late) * 99 // 100]:.3f} s")
            verdict.assert_kept(copies_max=0)
            assert verdict.late_max_s < 2 * LATE_S
