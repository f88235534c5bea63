"""A load generator and a lateness meter for RabbitMQ.

Both write raw frames, and read them with the connection of the hot path. A client library would use more of the
machine's cores than what is measured.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import ceil

from pika import frame, spec
from pika.channel import Channel

from adapters.rabbitmq.connection import RabbitLink, check_seams, open_link, resolve
from adapters.rabbitmq.raw.frames import ACK, BODY, NACK, frame_head, tag_and_flag
from adapters.rabbitmq.trouble import broker_errors
from bridge.delay.header import NATIVE
from bridge.lab.load import STAMP, Got, Load, Sent, Tally
from bridge.settings import RabbitMQ, Settings

#: The value of ``Load.asks`` for a delay without a header: the message's own time to live.
EXPIRATION = "expiration"
#: The most messages that are sent at once.
_AT_ONCE = 500
_TURN_S = 0.01


@asynccontextmanager
async def _opened(settings: RabbitMQ, name: str) -> AsyncIterator[tuple[RabbitLink, Channel]]:
    """Connect, and open a channel. The link also counts as closed when the channel is."""
    check_seams()
    link = await open_link(settings, name)
    try:
        channel = await link.channel()
        channel.add_on_close_callback(lambda _, error: resolve(link.closed, error))
        yield link, channel
    finally:
        await link.close()


async def _turn(link: RabbitLink, done: asyncio.Future[float] | None = None) -> None:
    """Let frames come for a moment, or until it is done. Raises the error with which the link has closed."""
    waited = (link.closed,) if done is None else (link.closed, done)
    await asyncio.wait(waited, timeout=_TURN_S, return_when=asyncio.FIRST_COMPLETED)
    if link.closed.done():
        raise link.closed.result()


def generate(settings: Settings, load: Load, start: Callable[[], object], confirmed: Callable[[int], None]) -> Sent:
    """Publish a load: ``bridge.lab.ports.BrokerLab``."""

    async def run() -> Sent:
        async with _opened(settings.rabbitmq, "postdate bench, generator") as (link, channel):
            channel.confirm_delivery(lambda _: None)
            await asyncio.to_thread(start)
            return await RabbitGenerator(link, load).run(confirmed)

    with broker_errors():
        return asyncio.run(run())


class RabbitGenerator:
    """Publishes on one connection, persistent and confirmed, at the load's rate or as fast as confirms allow."""

    def __init__(self, link: RabbitLink, load: Load) -> None:
        self._link = link
        self._load = load
        self._publish = frame.Method(1, spec.Basic.Publish(exchange=load.exchange, routing_key=load.key)).marshal()
        self._headers: dict[int, bytes] = {}
        self._delays = load.delays()
        # One due moment for all, to the millisecond. Only then do the messages have an order.
        self._at_moment = bool(load.due_at) and load.asks in ("x-delay", NATIVE)
        self._body_head = frame_head.pack(BODY, 1, load.size)
        self._pad = b"x" * (load.size - STAMP.size) + b"\xce"
        self._sent = self._nacks = 0
        #: The numbers of the messages without an answer, in their order.
        self._open: dict[int, None] = {}
        #: When the last message was confirmed.
        self._ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self, confirmed: Callable[[int], None]) -> Sent:
        connection, self._began = self._link.connection, time.time()
        connection.hot_methods[ACK] = lambda data, at: self._answered(False, *tag_and_flag.unpack_from(data, at))
        connection.hot_methods[NACK] = lambda data, at: self._answered(True, *tag_and_flag.unpack_from(data, at))
        connection.on_read = self._fill
        while not self._ended.done():
            self._fill()
            await _turn(self._link, self._ended)
            confirmed(self._confirmed())
        return Sent(self._load.count, self._began, self._ended.result(), self._nacks)

    def _fill(self) -> None:
        load, now = self._load, time.time()
        if self._confirmed() >= load.count and not self._ended.done():
            self._ended.set_result(now)
        allowed = load.allowed(now - self._began, self._confirmed())
        while self._sent < allowed and self._link.connection.is_open:  # one that closed ends the wait of ``run``
            out = bytearray()
            for number in range(self._sent, min(allowed, self._sent + _AT_ONCE)):
                now = time.time()
                delay_ms = self._delay_ms(now)
                due = load.due_at if self._at_moment else now + delay_ms / 1000
                out += self._publish
                out += self._header(ceil(due * 1000) if load.asks == NATIVE else delay_ms)
                out += self._body_head
                out += STAMP.pack(load.run << 32 | number, due)
                out += self._pad
                self._sent += 1
                self._open[self._sent] = None
            self._link.connection.send(bytes(out))

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

    def _answered(self, refused: bool, tag: int, multiple: int) -> None:
        self._nacks += refused
        first = next(iter(self._open), tag) if multiple & 1 else tag
        for answered in range(first, tag + 1):
            self._open.pop(answered, None)

    def _confirmed(self) -> int:
        return self._sent - len(self._open)


def measure(
    settings: Settings,
    load: Load,
    consumes: Callable[[], object],
    over: Callable[[], bool],
    received: Callable[[int], None],
) -> Got:
    """Count a load without acknowledging: ``bridge.lab.ports.BrokerLab``."""
    tally = Tally(load)

    def on_delivery(_: int, method: bytes, properties: bytes, body: bytes) -> None:
        number, due = STAMP.unpack_from(body)
        tally.note(number, due, time.time())

    async def run() -> None:
        async with _opened(settings.rabbitmq, "postdate bench, meter") as (link, channel):
            link.connection.on_delivery = on_delivery
            link.connection.on_read = lambda: received(tally.messages)
            channel.basic_consume(load.queue, lambda *_: None, auto_ack=True, callback=lambda _: consumes())
            while not (tally.complete() or over()):
                await _turn(link)

    with broker_errors():
        asyncio.run(run())
    return tally.got()
