"""Consumes, without acknowledging, and notes how late each message came, how often, and whether too early."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable

from pika import spec

from adapters.rabbitmq.frames import BODY, METHOD, OVERHEAD, frame_head
from adapters.rabbitmq.load.generator import STAMP
from adapters.rabbitmq.load.wire import Wire
from bridge.bench.load import EARLY_MS, LINGER_S, Got, Load
from bridge.settings import RabbitMQ

_TURN_S = 0.25


class Meter:
    """One consumer of one run's messages. It consumes when it is made."""

    def __init__(self, settings: RabbitMQ, load: Load) -> None:
        self._load = load
        self._wire = Wire(settings, "postdate bench, meter")
        self._wire.call(spec.Basic.Consume(queue=load.queue, no_ack=True))
        self._seen: set[int] = set()
        self._late_ms, self._at, self._numbers = array("d"), array("d"), array("L")
        self._duplicates = self._early = 0
        self._first = self._last = 0.0

    def run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        """Count until all have come and a second has passed in which copies could come, or until ``over``.

        ``received`` is told of the number every now and then. Raises ``BrokerUnavailable``.
        """
        wire, rest = self._wire, b""
        wire.socket.settimeout(_TURN_S)
        end = float("inf")
        while time.time() < end and not over():
            try:
                data = wire.read()
            except TimeoutError:
                data = b""
            if data:
                rest = self._take(rest + data, time.time())
                received(len(self._seen))
            if len(self._seen) >= self._load.count and end == float("inf"):
                end = time.time() + LINGER_S
        wire.socket.close()
        late_ms, numbers, at = self._late_ms, self._numbers, self._at
        return Got(len(self._seen), self._duplicates, self._early, late_ms, self._first, self._last, numbers, at)

    def _take(self, data: bytes, now: float) -> bytes:
        """Note every body in ``data``; what is left of it."""
        unpack_head, unpack_stamp, seen, run = frame_head.unpack_from, STAMP.unpack_from, self._seen, self._load.run
        at, length = 0, len(data)
        while length - at >= OVERHEAD:
            end = at + unpack_head(data, at)[2] + OVERHEAD
            if end > length:
                break
            kind = data[at]
            if kind == BODY:
                number, due = unpack_stamp(data, at + 7)
                if number >> 32 == run:
                    self._note(seen, number, (now - due) * 1000, now)
            elif kind == METHOD:
                self._wire.check(data[at:end])
            at = end
        return data[at:]

    def _note(self, seen: set[int], number: int, late_ms: float, now: float) -> None:
        if number in seen:
            self._duplicates += 1
            return
        seen.add(number)
        self._late_ms.append(late_ms)
        self._numbers.append(number & 0xFFFFFFFF)
        self._at.append(now)
        if late_ms < EARLY_MS:
            self._early += 1
        if not self._first:
            self._first = now
        self._last = now
