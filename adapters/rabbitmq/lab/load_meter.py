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
from adapters.rabbitmq.raw.frames import ACK, BODY, METHOD, NACK, frame_head, method_id, tag_and_flag
from bridge.delay.header import NATIVE
from bridge.lab.load import STAMP, Got, Load, Sent, Tally
from bridge.settings import Settings

#: The value of ``Load.asks`` for a delay without a header: the message's own time to live.
EXPIRATION = "expiration"
_OUT_BYTES = 1 << 18
_TURN_S = 0.01
_READ_S = 0.25
_CONSUME_OK = spec.Basic.ConsumeOk.INDEX
_NOT_YET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def generate(settings: Settings, load: Load, start: Callable[[], object], confirmed: Callable[[int], None]) -> Sent:
    """Publish a load: ``bridge.lab.ports.BrokerLab``."""
    with broker_errors():
        wire = RabbitWire(settings.rabbitmq, "postdate bench, generator")
        wire.channel.confirm_delivery()
        wire.socket.setblocking(False)
        start()
        return RabbitGenerator(wire, load).run(confirmed)


class RabbitGenerator:
    """Publishes on one connection, persistent and confirmed, at the load's rate or as fast as confirms allow."""

    def __init__(self, wire: RabbitWire, load: Load) -> None:
        self._wire = wire
        self._load = load
        self._publish = frame.Method(1, spec.Basic.Publish(exchange=load.exchange, routing_key=load.key)).marshal()
        self._headers: dict[int, bytes] = {}
        self._delays = load.delays()
        # One due moment for all, to the millisecond. Only then do the messages have an order.
        self._at_moment = bool(load.due_at) and load.asks in ("x-delay", NATIVE)
        self._body_head = frame_head.pack(BODY, 1, load.size)
        self._pad = b"x" * (load.size - STAMP.size) + b"\xce"
        self._out = bytearray()
        self._sent = self._floor = self._nacks = 0
        self._singles: set[int] = set()

    def run(self, confirmed: Callable[[int], None]) -> Sent:
        """Publish all messages."""
        load, socket = self._load, self._wire.socket
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
        allowed = load.allowed(time.time() - began, self._confirmed())
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
        except _NOT_YET:
            return
        del self._out[:sent]

    def _read(self) -> None:
        try:
            data = self._wire.read()
        except _NOT_YET:
            return
        for kind, at in self._wire.frames(data):
            if kind == METHOD and (method := method_id.unpack_from(data, at)[0]) in (ACK, NACK):
                self._answered(method == NACK, *tag_and_flag.unpack_from(data, at + 4))

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


def measure(
    settings: Settings,
    load: Load,
    consumes: Callable[[], object],
    over: Callable[[], bool],
    received: Callable[[int], None],
) -> Got:
    """Count a load without acknowledging: ``bridge.lab.ports.BrokerLab``."""
    with broker_errors():
        wire, tally = RabbitWire(settings.rabbitmq, "postdate bench, meter"), Tally(load)
        wire.socket.settimeout(_READ_S)
        wire.socket.sendall(frame.Method(1, spec.Basic.Consume(queue=load.queue, no_ack=True)).marshal())
        while not (tally.complete() or over()):
            try:
                data = wire.read()
            except TimeoutError:
                continue
            now = time.time()
            for kind, at in wire.frames(data):
                if kind == BODY:
                    number, due = STAMP.unpack_from(data, at)
                    tally.note(number, due, now)
                elif kind == METHOD and method_id.unpack_from(data, at)[0] == _CONSUME_OK:
                    consumes()
            received(tally.messages)
        wire.socket.close()
    return tally.got()
