"""Consumes, without acknowledging, and notes each message in a tally."""

from __future__ import annotations

import time
from collections.abc import Callable

from pika import spec

from adapters.rabbitmq.lab.stage import broker_errors
from adapters.rabbitmq.lab.wire import Wire
from adapters.rabbitmq.raw.frames import BODY, METHOD, OVERHEAD, frame_head
from bridge.lab.bench.load import STAMP, Got, Load
from bridge.lab.bench.tally import Tally
from bridge.settings import RabbitMQ

_TURN_S = 0.25


class Meter:
    """One consumer of one run's messages. It consumes when it is made."""

    def __init__(self, settings: RabbitMQ, load: Load) -> None:
        self._load = load
        self._wire = Wire(settings, "postdate bench, meter")
        with broker_errors():
            self._wire.call(spec.Basic.Consume(queue=load.queue, no_ack=True))
        self._tally = Tally(load)

    def run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        """See ``bridge.lab.bench.processes.Meter``."""
        with broker_errors():
            return self._run(over, received)

    def _run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        wire, rest, tally = self._wire, b"", self._tally
        wire.socket.settimeout(_TURN_S)
        end = float("inf")
        while time.time() < end and not over():
            try:
                data = wire.read()
            except TimeoutError:
                data = b""
            if data:
                rest = self._take(rest + data, time.time())
                received(tally.messages)
            if tally.messages >= self._load.count and end == float("inf"):
                end = time.time() + self._load.linger_s
        wire.socket.close()
        return tally.got()

    def _take(self, data: bytes, now: float) -> bytes:
        """Note every body in ``data``; what is left of it."""
        unpack_head, unpack_stamp, note = frame_head.unpack_from, STAMP.unpack_from, self._tally.note
        at, length = 0, len(data)
        while length - at >= OVERHEAD:
            end = at + unpack_head(data, at)[2] + OVERHEAD
            if end > length:
                break
            kind = data[at]
            if kind == BODY:
                number, due = unpack_stamp(data, at + 7)
                note(number, due, now)
            elif kind == METHOD:
                self._wire.check(data[at:end])
            at = end
        return data[at:]
