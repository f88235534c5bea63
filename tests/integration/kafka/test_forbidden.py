"""A topic that matches a rule and may not be read is reported and delays no other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from adapters.kafka.raw.record import unpack
from tests.devstack.fixtures import need
from tests.devstack.kafka import ALONE, Kafka, listening, ready_place
from tests.devstack.kafka_admin import TIMEOUT_S, client
from tests.devstack.kafka_java import QUICK
from tests.devstack.service import free_ports
from tests.integration.kafka.rig import Source, Topics, until

pytestmark = [pytest.mark.kafka, pytest.mark.long]


@pytest.fixture
def guarded() -> Iterator[Kafka]:
    """A broker that has access lists; a topic without one is everybody's."""
    place = need(ready_place)
    port, controller_port = free_ports(2)
    settings = {
        **ALONE,
        **listening(port, controller_port),
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    java = place.command(*QUICK)
    with Kafka.in_place(java, java, settings, port).start_new() as broker:
        yield broker


def let_nobody_read(url: str, topic: str) -> None:
    """From now on the topic may be seen and deleted, and no more."""
    granted = [
        AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:ANONYMOUS",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.DESCRIBE, AclOperation.DELETE)
    ]
    admin = client(url)
    for done in admin.create_acls(granted).values():
        done.result(TIMEOUT_S)


async def test_an_unreadable_topic_is_reported_and_delays_no_other(guarded: Kafka) -> None:
    async with Topics(guarded.url, "t") as topics:
        forbidden = await topics.make("forbidden.delay", partitions=4)
        good = await topics.make("good.delay")
        await topics.write_many(forbidden, 4, 5)
        let_nobody_read(guarded.url, forbidden)
        async with Source(topics, "group", ["t.*.delay"]) as source:
            await topics.write_many(good, 1, 1)
            await source.take(1)
            said = f"nothing is taken from the topic {forbidden}: postdate may not read it"
            await until(lambda: said in source.health.sentence(), "nobody says that a topic may not be read")
            start, waits = time.monotonic(), []
            while time.monotonic() - start < 6:  # it is tried again within this time, and fails again
                sent = time.monotonic()
                await topics.write_many(good, 1, 1)
                (taken,) = await source.take(1)
                waits.append(time.monotonic() - sent)
                assert unpack(taken.payload).value == b"0"
            assert sorted(waits)[len(waits) // 2] < 0.5
            assert said in source.health.sentence()
