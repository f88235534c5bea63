"""A connection to RabbitMQ with one channel, as a socket and frames."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

from pika import frame, spec

from adapters.rabbitmq.connection import parameters
from adapters.rabbitmq.lab.trial_objects import broker_errors
from adapters.rabbitmq.raw.frames import METHOD, OVERHEAD, frame_head, method_id
from adapters.rabbitmq.refusals import ACCESS_REFUSED, no_right
from adapters.rabbitmq.trouble import no_mechanism, of_all_hosts, sentence
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.settings import RabbitMQ

READ_BYTES = 1 << 18
_CLOSES = (spec.Connection.Close.INDEX, spec.Channel.Close.INDEX)


class RabbitWire:
    """Connects when created, and opens channel 1. Raises ``BrokerUnavailable``, ``Refused`` for missing rights."""

    def __init__(self, settings: RabbitMQ, name: str) -> None:
        self._rest = bytearray()
        troubles = []
        for wanted in parameters(settings, name):
            try:
                self._connect(wanted, name)
            except BrokerUnavailable as error:
                troubles.append(str(error))
            else:
                return
        raise BrokerUnavailable(of_all_hosts(troubles))

    def _connect(self, wanted: Any, name: str) -> None:
        try:
            self.socket = socket.create_connection((wanted.host, wanted.port), timeout=wanted.socket_timeout)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if wanted.ssl_options is not None:
                self.socket = wanted.ssl_options.context.wrap_socket(self.socket, server_hostname=wanted.host)
        except OSError as error:
            raise BrokerUnavailable(sentence(error, wanted)) from error
        try:
            with broker_errors():
                self._open(wanted, name)
        except BaseException as error:
            self.socket.close()
            if isinstance(error.__cause__, ssl.SSLError):
                raise BrokerUnavailable(sentence(error.__cause__, wanted)) from error
            raise

    def _open(self, wanted: Any, name: str) -> None:
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        mechanism, login = wanted.credentials.response_for(self.answer())
        if mechanism is None:
            raise BrokerUnavailable(no_mechanism(wanted.credentials.TYPE))
        self.send(spec.Connection.StartOk({"connection_name": name}, mechanism, login.decode(), "en_US"), 0)
        tune = self.answer()
        self.frame_max = tune.frame_max or 131_072
        self.send(spec.Connection.TuneOk(tune.channel_max, self.frame_max, 0), 0)
        self.call(spec.Connection.Open(wanted.virtual_host), 0)
        self.call(spec.Channel.Open())

    def send(self, method: Any, channel: int = 1) -> None:
        """Send one method."""
        self.socket.sendall(frame.Method(channel, method).marshal())

    def call(self, method: Any, channel: int = 1) -> Any:
        """Send one method and return the answer."""
        self.send(method, channel)
        return self.answer()

    def answer(self) -> Any:
        """The next method; blocks. Raises ``BrokerUnavailable`` when the broker closes."""
        while True:
            for data in self.frames():
                if data[0] == METHOD:
                    return self._decode(data)
            self._rest += self._received()

    def frames(self) -> Iterator[bytes]:
        """The complete frames received so far, each with its header and end byte."""
        rest = self._rest
        while len(rest) >= OVERHEAD:
            end = frame_head.unpack_from(rest)[2] + OVERHEAD
            if len(rest) < end:
                return
            data = bytes(rest[:end])
            del rest[:end]
            yield data

    def read(self) -> bytes:
        """Received bytes, for callers that split frames themselves. Includes the rest from opening the connection."""
        data = bytes(self._rest) + self._received()
        self._rest.clear()
        return data

    def check(self, data: bytes) -> None:
        """Raise ``BrokerUnavailable`` if this method frame closes the channel or the connection."""
        if method_id.unpack_from(data, 7)[0] in _CLOSES:
            self._decode(data)

    def _received(self) -> bytes:
        data = self.socket.recv(READ_BYTES)
        # TLS decrypts more than requested. The socket then seems empty although data is pending.
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            data += self.socket.recv(READ_BYTES)
        if not data:
            raise BrokerUnavailable("RabbitMQ closed the connection")
        return data

    def _decode(self, data: bytes) -> Any:
        method = spec.methods[method_id.unpack_from(data, 7)[0]]()
        method.decode(data[11:-1])
        if method.INDEX == spec.Channel.Close.INDEX and method.reply_code == ACCESS_REFUSED:
            raise Refused(no_right(method.reply_text))
        if method.INDEX in _CLOSES:
            raise BrokerUnavailable(f"RabbitMQ closed the connection: {method.reply_code} {method.reply_text}")
        return method
