"""Whether a queue takes messages in. AMQP tells only who tries.

RabbitMQ answers a passive declaration of a quorum queue that has no leader, and its consumers hear nothing (tried:
3.10.8, 4.3.6). Only what the leader itself must answer shows it: a publish, or a get.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pika
import structlog
from pika import spec
from pika.channel import Channel

from adapters.rabbitmq.connection import RabbitLink, open_link, resolve
from adapters.rabbitmq.raw.fields import UnreadableTable
from adapters.rabbitmq.raw.properties import BROKER_TIME, locate, read
from adapters.rabbitmq.refusals import ACCESS_REFUSED
from adapters.rabbitmq.trouble import broker_errors, crashed, refuses, sentence, silent
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.settings import RabbitMQ
from bridge.telemetry.health import Health
from bridge.telemetry.subject import INTAKE, Subject

log = structlog.get_logger("postdate")

#: What a probe is published with. Instances and versions share a queue, so every version recognises the same.
PROBE_BODY = b"probe"
_MARK, _CANCEL = b"x-postdate-probe", b"x-delay-cancel"
_KEY = re.compile(r"postdate\.probe\.[0-9a-f]{16}")
_PROPERTIES = {"headers", "delivery_mode"}
#: What RabbitMQ may add: to a redelivery, and to every message by ``message_interceptors``.
_ADDED = frozenset({b"x-delivery-count", b"x-acquired-count", b"x-routed-by", BROKER_TIME})
#: The longest wait for an answer. RabbitMQ elects a new leader within seconds.
_ANSWER_S = 10.0
#: How long the broker may take to open a channel before it counts as slow itself.
_CONTROL_S = 5.0
#: The pause between two rounds; the pause while something is wrong, and before a first failure is believed.
_EVERY_S, _AGAIN_S = 20.0, 3.0
#: A verdict counts for so long, where no later round comes to one.
_COUNTS_S = 120.0
#: How RabbitMQ closes a connection.
_INTERNAL_ERROR = 541
#: Describes a queue with a trouble.
_Describe = Callable[[str], str]


class _Confirms:
    """The answers to one probe in each queue, published on one channel in their order."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.missing = dict(enumerate(queues, 1))
        self.refused: list[str] = []
        self.ended = asyncio.Event()
        self.error: BaseException | None = None

    def on_answer(self, answer: Any) -> None:
        """Take a confirm or a refusal."""
        method = answer.method
        last = method.delivery_tag
        tags = [tag for tag in self.missing if tag == last or (method.multiple and tag < last)]
        queues = [self.missing.pop(tag) for tag in tags]
        if isinstance(method, spec.Basic.Nack):
            self.refused += queues
        if not self.missing:
            self.ended.set()

    def on_close(self, _: Channel, error: BaseException) -> None:
        """Take the end of the channel."""
        self.error = error
        self.ended.set()


async def publish_probes(settings: RabbitMQ, queues: Sequence[str]) -> dict[str, str]:
    """Publish a probe into each queue. Return a sentence for each one that does not take it.

    Raises ``BrokerUnavailable`` where RabbitMQ does not answer or blocks publishers, and ``Refused`` for a lack of
    rights: then nothing is known of the queues.
    """
    link = await open_link(settings, "postdate probe")
    try:
        with broker_errors():
            return await _probed(link, queues)
    finally:
        await link.close()


async def _probed(link: RabbitLink, queues: Sequence[str]) -> dict[str, str]:
    confirms, channel = _Confirms(queues), await link.channel()
    blocked: list[object] = []

    def on_blocked(*_: Any) -> None:
        blocked.append(True)
        confirms.ended.set()

    link.connection.add_on_connection_blocked_callback(on_blocked)
    channel.add_on_close_callback(confirms.on_close)
    channel.confirm_delivery(confirms.on_answer, callback=lambda _: None)
    for queue in queues:
        channel.basic_publish("", queue, PROBE_BODY, probe_properties())
    with suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            await confirms.ended.wait()
    if confirms.error is not None:
        text = sentence(confirms.error)
        raise (Refused if getattr(confirms.error, "reply_code", 0) == ACCESS_REFUSED else BrokerUnavailable)(text)
    if blocked:
        raise BrokerUnavailable("RabbitMQ blocks publishers")
    if confirms.missing:
        await _control(link)
    found = {queue: silent(queue) for queue in confirms.missing.values()}
    return found | {queue: refuses(queue) for queue in confirms.refused}


def probe_properties() -> pika.BasicProperties:
    """Return the properties of a new probe. An older postdate takes it for the cancellation of nothing."""
    key = f"postdate.probe.{secrets.token_hex(8)}"
    return pika.BasicProperties(headers={_MARK.decode(): True, _CANCEL.decode(): key}, delivery_mode=1)


def is_probe(properties: bytes, body: bytes) -> bool:
    """Return whether postdate published this as a probe. A message that only names the header is none: it must stay."""
    if body != PROBE_BODY or _MARK not in properties:
        return False
    try:
        present, (headers, _, _, _, fields) = locate(properties)[0].names, read(properties, frozenset((_MARK, _CANCEL)))
    except UnreadableTable:
        return False
    mark, key = headers.get(_MARK.decode()), headers.get(_CANCEL.decode())
    return (
        mark is True
        and isinstance(key, str)
        and _KEY.fullmatch(key) is not None
        and {field[0] for field in fields} <= _ADDED | {_MARK, _CANCEL}
        and set(present) - {"timestamp"} == _PROPERTIES
    )


async def _control(link: RabbitLink) -> None:
    """Raise ``BrokerUnavailable`` where the broker itself does not answer, so that no queue is blamed for that."""
    try:
        async with asyncio.timeout(_CONTROL_S):
            await link.channel()
    except TimeoutError:
        raise BrokerUnavailable(f"RabbitMQ opens no channel within {_CONTROL_S:g} s") from None


async def ask_queues(settings: RabbitMQ, queues: Iterable[str]) -> dict[str, str]:
    """Return a sentence for each queue that does not answer a get. Raises ``BrokerUnavailable``.

    No message moves where only one consumer may be active: RabbitMQ refuses the get, and the leader has to answer that,
    too. Elsewhere the message is requeued, at its place.
    """
    found: dict[str, _Describe] = {}
    left = list(queues)
    while left:  # a get from a crashed queue ends the connection, and with it the other questions
        troubles = await _asked(settings, left)
        found |= troubles
        left = [queue for queue in left if queue not in found] if crashed in troubles.values() else []
    return {queue: describe(queue) for queue, describe in found.items()}


async def _asked(settings: RabbitMQ, queues: Sequence[str]) -> dict[str, _Describe]:
    link = await open_link(settings, "postdate check")
    try:
        with broker_errors():
            channels = [await link.channel() for _ in queues]
            answers = await asyncio.gather(*map(_get, channels, queues))
            found = {queue: trouble for queue, trouble in zip(queues, answers, strict=True) if trouble is not None}
            if silent in found.values():
                await _control(link)
            return found
    finally:
        await link.close()


async def _get(channel: Channel, queue: str) -> _Describe | None:
    answer: asyncio.Future[_Describe | None] = asyncio.get_running_loop().create_future()

    def on_message(_: Channel, got: Any, *__: Any) -> None:
        channel.basic_nack(got.delivery_tag, requeue=True)
        resolve(answer, None)

    channel.add_on_close_callback(lambda _, error: resolve(answer, crashed if _is_crash(error, queue) else None))
    channel.add_callback(lambda _: resolve(answer, None), [spec.Basic.GetEmpty])
    channel.basic_get(queue, on_message)
    with suppress(TimeoutError):
        async with asyncio.timeout(_ANSWER_S):
            return await answer
    return silent


def _is_crash(error: BaseException, queue: str) -> bool:
    """Return whether RabbitMQ closed the connection because this queue has no process (tried: 3.10.8, 4.3.6)."""
    text = str(getattr(error, "reply_text", ""))
    return getattr(error, "reply_code", 0) == _INTERNAL_ERROR and f"queue '{queue}' in vhost" in text


class IntakeProbe:
    """Reports consumed queues that take no messages in. A connection of its own: RabbitMQ blocks one that publishes."""

    def __init__(
        self,
        consumed: Callable[[], list[str]],
        health: Health,
        ask: Callable[[Sequence[str]], Awaitable[dict[str, str]]],
    ) -> None:
        """``consumed()`` names the queues from which this process takes: a probe must not stay in one. ``ask`` is
        ``publish_probes``."""
        self._consumed = consumed
        self._health = health
        self._ask = ask
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        refused = False
        while not refused:
            await asyncio.sleep(_AGAIN_S if self._reported else _EVERY_S)
            try:
                await self.once()
            except Refused as error:
                refused = True
                log.warning("intake queues are not probed", because=str(error))
            except BrokerUnavailable:
                continue  # source and sink report it
        await asyncio.Event().wait()

    async def once(self) -> None:
        """Probe once, and twice before a first failure is believed: a new leader needs seconds."""
        queues = self._consumed()
        found = await self._ask(queues) if queues else {}
        if found.keys() - self._reported.keys():
            await asyncio.sleep(_AGAIN_S)
            again = await self._ask(list(found))
            found = {queue: text for queue, text in again.items() if queue in found}
        for queue in self._reported.keys() - found.keys():
            self._health.say(_subject(queue), "")
        for queue, text in found.items():
            self._health.say(_subject(queue), text, _COUNTS_S)
        self._reported = found


def _subject(queue: str) -> Subject:
    return Subject("rabbitmq", INTAKE, f"probe {queue}")
