"""How topics compare with each other, the sentence for each finding, and the settings of new topics. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.kafka.topology.declaring import intake_shortfalls, level_config, level_shortfalls
from adapters.kafka.topology.findings import Difference, Shortfall, TopicFinding, absent
from adapters.kafka.topology.released import judged_markers, marker_config, planned_markers
from adapters.kafka.topology.topics import Topic, TopicConfig
from bridge.core.message import Refusal
from bridge.core.reasons import Reason, ReasonKind
from bridge.desk.topology import Standing
from bridge.settings import Settings

INTAKE = Topic("pay", "payments.delay", 2, 1, True)
TARGET = Topic("pay", "payments", 3, 3, False)
MISSING = Topic("pay", "payments", 0, 0, False)
UNSEEN = Topic("pay", "payments.delay", 0, 0, True, unseen=True)
ROUTE = {"broker": "kafka", "intercept": "payments.delay", "deliver_to": "payments"}
SIZE, INSYNC = "max.message.bytes", "min.insync.replicas"
MIB = 1 << 20
UNCHECKED = Shortfall(Difference.UNCHECKED)
FEW_SHARDS = Shortfall(Difference.PARTITIONS, 2, 8)


def config(**values: str) -> TopicConfig:
    named = {name.replace("_", "."): value for name, value in values.items()}
    return TopicConfig(named, named)


def test_an_intake_is_compared_with_its_target_setting_by_setting() -> None:
    has = config(max_message_bytes="5", min_insync_replicas="1", cleanup_policy="compact", retention_ms="10")
    found = intake_shortfalls(INTAKE, has, TARGET, config(max_message_bytes="7", min_insync_replicas="2"), 20)
    assert found == (
        Shortfall(Difference.REPLICAS, 1, 3),
        Shortfall(Difference.RECORDS_SMALLER, 5, 7),
        Shortfall(Difference.COMPACTED),
        Shortfall(Difference.SHORT_RETENTION, 10, 20),
    )
    assert intake_shortfalls(TARGET, TopicConfig(), TARGET, TopicConfig(), 20) == ()
    larger = intake_shortfalls(TARGET, config(max_message_bytes="9"), TARGET, config(max_message_bytes="7"), 20)
    assert larger == (Shortfall(Difference.RECORDS_LARGER, 9, 7),)


def test_a_new_topic_has_room_for_the_largest_record_of_its_intake_and_the_strictest_safety_of_its_targets() -> None:
    likes = [(INTAKE, config(max_message_bytes=str(80 * MIB), min_insync_replicas="9")), (TARGET, TopicConfig())]
    likes.append((TARGET, config(max_message_bytes="7", min_insync_replicas="2")))
    made = level_config({SIZE: str(64 * MIB), "a": "1"}, likes, replicas=3)
    assert made == {"a": "1", SIZE: str(81 * MIB), INSYNC: "2"}
    assert level_config({SIZE: str(64 * MIB)}, [(TARGET, config(min_insync_replicas="2"))], 1)[INSYNC] == "1"
    assert level_config({SIZE: str(64 * MIB)}, [], 1) == {SIZE: str(64 * MIB)}


def test_the_marker_topic_has_a_partition_for_each_shard_and_keeps_markers_as_long_as_an_intake_keeps_records() -> None:
    settings = Settings.model_validate(
        {"kafka": {"release": "transactional", "group": "pay"}, "redis": {"shards": 4}, "routes": {"pay": ROUTE}}
    )
    (topic,) = planned_markers(settings)
    assert (topic.name, topic.route, topic.ours) == ("pay.released", "pay", True)
    made = replace(topic, partitions=4, replicas=3)
    assert judged_markers(settings, made, TopicConfig(marker_config(settings))).state is Standing.SAME
    poor = config(cleanup_policy="compact", retention_ms="1", message_timestamp_type="CreateTime")
    kinds = [shortfall.kind for shortfall in judged_markers(settings, INTAKE, poor).shortfalls]
    wanted = [Difference.PARTITIONS, Difference.COMPACTED_MARKERS, Difference.SHORT_RETENTION]
    assert kinds == [*wanted, Difference.PRODUCERS_CLOCK]
    plain = settings.model_copy(
        update={"routes": {"pay": settings.routes["pay"].model_copy(update={"release": "plain"})}}
    )
    assert planned_markers(plain) == []


def test_an_existing_topic_needs_room_for_the_records_of_its_intake() -> None:
    dead = Topic("pay", "postdate.pay.dead", 2, 1, True)
    found = level_shortfalls(dead, config(max_message_bytes="700000"), INTAKE, config(max_message_bytes="1000000"))
    assert found == (Shortfall(Difference.NO_ROOM, 700_000, 1_000_000 + MIB),)
    assert level_shortfalls(dead, config(max_message_bytes=str(64 * MIB)), INTAKE, config(max_message_bytes="5")) == ()
    assert level_shortfalls(dead, TopicConfig(), TARGET, TopicConfig()) == (Shortfall(Difference.REPLICAS, 1, 3),)
    said = TopicFinding(dead, Standing.UNLIKE, INTAKE, found).text
    assert said.startswith(
        "topic 'postdate.pay.dead' of route pay differs from intake 'payments.delay': max.message.bytes: 700000, "
        "needed: 2048576, so larger records do not fit and may stop their route. Change it with "
    )


@pytest.mark.parametrize(
    ("finding", "words"),
    [
        (TopicFinding(INTAKE, Standing.SAME), ""),
        (
            absent(MISSING),
            "topic 'payments', to which route pay delivers, does not exist, so due records are refused. ",
        ),
        (absent(UNSEEN), "postdate may not see topic 'payments.delay' of route pay (no Describe permission), so it "),
        (
            TopicFinding(INTAKE, Standing.WAITS, MISSING),
            "topic 'payments', to which route pay delivers, does not exist, so 'payments.delay' is not created. ",
        ),
        (
            TopicFinding(INTAKE, Standing.FEW, TARGET),
            "topic 'payments.delay' of route pay has partitions: 2, and its target 'payments' has 3. ",
        ),
        (
            TopicFinding(INTAKE, Standing.UNLIKE, TARGET, (UNCHECKED,)),
            "postdate may not read the settings of 'payments' ",
        ),
        (
            TopicFinding(TARGET, Standing.DIFFERENT, INTAKE),
            "topic 'payments' has partitions: 3, and intake 'payments.delay' has 2, so partitioner = \"same\" ",
        ),
        (TopicFinding(INTAKE, Standing.DIFFERENT, refusal=Refusal(Reason(ReasonKind.LOOP, "it loops"))), "it loops"),
        (
            TopicFinding(INTAKE, Standing.DIFFERENT, shortfalls=(Shortfall(Difference.FORGETS_DEAD, 999, -1),)),
            "topic 'payments.delay' of route pay loses records: Kafka deletes records after retention.ms (999), read "
            "or not: set it to -1 (dead letters are kept)",
        ),
        (
            TopicFinding(INTAKE, Standing.DIFFERENT, shortfalls=(FEW_SHARDS,), markers=True),
            "marker topic 'payments.delay' cannot prevent every copy: partitions: 2, and redis.shards is 8. Raise them",
        ),
        (
            TopicFinding(UNSEEN, Standing.UNSEEN, markers=True),
            "postdate may not see the marker topic 'payments.delay' of its transactional routes",
        ),
        (
            TopicFinding(INTAKE, Standing.NONE, refresh_ms=30_000),
            "no topic matches 'payments.delay' of route pay yet. postdate reads a new one within 30s",
        ),
    ],
)
def test_each_finding_has_a_sentence(finding: TopicFinding, words: str) -> None:
    assert finding.text.startswith(words) if words else not finding.text
