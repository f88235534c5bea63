"""A small AMQP 0-9-1 client that shows and sends properties as bytes.

No Python client gives back what stood on the wire, and this suite is about just that; it shares no line with the
bridge's own reader. Blocking, one channel, for tests only.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import unquote, urlsplit

from pika import frame, spec

_METHOD, _HEADER, _BODY = 1, 2, 3
_CHANNEL = 1
_PUBLISH = 0x003C_0028
_RETURN, _DELIVER, _GET_OK, _GET_EMPTY = 0x003C_0032, 0x003C_003C, 0x003C_0047, 0x003C_0048
_ACK, _NACK = 0x003C_0050, 0x003C_0078
_CONNECTION_CLOSE, _CHANNEL_CLOSE, _CANCEL = 0x000A_0032, 0x0014_0028, 0x003C_001E
_CONNECTION_BLOCKED, _CONNECTION_UNBLOCKED = 0x000A_003C, 0x000A_003D


class Closed(ConnectionError):
    """The broker, or the network, has ended the connection or the channel."""


class Message(NamedTuple):
    """A message as a consumer gets it; ``kind`` is deliver, get or return, ``at`` the Unix seconds of its arrival."""

    kind: str
    tag: int
    redelivered: bool
    exchange: bytes
    routing_key: bytes
    properties: bytes
    body: bytes
    at: float


class Answer(NamedTuple):
    """A confirm."""

    tag: int
    multiple: bool
    taken: bool


Event = Message | Answer


def persistent(headers: dict[str, Any] | None = None, **others: Any) -> bytes:
    """The properties of a persistent message, as pika writes them."""
    return b"".join(spec.BasicProperties(headers=headers, delivery_mode=2, **others).encode())


@dataclass
class _Content:
    method: int
    arguments: bytes
    properties: bytes = b""
    missing: int = 0
    body: bytes = b""


class RawConnection:
    """One connection with one channel. ``wait`` and ``events`` raise ``Closed`` when it has ended."""

    def __init__(self, url: str, timeout_s: float = 10.0, frame_max: int = 0) -> None:
        """``frame_max`` 0 takes what the broker offers."""
        parts = urlsplit(url)
        self._buffer = bytearray()
        self._content: _Content | None = None
        self._events: list[Event] = []
        self.messages: list[Event] = []
        self._replies: list[Any] = []
        self.blocked = False
        self._timeout_s = timeout_s
        try:
            self.socket = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open(parts.username or "guest", unquote(parts.password or "guest"), parts.path, frame_max)
        except OSError as error:
            raise Closed(str(error)) from error

    def _open(self, user: str, password: str, path: str, frame_max: int) -> None:
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.wait(spec.Connection.Start)
        names = ("connection.blocked", "publisher_confirms", "consumer_cancel_notify")
        can = {"capabilities": dict.fromkeys(names, True)}
        self._send(0, spec.Connection.StartOk(can, "PLAIN", f"\0{user}\0{password}", "en_US"))
        tune = self.wait(spec.Connection.Tune)
        self.frame_max = frame_max or tune.frame_max
        self._send(0, spec.Connection.TuneOk(tune.channel_max, self.frame_max, 0))
        self._send(0, spec.Connection.Open(unquote(path[1:]) or "/"))
        self.wait(spec.Connection.OpenOk)
        self.call(spec.Channel.Open(), spec.Channel.OpenOk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection; the broker notices."""
        self.socket.close()

    # -- methods ----------------------------------------------------------------------------------------------------

    def call(self, method: Any, reply: type[Any]) -> Any:
        """Send a method on the channel and wait for its reply."""
        self._send(_CHANNEL, method)
        return self.wait(reply)

    def confirm(self) -> None:
        """Ask for confirms: the first publish from now on has tag 1."""
        self.call(spec.Confirm.Select(), spec.Confirm.SelectOk)

    def consume(self, queue: str, prefetch: int = 1000) -> None:
        """Deliveries come as events; acknowledge them."""
        self.call(spec.Basic.Qos(0, prefetch, False), spec.Basic.QosOk)
        self.call(spec.Basic.Consume(queue=queue), spec.Basic.ConsumeOk)

    def acknowledge(self, tag: int, multiple: bool = False) -> None:
        """basic.ack."""
        self._send(_CHANNEL, spec.Basic.Ack(tag, multiple))

    def reject(self, tag: int, requeue: bool = False) -> None:
        """basic.nack of one message."""
        self._send(_CHANNEL, spec.Basic.Nack(tag, False, requeue))

    def publish(self, exchange: str, routing_key: bytes, properties: bytes, body: bytes = b"") -> None:
        """Send one message, without waiting."""
        self.send(self.encode(exchange, routing_key, properties, body))

    def encode(self, exchange: str, routing_key: bytes, properties: bytes, body: bytes) -> bytes:
        """The frames of one publish."""
        name = exchange.encode()
        method = struct.pack(">IHB", _PUBLISH, 0, len(name)) + name
        method += bytes((len(routing_key),)) + routing_key + b"\0"
        head = struct.pack(">HHQ", 60, 0, len(body)) + properties
        room = self.frame_max - 8
        pieces = [_frame(_BODY, body[at : at + room]) for at in range(0, len(body), room)]
        return b"".join((_frame(_METHOD, method), _frame(_HEADER, head), *pieces))

    def get(self, queue: str) -> Message | None:
        """One message, acknowledged, or None."""
        self._send(_CHANNEL, spec.Basic.Get(queue=queue, no_ack=True))
        while True:
            for event in self.events(self._timeout_s):
                if isinstance(event, Message) and event.kind == "get":
                    return event
            if self._replies and isinstance(self._replies[0], spec.Basic.GetEmpty):
                self._replies.pop(0)
                return None

    def wait(self, kind: type[Any]) -> Any:
        """The next method of this kind; events that come meanwhile stay for ``events``."""
        while True:
            for place, reply in enumerate(self._replies):
                if isinstance(reply, kind):
                    return self._replies.pop(place)
            if not self._read(self._timeout_s):
                raise Closed(f"no {kind.__name__} within {self._timeout_s:g} s")

    def events(self, timeout_s: float) -> list[Event]:
        """Received events; waits up to the timeout for the first one."""
        if not self._events:
            self._read(timeout_s)
        events, self._events = self._events, []
        return events

    # -- frames -----------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send whole frames; reads meanwhile, so that neither side waits for the other."""
        rest = memoryview(data)
        while rest:
            readable, writable, _ = select.select([self.socket], [self.socket], [], self._timeout_s)
            if readable:
                self._read(0)
            if writable:
                try:
                    rest = rest[self.socket.send(rest[: 1 << 18]) :]
                except OSError as error:
                    raise Closed(str(error)) from error
            elif not readable:
                raise Closed(f"nothing could be sent for {self._timeout_s:g} s")

    def _send(self, channel: int, method: Any) -> None:
        self.send(frame.Method(channel, method).marshal())

    def _read(self, timeout_s: float) -> bool:
        """Read once and take apart what came; False when nothing did."""
        try:
            if not select.select([self.socket], [], [], timeout_s)[0]:
                return False
            data = self.socket.recv(1 << 18)
        except (OSError, ValueError) as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the broker has gone")
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 8:
            kind, _, size = struct.unpack_from(">BHI", buffer, at)
            if len(buffer) - at < size + 8:
                break
            self._take(kind, bytes(buffer[at + 7 : at + 7 + size]))
            at += size + 8
        del buffer[:at]
        return True

    def _take(self, kind: int, payload: bytes) -> None:
        if kind == _METHOD:
            self._method(struct.unpack_from(">I", payload)[0], payload[4:])
        elif kind == _HEADER and self._content is not None:
            self._content.missing = struct.unpack_from(">Q", payload, 4)[0]
            self._content.properties = payload[12:]
            self._finish()
        elif kind == _BODY and self._content is not None:
            self._content.body += payload
            self._content.missing -= len(payload)
            self._finish()

    def _method(self, method: int, arguments: bytes) -> None:
        if method in (_DELIVER, _GET_OK, _RETURN):
            self._content = _Content(method, arguments)
        elif method in (_ACK, _NACK):
            tag, flags = struct.unpack_from(">QB", arguments)
            self._events.append(Answer(tag, bool(flags & 1), method == _ACK))
        elif method in (_CONNECTION_BLOCKED, _CONNECTION_UNBLOCKED):
            self.blocked = method == _CONNECTION_BLOCKED
        else:
            decoded = spec.methods[method]()
            decoded.decode(arguments)
            if method == _CANCEL:
                raise Closed("the queue has gone")
            if method in (_CONNECTION_CLOSE, _CHANNEL_CLOSE):
                raise Closed(f"{decoded.reply_code} {decoded.reply_text}")
            self._replies.append(decoded)

    def _finish(self) -> None:
        content = self._content
        if content is None or content.missing > 0:
            return
        self._content = None
        self._events.append(_message(content))


def _message(content: _Content) -> Message:
    raw, at, tag, flags = content.arguments, 0, 0, 0
    if content.method == _DELIVER:
        at = 1 + raw[0]
    if content.method == _RETURN:
        at = 2
        at += 1 + raw[at]
    else:
        tag, flags = struct.unpack_from(">QB", raw, at)
        at += 9
    exchange = raw[at + 1 : at + 1 + raw[at]]
    at += 1 + raw[at]
    key = raw[at + 1 : at + 1 + raw[at]]
    kind = {_DELIVER: "deliver", _GET_OK: "get", _RETURN: "return"}[content.method]
    return Message(kind, tag, bool(flags & 1), exchange, key, content.properties, content.body, time.time())


def _frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, _CHANNEL, len(payload)) + payload + b"\xce"


_SIZES = {
    **dict.fromkeys("tbB", 1), **dict.fromkeys("suU", 2), **dict.fromkeys("Iif", 4), "D": 5,
    **dict.fromkeys("lLdT", 8), "V": 0,
}  # fmt: skip


def entries(table: bytes) -> list[bytes]:
    """The entries of a header table (its content, without its length), each as its bytes."""
    found, at = [], 0
    while at < len(table):
        start = at
        at += 1 + table[at]
        kind = chr(table[at])
        at += 1
        at += _SIZES[kind] if kind in _SIZES else 4 + struct.unpack_from(">I", table, at)[0]
        found.append(table[start:at])
    return found


class Parts(NamedTuple):
    """Properties taken apart: bytes before the headers, the header entries, bytes behind them."""

    before: bytes
    headers: list[bytes]
    behind: bytes

    def without(self, *names: bytes) -> Parts:
        """The same without the headers of these names."""
        kept = [entry for entry in self.headers if entry[1 : 1 + entry[0]] not in names]
        return Parts(self.before, kept, self.behind)


def parts(properties: bytes) -> Parts:
    """Take properties apart; those without a headers table have no parts."""
    flags = struct.unpack_from(">H", properties)[0]
    assert flags & 0x2000, f"there is no headers table: {properties!r}"
    at = 2
    for bit in (0x8000, 0x4000):
        if flags & bit:
            at += 1 + properties[at]
    size = struct.unpack_from(">I", properties, at)[0]
    return Parts(properties[:at], entries(properties[at + 4 : at + 4 + size]), properties[at + 4 + size :])
