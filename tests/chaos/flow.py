"""A delayed path under load on either broker, for faults that both must survive."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.bridge_line import BridgeLine, merged
from tests.bridge_process import Bridge, Tables
from tests.chaos.accountant import Accountant
from tests.chaos.kafka_ledger import KafkaLedger
from tests.chaos.kafka_line import LedgerLine
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import HEALED_S, LINGERS_S, go_on
from tests.chaos.verdict import Verdict
from tests.delay_line import Line
from tests.devstack import kafka_admin
from tests.devstack.redis import Redis
from tests.devstack.service import Service
from tests.kafka_line import ROUTE

BROKERS = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("rabbitmq", "kafka")]
WINDOW = 200
SMALL: Tables = {
    "rabbitmq": {"prefetch": WINDOW, "window": WINDOW, "confirm_timeout": "5s"},
    "kafka": {"window": WINDOW, "confirm_timeout": "5s"},
    "redis": {"timeout": "1s"},
}
RATE = 200.0
#: Longer than ``redis.timeout``, the lease and the time of a takeover.
FREEZE_S = 6
#: What the six faults of ``disturb`` may copy: what was in flight, each time.
COPIES_MAX = 6 * 2 * WINDOW


def freeze(server: Service | Bridge) -> None:
    """Let it stand still for a while."""
    server.pause()
    time.sleep(FREEZE_S)
    server.resume()


class Flow:
    """Two instances deliver ``RATE`` messages a second of few keys, many of them due in the same millisecond."""

    def __init__(self, broker: Service, line: BridgeLine, ledger: Accountant) -> None:
        self.broker, self.line, self.ledger = broker, line, ledger
        (self.route,) = line.settings["routes"]
        self.bridges: list[Bridge] = []

    def start(self, delays_ms: tuple[int, int] = (0, 4000), rate: float = RATE) -> None:
        """Start the bridges and the load, and wait until messages arrive."""
        self.bridges = [self.line.start() for _ in range(2)]
        self.ledger.produce(rate, delays_ms)
        self.ledger.wait_arrivals(200)

    def disturb(self, store: Redis) -> None:
        """Let the store, the broker and an instance stand still and die, each until all is well again."""
        for server in (store, self.broker, self.bridges[0]):
            freeze(server)
            self.recover(f"{type(server).__name__} froze")
            server.kill()
            server.start()
            self.recover(f"{type(server).__name__} died")

    def recover(self, fault: str) -> None:
        """Wait until all its bridges are well, and print how long that took."""
        began = time.monotonic()
        self.line.forget_reports()
        for bridge in self.bridges:
            bridge.wait_ready(HEALED_S + LINGERS_S)
        print(f"{fault}: well after {time.monotonic() - began:.1f} s")

    def order(self, verb: str, word: str) -> None:
        """Pause, resume or drain the route, and wait until its bridges follow: they report ``word``, or nothing."""
        self.line.order(verb, self.route)
        self.line.follow(self.route, word)

    def go_on(self, copies_max: int, healed_s: float = 0.0) -> Verdict:
        """Check that it recovers in time and has kept the promises; ``healed_s`` is the longest time, if unusual."""
        more = {"healed_s": healed_s} if healed_s else {}
        return go_on(self.line, self.ledger, self.bridges, copies_max, more=500, **more)

    def beside(self) -> Accountant:
        """The ledger of a second destination that the route has from now on; to be entered before ``start``."""
        name, line, first = f"{self.line.name}.audit", self.line, self.ledger
        route = line.settings["routes"][self.route]
        route["deliver_to"] = [route["deliver_to"], name]
        if isinstance(line, LedgerLine):
            kafka_admin.create_topic(line.url, line.partitions, name=name)
            return KafkaLedger(line.url, line.intake, name, line.partitions).beside(first)
        assert isinstance(line, Line)
        assert isinstance(first, Ledger)
        first.front = route["intercept"] = f"{name}.delay"
        line.declare_exchange(name)
        line.declare_queue(name)
        line.bind(name, name)
        line.setup()
        return Ledger(line.broker_url, first.front, name, grid_ms=100).beside(first)


OpenFlow = Callable[..., Flow]


def flow_opener(request: pytest.FixtureRequest) -> OpenFlow:
    """A function that opens flows on the broker ``request.param``, with settings of the process and of the route."""
    kafka = request.param == "kafka"
    broker: Service = request.getfixturevalue(f"own_{request.param}")
    open_line = request.getfixturevalue("open_kafka_line" if kafka else "open_line")
    open_ledger = None if kafka else request.getfixturevalue("open_ledger")

    def open_one(store_url: str, settings: Tables | None = None, keys: int = 5, **route: object) -> Flow:
        table: Tables = {"routes": {ROUTE if kafka else "orders": route}}
        line = open_line(merged(merged(SMALL, settings or {}), table), store_url=store_url)
        ledger = line.ledger(keys) if open_ledger is None else open_ledger(line, keys=keys, grid_ms=100)
        return Flow(broker, line, ledger)

    return open_one
