"""Whether an intake queue was deleted while postdate consumed it: its messages are lost, and RabbitMQ does not say so.

RabbitMQ also cancels consumers for other reasons, such as a node that is down. And it cancels them before the queue is
gone, so one look is not enough.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from pika.channel import Channel
from pika.exceptions import AMQPError

from adapters.rabbitmq.connection import RabbitLink, resolve
from adapters.rabbitmq.intake_queue import IntakeQueue
from adapters.rabbitmq.refusals import is_gone
from bridge.core.errors import BrokerUnavailable
from bridge.delay.duration import write_moment

_LOOKS, _LOOK_S, _ANSWER_S = 10, 0.03, 1.0
#: How long the loss is a trouble, as that of a store is.
DELETED_SHOWN_S = 3600.0


def deleted(intake: IntakeQueue, now_ms: int) -> str:
    """Return the health sentence, without a full stop. Pure."""
    return f"{_lost(intake, now_ms)}. Until it is declared again, {intake.without}. postdate can count neither"


def recreated(intake: IntakeQueue, deleted_ms: int, now_ms: int) -> str:
    """Return the warning for a queue that was deleted then and is declared again now, without a full stop. Pure."""
    return (
        f"{_lost(intake, deleted_ms)}. From then until {write_moment(now_ms)}, when it was declared again: "
        f"{intake.meanwhile}. postdate can count neither"
    )


def _lost(intake: IntakeQueue, deleted_ms: int) -> str:
    return (
        f"the intake queue {intake.queue} of route {intake.route} was deleted at {write_moment(deleted_ms)}. Messages "
        "in it that were not parked yet are lost"
    )


async def is_deleted(link: RabbitLink, queue: str) -> bool:
    """Return whether a queue is missing, or goes missing within a moment."""
    with suppress(AMQPError, BrokerUnavailable, TimeoutError):
        for _ in range(_LOOKS):
            async with asyncio.timeout(_ANSWER_S):
                error = await _look(await link.channel(), queue)
            if error is not None:
                return is_gone(error)
            await asyncio.sleep(_LOOK_S)
    return False


async def _look(channel: Channel, queue: str) -> BaseException | None:
    """Return the error with which RabbitMQ closes the channel; None where the queue exists."""
    answer: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def on_exists(_: Any) -> None:
        resolve(answer, None)
        channel.close()

    channel.add_on_close_callback(lambda _, error: resolve(answer, error))
    channel.queue_declare(queue, passive=True, callback=on_exists)
    return await answer
