"""Topic ids, which distinguish a topic from an earlier one of the same name.

Offsets restart at 0 in a recreated topic. Without the id its records would look like records that were read already,
and would be lost. aiokafka 0.14 requests metadata in versions without ids (version 10, Kafka 2.8, KIP-516, added
them), so this file defines that request.
"""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

_UUID_BYTES = 16


class TopicId(NamedTuple):
    """One topic, and no other that had or will have its name. ``cluster`` is the cluster's id, ``topic`` the topic's
    in hex. Where Kafka is too old for ids, ``cluster`` is empty and ``topic`` is the name."""

    cluster: str
    topic: str


class _Uuid(AbstractType[bytes]):
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_UUID_BYTES)


class _MetadataResponse(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("name", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequestStruct(RequestStruct):
    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _MetadataResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields)),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class _MetadataRequest(Request[_MetadataRequestStruct]):
    API_KEY = 3

    def __init__(self, topics: Iterable[str]) -> None:
        self._topics = list(topics)

    def build(self, request_struct_class: type[_MetadataRequestStruct]) -> _MetadataRequestStruct:
        asked: list[tuple[bytes, str, dict[int, bytes]]] = [(bytes(_UUID_BYTES), name, {}) for name in self._topics]
        return request_struct_class(asked, False, False, False, {})


async def ask_ids(client: AIOKafkaClient, node: int, topics: Iterable[str]) -> dict[str, TopicId]:
    """The ids of the existing topics among ``topics``, as this broker knows them.

    Ask a broker that leads one of their partitions: then the records that it serves belong to the topic that it
    names. Raises the errors of aiokafka and of the network.
    """
    topics = list(topics)
    request: Any = _MetadataRequest(topics)
    try:
        answer = await client.send(node, request)
    except (IncompatibleBrokerVersion, NotImplementedError):  # the latter: the broker does not know version 10
        return {topic: TopicId("", topic) for topic in topics}
    cluster = answer.cluster_id or ""
    return {topic[1]: TopicId(cluster, topic[2].hex()) for topic in answer.topics if not topic[0]}
