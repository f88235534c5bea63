"""Connections to the hosts of ``rabbitmq.url``.

``open_link`` opens one for the hot path: pika opens, secures and keeps it, but the frames of deliveries and confirms
bypass pika. ``connect`` opens a plain, blocking one.

The hot path uses internals of pika: ``_on_data_available`` receives what the socket read, ``_output_marshaled_frames``
takes bytes to send, and the plaintext transport's ``_tx_buffers`` holds bytes that wait. ``check_seams`` looks for them
at start, and pika is pinned.

All other frames go to pika unchanged, so pika sees them in the broker's order. Content headers are the exception: pika
1.4.4 closes the connection over a timestamp in milliseconds. It gets the header with its properties as raw bytes
(``RawProperties``) and never decodes them.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import pika
import structlog
from pika import frame, spec
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.adapters.utils import io_services_utils
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.channel import Channel
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPError, StreamLostError

from adapters.rabbitmq.native_guard import delays_natively
from adapters.rabbitmq.raw.frames import BODY, DELIVER, HEADER, METHOD, OVERHEAD, content_head, frame_head, method_id
from adapters.rabbitmq.trouble import broker_errors, of_all_hosts, of_files, sentence
from bridge.core.errors import BrokerUnavailable, PostdateError
from bridge.settings import RabbitMQ
from bridge.settings.oauth import AccessToken, fetch_token

T = TypeVar("T")

log = structlog.get_logger("postdate")

#: pika reads 4 KiB at a time: a thousand needless system calls a second at 10,000 messages a second.
_RECV_BYTES = 128 * 1024
#: pika then reads on until the socket is empty, which costs another read. The event loop reports the rest as well.
_CONSUME_BYTES = 1
_KEEP_ALIVE_S = 1.0
_HANDSHAKE_S = 1.0
#: How long to wait after there was no new token.
_AGAIN_S = 1.0
_TIMEOUT_S = 15
#: Where there are other hosts to try. The machine of a frozen host still accepts connections.
_HOST_TIMEOUT_S = 5


_Plaintext = io_services_utils._AsyncPlaintextTransport


class RawProperties(spec.BasicProperties):
    """The properties of a content header as raw bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self.raw = raw


class TokenCredentials(pika.PlainCredentials):
    """A token as password. RabbitMQ takes the user from the token."""

    def __init__(self, token: AccessToken) -> None:
        super().__init__("", token.text)
        self.token = token


#: Handler of a hot method: the buffer, and where in it the method's arguments start.
MethodHandler = Callable[[bytes, int], None]
#: Handler of a delivery: its channel, the arguments of the deliver method, the raw properties, the body.
DeliveryHandler = Callable[[int, bytes, bytes, bytes], None]


class _Partial:
    """A delivery of which frames are missing. Frames of other channels may come between them (section 4.2.6)."""

    __slots__ = ("method", "missing", "pieces", "properties")

    def __init__(self, method: bytes) -> None:
        self.method = method
        self.properties = b""
        self.missing = 0
        self.pieces: list[bytes] = []


class HotConnection(AsyncioConnection):
    """A pika connection whose deliveries and confirms bypass pika's decoding.

    The caller sets ``hot_methods`` and ``on_delivery`` before the first of their frames. The connection calls
    ``on_read`` after each read, when it has passed on every frame in it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._rest = b""
        self._partials: dict[int, _Partial] = {}
        self.hot_methods: dict[int, MethodHandler] = {}
        self.on_delivery: DeliveryHandler | None = None
        self.on_read: Callable[[], None] | None = None
        self._keep_alive: asyncio.TimerHandle | None = None
        super().__init__(*args, **kwargs)

    def _adapter_emit_data(self, data: bytes) -> None:
        """Send, or end the connection where RabbitMQ has reset it while this process stood still.

        uvloop closes its handle of such a socket and calls no reader, so pika would wait for a heartbeat.
        """
        try:
            super()._adapter_emit_data(data)
        except RuntimeError as error:
            if "handler is closed" not in str(error):
                raise
            self._terminate_stream(StreamLostError("Stream connection lost: reset by RabbitMQ"))

    def _on_data_available(self, data_in: bytes) -> None:
        buffer = self._rest + data_in if self._rest else data_in
        at, length = 0, len(buffer)
        unpack_head, unpack_id, hot, partials = (
            frame_head.unpack_from,
            method_id.unpack_from,
            self.hot_methods,
            self._partials,
        )
        delivers = self.on_delivery is not None
        while length - at >= OVERHEAD:
            kind, channel, size = unpack_head(buffer, at)
            end = at + size + OVERHEAD
            if end > length:
                break
            if kind == METHOD:
                method = unpack_id(buffer, at + 7)[0]
                if delivers and method == DELIVER:
                    partials[channel] = _Partial(buffer[at + 11 : end - 1])
                elif method in hot:
                    hot[method](buffer, at + 11)
                else:
                    self._pass_on(buffer[at:end])
            elif kind == BODY and channel in partials:
                partial = partials[channel]
                partial.missing -= size
                partial.pieces.append(buffer[at + 7 : end - 1])
                if partial.missing <= 0:
                    self._deliver(channel)
            elif kind == HEADER:
                self._on_content_header(channel, buffer, at, end)
            else:
                self._pass_on(buffer[at:end])
            at = end
        self._rest = buffer[at:]
        self.bytes_received += at
        if self.on_read is not None:
            self.on_read()

    def _pass_on(self, data: bytes) -> None:
        self.bytes_received -= len(data)  # pika counts what it is given
        super()._on_data_available(data)

    def _on_content_header(self, channel: int, buffer: bytes, at: int, end: int) -> None:
        body_size = content_head.unpack_from(buffer, at + 7)[2]
        raw = buffer[at + 19 : end - 1]
        partial = self._partials.get(channel)
        if partial is None:
            self._process_frame(frame.Header(channel, body_size, RawProperties(raw)))
            return
        partial.properties = raw
        partial.missing = body_size
        if not body_size:
            self._deliver(channel)

    def _deliver(self, channel: int) -> None:
        assert self.on_delivery is not None
        partial = self._partials.pop(channel)
        pieces = partial.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.on_delivery(channel, partial.method, partial.properties, body)

    def send(self, data: bytes) -> None:
        """Send whole frames, at once unless earlier bytes still wait.

        pika would wait until the event loop reports that the socket can be written: one turn of the loop and two more
        system calls, thousands of times a second. Bytes that the socket does not take go that way; pika also finds the
        errors there.
        """
        transport = self._transport
        if isinstance(transport, _Plaintext) and not transport._tx_buffers and self.is_open:
            with suppress(OSError):
                sent = transport._sock.send(data)
                self.bytes_sent += sent
                if sent == len(data):
                    return
                data = data[sent:]
        self._output_marshaled_frames([data])

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``. The broker's buffers, and then the queue, hold further messages.

        pika would think that the broker is silent and close the connection, so ``_keep_alive`` counts a byte now and
        then.
        """
        if self._keep_alive is None and self.is_open:
            transport = self._transport
            transport._nbio.remove_reader(transport._sock.fileno())
            # Over TLS pika calls this by itself until everything is read.
            transport._on_socket_readable = lambda: None
            self._stay_alive()

    def resume_reading(self) -> None:
        """Read again after ``pause_reading``."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
            self._keep_alive = None
            if self.is_open:
                transport = self._transport
                del transport._on_socket_readable
                transport._nbio.set_reader(transport._sock.fileno(), transport._on_socket_readable)
                if not isinstance(transport, _Plaintext):  # no reader tells of what TLS has buffered
                    transport._nbio.add_callback_threadsafe(transport._on_socket_readable)

    def _stay_alive(self) -> None:
        self.bytes_received += 1
        if self.is_open:
            self._keep_alive = asyncio.get_running_loop().call_later(_KEEP_ALIVE_S, self._stay_alive)


def check_seams() -> None:
    """Raise ``PostdateError`` unless this pika has the internals that the hot path uses."""
    found = (
        list(inspect.signature(AsyncioConnection._on_data_available).parameters) == ["self", "data_in"]
        and list(inspect.signature(AsyncioConnection._output_marshaled_frames).parameters)[1:2] == ["marshaled_frames"]
        and all(hasattr(AsyncioConnection, name) for name in ("_adapter_emit_data", "_terminate_stream"))
        and hasattr(io_services_utils._AsyncTransportBase, "_MAX_RECV_BYTES")
        and "_tx_buffers" in inspect.getsource(_Plaintext)
    )
    if not found:
        raise PostdateError(f"postdate does not work with pika {pika.__version__}. Install pika 1.4.4")
    io_services_utils._AsyncTransportBase._MAX_RECV_BYTES = _RECV_BYTES
    _Plaintext._MAX_CONSUME_BYTES = _CONSUME_BYTES


def resolve(future: asyncio.Future[T], result: T) -> None:
    """Set the result of a future that has none, and that no caller has cancelled."""
    if not future.done():
        future.set_result(result)


class RabbitLink:
    """An open connection, and a future that gets the error with which it ends.

    ``next_host`` is the host to try first afterwards: a lost host may take long to refuse a connection.
    """

    def __init__(self, connection: HotConnection, closed: asyncio.Future[BaseException], next_host: int) -> None:
        self.connection = connection
        self.closed = closed
        self.next_host = next_host

    def is_open(self) -> bool:
        """Return whether the connection can send."""
        return bool(self.connection.is_open)

    @property
    def native(self) -> bool:
        """Whether RabbitMQ delays by itself."""
        return delays_natively(str((self.connection.server_properties or {}).get("version", "")))

    async def channel(self) -> Channel:
        """Open a channel. Raises ``BrokerUnavailable`` when the connection ends first."""
        opened: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        with broker_errors():
            self.connection.channel(on_open_callback=partial(resolve, opened))
        await asyncio.wait((opened, self.closed), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            raise BrokerUnavailable(sentence(self.closed.result()))
        return opened.result()

    async def close(self) -> None:
        """Close the connection; after two seconds without the broker's answer, by force."""
        if not self.connection.is_closed and not self.connection.is_closing:
            self.connection.close()
        await asyncio.wait((self.closed,), timeout=2)
        if not self.closed.done():
            self.connection._terminate_stream(AMQPError("RabbitMQ did not answer the close"))
            await asyncio.wait((self.closed,), timeout=1)


#: The servers that this process has connected to.
_connected: set[tuple[str, int]] = set()


async def open_link(settings: RabbitMQ, name: str, first_host: int = 0) -> RabbitLink:
    """Connect to the first host that answers, from ``first_host`` on. Raises ``BrokerUnavailable``."""
    # A token comes from another server, which may take its time.
    wanted = await asyncio.to_thread(parameters, settings, name) if settings.by_token else parameters(settings, name)
    troubles = []
    for step in range(len(wanted)):
        number = (first_host + step) % len(wanted)
        try:
            connection, closed = await _open(wanted[number])
        except BrokerUnavailable as error:
            forget_tokens()
            troubles.append(str(error))
        else:
            if settings.by_token:
                _keep_renewed(connection, closed, settings, wanted[number].credentials.token)
            return RabbitLink(connection, closed, (number + 1) % len(wanted))
    raise BrokerUnavailable(of_all_hosts(troubles))


def _keep_renewed(
    connection: HotConnection, closed: asyncio.Future[BaseException], settings: RabbitMQ, token: AccessToken
) -> None:
    renewing = asyncio.ensure_future(_renew(connection, settings, token))
    closed.add_done_callback(lambda _: renewing.cancel())


async def _renew(connection: HotConnection, settings: RabbitMQ, token: AccessToken) -> None:
    """Give the open connection a new token whenever the one before has aged. RabbitMQ ends one whose token expired."""
    while True:
        await asyncio.sleep(token.renew_at - time.monotonic())
        try:
            token = await asyncio.to_thread(access_token, settings)
        except BrokerUnavailable as error:
            log.warning("no new token for RabbitMQ", because=str(error))
            token = token._replace(renew_at=time.monotonic() + _AGAIN_S)
        else:
            with suppress(AMQPError):  # it closes
                connection.update_secret(token.text, "postdate renews its token")


async def _open(wanted: pika.ConnectionParameters) -> tuple[HotConnection, asyncio.Future[BaseException]]:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[None] = loop.create_future()
    closed: asyncio.Future[BaseException] = loop.create_future()

    def on_open(_: Any) -> None:
        _connected.add((wanted.host, wanted.port))
        resolve(opened, None)

    def on_open_error(_: Any, error: BaseException | str) -> None:
        if not opened.done():
            reason = error if isinstance(error, BaseException) else AMQPError(error)
            connected_before = (wanted.host, wanted.port) in _connected
            opened.set_exception(BrokerUnavailable(sentence(reason, wanted, connected_before)))

    connection = HotConnection(
        wanted,
        on_open_callback=on_open,
        on_open_error_callback=on_open_error,
        on_close_callback=lambda _, error: resolve(closed, error),
        custom_ioloop=loop,
    )
    try:
        await asyncio.shield(opened)  # a cancellation must not cancel it: the handler below waits for it
    except asyncio.CancelledError:
        # pika fails an assertion, with a traceback in the log, when it is closed in the middle of its handshake.
        opened.add_done_callback(lambda done: done.exception())  # no other code retrieves it
        await asyncio.wait((opened,), timeout=_HANDSHAKE_S)
        if not connection.is_closed and not connection.is_closing:
            connection.close()
        raise
    return connection, closed


def parameters(settings: RabbitMQ, name: str) -> list[pika.ConnectionParameters]:
    """Return pika's parameters for each host, in the order of the URL. The broker shows ``name`` for the connection.

    Reads the TLS files each time, so the next connection uses renewed certificates. Gets a token where the settings
    want one, which may block. Raises ``BrokerUnavailable`` for files that cannot be used, and without a token.
    """
    found = addresses(settings)
    login = _login(settings)
    secure = is_secure(settings)
    context = tls_context(settings) if secure else None
    for parameters in found:
        parameters.heartbeat = settings.heartbeat // 1000
        parameters.blocked_connection_timeout = None
        parameters.socket_timeout = parameters.stack_timeout = _TIMEOUT_S if len(found) == 1 else _HOST_TIMEOUT_S
        parameters.client_properties = {"connection_name": name, "product": "postdate"}
        if login is not None:
            parameters.credentials = login
        if context is not None:
            parameters.ssl_options = pika.SSLOptions(context, parameters.host)
    return found


def _login(settings: RabbitMQ) -> pika.PlainCredentials | ExternalCredentials | None:
    """Return a login other than the URL's user and password."""
    if settings.auth_mechanism == "EXTERNAL":
        return ExternalCredentials()
    return TokenCredentials(access_token(settings)) if settings.by_token else None


#: The tokens of this process. A failed login forgets them: RabbitMQ may have refused one.
_tokens: dict[tuple[str, ...], AccessToken] = {}


def access_token(settings: RabbitMQ) -> AccessToken:
    """Return a token that need not be renewed yet; blocking. Raises ``BrokerUnavailable``."""
    key = settings.oauth_issuer, settings.oauth_token_url, settings.oauth_client_id, settings.oauth_scope
    token = _tokens.get(key)
    if token is None or not token.fresh:
        token = _tokens[key] = fetch_token(settings, "rabbitmq")
    return token


def forget_tokens() -> None:
    """Ask for new tokens from now on."""
    _tokens.clear()


def addresses(settings: RabbitMQ) -> list[pika.URLParameters]:
    """Return address and credentials for each host.

    pika cannot read a URL with several hosts, nor one with a user and no password.
    """
    parts = urlsplit(settings.url.get_secret_value())
    password = settings.password.get_secret_value()
    user, at, hosts = parts.netloc.rpartition("@")
    if parts.username is not None and parts.password is None:
        user += ":"
    urls = []
    for host in hosts.split(","):
        parameters = pika.URLParameters(urlunsplit(parts._replace(netloc=f"{user}{at}{host}")))
        if password:
            parameters.credentials = pika.PlainCredentials(parameters.credentials.username, password)
        urls.append(parameters)
    return urls


def is_secure(settings: RabbitMQ) -> bool:
    return urlsplit(settings.url.get_secret_value()).scheme == "amqps"


def tls_context(settings: RabbitMQ) -> ssl.SSLContext:
    """Return a context with the certificates to trust and to show. Raises ``BrokerUnavailable``."""
    file = "rabbitmq.ca_file"
    try:
        context = ssl.create_default_context(cafile=settings.ca_file or None)
        if settings.cert_file:
            file = "rabbitmq.cert_file or key_file"
            # Without a password OpenSSL would prompt for that of an encrypted key on the terminal, and wait.
            context.load_cert_chain(settings.cert_file, settings.key_file or None, password="")
    except OSError as error:
        raise BrokerUnavailable(of_files(file, error)) from error
    return context


@contextmanager
def connected(
    settings: RabbitMQ, name: str, timeout_s: float, heartbeats: bool = True
) -> Iterator[pika.BlockingConnection]:
    """As ``connect``, for a block. An error of the connection in it raises as ``broker_errors``."""
    connection = connect(settings, name, timeout_s, heartbeats)
    try:
        with broker_errors():
            yield connection
    finally:
        with suppress(AMQPError, OSError):
            connection.close()


def connect(settings: RabbitMQ, name: str, timeout_s: float, heartbeats: bool = True) -> pika.BlockingConnection:
    """Open a plain connection to the first host that answers. Blocking. Raises ``BrokerUnavailable``."""
    troubles = []
    for wanted in parameters(settings, name):
        wanted.socket_timeout = wanted.stack_timeout = timeout_s
        if not heartbeats:
            wanted.heartbeat = 0
        try:
            connection = pika.BlockingConnection(wanted)
        except (AMQPError, AMQPConnectorException, OSError) as error:
            forget_tokens()
            troubles.append(sentence(error, wanted, (wanted.host, wanted.port) in _connected))
        else:
            _connected.add((wanted.host, wanted.port))
            return connection
    raise BrokerUnavailable(of_all_hosts(troubles))
