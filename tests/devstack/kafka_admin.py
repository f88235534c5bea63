"""What tests ask and tell a Kafka beside records: its nodes, topics, leaders and groups.

It blocks, so that fixtures and tests of either colour can use it; `bootstrap` is a list of addresses with commas.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    PartitionMetadata,
    ResourceType,
)

from tests.devstack.service import wait_for

#: Long enough for a cluster that elects a new controller on a busy machine.
TIMEOUT_S = 30.0


def client(bootstrap: str) -> AdminClient:
    """A client for further questions. It lives as long as it is held, and its answers with it."""
    # Its own log lines would stand between those of the tests, and every failure is an exception as well.
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def nodes(bootstrap: str, timeout_s: float = TIMEOUT_S) -> set[int]:
    """The numbers of the brokers that take part.

    Raises:
        KafkaException: no broker answers in time.
    """
    return set(client(bootstrap).list_topics(timeout=timeout_s).brokers)


def create_topic(
    bootstrap: str,
    partitions: int = 1,
    configs: Mapping[str, str] | None = None,
    name: str | None = None,
    replicas: int = -1,
) -> str:
    """The name, random where none is given, of a new topic, once each of its partitions has a leader. The broker
    chooses the replicas, and their number where none is given."""
    name = name or f"t{secrets.token_hex(6)}"
    admin = client(bootstrap)
    _await(admin.create_topics([NewTopic(name, partitions, replicas, config=dict(configs or {}))]))
    wait_for(lambda: _has_leaders(admin, name, partitions), f"every partition of {name} has a leader")
    return name


def delete_topics(bootstrap: str, names: Sequence[str]) -> None:
    if names:
        admin = client(bootstrap)
        _await(admin.delete_topics(list(names)))


def topics(bootstrap: str) -> set[str]:
    """All but Kafka's own."""
    return {name for name in client(bootstrap).list_topics(timeout=TIMEOUT_S).topics if not name.startswith("__")}


def topic_config(bootstrap: str, topic: str) -> dict[str, str]:
    """Every setting of a topic as it is in force. A broker of a cluster may not know a new topic yet."""
    asked = ConfigResource(ResourceType.TOPIC, topic)
    admin = client(bootstrap)
    found: dict[str, str] = {}

    def answered() -> bool:
        entries = admin.describe_configs([asked], request_timeout=TIMEOUT_S)[asked].result()
        found.update((name, entry.value) for name, entry in entries.items())
        return True

    wait_for(answered, f"a broker tells the settings of {topic}", TIMEOUT_S)
    return found


def set_topic_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    """Change one setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    asked = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = client(bootstrap)
    _await(admin.incremental_alter_configs([asked]))


def partitions(bootstrap: str, topic: str) -> dict[int, PartitionMetadata]:
    """Leader, replicas and replicas in sync of each partition, by node number; empty when there is no such topic."""
    return dict(client(bootstrap).list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions)


def count(bootstrap: str, topic: str) -> int:
    """How many offsets of a topic are taken: its records, and the marks that end transactions."""
    return _offsets(bootstrap, topic, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def removed(bootstrap: str, topic: str) -> int:
    """How many offsets of a topic Kafka has removed."""
    return _offsets(bootstrap, topic, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def _offsets(bootstrap: str, topic: str, spec: OffsetSpec) -> int:
    admin = client(bootstrap)
    asked = {TopicPartition(topic, number): spec for number in partitions(bootstrap, topic)}
    return sum(found.result(TIMEOUT_S).offset for found in admin.list_offsets(asked).values())


def members(bootstrap: str, group: str) -> set[str]:
    """The ids of a group's members, each with a name of its own for each time that it joined."""
    admin = client(bootstrap)
    found = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result()
    return {member.member_id for member in found.members}


def coordinator(bootstrap: str, group: str) -> int:
    """The number of the node that coordinates a group."""
    admin = client(bootstrap)
    node = admin.describe_consumer_groups([group], request_timeout=TIMEOUT_S)[group].result().coordinator
    return int(node.id)


def delete_groups(bootstrap: str, prefix: str = "") -> None:
    """Delete the consumer groups with this prefix that have no members; Kafka refuses to delete the others."""
    admin = client(bootstrap)
    found = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result().valid
    names = [group.group_id for group in found if group.group_id.startswith(prefix)]
    if names:
        for done in admin.delete_consumer_groups(names).values():
            error = done.exception(TIMEOUT_S)
            if error is not None and not _has_members(error):
                raise error


def _has_members(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].name() == "NON_EMPTY_GROUP"


def _has_leaders(admin: AdminClient, topic: str, count: int) -> bool:
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions.values()
    return len(found) == count and all(partition.leader >= 0 for partition in found)


def _await(asked: Mapping[Any, Any]) -> None:
    for answer in asked.values():
        answer.result(TIMEOUT_S)
