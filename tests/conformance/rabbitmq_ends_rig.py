"""A source and a sink on RabbitMQ, with queues of the test's own, behind a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pika import spec
from pydantic import SecretStr

from adapters.rabbitmq.connection import check_seams
from adapters.rabbitmq.intake_queue import IntakeQueue
from adapters.rabbitmq.outgoing import Out
from adapters.rabbitmq.raw.payload import pack, unpack
from adapters.rabbitmq.sink import RabbitSink
from adapters.rabbitmq.source import RabbitSource
from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Delivery
from bridge.settings import RabbitMQ as RabbitSettings
from bridge.telemetry.health import Health
from tests.conformance.ends_rig import BYTES_MAX, WINDOW, EndFeature, SinkRig, SourceRig, until
from tests.devstack.proxy import ThreadedProxy
from tests.raw_amqp import Message, RawConnection
from tests.unit.raw_properties import Props

_PROPERTIES = Props([(b"trace", "S", b"\0\0\0\1x")]).encode()


class _Queues:
    """The test's own queues, and a client that fills and reads them directly."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        check_seams()
        self.names = names
        self.client = RawConnection(url)
        for name in names:
            self.client.call(spec.Queue.Declare(queue=name, durable=True), spec.Queue.DeclareOk)

    def close(self) -> None:
        for name in self.names:
            self.client.call(spec.Queue.Delete(queue=name), spec.Queue.DeleteOk)
        self.client.close()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class RabbitSourceRig(SourceRig):
    """A source on two classic queues."""

    features = frozenset(
        {
            EndFeature.ACCEPTS_SINGLY,
            EndFeature.KEEPS_HANDED_OUT_AT_STOP,
            EndFeature.DELIVERIES_DIE_WITH_THE_CONNECTION,
        }
    )

    def __init__(self, url: str, link: ThreadedProxy, prefix: str) -> None:
        self._link = link
        self._url = link.through(url)
        self._queues = _Queues(url, [f"{prefix}{route}" for route in self.routes])
        self._running: asyncio.Task[None] | None = None

    async def open(self, window: int = WINDOW) -> RabbitSource:
        self._rules = RabbitSettings(url=SecretStr(self._url), prefetch=window)
        return await self.again()

    async def again(self) -> RabbitSource:
        await _end(self._running)
        intakes = [IntakeQueue(*names, frozenset()) for names in zip(self.routes, self._queues.names, strict=True)]
        source = RabbitSource(self._rules, intakes, StoreClock(), BYTES_MAX, Health())
        self._running = asyncio.create_task(source.run())
        return source

    async def close(self) -> None:
        """End the source, and delete the queues."""
        await _end(self._running)
        self._queues.close()

    async def lose_connection(self) -> None:
        self._link.drop()

    async def feed(self, *bodies: bytes, route: int = 0) -> None:
        for body in bodies:
            self._queues.client.publish("", self._queues.names[route].encode(), _PROPERTIES, body)

    def body(self, delivery: Delivery) -> bytes:
        message = unpack(delivery.payload)
        assert message.properties == _PROPERTIES
        return message.body


class RabbitSinkRig(SinkRig):
    """A sink that publishes to one queue through the default exchange."""

    def __init__(self, url: str, link: ThreadedProxy, prefix: str) -> None:
        super().__init__()
        self._url = link.through(url)
        self._link = link
        self._queues = _Queues(url, [f"{prefix}target"])
        self._lost = f"{prefix}lost"
        self._running: asyncio.Task[None] | None = None

    async def open(self, window: int = WINDOW) -> RabbitSink[Claim]:
        rules = RabbitSettings(url=SecretStr(self._url), window=window)
        outs = {
            route: Out(exchange, frozenset(), drop_user_id=False, audit=False, plugin=False)
            for route, exchange in (("orders", ""), ("lost", self._lost))
        }
        sink = RabbitSink[Claim](rules, outs, BYTES_MAX, Health())
        sink.on_answers(self.batches.append)
        self._running = asyncio.create_task(sink.run())
        await until(sink.open, "the sink is not ready")
        return sink

    async def close(self) -> None:
        """End the sink, and delete the queue."""
        self._link.heal()  # or the sink waits for an answer to its close
        await _end(self._running)
        self._queues.close()

    async def hold(self) -> None:
        self._link.stall("down")

    async def lose_connection(self) -> None:
        self._link.cut()

    async def heal(self) -> None:
        self._link.heal()

    def pack(self, body: bytes) -> bytes:
        return pack(self._queues.names[0].encode(), _PROPERTIES, body)

    async def received(self, number: int) -> list[bytes]:
        found: list[Message] = []
        while len(found) < number:
            message = self._queues.client.get(self._queues.names[0])
            assert message is not None
            found.append(message)
        assert {(message.routing_key, message.properties) for message in found} == {
            (self._queues.names[0].encode(), _PROPERTIES)
        }
        return [message.body for message in found]
