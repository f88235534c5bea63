"""aiokafka's clients: created from the settings, started and closed.

aiokafka is pinned exactly. Besides its documented classes postdate uses some internal ones, here and in
``sessions.py``, ``partition_queue.py``, ``transaction.py``, ``outgoing.py``, ``raw/poison.py`` and
``topology/topic_ids.py``. Each is the only way to keep a promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.conn import CloseReason
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import OffsetAndMetadata

from adapters.kafka.access import broker_errors, security, sentence, why_not
from adapters.kafka.sessions import lasting
from bridge.core.errors import BrokerUnavailable
from bridge.settings import Kafka

_CLOSE_S = 2.0
#: aiokafka keeps one connection per broker and request group. This group is postdate's.
_ASKING = "asking"
#: Batch size. The broker's default limit is one megabyte. A single record may be larger.
_BATCH_BYTES = 512 * 1024
#: After this silence the connection is closed and the current leader is asked. It is longer than a rebalance, in which
#: members wait for their answer.
_REQUEST_MS = 10_000
_REBALANCE_MS = 8000
#: Heartbeat interval. A rebalance stops all members until each has sent a heartbeat.
_BEAT_MS = 1000
#: How long a broker waits for the first record before it answers a fetch with none, and the bytes that end a gathering.
_FETCH_MS = 500
_GATHER_BYTES = 256 * 1024


def connection(rules: Kafka, name: str) -> dict[str, Any]:
    """Arguments that every aiokafka client gets. The broker shows ``name`` as the client id."""
    return {"bootstrap_servers": rules.bootstrap_servers, "client_id": name, **security(rules)}


def new_producer(rules: Kafka) -> AIOKafkaProducer:
    """Create an idempotent producer. It is not started. Raises ``BrokerUnavailable``."""
    return _producer(rules, "postdate publish", enable_idempotence=True)


def new_transactional_producer(rules: Kafka, transactional_id: str, timeout_ms: int) -> AIOKafkaProducer:
    """Create a producer that Kafka lets no earlier one of this id outlive. It is not started. Kafka aborts a
    transaction that is open for ``timeout_ms``. Raises ``BrokerUnavailable``."""
    own = {"transactional_id": transactional_id, "transaction_timeout_ms": timeout_ms}
    return _producer(rules, "postdate release", **own)


def _producer(rules: Kafka, purpose: str, **own: Any) -> AIOKafkaProducer:
    """Create a producer that waits for all in-sync replicas."""
    with broker_errors(rules):
        producer = AIOKafkaProducer(
            **connection(rules, purpose),
            **own,
            acks="all",
            linger_ms=0,
            max_batch_size=_BATCH_BYTES,
            compression_type=None if rules.compression == "none" else rules.compression,
            request_timeout_ms=_REQUEST_MS,
        )
        lasting(producer.client, rules)
        return producer


def new_reader(rules: Kafka) -> AIOKafkaConsumer:
    """Create a consumer without a group, of committed records. It is neither started nor assigned. Raises
    ``BrokerUnavailable``."""
    return _consumer(rules, "postdate markers", auto_offset_reset="earliest", fetch_max_wait_ms=100)


def new_consumer(rules: Kafka) -> AIOKafkaConsumer:
    """Create a group member that commits by hand and reports a missing offset instead of resetting it. It is neither
    started nor subscribed.

    Raises ``BrokerUnavailable``.
    """
    return _consumer(
        rules,
        "postdate intake",
        group_id=rules.group,
        auto_offset_reset="none",
        rebalance_timeout_ms=_REBALANCE_MS,
        session_timeout_ms=rules.session_timeout,
        heartbeat_interval_ms=min(_BEAT_MS, rules.session_timeout // 3),
        metadata_max_age_ms=rules.refresh,
        fetch_max_wait_ms=_FETCH_MS,
    )


def _consumer(rules: Kafka, purpose: str, **own: Any) -> AIOKafkaConsumer:
    """Create a consumer of committed records that commits by hand."""
    with broker_errors(rules):
        consumer = AIOKafkaConsumer(
            **connection(rules, purpose),
            **own,
            enable_auto_commit=False,
            isolation_level="read_committed",
            request_timeout_ms=_REQUEST_MS,
        )
        lasting(consumer._client, rules)
        return consumer


def gather(consumer: AIOKafkaConsumer, ms: int) -> None:
    """Let the broker gather records for ``ms`` before it answers a fetch; with 0 it answers at the first record."""
    fetcher = consumer._fetcher
    fetcher._fetch_min_bytes, fetcher._fetch_max_wait_ms = (_GATHER_BYTES, ms) if ms else (1, _FETCH_MS)


async def start(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient, rules: Kafka) -> None:
    """Start a client. Raises ``BrokerUnavailable`` with the reason, which aiokafka only writes to its log: a wrong
    password, an untrusted certificate."""
    try:
        await client.start()
    except errors.KafkaConnectionError as error:
        raise BrokerUnavailable(await why_not(rules) or sentence(error, rules)) from error


def has_leader(cluster: Any, tp: TopicPartition) -> bool:
    return cluster.leader_for_partition(tp) not in (None, -1)


async def commit_once(consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
    """Try once to commit offsets with notes. Return False if the group has rebalanced. Raises ``KafkaError``.

    aiokafka's own ``commit`` retries for ever without an answer, and leaves a task behind when it is cancelled.
    """
    wanted = {tp: OffsetAndMetadata(offset, note) for tp, (offset, note) in offsets.items()}
    try:
        await consumer._coordinator._do_commit_offsets(None, wanted)
    except (errors.RebalanceInProgressError, errors.IllegalGenerationError, errors.UnknownMemberIdError):
        return False
    return True


async def answers(client: AIOKafkaClient, timeout_s: float) -> bool:
    """Whether any broker of the cluster answers, asked on connections of its own.

    A broker that falls silent while others answer is forgotten until they name it again. Its pending requests then
    go to the new leader, and nothing waits for a reconnect.
    """
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    known = {node for node in nodes if (node, _ASKING) in client._conns}
    heard = await asyncio.gather(*(_answers(client, node, timeout_s) for node in nodes))
    if any(heard):
        for node in known.difference(node for node, answered in zip(nodes, heard, strict=True) if answered):
            _forget(client, node)
    return any(heard)


async def _answers(client: AIOKafkaClient, node: int, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await client.send(node, MetadataRequest([]), group=_ASKING)
    except (errors.KafkaError, OSError):
        return False
    return True


def _forget(client: AIOKafkaClient, node: int) -> None:
    for (number, _), connected in list(client._conns.items()):
        if number == node:
            connected.close(reason=CloseReason.CONNECTION_TIMEOUT)
    client.cluster._brokers.pop(node, None)


async def first_end(*works: Coroutine[Any, Any, None]) -> None:
    """Run all tasks of a consumer until one ends. That is always an error, which is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if task.cancelled():
            raise BrokerUnavailable("aiokafka's consumer stopped by itself")
        task.result()


async def give_up_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group and close within a few seconds, with or without an answer."""
    stopping = asyncio.ensure_future(consumer.stop())
    await asyncio.wait([stopping], timeout=_CLOSE_S)
    tasks = [stopping, *_tasks(consumer)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    with suppress(errors.KafkaError, OSError):
        await consumer._client.close()


def _tasks(consumer: AIOKafkaConsumer) -> list[asyncio.Task[Any]]:
    """The tasks that go on for ever, with heartbeats and fetches, where aiokafka's ``stop`` is cut short."""
    coordinator, fetcher = consumer._coordinator, consumer._fetcher
    tasks = [getattr(coordinator, name, None) for name in ("_heartbeat_task", "_commit_refresh_task")]
    if fetcher is not None:
        tasks += [fetcher._fetch_task, *fetcher._pending_tasks]
    return [task for task in tasks if task is not None]


async def give_up_producer(producer: AIOKafkaProducer) -> None:
    """Close a producer without flushing, which could take for ever.

    Its connections go first, so that no retry can arrive after its outcome was called unknown.
    """
    producer._closed = True
    sending = producer._sender.sender_task
    for connection in (*producer.client._conns.values(), *producer.client.retired):
        connection.close()
    for _ in range(2):  # the first ends its loop, the second the wait for its requests
        if sending is not None and not sending.done():
            sending.cancel()
            await asyncio.wait([sending], timeout=_CLOSE_S)
    with suppress(errors.KafkaError, OSError):
        await producer.client.close()
