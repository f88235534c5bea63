"""An abandoned connection may still answer, about messages that are no longer in flight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from adapters.rabbitmq.broker_ends import out
from adapters.rabbitmq.connection import HotConnection, check_seams
from adapters.rabbitmq.raw.payload import pack
from adapters.rabbitmq.sink import RabbitSink
from bridge.core.message import Claim, Outcome
from bridge.core.ports import Result
from bridge.settings import load
from bridge.telemetry.health import Health
from tests.bridge_process import toml
from tests.delay_line import Line
from tests.devstack.rabbitmq import RabbitMQ
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq]


@pytest.fixture
def line(rabbitmq: RabbitMQ, tmp_path: Path) -> Line:
    quick = {"rabbitmq": {"confirm_timeout": "200ms"}}
    return Line(rabbitmq.url, "redis://127.0.0.1:1/0", tmp_path, quick)


@pytest.fixture
async def results() -> list[Result[Claim]]:
    return []


@pytest.fixture
async def sink(line: Line, results: list[Result[Claim]]) -> AsyncIterator[RabbitSink[Claim]]:
    file = line.folder / "sink.toml"
    file.write_text(toml(line.settings))
    file.chmod(0o600)
    settings = load(file, {})
    check_seams()
    with line:
        sink = RabbitSink[Claim](settings.rabbitmq, {"orders": out(settings, "orders")}, 1 << 20, Health())
        sink.on_answers(results.extend)
        running = asyncio.create_task(sink.run())
        yield sink
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def claim(number: int) -> Claim:
    name = b"%020d" % number
    payload = pack(b"key", Props([]).encode(), b"body")
    return Claim(name, 0, bytes(8), 0, 0, 0, "orders", b"", payload, name, time.monotonic() + 60)


async def until(condition: Callable[[], object], deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def connection_of(sink: RabbitSink[Claim]) -> HotConnection:
    assert sink._link is not None
    return sink._link.connection


async def test_a_late_confirm_of_an_old_connection_confirms_nothing_on_the_new_one(
    sink: RabbitSink[Claim], results: list[Result[Claim]]
) -> None:
    await until(sink.open)
    old = connection_of(sink)
    old.pause_reading()
    sink.publish([claim(n) for n in range(3)])
    await until(lambda: len(results) == 3)
    assert {result.outcome for result in results} == {Outcome.UNKNOWN}

    await until(lambda: sink.open() and connection_of(sink) is not old)
    connection_of(sink).pause_reading()
    sink.publish([claim(n) for n in range(10, 13)])
    if not old.is_closed:
        transport = old._transport
        transport._nbio.set_reader(transport._sock.fileno(), transport._on_socket_readable)
    await asyncio.sleep(0.15)
    assert len(results) == 3, "the new connection has not read anything yet"
    connection_of(sink).resume_reading()
    await until(lambda: len(results) == 6)


async def test_an_abandoned_connection_is_closed(sink: RabbitSink[Claim], results: list[Result[Claim]]) -> None:
    await until(sink.open)
    old = connection_of(sink)
    old.pause_reading()
    sink.publish([claim(1)])
    await until(lambda: sink.open() and connection_of(sink) is not old)
    await until(lambda: old.is_closed, 10)
