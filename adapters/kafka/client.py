"""aiokafka's clients: how they are made from the rules, what their errors say, and how one is given up.

aiokafka is pinned exactly: beside its documented classes we use a few of its own (``sequence.py``, ``odd_names.py``,
``poison.py``, and the closing here), each because there is no other way to keep a promise.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, KafkaError
from aiokafka.helpers import create_ssl_context
from aiokafka.protocol.metadata import MetadataRequest

from bridge.errors import BrokerUnavailable
from bridge.settings import Kafka

_CLOSE_S = 2.0
#: A batch ends at this size; the broker's default limit is a megabyte. A single record may be larger.
_BATCH_BYTES = 512 * 1024


def connection(rules: Kafka, name: str) -> dict[str, Any]:
    """What every client of aiokafka is given; ``name`` is what the broker shows for it."""
    wanted: dict[str, Any] = {
        "bootstrap_servers": rules.bootstrap_servers,
        "client_id": name,
        "security_protocol": rules.security_protocol,
    }
    if rules.security_protocol in ("SSL", "SASL_SSL"):
        wanted["ssl_context"] = _ssl_context(rules)
    if rules.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        wanted["sasl_mechanism"] = rules.sasl_mechanism
        wanted["sasl_plain_username"] = rules.sasl_username
        wanted["sasl_plain_password"] = rules.sasl_password.get_secret_value()
    return wanted


def _ssl_context(rules: Kafka) -> ssl.SSLContext:
    """Verifies the broker's certificate and host name."""
    context: ssl.SSLContext = create_ssl_context(
        cafile=rules.ca_file or None, certfile=rules.cert_file or None, keyfile=rules.key_file or None
    )
    return context


def new_producer(rules: Kafka) -> AIOKafkaProducer:
    """An idempotent producer that waits for all in-sync replicas. Not started; raises ``BrokerUnavailable``."""
    with broker_errors(rules):
        return AIOKafkaProducer(
            **connection(rules, "postdate publish"),
            acks="all",
            enable_idempotence=True,
            linger_ms=0,
            max_batch_size=_BATCH_BYTES,
            compression_type=None if rules.compression == "none" else rules.compression,
            request_timeout_ms=rules.confirm_timeout,
        )


def new_consumer(rules: Kafka) -> AIOKafkaConsumer:
    """A member of the group that commits by hand and begins with the oldest record. Not started, not subscribed.

    Raises ``BrokerUnavailable``."""
    with broker_errors(rules):
        return AIOKafkaConsumer(
            **connection(rules, "postdate intake"),
            group_id=rules.group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            metadata_max_age_ms=rules.refresh,
            fetch_max_wait_ms=500,
        )


@contextmanager
def broker_errors(rules: Kafka) -> Iterator[None]:
    """Turns every error of aiokafka and of the network into ``BrokerUnavailable``.

    Also a cancellation that nobody asked for: aiokafka cancels its own tasks and then waits for them."""
    try:
        yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise BrokerUnavailable("the client gave up by itself") from error
    except (KafkaError, OSError, ValueError, RuntimeError) as error:  # TimeoutError and ssl's errors are OSErrors
        raise BrokerUnavailable(sentence(error, rules)) from error


def sentence(error: BaseException, rules: Kafka) -> str:
    """What went wrong, for a person."""
    if isinstance(error, KafkaConnectionError):
        return f"no broker of {rules.bootstrap_servers} answers"
    if isinstance(error, TimeoutError):
        return f"{rules.bootstrap_servers} does not answer in time"
    return str(error) or type(error).__name__


async def answers(client: AIOKafkaClient, timeout_s: float) -> bool:
    """Whether any broker of the cluster answers; asks for nothing but that."""
    for broker in client.cluster.brokers():
        try:
            async with asyncio.timeout(timeout_s):
                await client.send(broker.nodeId, MetadataRequest([]))
        except (KafkaError, OSError):
            continue
        return True
    return False


async def give_up_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group and close, in a few seconds, whether anybody answers or not."""
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait([stopping], timeout=_CLOSE_S)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    with suppress(KafkaError, OSError):
        await consumer._client.close()


async def give_up_producer(producer: AIOKafkaProducer) -> None:
    """Close a producer without waiting for what it still has, which may be for ever: ``stop`` would flush first.

    Its connections go first, so that nothing it retries can arrive after its outcome was called unknown.
    """
    producer._closed = True
    sending = producer._sender.sender_task
    for connection in list(producer.client._conns.values()):
        connection.close()
    for _ in range(2):  # the first ends its loop, which then waits for its requests; the second ends that
        if sending is not None and not sending.done():
            sending.cancel()
            await asyncio.wait([sending], timeout=_CLOSE_S)
    with suppress(KafkaError, OSError):
        await producer.client.close()
