"""A stop in good order: what RabbitMQ has handed out is finished, and only what cannot be goes back to it."""

from __future__ import annotations

import signal
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.bridge_line import QUICK
from tests.bridge_process import Bridge
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.level_line import LevelLine
from tests.raw_amqp import Answer, Message, RawConnection
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

RATE = 2000
KEYS = 10
STOPS = 2
PERSISTENT = {"delivery_mode": b"\2"}
#: Many messages are due at one moment, and none before it is parked.
MOMENTS_MS, AHEAD_MS = 200, 600
#: Measured: 0.06 to 0.13 s; a busy machine may need more.
STOP_S = 2.0


class Flow:
    """Publishes numbered messages at ``RATE``, until it is told to stop; ``sent`` are all confirmed then."""

    def __init__(self, line: Line, properties: Callable[[], bytes], key: Callable[[int], bytes]) -> None:
        self._line = line
        self._properties = properties
        self._key = key
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = self._confirmed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(20)

    def _run(self) -> None:
        began = time.monotonic()
        with RawConnection(self._line.broker_url) as connection:
            connection.confirm()
            while not self._end.is_set() or self._confirmed < self.sent:
                wanted = 0 if self._end.is_set() else int((time.monotonic() - began) * RATE) - self.sent
                raw, first = self._properties(), self.sent
                frames = (
                    connection.encode(self._line.front, self._key(n), raw, b"%d" % n)
                    for n in range(first, first + wanted)
                )
                connection.send(b"".join(frames))
                self.sent += wanted
                for answer in connection.events(0.005):
                    assert isinstance(answer, Answer)
                    self._confirmed = max(self._confirmed, answer.tag)


def at_a_shared_moment() -> bytes:
    """Due at the next of the moments, which follow each other."""
    at_ms = (int(time.time() * 1000) + AHEAD_MS) // MOMENTS_MS * MOMENTS_MS + MOMENTS_MS
    return Props([(b"x-deliver-at", "l", struct.pack(">q", at_ms))], PERSISTENT).encode()


def numbers(messages: list[Message]) -> list[int]:
    return [int(message.body) for message in messages]


def stop_under_load(bridge: Bridge) -> None:
    began = time.monotonic()
    assert bridge.terminate() == 0
    took_s = time.monotonic() - began
    print(f"the stop took {took_s:.2f} s")
    assert took_s < STOP_S


def untaken(line: Line) -> list[Message]:
    """What is in the intake queue."""
    return line.receive(line.depth(line.intake), queue=line.intake)


@pytest.mark.parametrize("queue_type", ["quorum", pytest.param("classic", marks=pytest.mark.long)])
def test_stops_under_load_finish_what_was_handed_out_and_copy_nothing(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, queue_type: str
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path, {"rabbitmq": {"queue_type": queue_type}}) as line:
        came: list[Message] = []
        with Flow(line, at_a_shared_moment, lambda n: b"key.%d" % (n % KEYS)) as flow:
            for _ in range(STOPS):
                bridge = line.start()
                came += line.receive(RATE // 2, 30)
                stop_under_load(bridge)
        left = untaken(line)
        line.start()
        came += line.receive(flow.sent - len(left) - len(came))
    everything = numbers(came)
    assert Counter(everything + numbers(left)) == Counter(range(flow.sent))
    if queue_type == "quorum":  # RabbitMQ's own affair: it puts back what was on its way to us when the consumer went
        return
    assert not any(message.redelivered for message in left)
    for key in range(KEYS):
        of_key = [number for number in everything if number % KEYS == key]
        assert of_key == sorted(of_key), f"key {key} has lost its order"


def test_stops_under_load_copy_nothing_that_goes_straight_through_without_a_store(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    with LevelLine(rabbitmq.url, tmp_path, {"routes": {"orders": {"deliver_to": ""}}}) as line:
        came: list[Message] = []
        with Flow(line, Props([], PERSISTENT).encode, lambda _: line.queue.encode()) as flow:
            for _ in range(STOPS):
                bridge = line.run()
                came += line.receive(RATE // 2, 30)
                stop_under_load(bridge)
        left = untaken(line)
        came += line.receive(flow.sent - len(left) - len(came))
        assert line.receive_until(1, 0.3) == [], "no copies"
    assert Counter(numbers(came + left)) == Counter(range(flow.sent))


@pytest.mark.parametrize(("signals", "store_timeout"), [(1, "1s"), pytest.param(2, "60s", marks=pytest.mark.long)])
def test_what_the_store_does_not_take_goes_back_and_a_second_signal_does_not_wait_for_it(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, signals: int, store_timeout: str
) -> None:
    with Line(rabbitmq.url, redis_server.url, tmp_path, QUICK) as line:
        bridge = line.start({"redis": {"timeout": store_timeout}})
        redis_server.pause()
        try:
            for n in range(20):
                line.publish(Props([delay(1)], PERSISTENT), b"%d" % n)
            wait_for(lambda: line.depth(line.intake) == 0, "all are handed out")
            for _ in range(signals):
                bridge.signal(signal.SIGINT)
                bridge.wait_log("stopping")
            assert bridge.wait_end(10) == 0
        finally:
            redis_server.resume()
        line.start()
        came: set[bytes] = set()
        while len(came) < 20:
            came.add(line.receive()[0].body)
    assert came == {b"%d" % n for n in range(20)}
