"""A load generator and a lateness meter for RabbitMQ.

Both speak raw AMQP 0-9-1 frames, encoded with pika's codecs. A client library would use more of the machine's cores
than what is measured.
"""

from __future__ import annotations

import select
import ssl
import time
from bisect import bisect_left
from collections.abc import Callable
from math import ceil

from pika import frame, spec

from adapters.rabbitmq.lab.trial_objects import broker_errors
from adapters.rabbitmq.lab.wire import RabbitWire
from adapters.rabbitmq.raw.frames import ACK, BODY, METHOD, NACK, OVERHEAD, frame_head, method_id, tag_and_flag
from bridge.delay.header import NATIVE
from bridge.lab.load import STAMP, Got, Load, Sent, Tally
from bridge.settings import RabbitMQ

#: The value of ``Load.asks`` for a delay without a header: the message's own time to live.
EXPIRATION = "expiration"
_OUT_BYTES = 1 << 18
_TURN_S = 0.01
_READ_S = 0.25


class RabbitGenerator:
    """Publishes one load on one connection, persistent and confirmed, at its rate or as fast as confirms allow."""

    def __init__(self, settings: RabbitMQ, load: Load) -> None:
        self._load = load
        self._wire = RabbitWire(settings, "postdate bench, generator")
        with broker_errors():
            self._wire.call(spec.Confirm.Select())
        self._publish = frame.Method(1, spec.Basic.Publish(exchange=load.exchange, routing_key=load.key)).marshal()
        self._headers: dict[int, bytes] = {}
        self._delays = load.delays()
        # One due moment for all, to the millisecond. Only then do the messages have an order.
        self._at_moment = bool(load.due_at) and load.asks in ("x-delay", NATIVE)
        self._body_head = frame_head.pack(3, 1, load.size)
        self._pad = b"x" * (load.size - STAMP.size) + b"\xce"
        self._out = bytearray()
        self._rest = b""
        self._sent = self._floor = self._nacks = 0
        self._singles: set[int] = set()

    def run(self, confirmed: Callable[[int], None]) -> Sent:
        """Publish all messages; report the confirmed count now and then. Raises ``BrokerUnavailable``."""
        with broker_errors():
            return self._run(confirmed)

    def _run(self, confirmed: Callable[[int], None]) -> Sent:
        load, socket = self._load, self._wire.socket
        socket.setblocking(False)
        began = time.time()
        while self._confirmed() < load.count:
            self._fill(began)
            readable, writable, _ = select.select([socket], [socket] if self._out else [], [], _TURN_S)
            if writable:
                self._write()
            if readable:
                self._read()
                confirmed(self._confirmed())
        ended = time.time()
        socket.close()
        return Sent(load.count, began, ended, self._nacks)

    def _fill(self, began: float) -> None:
        load = self._load
        now = time.time()
        allowed = load.count
        if load.rate:
            allowed = min(allowed, int((now - began) * load.rate) + 1)
        allowed = min(allowed, self._confirmed() + load.window)
        while self._sent < allowed and len(self._out) < _OUT_BYTES:
            now = time.time()
            delay_ms = self._delay_ms(now)
            due = load.due_at if self._at_moment else now + delay_ms / 1000
            self._out += self._publish
            self._out += self._header(ceil(due * 1000) if load.asks == NATIVE else delay_ms)
            self._out += self._body_head
            self._out += STAMP.pack(load.run << 32 | self._sent, due)
            self._out += self._pad
            self._sent += 1

    def _delay_ms(self, now: float) -> int:
        load = self._load
        if self._at_moment:
            return 0
        if load.due_at:
            return max(1, int((load.due_at - now) * 1000))
        return next(self._delays)

    def _header(self, delay_ms: int) -> bytes:
        """The header frame of a message. Where RabbitMQ delays by itself, ``delay_ms`` is its due moment."""
        headers = self._headers.get(delay_ms)
        if headers is None:
            properties = spec.BasicProperties(
                headers={}, delivery_mode=2, content_type="application/octet-stream", message_id="load"
            )
            if self._at_moment and self._load.asks != NATIVE:
                properties.headers["x-deliver-at"] = round(self._load.due_at * 1000)
            elif delay_ms and self._load.asks == EXPIRATION:
                properties.expiration = str(delay_ms)
            elif delay_ms:
                levels = self._load.levels_ms
                properties.headers[self._load.asks] = bisect_left(levels, delay_ms) + 1 if levels else delay_ms
            headers = self._headers[delay_ms] = frame.Header(1, self._load.size, properties).marshal()
        return headers

    def _write(self) -> None:
        try:
            sent = self._wire.socket.send(self._out)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        del self._out[:sent]

    def _read(self) -> None:
        try:
            data = self._rest + self._wire.read()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        at, length = 0, len(data)
        while length - at >= OVERHEAD:
            end = at + frame_head.unpack_from(data, at)[2] + OVERHEAD
            if end > length:
                break
            if data[at] == METHOD:
                method = method_id.unpack_from(data, at + 7)[0]
                if method in (ACK, NACK):
                    self._answered(method == NACK, *tag_and_flag.unpack_from(data, at + 11))
                else:
                    self._wire.check(data[at:end])
            at = end
        self._rest = data[at:]

    def _answered(self, refused: bool, tag: int, multiple: int) -> None:
        self._nacks += refused
        singles = self._singles
        if multiple & 1:
            self._floor = max(self._floor, tag)
            if singles:
                self._singles = singles = {single for single in singles if single > self._floor}
        else:
            singles.add(tag)
        while self._floor + 1 in singles:
            self._floor += 1
            singles.discard(self._floor)

    def _confirmed(self) -> int:
        return self._floor + len(self._singles)


class RabbitMeter:
    """Consumes one load without acknowledging, from the moment it is created."""

    def __init__(self, settings: RabbitMQ, load: Load) -> None:
        self._load = load
        self._wire = RabbitWire(settings, "postdate bench, meter")
        with broker_errors():
            self._wire.call(spec.Basic.Consume(queue=load.queue, no_ack=True))
        self._tally = Tally(load)

    def run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        """Count until all have arrived and ``linger_s`` has passed, or until ``over``. Raises ``BrokerUnavailable``."""
        with broker_errors():
            return self._run(over, received)

    def _run(self, over: Callable[[], bool], received: Callable[[int], None]) -> Got:
        wire, rest, tally = self._wire, b"", self._tally
        wire.socket.settimeout(_READ_S)
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
        """Count every body in ``data``. Return the incomplete rest."""
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
