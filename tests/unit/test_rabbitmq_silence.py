"""A RabbitMQ that sends nothing is reported long before a heartbeat is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from adapters.rabbitmq import source as source_module
from adapters.rabbitmq.source import RabbitSource
from bridge.core.clock import StoreClock
from bridge.settings import RabbitMQ
from bridge.telemetry.health import WELL, Health


async def sentences(received: Iterable[int], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what health says after each question. ``received``: the bytes that RabbitMQ has sent by then."""
    monkeypatch.setattr(source_module, "_ASK_S", 0.001)
    health, found, numbers = Health(), list[str](), iter(received)
    closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connection = SimpleNamespace(bytes_received=next(numbers))

    def ask(**_: Any) -> None:
        found.append(health.sentence())
        connection.bytes_received = next(numbers, -1)
        if connection.bytes_received < 0:
            closed.set_result(None)

    async def channel() -> Any:
        return SimpleNamespace(basic_qos=ask)

    link: Any = SimpleNamespace(
        connection=connection, closed=closed, channel=channel, is_open=lambda: not closed.done()
    )
    source = RabbitSource(RabbitMQ(), [], StoreClock(), 1 << 20, health)
    await source._watch_answers(link)
    return found


async def test_three_questions_without_an_answer_are_a_trouble_and_any_byte_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await sentences([8, 9, 9, 9, 9, 9, 10], monkeypatch)
    assert found[:4] == [WELL] * 4
    assert [text.startswith("nothing is taken from RabbitMQ: it has not answered for ") for text in found[4:6]] == [
        True,
        True,
    ]
    assert found[6] == WELL


async def test_a_rabbitmq_that_answers_slowly_but_sends_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await sentences([1, 1, 1, 2, 2, 2, 3], monkeypatch) == [WELL] * 7
