"""``postdate run`` that kills itself when one stage runs for the n-th time.

It is built like the real one, then methods of the finished objects are wrapped. The tests run it as a script:
``python -m tests.chaos.victim STEP N --config FILE``.
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
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.producer.sender import AddPartitionsToTxnHandler, EndTxnHandler, SendProduceReqHandler
from aiokafka.protocol.transaction import EndTxnRequest

from adapters.kafka.sink import KafkaSink
from bridge.app.brokers import open_store
from bridge.app.build import build, instance_name
from bridge.core.clock import StoreClock
from bridge.parking.identity import new_instance
from bridge.settings import load, plan
from bridge.telemetry import logs
from bridge.telemetry.health import Health

BEFORE_PARK = "before-park"
AFTER_PARK = "after-park"
AFTER_CLAIM = "after-claim"
AFTER_PUBLISH = "after-publish"
AFTER_CONFIRM = "after-confirm"
STEPS = (BEFORE_PARK, AFTER_PARK, AFTER_CLAIM, AFTER_PUBLISH, AFTER_CONFIRM)
#: The steps of a Kafka transaction. A session begins with one, too. AFTER_PUBLISH is the step between the first two.
AFTER_BEGIN = "after-begin"
BEFORE_COMMIT = "before-commit"
COMMIT_SENT = "commit-sent"
AFTER_COMMIT = "after-commit"
TRANSACTION_STEPS = (AFTER_BEGIN, AFTER_PUBLISH, BEFORE_COMMIT, COMMIT_SENT, AFTER_COMMIT, AFTER_CONFIRM)

#: The other loops get this time to finish their work before a death that must leave nothing else unfinished.
_QUIET_S = 0.5


class Countdown:
    """SIGKILL at the n-th call with work to do."""

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
        AFTER_BEGIN: _after_begin,
        BEFORE_COMMIT: _before_commit,
        COMMIT_SENT: _commit_sent,
        AFTER_COMMIT: _after_commit,
    }
    arms[step](parts, Countdown(nth))


async def _never(_: Any) -> Any:
    await asyncio.get_running_loop().create_future()


async def _quiet(parts: Any) -> None:
    """Let the other loops finish: acknowledgements are sent, and what earlier claims took is settled.

    Nothing more is parked meanwhile: the store could have a message that the broker gives again.
    """
    parts.store.park = _never
    await asyncio.sleep(_QUIET_S)
    while parts.stages.leases.held():  # noqa: ASYNC110 (the real parts offer no event to wait for)
        await asyncio.sleep(0.001)


def _before_park(parts: Any, countdown: Countdown) -> None:
    """Die before a park, when earlier parks are acknowledged to the broker and no claim is held."""
    park = parts.store.park

    async def wrapped(batches: Any) -> Any:
        if countdown.step():
            await _quiet(parts)
            countdown.die()
        return await park(batches)

    parts.store.park = wrapped


def _after_park(parts: Any, countdown: Countdown) -> None:
    """Die when the store has the messages and the broker has no acknowledgement yet."""
    accept = parts.source.accept

    def wrapped(deliveries: Sequence[Any]) -> None:
        if deliveries and countdown.step():
            countdown.die()
        accept(deliveries)

    parts.source.accept = wrapped


def _after_claim(parts: Any, countdown: Countdown) -> None:
    """Die after a claim, when earlier claims are settled."""
    claim = parts.store.claim

    async def wrapped(*args: Any) -> Any:
        replies = await claim(*args)
        if any(getattr(reply, "claims", ()) for reply in replies.values()) and countdown.step():
            await _quiet(parts)
            countdown.die()
        return replies

    parts.store.claim = wrapped


def _after_publish(parts: Any, countdown: Countdown) -> None:
    """Die when the broker has the messages and no answer was read."""
    sink = parts.sink._sink  # inside FanOut
    if isinstance(sink, KafkaSink):
        _after_produce(countdown)
        return
    publish = sink.publish

    def wrapped(claims: Sequence[Any]) -> None:
        publish(claims)
        if countdown.step():
            _flush(sink._link.connection._transport)
            countdown.die()

    sink.publish = wrapped


def _after_produce(countdown: Countdown) -> None:
    """Die when Kafka has written a batch and the sink has not seen the answer."""
    handle_response = SendProduceReqHandler.handle_response

    def wrapped(handler: Any, response: Any) -> None:
        if countdown.step():
            countdown.die()
        handle_response(handler, response)

    SendProduceReqHandler.handle_response = wrapped


def _flush(transport: Any) -> None:
    """pika writes in the next turn of the loop, which will not happen."""
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


def _after_begin(parts: Any, countdown: Countdown) -> None:
    """Die when partitions are in the transaction, and no record is written."""
    handle_response = AddPartitionsToTxnHandler.handle_response

    def wrapped(handler: Any, response: Any) -> Any:
        if countdown.step():
            countdown.die()
        return handle_response(handler, response)

    AddPartitionsToTxnHandler.handle_response = wrapped


def _before_commit(parts: Any, countdown: Countdown) -> None:
    """Die when all records and markers are written, and the commit is not sent."""
    commit = AIOKafkaProducer.commit_transaction

    async def wrapped(producer: Any) -> None:
        if countdown.step():
            countdown.die()
        await commit(producer)

    AIOKafkaProducer.commit_transaction = wrapped


def _commit_sent(parts: Any, countdown: Countdown) -> None:
    """Die with the commit in the socket. Kafka may read it or not."""
    send = AIOKafkaClient.send

    async def wrapped(client: Any, node: int, request: Any, **given: Any) -> Any:
        answer = asyncio.ensure_future(send(client, node, request, **given))
        if isinstance(request, EndTxnRequest) and countdown.step():
            await asyncio.sleep(0)
            countdown.die()
        return await answer

    AIOKafkaClient.send = wrapped


def _after_commit(parts: Any, countdown: Countdown) -> None:
    """Die when Kafka has committed, and the sink has not seen the answer."""
    handle_response = EndTxnHandler.handle_response

    def wrapped(handler: Any, response: Any) -> Any:
        if countdown.step():
            countdown.die()
        return handle_response(handler, response)

    EndTxnHandler.handle_response = wrapped


async def main(file: str, step: str, nth: str) -> None:
    """As ``bridge.app.start`` does it, without the topology, and armed."""
    (process,) = plan(load(Path(file), os.environ))
    settings = process.settings
    logs.set_up(settings.log)
    clock, token = StoreClock(), new_instance()
    instance = instance_name(settings, token)
    store = open_store(settings, clock, instance)
    try:
        await store.open(settings.redis.durability, settings.redis.replicas, settings.redis.timeout)
        service = build(process, store, await store.orders(), clock, instance, token, Health())
        arm(service._parts, step, int(nth))
        await service.run()
    finally:
        await store.close()


if __name__ == "__main__":
    step, nth, _, file = sys.argv[1:]
    uvloop.run(main(file, step, nth))
