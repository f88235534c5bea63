"""RabbitMQ's sink between the frames of an open channel. No broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from pika import spec
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq.outgoing import Out
from adapters.rabbitmq.raw.frames import tag_and_flag
from adapters.rabbitmq.raw.payload import pack
from adapters.rabbitmq.sink import RabbitSink, _Flight
from bridge.core.message import Claim, Outcome
from bridge.core.ports import Result
from bridge.settings import RabbitMQ
from bridge.telemetry.health import Health
from tests.unit.raw_properties import Props

OUT = Out("orders", frozenset(), drop_user_id=True, audit=False, plugin=False)


class FakeChannel:
    """A channel that confirms at once, after the first ``silent`` times. The test closes it."""

    channel_number = 1
    silent = 0

    def add_on_close_callback(self, on_close: Callable[[Any, BaseException], None]) -> None:
        self.on_close = on_close

    def add_on_return_callback(self, on_return: object) -> None:
        pass

    def confirm_delivery(self, _: object, callback: Callable[[object], None]) -> None:
        self.silent -= 1
        if self.silent < 0:
            callback(spec.Confirm.SelectOk())


class Line:
    """A sink on an open channel."""

    def __init__(self, confirm_timeout: str = "30s") -> None:
        settings = RabbitMQ.model_validate({"confirm_timeout": confirm_timeout})
        self.sink = RabbitSink[Claim](settings, {"orders": OUT}, 1 << 20, Health())
        self.results: list[Result[Claim]] = []
        self.sink.on_answers(self.results.extend)
        self.channel = FakeChannel()
        self.written: list[bytes] = []

    async def open(self) -> None:
        async def channel() -> FakeChannel:
            return self.channel

        connection = SimpleNamespace(
            params=SimpleNamespace(frame_max=4096),
            send=self.written.append,
            hot_methods={},
            add_on_connection_blocked_callback=lambda _: None,
            add_on_connection_unblocked_callback=lambda _: None,
        )
        self.closed = closed = asyncio.get_running_loop().create_future()

        async def close() -> None:
            closed.cancel()

        link = SimpleNamespace(
            connection=connection,
            channel=channel,
            is_open=lambda: not closed.done(),
            next_host=0,
            closed=closed,
            close=close,
        )
        with patch("adapters.rabbitmq.sink.open_link", AsyncMock(return_value=link)):
            self.running = asyncio.create_task(self.sink.run())
            await until(self.sink.open)

    async def close(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running

    def publish(self, *numbers: int) -> None:
        self.sink.publish([claim(number) for number in numbers])

    def ack(self, tag: int, multiple: bool = False) -> None:
        self.sink._answer(None, tag_and_flag.pack(tag, multiple), 0)
        self.sink._flush()


def claim(number: int) -> Claim:
    name = b"%020d" % number
    payload = pack(b"key", Props([]).encode(), b"body")
    return Claim(name, 0, bytes(8), 0, 0, 0, "orders", b"", payload, name, time.monotonic() + 60)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    await line.open()
    yield line
    await line.close()


async def test_one_answer_to_many_costs_as_much_as_is_in_flight_however_many_were_answered_singly(line: Line) -> None:
    """RabbitMQ answers a quiet bridge singly, for weeks. The event loop must not stand still at the next burst."""

    class Flights(dict[int, _Flight[Claim]]):
        looks = 0

        def pop(self, *key: Any) -> Any:
            self.looks += 1
            return super().pop(*key)

    for tag in range(1, 5001):
        line.publish(tag)
        line.ack(tag)
    line.publish(*range(5001, 5004))
    line.sink._flights = flights = Flights(line.sink._flights)
    line.ack(5002, multiple=True)
    assert flights.looks == 2
    assert [result.outcome for result in line.results] == [Outcome.CONFIRMED] * 5002
    assert list(flights) == [5003]


async def test_nothing_is_sent_on_a_channel_that_rabbitmq_has_closed(line: Line) -> None:
    """RabbitMQ ends the connection over it. The publisher may run before the sink's own loop hears of the end."""
    line.publish(1)
    line.channel.on_close(line.channel, ChannelClosedByBroker(404, "NOT_FOUND - no exchange 'orders' in vhost '/'"))
    written = len(line.written)
    line.publish(2)
    assert (line.sink.room(), len(line.written)) == ((0, 0), written)
    outcomes = [(result.letter.id[-1:], result.outcome) for result in line.results]
    assert outcomes == [(b"1", Outcome.REFUSED), (b"2", Outcome.UNKNOWN)]


async def test_a_sink_that_opens_another_channel_counts_as_connected_and_has_none(line: Line) -> None:
    """A missing exchange closes a channel about once a second. RabbitMQ is not away then."""
    line.publish(1)
    line.channel.on_close(line.channel, ChannelClosedByBroker(404, "NOT_FOUND - no exchange 'orders' in vhost '/'"))
    assert (line.sink.able(), line.sink.open()) == (True, False)
    await until(line.sink.open)
    line.closed.set_result(ConnectionError("lost"))
    await until(lambda: not line.sink.able())


async def test_the_largest_message_that_rabbitmq_takes_is_learnt_again_on_each_connection(line: Line) -> None:
    """An operator raised it, and retries the dead letters."""
    text = "PRECONDITION_FAILED - message size 4 is larger than configured max size 3"
    line.publish(1)
    line.channel.on_close(line.channel, ChannelClosedByBroker(406, text))
    await until(line.sink.open)
    line.publish(2)
    assert [result.outcome for result in line.results] == [Outcome.REFUSED] * 2
    await line.close()
    await line.open()
    line.publish(3)
    line.ack(1)
    assert line.results[-1].outcome is Outcome.CONFIRMED


async def test_a_channel_that_rabbitmq_does_not_open_in_time_is_opened_on_another_connection() -> None:
    line = Line("100ms")
    line.channel.silent = 1
    await line.open()
    await line.close()


async def test_the_sink_waits_for_a_channel_while_rabbitmq_blocks_publishers() -> None:
    line = Line("100ms")
    line.channel.silent, line.sink._blocked = 1, True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.25):
            await line.open()
    assert not line.sink.able(), "it has had no channel"
    await line.close()
