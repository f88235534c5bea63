"""A connection to RabbitMQ with one channel, as a socket and frames. pika opens it, and never reads from it again."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from pika import spec

from adapters.rabbitmq.lab.trial_objects import connect
from adapters.rabbitmq.raw.frames import METHOD, OVERHEAD, frame_head, method_id
from adapters.rabbitmq.refusals import ACCESS_REFUSED, no_right
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.settings import RabbitMQ

_READ_BYTES = 1 << 18
_CLOSES = (spec.Connection.Close.INDEX, spec.Channel.Close.INDEX)


class RabbitWire:
    """Connects when created, and opens channel 1. Raises ``BrokerUnavailable``, ``Refused`` for missing rights."""

    def __init__(self, settings: RabbitMQ, name: str) -> None:
        self._connection = connect(settings, name)
        self.channel = self._connection.channel()
        self.socket = self._connection._impl._transport._sock
        self._rest = b""

    def frames(self, data: bytes) -> Iterator[tuple[int, int]]:
        """The type of each complete frame in what was read, and where its payload starts. Use them all."""
        at, length = 0, len(data)
        while length - at >= OVERHEAD:
            kind, _, size = frame_head.unpack_from(data, at)
            end = at + size + OVERHEAD
            if end > length:
                break
            if kind == METHOD and method_id.unpack_from(data, at + 7)[0] in _CLOSES:
                self._closed(data[at + 7 : end - 1])
            yield kind, at + 7
            at = end
        self._rest = data[at:]

    def read(self) -> bytes:
        """Read once. Return the incomplete frame of the last time with what has come since."""
        data = self.socket.recv(_READ_BYTES)
        # TLS decrypts more than requested. The socket then seems empty although data is pending.
        while isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            data += self.socket.recv(_READ_BYTES)
        if not data:
            raise BrokerUnavailable("RabbitMQ closed the connection")
        return bytes(self._rest + data)

    def _closed(self, payload: bytes) -> None:
        method = spec.methods[method_id.unpack_from(payload)[0]]()
        method.decode(payload[4:])
        if method.INDEX == spec.Channel.Close.INDEX and method.reply_code == ACCESS_REFUSED:
            raise Refused(no_right(method.reply_text))
        raise BrokerUnavailable(f"RabbitMQ closed the connection: {method.reply_code} {method.reply_text}")
