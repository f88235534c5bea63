"""Level topics on Kafka, and a record on each hop through them. Pure."""

from __future__ import annotations

import pytest
from aiokafka import TopicPartition

from adapters.kafka.intake import KafkaIntake, Partition, StartOffset
from adapters.kafka.levels.level_topics import LevelTopics, level_ms_in, level_topics, made_with, unfit
from adapters.kafka.levels.packing import (
    LEVEL_HEADERS,
    TARGET,
    LevelPacking,
    due_ms_of,
    held_until,
    public_id,
    too_late,
)
from adapters.kafka.raw.record import Header, Record, pack, topic_of, unpack
from adapters.kafka.topology.findings import Difference, Shortfall
from adapters.kafka.topology.topic_ids import TopicId
from bridge.core.message import Delivery
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.duration import read_duration_ms
from bridge.delay.levels import Bury, Deliver, Hold
from bridge.delay.naming import Naming
from bridge.pipeline.relay import Parcel
from bridge.settings import Settings

ROUTE = {"broker": "kafka", "intercept": "payments.delay", "deliver_to": "payments", "mode": "levels"}
LANE = "payments.level"


def settings(**sections: object) -> Settings:
    return Settings.model_validate({"headers": {"levels": ["1s", "90s"]}, "routes": {"pay": ROUTE}, **sections})


TOPICS = level_topics(settings(), "pay")


def test_a_level_topics_name_states_group_route_and_level_and_depends_on_nothing_else() -> None:
    assert list(TOPICS.levels) == [1000, 90_000]
    assert [name.rpartition(".")[0] for name in TOPICS.levels.values()] == [
        "postdate.pay.level.1s",
        "postdate.pay.level.1m30s",
    ]
    other = level_topics(settings(levels={"rounding": "nearest"}, kafka={"partitioner": "crc32"}), "pay")
    assert other == TOPICS
    assert level_topics(settings(kafka={"group": "another"}), "pay").levels[1000].startswith("another.pay.level.1s.")


def test_the_rule_for_all_levels_matches_any_list_of_levels_but_not_the_dead_letters() -> None:
    other = level_topics(settings(headers={"levels": ["7s"]}), "pay")
    assert all(TOPICS.every.text_in(name) for name in (*TOPICS.levels.values(), *other.levels.values()))
    assert TOPICS.every.text_in(TOPICS.dead) is None


def test_a_level_topic_keeps_records_for_the_level_and_the_retention() -> None:
    made = made_with(settings(levels={"retention": "1h"}), "pay")
    assert made[TOPICS.levels[90_000]]["retention.ms"] == "3690000"
    assert made[TOPICS.dead]["retention.ms"] == "-1"


@pytest.mark.parametrize(
    ("has", "wanted", "shortfall"),
    [
        ({}, "1000", None),
        ({"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "-1"}, "1000", None),
        ({"retention.ms": "-1"}, "-1", None),
        ({"retention.ms": "-1"}, "1000", None),
        ({"retention.ms": "999"}, "1000", Shortfall(Difference.FORGETS, 999, 1000)),
        ({"retention.ms": "999"}, "-1", Shortfall(Difference.FORGETS_DEAD, 999, -1)),
        ({"cleanup.policy": "compact,delete"}, "1000", Shortfall(Difference.COMPACTED)),
        ({"retention.bytes": "5"}, "1000", Shortfall(Difference.BOUNDED, 5, -1)),
    ],
)
def test_settings_with_which_a_topic_would_lose_records_are_detected(
    has: dict[str, str], wanted: str, shortfall: Shortfall | None
) -> None:
    assert unfit(has, {"retention.ms": wanted}) == shortfall


@pytest.mark.parametrize("level", ["1ms", "500ms", "2.5s", "1m30s", "2h", "1d 1h 1m 1.001s"])
def test_a_level_topics_name_states_its_wait(level: str) -> None:
    (name,) = level_topics(
        settings(headers={"levels": [level]}, kafka={"group": "a.level.9s.b"}), "pay"
    ).levels.values()
    assert level_ms_in(name) == read_duration_ms(level)


@pytest.mark.parametrize("name", ["payments", "postdate.pay.level.", "postdate.pay.level.soon.abc", "a.level.b"])
def test_a_foreign_topic_name_states_no_wait(name: str) -> None:
    assert level_ms_in(name) == 0


@pytest.mark.parametrize(("due_ms", "late"), [(0, False), (1_000_000, False), (4_601_000, False), (4_601_001, True)])
def test_a_record_due_long_after_its_level_is_foreign(due_ms: int, late: bool) -> None:
    assert bool(too_late(due_ms, TOPICS.levels[1000], now_ms=1_000_000)) is late


HEADERS: list[Header] = [(b"a", b"1"), (b"\xff", None), (b"x-delay-due", b"forged"), (b"a", b"2")]


def delivery(payload: bytes, offset: int = 7) -> Delivery:
    return Delivery(None, "pay", payload, b"", {}, 1_700_000_000_000, origin=(b"topic-id/2", offset))


def came_back(parcel: Parcel, topics: LevelTopics = TOPICS) -> Delivery:
    """A parcel as the level's source hands it over."""
    _, timestamp, key, value, headers = unpack(parcel.payload)
    intake = KafkaIntake(LANE, Naming(parcel.place, parcel.place), LEVEL_HEADERS)
    part = Partition(TopicPartition(parcel.place, 2), intake, TopicId("cluster", "level-id"), StartOffset(0))
    return part.raw(0, Record(2, timestamp, key, value, headers), 1_700_000_000_000)


@pytest.mark.parametrize(("key", "value"), [(b"k", b"v"), (None, None), (b"", b""), (b"\xff", b"\0")])
def test_a_record_leaves_its_level_unchanged(key: bytes | None, value: bytes | None) -> None:
    payload = pack(2, 5, key, value, HEADERS, b"payments.delay")
    packing = LevelPacking(TOPICS, LANE, "pay")
    held = packing.parcel(delivery(payload), Hold(1000), 1_700_000_001_000)
    assert held.place == TOPICS.levels[1000]
    assert unpack(held.payload)[::2] == (2, key, [(b"x-delay-id", public_id((b"topic-id/2", 7))), DUE])
    out = packing.parcel(came_back(held), Deliver(), 1)
    assert out == Parcel(TARGET, payload, public_id((b"topic-id/2", 7)), 1_700_000_001_000)


DUE = (b"x-delay-due", b"1700000001000")


def test_an_id_is_repeated_by_a_replay_and_by_nothing_else() -> None:
    origins = [(b"a/1", 1), (b"a/1", 11), (b"a/11", 1), (b"b/1", 1)]
    assert len({public_id(origin) for origin in origins}) == len(origins)
    assert public_id(origins[0]) == public_id((b"a/1", 1))


def test_a_dead_letter_is_the_original_record_with_the_reason_whether_it_waited_or_not() -> None:
    payload = pack(2, 5, b"k", b"v", [(b"x-delay-reason", b"an old one"), *HEADERS], b"payments.delay")
    packing = LevelPacking(TOPICS, LANE, "pay")
    held = came_back(packing.parcel(delivery(payload), Hold(1000), 1_700_000_001_000))
    for arrival in (delivery(payload), held):
        dead = packing.parcel(arrival, Bury(Reason(ReasonKind.MISSING_TOPIC, "gone")), 0)
        assert dead.place == TOPICS.dead
        assert topic_of(dead.payload) == b"payments.delay"
        assert unpack(dead.payload) == Record(2, 5, b"k", b"v", [*HEADERS, (b"x-delay-reason", b"missing_topic: gone")])
        assert packing.parcel(arrival, Bury(None), 0) == Parcel(TOPICS.dead, payload)


@pytest.mark.parametrize(
    ("value", "headers"),
    [
        (b"v", []),
        (None, [DUE, (b"x-delay-id", b"1")]),
        (b"v", [DUE]),
        (b"v", [(b"x-delay-due", b"-1"), (b"x-delay-id", b"1")]),
    ],
)
def test_a_foreign_record_in_a_level_is_not_delivered(value: bytes | None, headers: list[Header]) -> None:
    stranger = came_back(Parcel(TOPICS.levels[1000], pack(2, 5, b"k", value, headers)))
    packing = LevelPacking(TOPICS, LANE, "pay")
    with pytest.raises(ValueError, match="in a level's topic"):
        packing.parcel(stranger, Deliver(), 1)
    assert unpack(packing.parcel(stranger, Bury(None), 0).payload) == Record(2, 5, b"k", value, headers)


def test_a_record_that_the_source_found_foreign_does_not_wait_and_has_a_reason() -> None:
    absurd = [(b"x-delay-due", b"999999999999999"), (b"x-delay-id", b"1")]
    stranger = came_back(Parcel(TOPICS.levels[1000], pack(2, 5, b"k", b"v", absurd)))
    stranger.fault = "it is due in 31000 years"
    assert held_until(stranger) == 0
    with pytest.raises(ValueError, match="did not write: it is due in 31000 years"):
        LevelPacking(TOPICS, LANE, "pay").parcel(stranger, Deliver(), 1)


@pytest.mark.parametrize("value", [None, "1", 5, b"", b"-5", b"1.5", b"soon", b"9" * 16, "²".encode()])
def test_an_invalid_due_time_is_due_at_once(value: str | int | bytes | None) -> None:
    assert due_ms_of(value) == 0
