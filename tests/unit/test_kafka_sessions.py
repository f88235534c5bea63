"""Connections: a failed renewal of a login is tried again, and a broken connection stops no task of aiokafka."""

from __future__ import annotations

import asyncio
import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import BrokerMetadata

from adapters.kafka import sessions
from adapters.kafka.sessions import LastingClient, LimitedConnection, lasting
from bridge.settings import Kafka

#: What a broker answers to the first question on a connection.
VERSIONS = {MetadataRequest.API_KEY: (0, 5)}


async def test_a_certificate_that_cannot_be_read_for_a_moment_does_not_end_renewals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(_: Kafka) -> dict[str, Any]:
        raise FileNotFoundError(2, "No such file", "ca.pem")

    monkeypatch.setattr(sessions, "security", unreadable)
    client: Any = LastingClient.__new__(LastingClient)
    client.rules = Kafka()
    client.cluster = SimpleNamespace(broker_metadata=lambda _: SimpleNamespace(host="kafka", port=9092))
    client._client_id, client._request_timeout_ms, client._connections_max_idle_ms = "postdate", 1000, 1000
    client._sasl_oauth_token_provider = None
    client.renewing = {(1, 0): "a task"}
    known: Any = SimpleNamespace(renew_at=0.0)
    await client._renew((1, 0), known)
    assert client.renewing == {}
    assert known.renew_at > 0


class _ClosedTransport:
    """A writer whose transport uvloop has closed. aiokafka learns of it a few turns of the loop later."""

    def write(self, _: bytes) -> None:
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    def close(self) -> None:
        pass


async def test_a_connection_that_breaks_before_a_metadata_request_ends_no_later_update() -> None:
    client: Any = AIOKafkaClient()
    lasting(client, Kafka())
    client.cluster._brokers = {1: BrokerMetadata(1, "127.0.0.1", 1, None)}
    broken: Any = LimitedConnection("127.0.0.1", 1, on_close=client._on_connection_closed)
    broken._reader, broken._writer = SimpleNamespace(at_eof=lambda: False), _ClosedTransport()
    broken._versions = VERSIONS
    broken._read_task = asyncio.ensure_future(asyncio.Event().wait())
    client._conns = {(1, ConnectionGroup.DEFAULT): broken}
    client._sync_task = asyncio.ensure_future(client._md_synchronizer())
    for _ in range(2):
        assert not await asyncio.wait_for(client.force_metadata_update(), 5)
    assert not broken.connected()
    await client.close()


def test_a_request_right_after_a_reset_fails_as_a_connection_does_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_lookup(connection: Any) -> None:
        connection._versions = VERSIONS

    monkeypatch.setattr(LimitedConnection, "_do_version_lookup", no_lookup)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, pytest.raises(KafkaConnectionError):
        runner.run(_request_after_a_reset())


async def _request_after_a_reset() -> None:
    """Reset two connections at once. As soon as one is known as broken, send a request on the other."""
    ends: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_close(closed: object, _: object) -> None:
        if not sent.done():
            (other,) = (connection for connection in connections if connection is not closed)
            try:
                other.send(MetadataRequest([]))
            except Exception as error:
                sent.set_exception(error)

    async with await asyncio.start_server(lambda _, writer: ends.put_nowait(writer), "127.0.0.1", 0) as server:
        connections: list[Any] = [LimitedConnection(*server.sockets[0].getsockname()) for _ in range(2)]
        for connection in connections:
            await connection.connect()
            connection._on_close_cb = on_close
        for end in [await ends.get() for _ in connections]:
            linger = struct.pack("ii", 1, 0)  # the end is a reset
            end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            end.transport.abort()
        await asyncio.wait_for(sent, 5)
