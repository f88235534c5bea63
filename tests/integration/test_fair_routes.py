"""One route never delays another: a flood on one, and what it does to the lateness of its neighbour.

Each flood ends with a marker, a message without a delay on the same route: when it arrives, everything before it has
been dealt with. Run with ``-s`` to see the figures.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.raw_amqp import Message, RawConnection
from tests.unit.raw_properties import Entry, Props, sized

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long]

FLOOD = 8000
#: The neighbour sends a message every so often, which waits so long.
EVERY_S, WAITS_MS = 0.005, 150
P99_MS = 50.0
#: A machine that is busy with something else delays everybody by more than this, so one good round of these suffices.
ROUNDS = 12
HOUR = delay(3_600_000)
Flood = Iterable[tuple[bytes, list[Entry]]]


def text(name: bytes, value: bytes) -> Entry:
    return (name, "S", sized(value))


def unknown_keys() -> Flood:
    """Cancellations of nothing."""
    return ((b"a.key", [text(b"x-delay-cancel", b"unknown %d" % n)]) for n in range(FLOOD))


def known_keys() -> Flood:
    """Messages with a key each on half of the way, and then their cancellations."""
    for n in range(FLOOD // 2):
        yield b"key.%d" % (n % 7), [HOUR, text(b"x-delay-key", b"known %d" % n)]
    for n in range(FLOOD // 2):
        yield b"another.key", [text(b"x-delay-cancel", b"known %d" % n)]


def one_key() -> Flood:
    """Messages of one key on routing keys of several shards: each replaces the one before."""
    return ((b"key.%d" % (n % 7), [HOUR, text(b"x-delay-key", b"the key")]) for n in range(FLOOD))


def soon_due() -> Flood:
    """The same, due so soon that none may be left out: each is parked, and replaced if it is still there."""
    return ((b"key.%d" % (n % 7), [delay(60), text(b"x-delay-key", b"the key")]) for n in range(FLOOD // 8))


def many_keys() -> Flood:
    """The same with a hundred keys, which come in turn."""
    return ((b"key.%d" % (n % 7), [HOUR, text(b"x-delay-key", b"key %d" % (n % 100))]) for n in range(FLOOD))


def bad_headers() -> Flood:
    """Dead letters."""
    return ((b"a.key", [text(b"x-delay", b"soon")]) for n in range(FLOOD))


class Figures(NamedTuple):
    """The neighbour's lateness, and how many messages of the flood were dealt with in a second."""

    p99_ms: float
    rate: float


class Measured:
    """A flood on the line's own route while a neighbour goes on: ``late_ms`` are the neighbour's latenesses while it
    lasted, ``before_ms`` those of the second before, ``drained_s`` how long it took."""

    def __init__(self, line: Line, neighbour: str, queue: str, flood: Flood) -> None:
        self.late_ms: list[float] = []
        self.before_ms: list[float] = []
        self.drained_s = 0.0
        self._published = self._arrived = 0
        self._publisher, self._consumer = RawConnection(line.broker_url), RawConnection(line.broker_url)
        self._marker, self._flooder = RawConnection(line.broker_url), RawConnection(line.broker_url)
        self._neighbour = neighbour
        self._consumer.consume(queue)
        self._marker.consume(line.queue)
        frames = [self._flooder.encode(line.front, key, Props(entries).encode(), b"") for key, entries in flood]
        self._frames = b"".join((*frames, self._flooder.encode(line.front, b"marker", _plain(0), b"marker")))

    def run(self) -> None:
        """A second without the flood, then the flood to its end."""
        self._go_on(1.0)
        self.before_ms, self.late_ms = self.late_ms, []
        flooding = threading.Thread(target=self._flooder.send, args=(self._frames,))
        began = time.time()
        flooding.start()
        self._go_on(60.0, self._marker_came)
        self.drained_s = time.time() - began
        flooding.join()
        number = self._published
        self._go_on(20.0, lambda: self._arrived >= number)
        for connection in (self._publisher, self._consumer, self._marker, self._flooder):
            connection.close()

    def _go_on(self, for_s: float, ended: Callable[[], bool] = lambda: False) -> None:
        next_s = time.time()
        end_s = next_s + for_s
        while time.time() < end_s and not ended():
            if time.time() >= next_s:
                due = struct.pack(">d", time.time() + WAITS_MS / 1000)
                self._publisher.publish(self._neighbour, b"some.key", _plain(WAITS_MS), due)
                self._published += 1
                next_s = max(next_s + EVERY_S, time.time() - 1)
            for event in self._consumer.events(max(0.0, next_s - time.time())):
                if isinstance(event, Message):
                    self._consumer.acknowledge(event.tag)
                    self._arrived += 1
                    self.late_ms.append((event.at - struct.unpack(">d", event.body)[0]) * 1000)

    def _marker_came(self) -> bool:
        found = False
        for event in self._marker.events(0):
            if isinstance(event, Message):
                self._marker.acknowledge(event.tag)
                found = found or event.body == b"marker"
        return found


def _plain(delay_ms: int) -> bytes:
    return Props([delay(delay_ms)], {"delivery_mode": b"\2"}).encode()


@pytest.mark.parametrize(
    ("flood", "at_least"),
    [(unknown_keys, 2000), (known_keys, 2000), (one_key, 0), (many_keys, 0), (soon_due, 0), (bad_headers, 0)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_flood_on_one_route_does_not_delay_another(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, flood: Callable[[], Flood], at_least: int
) -> None:
    line = Line(rabbitmq.url, redis_server.url, tmp_path)
    front = line.add_route("neighbour")
    target, queue = f"{line.name}.neighbour.target", f"{line.name}.neighbour.queue"
    with line:
        line.declare_exchange(target)
        line.declare_queue(queue)
        line.bind(queue, target)
        line.start()
        steps = list(flood())
        rounds = (measure(line, front, queue, steps) for _ in range(ROUNDS))
        assert any(figures.p99_ms < P99_MS and figures.rate >= at_least for figures in rounds)


def measure(line: Line, neighbour: str, queue: str, flood: list[tuple[bytes, list[Entry]]]) -> Figures:
    measured = Measured(line, neighbour, queue, flood)
    measured.run()
    late_ms, before_ms = sorted(measured.late_ms), sorted(measured.before_ms)
    found = Figures(percentile(late_ms, 0.99), len(flood) / measured.drained_s)
    print(
        f"\n{len(flood)} drained at {found.rate:.0f}/s; the neighbour: p50 {percentile(late_ms, 0.5):.1f}, "
        f"p99 {found.p99_ms:.1f}, max {late_ms[-1]:.1f} ms of {len(late_ms)}; "
        f"p99 before {percentile(before_ms, 0.99):.1f} ms"
    )
    return found


def percentile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
