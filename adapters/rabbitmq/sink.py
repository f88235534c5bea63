"""The sink: publishes mandatory messages with confirms in a window, and reports the outcome of each.

One channel carries everything, so no message overtakes another. RabbitMQ answers an accepted message with an ack, and
an unroutable one with a return and then an ack. Over other messages (missing exchange, no permission, too large) it
closes the whole channel, which leaves everything in flight unknown. The sink then finds the cause:

- The broker names an exchange: every message in flight to it is refused for that reason.
- One message was alone in flight: it is the cause.
- Otherwise all are unknown, and the sink sends the same number of messages one at a time (``_careful``). So the cause
  will be alone in flight.

The other messages are published again and may arrive twice: that is the named window for duplicates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic

from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from adapters.rabbitmq import refusals
from adapters.rabbitmq.connection import RabbitLink, RawProperties, open_link, resolve
from adapters.rabbitmq.outgoing import Encoder, Out, chosen
from adapters.rabbitmq.raw import frames
from adapters.rabbitmq.raw.payload import routing_key, unpack
from adapters.rabbitmq.raw.properties import UnreadableTable, read
from adapters.rabbitmq.trouble import broker_errors, sentence
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Outcome, Refusal, no_route
from bridge.core.ports import L, Result
from bridge.core.reasons import unreadable
from bridge.settings import RabbitMQ
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect, keep_connected
from bridge.telemetry.subject import Subject

_SUBJECT = Subject("rabbitmq", "publish")
_ID_NAME = frozenset({b"x-delay-id"})
#: How long the sink avoids an exchange, or a routing key on it, after a refusal. Then one message tries again.
_REST_S = 1.0
_AGAIN_MS = 100
#: After the rest, how long that message waits until nothing else is in flight.
_ALONE_S = 3.0


class _Flight(Generic[L]):
    """One published message without an answer."""

    __slots__ = ("exchange", "letter", "refusal", "routing_key", "size")

    def __init__(self, letter: L, exchange: str, routing_key: bytes, size: int) -> None:
        self.letter = letter
        self.exchange = exchange
        self.routing_key = routing_key
        self.size = size
        self.refusal: Refusal | None = None

    def is_at(self, target: tuple[str, bytes | None]) -> bool:
        """Return whether it went to this exchange and, unless that is None, with this routing key."""
        exchange, routing_key = target
        return self.exchange == exchange and routing_key in (None, self.routing_key)


class RabbitSink(Generic[L]):
    """``bridge.core.ports.Sink`` on RabbitMQ. ``run`` keeps it connected."""

    _answered: Callable[[list[Result[L]]], None]

    def __init__(self, settings: RabbitMQ, outs: Mapping[str, Out], window_bytes: int, health: Health) -> None:
        self._settings = settings
        self._outs = outs
        self._window_bytes = window_bytes
        self._health = health
        self._link: RabbitLink | None = None
        self._first_host = 0
        self._encoder: Encoder | None = None
        self._size_max: int | None = None
        self._flights: dict[int, _Flight[L]] = {}
        self._tag = 0
        self._bytes = 0
        self._results: list[Result[L]] = []
        self._able = self._blocked = False
        self._careful = 0
        self._resting: dict[tuple[str, bytes | None], tuple[float, Refusal]] = {}
        self._answered_at = 0.0

    def follow(self, outs: Mapping[str, Out]) -> None:
        self._outs = outs

    # -- the port ---------------------------------------------------------------------------------------------------

    def on_answers(self, answered: Callable[[list[Result[L]]], None]) -> None:
        self._answered = answered

    def able(self) -> bool:
        return self._able

    def open(self) -> bool:
        return self._encoder is not None

    def room(self) -> tuple[int, int]:
        if self._encoder is None or self._blocked:
            return 0, 0
        if self._careful:
            return (0, 0) if self._flights else (1, self._window_bytes)
        return self._settings.window - len(self._flights), self._window_bytes - self._bytes

    def publish(self, letters: Sequence[L]) -> None:
        """Send the messages in one write. Each comes back once as a ``Result``."""
        link, encoder = self._link, self._encoder
        if link is None or encoder is None or not link.is_open():
            self._results += (Result(letter, Outcome.UNKNOWN, None) for letter in letters)
            self._flush()
            return
        if not self._flights:
            self._answered_at = time.monotonic()
        parts = []
        for letter in letters:
            encoded = self._encode(encoder, letter)
            if isinstance(encoded, Refusal):
                self._results.append(Result(letter, Outcome.REFUSED, encoded))
                continue
            data, flight = encoded
            self._tag += 1
            self._flights[self._tag] = flight
            self._bytes += flight.size
            parts.append(data)
        if parts:
            link.connection.send(b"".join(parts))
        self._flush()

    def _encode(self, encoder: Encoder, letter: L) -> tuple[bytes, _Flight[L]] | Refusal:
        out = self._outs.get(letter.route)
        if out is None:
            return no_route(letter.route)
        key = routing_key(letter.payload)
        try:
            out = chosen(letter, out)
            resting = self._rest(out.exchange, key) if self._resting else None
            encoded = resting or encoder.encode(letter, out)
        except ValueError as error:
            return Refusal(unreadable(error), lasting=True)
        if isinstance(encoded, Refusal):
            return encoded
        return encoded, _Flight(letter, out.exchange, key, len(encoded))

    def _rest(self, exchange: str, key: bytes) -> Refusal | None:
        """Return the refusal of a target that RabbitMQ refused lately; None where the message may be sent.

        After the rest one message may try, alone if that is possible soon: the channel may close over it. The others
        come back without a try.
        """
        for target in ((exchange, None), (exchange, key)):
            until, refusal = self._resting.get(target, (0.0, None))
            if refusal is None:
                continue
            waits_s = until - time.monotonic()
            if waits_s > 0 or (self._flights and waits_s > -_ALONE_S):
                return replace(refusal, again_ms=max(_AGAIN_MS, int(waits_s * 1000)))
            self._careful = max(self._careful, 1)
            del self._resting[target]
        return None

    # -- answers, called by the connection --------------------------------------------------------------------------

    def _answer(self, nacked: Refusal | None, buffer: bytes, at: int) -> None:
        """Take a confirm, or a nack with its refusal."""
        tag, flags = frames.tag_and_flag.unpack_from(buffer, at)
        flights, results = self._flights, self._results
        first = next(iter(flights), tag) if flags & 1 else tag  # they are in the order of their tags
        for answered in range(first, tag + 1):
            flight = flights.pop(answered, None)
            if flight is None:
                continue
            self._bytes -= flight.size
            if self._careful:
                self._careful -= 1
            refusal = flight.refusal or nacked
            results.append(Result(flight.letter, Outcome.REFUSED if refusal else Outcome.CONFIRMED, refusal))
        self._answered_at = time.monotonic()

    def _on_return(self, _: Channel, method: Any, properties: RawProperties, body: bytes) -> None:
        """Mark the returned message; its ack follows. Id, properties or body identify it."""
        key = method.routing_key.encode() if isinstance(method.routing_key, str) else method.routing_key
        try:
            found = read(properties.raw, _ID_NAME).headers.get("x-delay-id")
        except UnreadableTable:
            found = None
        public_id = found.encode() if isinstance(found, str) else found
        flights = self._flights.values()
        at = (None, method.exchange, key)
        for fits in (
            lambda flight: flight.letter.public_id == public_id,
            lambda flight: self._is_this(flight, properties.raw, body),
            lambda flight: unpack(flight.letter.payload).body == body,
        ):
            returned = next((f for f in flights if (f.refusal, f.exchange, f.routing_key) == at and fits(f)), None)
            if returned is not None:
                text = f"{method.reply_code} {method.reply_text}"
                returned.refusal = refusals.unroutable(method.exchange, key, text)
                return

    def _is_this(self, flight: _Flight[L], properties: bytes, body: bytes) -> bool:
        out, encoder = self._outs.get(flight.letter.route), self._encoder
        if out is None or encoder is None:
            return False
        return encoder.is_this(flight.letter, chosen(flight.letter, out), properties, body)

    def _flush(self) -> None:
        if self._results:
            results, self._results = self._results, []
            self._answered(results)

    # -- the connection ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await keep_connected(self._session, self._health, _SUBJECT, "nothing can be published to RabbitMQ")

    async def _session(self, reconnect: Reconnect) -> None:
        """Open one connection, and one channel after the other on it."""
        self._link = link = await open_link(self._settings, "postdate publish", self._first_host)
        self._first_host = link.next_host
        self._size_max = None  # an operator may have raised it
        connection = link.connection
        try:
            connection.hot_methods[frames.ACK] = partial(self._answer, None)
            connection.hot_methods[frames.NACK] = partial(self._answer, refusals.NACKED)
            connection.on_read = self._flush
            connection.add_on_connection_blocked_callback(self._on_blocked)
            connection.add_on_connection_unblocked_callback(self._on_unblocked)
            while True:
                ended = await self._opened(link)
                reconnect.worked()
                self._able = True
                self._health.say(_SUBJECT, "")
                error = await self._until_end(link, ended)
                if not link.is_open():
                    raise BrokerUnavailable(sentence(error))
        finally:
            connection.hot_methods.clear()  # its tags mean other messages on the next connection
            self._encoder = None
            self._link = None
            self._able = False
            self._on_unblocked()
            self._give_back()
            await link.close()

    async def _opened(self, link: RabbitLink) -> asyncio.Future[BaseException]:
        """Open a channel. Give up a connection on which RabbitMQ does not answer, unless it blocks publishers."""
        timeout_s = self._settings.confirm_timeout / 1000
        opening = asyncio.ensure_future(self._open_channel(link))
        try:
            while not (await asyncio.wait((opening,), timeout=timeout_s))[0]:
                if not self._blocked:
                    raise BrokerUnavailable(f"RabbitMQ opened no channel for {timeout_s:g} s")
            return opening.result()
        finally:
            opening.cancel()

    async def _open_channel(self, link: RabbitLink) -> asyncio.Future[BaseException]:
        channel = await link.channel()
        confirming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

        def on_close(_: Channel, error: BaseException) -> None:
            self._encoder = None  # RabbitMQ ends the connection over a publish on a closed channel
            self._find_cause(error)
            self._give_back()
            resolve(ended, error)

        with broker_errors():  # the channel may have closed meanwhile
            channel.add_on_close_callback(on_close)
            channel.add_on_return_callback(self._on_return)
            channel.confirm_delivery(lambda _: None, callback=partial(resolve, confirming))
        await asyncio.wait((confirming, ended), return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise BrokerUnavailable(sentence(ended.result()))
        self._tag = 0
        self._encoder = Encoder(channel.channel_number, link.connection.params.frame_max)
        self._encoder.size_max = self._size_max
        self._answered([])  # there is room again: wakes the publisher
        return ended

    async def _until_end(self, link: RabbitLink, ended: asyncio.Future[BaseException]) -> BaseException:
        """Wait until the channel ends. Close it when no confirm comes: a lost confirm has no other sign."""
        timeout_s = self._settings.confirm_timeout / 1000
        while True:
            await asyncio.wait((ended, link.closed), timeout=1, return_when=asyncio.FIRST_COMPLETED)
            if link.closed.done():
                return link.closed.result()
            if ended.done():
                return ended.result()
            if self._flights and not self._blocked and time.monotonic() - self._answered_at > timeout_s:
                await link.close()
                return BrokerUnavailable(f"RabbitMQ confirmed nothing for {timeout_s:g} s")

    def _on_blocked(self, _: Any, method: Any) -> None:
        self._blocked = True
        self._health.say(Subject("rabbitmq", "alarm"), f"RabbitMQ blocks publishers: {method.method.reason}")

    def _on_unblocked(self, *_: Any) -> None:
        self._blocked = False
        self._answered_at = time.monotonic()
        self._health.say(Subject("rabbitmq", "alarm"), "")
        self._answered([])

    # -- after a channel or a connection that ended -----------------------------------------------------------------

    def _find_cause(self, error: BaseException) -> None:
        """Note the refusal of the message over which the channel closed. The outcome of the others is unknown."""
        if not isinstance(error, (ChannelClosedByBroker, ConnectionClosedByBroker)):
            return
        if error.reply_code == refusals.CONNECTION_FORCED or not self._flights:
            return
        refusal = refusals.of_close(error.reply_code, error.reply_text)
        self._size_max = refusals.max_size_in(error.reply_text) or self._size_max
        cause = refusals.cause_in(error.reply_text)
        named = [flight for flight in self._flights.values() if cause is not None and flight.is_at(cause)]
        if named and cause is not None:
            self._resting[cause] = (time.monotonic() + _REST_S, refusal)
            for flight in named:
                flight.refusal = refusal
        elif len(self._flights) == 1:
            next(iter(self._flights.values())).refusal = refusal
            self._careful = max(0, self._careful - 1)
        else:
            self._careful = len(self._flights)

    def _give_back(self) -> None:
        """Return everything in flight: refused where its refusal is known, else unknown."""
        for flight in self._flights.values():
            known = Outcome.UNKNOWN if flight.refusal is None else Outcome.REFUSED
            self._results.append(Result(flight.letter, known, flight.refusal))
        self._flights.clear()
        self._bytes = 0
        self._flush()
