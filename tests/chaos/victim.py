"""``postdate run`` with a wish to die: the process kills itself when one stage comes up for the n-th time.

Built as the real one is, then methods of the finished objects are wrapped from outside. Run as a script by the tests:
``python -m tests.chaos.victim --config FILE STEP N``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop
from aiokafka.producer.sender import SendProduceReqHandler

from adapters.kafka.sink import KafkaSink
from bridge.app.brokers import open_store
from bridge.app.build import build, instance_name, new_token
from bridge.core.clock import StoreClock
from bridge.settings import load, plan
from bridge.telemetry import logs
from bridge.telemetry.health import Health

BEFORE_PARK = "before-park"
AFTER_PARK = "after-park"
AFTER_CLAIM = "after-claim"
AFTER_PUBLISH = "after-publish"
AFTER_CONFIRM = "after-confirm"
STEPS = (BEFORE_PARK, AFTER_PARK, AFTER_CLAIM, AFTER_PUBLISH, AFTER_CONFIRM)

#: So long before a death that must leave nothing else unfinished: the other loops go on and come to their ends.
_QUIET_S = 0.5


class Countdown:
    """SIGKILL at the n-th call that has something to do."""

    def __init__(self, left: int) -> None:
        self._left = left

    def step(self) -> bool:
        """True at the n-th call."""
        self._left -= 1
        return self._left <= 0

    @staticmethod
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def arm(parts: Any, step: str, nth: int) -> None:
    """Wrap the stage."""
    arms = {
        BEFORE_PARK: _before_park,
        AFTER_PARK: _after_park,
        AFTER_CLAIM: _after_claim,
        AFTER_PUBLISH: _after_publish,
        AFTER_CONFIRM: _after_confirm,
    }
    arms[step](parts, Countdown(nth))


def _before_park(parts: Any, countdown: Countdown) -> None:
    """What was parked before is accepted, and the broker has heard it. Nothing is on its way out either."""
    park = parts.store.park

    async def wrapped(batches: Any) -> Any:
        if countdown.step():
            await asyncio.sleep(_QUIET_S)
            while parts.dispatcher.held():  # noqa: ASYNC110 (a look at the real parts, which tell nobody)
                await asyncio.sleep(0.001)
            countdown.die()
        return await park(batches)

    parts.store.park = wrapped


def _after_park(parts: Any, countdown: Countdown) -> None:
    """The store has it and the broker has not heard our acceptance."""
    accept = parts.source.accept

    def wrapped(deliveries: Sequence[Any]) -> None:
        if deliveries and countdown.step():
            countdown.die()
        accept(deliveries)

    parts.source.accept = wrapped


def _after_claim(parts: Any, countdown: Countdown) -> None:
    """What was claimed before is settled."""
    claim = parts.store.claim

    async def wrapped(*args: Any) -> Any:
        replies = await claim(*args)
        if any(getattr(reply, "claims", ()) for reply in replies.values()) and countdown.step():
            await asyncio.sleep(_QUIET_S)
            countdown.die()
        return replies

    parts.store.claim = wrapped


def _after_publish(parts: Any, countdown: Countdown) -> None:
    """The broker has or gets it; no answer has been read."""
    if isinstance(parts.sink, KafkaSink):
        _after_produce(countdown)
        return
    publish = parts.sink.publish

    def wrapped(claims: Sequence[Any]) -> None:
        publish(claims)
        if countdown.step():
            _flush(parts.sink._link.connection._transport)
            countdown.die()

    parts.sink.publish = wrapped


def _after_produce(countdown: Countdown) -> None:
    """Kafka has written a batch, and its answer comes no further than to the socket's reader."""
    handle_response = SendProduceReqHandler.handle_response

    def wrapped(handler: Any, response: Any) -> None:
        if countdown.step():
            countdown.die()
        handle_response(handler, response)

    SendProduceReqHandler.handle_response = wrapped


def _flush(transport: Any) -> None:
    """pika writes when the loop comes round, and it will not come round again."""
    transport._sock.setblocking(True)
    while transport._tx_buffers:
        transport._sock.sendall(transport._tx_buffers.popleft())


def _after_confirm(parts: Any, countdown: Countdown) -> None:
    settle = parts.store.settle

    async def wrapped(claims: Any) -> Any:
        if countdown.step():
            countdown.die()
        return await settle(claims)

    parts.store.settle = wrapped


async def main(file: str, step: str, nth: str) -> None:
    """As ``bridge.app.start`` does it, without the topology, and armed."""
    (process,) = plan(load(Path(file), os.environ))
    settings = process.settings
    logs.set_up(settings.log)
    clock, token = StoreClock(), new_token()
    instance = instance_name(settings, token)
    store = open_store(settings, clock, instance)
    try:
        await store.open(settings.redis.durability, settings.redis.replicas, settings.redis.timeout)
        service = build(process, store, clock, instance, token, Health())
        arm(service._parts, step, int(nth))
        await service.run()
    finally:
        await store.close()


if __name__ == "__main__":
    step, nth, _, file = sys.argv[1:]
    uvloop.run(main(file, step, nth))
