"""Whether a missing intake queue was deleted: RabbitMQ cancels its consumers before the queue is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq import deleted_queue
from adapters.rabbitmq.connection import RabbitLink
from adapters.rabbitmq.deleted_queue import deleted, is_deleted, recreated
from adapters.rabbitmq.intake_queue import IntakeQueue
from bridge.core.errors import BrokerUnavailable
from bridge.process.service import broker_connected
from bridge.telemetry.subject import Subject

QUEUE = "postdate.orders"
GONE = ChannelClosedByBroker(404, f"NOT_FOUND - no queue '{QUEUE}' in vhost '/'")
AWAY = ChannelClosedByBroker(404, f"NOT_FOUND - queue '{QUEUE}' in vhost '/' is down or inaccessible")
LOCKED = ChannelClosedByBroker(405, f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{QUEUE}'")


class _Channel:
    """A channel that answers a passive declaration: None where the queue exists, "silent" for no answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._on_close: Callable[[Any, BaseException], None] = lambda *_: None

    def add_on_close_callback(self, callback: Callable[[Any, BaseException], None]) -> None:
        self._on_close = callback

    def queue_declare(self, queue: str, passive: bool, callback: Callable[[Any], None]) -> None:
        assert (queue, passive) == (QUEUE, True)
        if self._answer is None:
            asyncio.get_running_loop().call_soon(callback, None)
        elif isinstance(self._answer, BaseException):
            asyncio.get_running_loop().call_soon(self._on_close, self, self._answer)

    def close(self) -> None:
        """Do nothing: what it says of its end comes too late to count."""


class _Link:
    """A connection whose channels give these answers, the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def channel(self) -> _Channel:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer == "closed":
            raise BrokerUnavailable("the connection is closed")
        return _Channel(answer)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deleted_queue, "_LOOK_S", 0)
    monkeypatch.setattr(deleted_queue, "_ANSWER_S", 0.05)


@pytest.mark.parametrize(
    ("answers", "gone"),
    [
        ((GONE,), True),
        ((None, None, GONE), True),
        ((None,), False),
        ((AWAY,), False),
        ((LOCKED,), False),
        (("silent",), False),
        (("closed",), False),
    ],
    ids=["missing", "missing soon", "there", "on a node that is down", "locked", "no answer", "no connection"],
)
async def test_only_a_missing_queue_was_deleted(answers: tuple[Any, ...], gone: bool) -> None:
    assert await is_deleted(cast(RabbitLink, _Link(*answers)), QUEUE) is gone


def test_the_sentence_names_the_queue_its_route_and_the_moment() -> None:
    assert deleted(IntakeQueue("orders", QUEUE, frozenset()), 1_800_000_000_437) == (
        f"the intake queue {QUEUE} of route orders was deleted at 2027-01-15T08:00:00.437Z. Messages in it that were "
        "not parked yet are lost. Until it is declared again, delayed messages are delivered at once. postdate "
        "can count neither"
    )


def test_of_a_queue_that_is_declared_again_the_sentence_says_what_happened_meanwhile() -> None:
    """On a drained route no consumer follows."""
    assert recreated(IntakeQueue("orders", QUEUE, frozenset()), 1_800_000_000_437, 1_800_000_002_001) == (
        f"the intake queue {QUEUE} of route orders was deleted at 2027-01-15T08:00:00.437Z. Messages in it that were "
        "not parked yet are lost. From then until 2027-01-15T08:00:02.001Z, when it was declared again: delayed "
        "messages were delivered at once. postdate can count neither"
    )


def test_the_process_is_ready_all_the_same() -> None:
    assert broker_connected("rabbitmq", True, [Subject("rabbitmq", "deleted", QUEUE)])
