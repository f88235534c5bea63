"""Routes without a store on a real Kafka: a topic for each level; no Redis anywhere."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition

from adapters.kafka.levels.level_topics import level_topics
from adapters.kafka.stale_levels import count, count_intakes, remove
from adapters.kafka.topology.declaring import declare, verify
from bridge.cli import run_command
from bridge.core.errors import TopologyMismatch
from bridge.desk.leftovers import Use
from tests.bridge_process import Tables
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.kafka_line import DEADLINE_S, ROUTE, Came, Headers, KafkaLevelLine
from tests.level_line import LevelLine

pytestmark = pytest.mark.kafka

ODD: Headers = [("trace", b"\xff"), ("trace", b"2"), ("null", None), ("", b"")]


@pytest.fixture(scope="module")
def line(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaLevelLine]:
    """With a bridge."""
    line = KafkaLevelLine(kafka.url, tmp_path_factory.mktemp("levels"))
    line.run()
    yield line
    line.close()


@pytest.fixture
def idle(kafka: Kafka, tmp_path: Path) -> Iterator[KafkaLevelLine]:
    """No bridge runs yet."""
    line = KafkaLevelLine(kafka.url, tmp_path)
    yield line
    line.close()


def delay(ms: int) -> tuple[str, bytes]:
    return "x-delay", b"%d" % ms


def values(came: list[Came]) -> list[bytes | None]:
    return [record.value for record in came]


def test_the_rest_of_a_delay_is_rounded_up_to_a_level_never_early_and_within_a_second(line: KafkaLevelLine) -> None:
    levels = {b"10": 0.5, b"500": 0.5, b"700": 1.0, b"1500": 3.0, b"3000": 3.0}
    sent = time.time()
    for value in levels:
        line.produce(value, [delay(int(value))])
    line.produced()
    for record in line.consume(len(levels)):
        assert record.value is not None
        assert int(record.value) / 1000 <= record.at - sent
        assert record.due() - sent < levels[record.value] + 5.0
        assert record.due() <= record.at < record.due() + 5.0


def test_a_level_number_and_a_due_moment_delay_too(line: KafkaLevelLine) -> None:
    sent = time.time()
    at_ms = int(sent * 1000) + 900
    line.produce(b"level", [("x-delay-level", b"2")])
    line.produce(b"moment", [("x-deliver-at", b"%d" % at_ms)])
    line.produced()
    came = {record.value: record for record in line.consume(2)}
    assert came[b"level"].at - sent >= 1.0
    assert came[b"moment"].at >= at_ms / 1000


def test_every_byte_arrives_as_it_was_written(line: KafkaLevelLine) -> None:
    records = [(b"k", b"v"), (None, b"null key"), (b"gone", None), (b"", b""), (b"\xff\x00", b"x" * 500_000)]
    for key, value in records:
        line.produce(value, [ODD[0], delay(500), *ODD[1:]], key)
    line.produced()
    came = line.consume(len(records))
    assert sorted((record.key, record.value) for record in came if record.key and record.value) == sorted(
        record for record in records if record[0] and record[1]
    )
    assert {(record.key, record.value) for record in came} == set(records)
    assert all(record.plain() == ODD for record in came)
    assert len({record.header("x-delay-id") for record in came}) == len(records)


def test_records_without_a_delay_are_delivered_at_once_and_in_order(line: KafkaLevelLine) -> None:
    line.produce(b"waits", [delay(3000)], partition=0)
    for number in range(200):
        line.produce(b"%d" % number, [], partition=0)
    line.produced()
    assert values(line.consume(200)) == [b"%d" % number for number in range(200)]
    assert values(line.consume(1)) == [b"waits"]


def test_equal_delays_keep_the_order_of_each_key(line: KafkaLevelLine) -> None:
    numbers = range(600)
    for number in numbers:
        line.produce(b"%d" % number, [("x-delay-level", b"2" if number % 3 else b"3")], key=b"key %d" % (number % 7))
    line.produced()
    came = line.consume(len(numbers))
    for key in range(7):
        for level in (True, False):
            of_key = [int(record.value or b"") for record in came if record.key == b"key %d" % key]
            mine = [number for number in of_key if bool(number % 3) is level]
            assert mine == sorted(mine)


def transactions(line: KafkaLevelLine, kept: str) -> None:
    """A transaction of one record for each letter: k is committed, a aborted."""
    producer = Producer({"bootstrap.servers": line.url, "transactional.id": line.intake, "log_level": 0})
    producer.init_transactions()
    for number, letter in enumerate(kept):
        producer.begin_transaction()
        producer.produce(line.intake, value=b"%d" % number, partition=0)
        assert producer.flush(DEADLINE_S) == 0  # else an abort takes back what was never sent
        (producer.commit_transaction if letter == "k" else producer.abort_transaction)(DEADLINE_S)


def test_the_count_of_an_intake_excludes_transaction_markers_and_aborted_records(idle: KafkaLevelLine) -> None:
    declare(idle.loaded())

    def waiting() -> int:
        (intake,) = count_intakes(idle.loaded())
        return intake.messages

    transactions(idle, "kakaa")
    assert waiting() == 2
    idle.run()
    assert values(idle.consume(2)) == [b"0", b"2"]
    wait_for(lambda: waiting() == 0, "nothing waits")
    admin, asked = (
        kafka_admin.client(idle.url),
        ConsumerGroupTopicPartitions(idle.topic, [TopicPartition(idle.intake, 0)]),
    )

    def committed() -> int:
        answer = admin.list_consumer_group_offsets([asked])[idle.topic].result(DEADLINE_S)
        return int(answer.topic_partitions[0].offset)

    wait_for(lambda: committed() == 10, "the group has no lag")


def test_a_short_level_behind_a_long_one_does_not_wait_for_it(line: KafkaLevelLine) -> None:
    for number in range(2000):
        line.produce(b"long %d" % number, [delay(3000)], partition=number % 3)
    line.produced()
    line.produce(b"short", [delay(400)], partition=0)
    line.produced()
    came = line.consume(lambda found: b"short" in values(list(found)))
    (short,) = (record for record in came if record.value == b"short")
    assert short.due() <= short.at < short.due() + 1.0
    came += line.consume(2001 - len(came))
    assert sum(record.due() > short.due() + 1.0 for record in came) > 1000


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (("x-delay", b"soon"), "bad_header: header x-delay: 'soon' is not a duration"),
        (delay(60_000), "bad_header: the delay of "),
        (("x-delay-level", b"4"), "bad_header: header x-delay-level: '4' is not a level from 1 to 3"),
        (("x-delay-cancel", b"a key"), "not_possible: a route without a store cannot cancel"),
    ],
)
def test_an_impossible_request_becomes_a_dead_letter_and_delays_no_other(
    line: KafkaLevelLine, header: tuple[str, bytes], reason: str
) -> None:
    line.produce(b"dead", [header, *ODD], partition=0)
    line.produce(b"alive", [delay(300)], partition=0)
    line.produced()
    assert values(line.consume(1)) == [b"alive"]
    (dead,) = line.dead_letters()
    assert (dead.key, dead.value, dead.headers[:-1]) == (b"k", b"dead", [header, *ODD])
    assert (dead.header("x-delay-reason") or b"").decode().startswith(reason)


def test_a_foreign_record_in_a_level_topic_is_never_delivered_and_delays_no_other(line: KafkaLevelLine) -> None:
    topic = line.topics().levels[1000]
    line.produce(b"a stranger's", [("x-delay-due", b"1"), ("x-delay-id", b"an id")], topic=topic, partition=0)
    line.produce(b"nor one of ours", [], topic=topic, partition=0)
    years: Headers = [("x-delay-due", b"999999999999999"), ("x-delay-id", b"an id")]
    line.produce(b"in thousands of years", years, topic=topic, partition=0)
    line.produce(b"ours", [delay(1000)], partition=0)
    line.produced()
    assert values(line.consume(1)) == [b"ours"]
    dead = {record.value: record for record in line.dead_letters(3)}
    assert dead.keys() == {b"a stranger's", b"nor one of ours", b"in thousands of years"}
    absurd = dead[b"in thousands of years"]
    assert absurd.headers[:-1] == years
    reason = (absurd.header("x-delay-reason") or b"").decode()
    assert reason.startswith("unreadable: a record in a level's topic that postdate did not write: it is due in ")
    assert "this level waits at most 1s" in reason
    told = [json.loads(text) for text in line.log().splitlines() if '"dead letter"' in text]
    assert {entry["route"] for entry in told} == {ROUTE}


def test_a_record_of_the_intakes_maximum_size_becomes_a_dead_letter_whole(idle: KafkaLevelLine) -> None:
    maximum = 3_000_000
    kafka_admin.create_topic(idle.url, idle.partitions, {"max.message.bytes": str(maximum)}, idle.intake)
    kafka_admin.set_topic_config(idle.url, idle.topic, "max.message.bytes", "700000")
    idle.run({"kafka": {"window": 10}})
    large: dict[bytes | None, Headers] = {}
    for header in ([], [("x-delay", b"soon")], [delay(500)]):
        headers = [*header, *ODD]
        large[produce_largest(idle, maximum, headers)] = headers
    for number in range(100):
        idle.produce(b"%d" % number, [delay(300)] if number % 2 else [], partition=0)
    idle.produced()
    assert len(idle.consume(100)) == 100
    dead = idle.dead_letters(len(large))
    assert {record.value: record.headers[:-1] for record in dead} == large
    assert {record.key for record in dead} == {b"its key"}
    for record in dead:
        bad = ("x-delay", b"soon") in record.headers
        assert (record.header("x-delay-reason") or b"").startswith(b"bad_header" if bad else b"too_large: topic ")


def produce_largest(idle: KafkaLevelLine, maximum: int, headers: Headers) -> bytes:
    """Write the largest value that the intake accepts with these headers. Its size is tried out on another topic."""
    topic = f"{idle.topic}-size"
    if topic not in kafka_admin.topics(idle.url):
        kafka_admin.create_topic(idle.url, 1, {"max.message.bytes": str(maximum)}, topic)
    producer = Producer({"bootstrap.servers": idle.url, "message.max.bytes": 2 * maximum, "log_level": 0})
    consumer = Consumer({"bootstrap.servers": idle.url, "group.id": topic})

    def fits(where: str, value: bytes) -> bool:
        _, before = consumer.get_watermark_offsets(TopicPartition(where, 0))
        producer.produce(where, value, b"its key", partition=0, headers=list(headers))
        assert producer.flush(DEADLINE_S) == 0
        _, after = consumer.get_watermark_offsets(TopicPartition(where, 0))
        return bool(after > before)

    largest, too_large = maximum - 300, maximum
    while too_large - largest > 1:
        size = (largest + too_large) // 2
        largest, too_large = (size, too_large) if fits(topic, bytes(size)) else (largest, size)
    value = os.urandom(largest)
    assert fits(idle.intake, value)
    assert not fits(idle.intake, value + b"0")
    consumer.close()
    return value


def test_a_dead_letter_that_does_not_fit_is_reported_and_kept_once_its_topic_has_room(idle: KafkaLevelLine) -> None:
    topics = idle.topics()
    small = {"max.message.bytes": "700000", "retention.ms": "-1"}
    kafka_admin.create_topic(idle.url, idle.partitions, small, topics.dead)
    bridge = idle.run()
    value = os.urandom(980_000)
    idle.produce(value, [("x-delay", b"soon")], partition=0)
    idle.produce(b"behind it", [delay(300)], partition=0)
    idle.produced()
    assert values(idle.consume(1)) == [b"behind it"]
    bridge.wait_log("a dead letter cannot be stored")
    kafka_admin.set_topic_config(idle.url, topics.dead, "max.message.bytes", "2000000")
    (dead,) = idle.dead_letters()
    assert dead.value == value


@pytest.mark.long
def test_a_record_larger_than_any_request_becomes_a_dead_letter_whole_and_delays_no_other(idle: KafkaLevelLine) -> None:
    size = 110 << 20
    idle.run()
    producer = Producer(
        {"bootstrap.servers": idle.url, "compression.type": "gzip", "message.max.bytes": 500_000_000, "log_level": 0}
    )
    producer.produce(idle.intake, value=bytes(size), key=b"k", headers=[delay(500)], partition=0)
    assert producer.flush(DEADLINE_S) == 0
    idle.produce(b"behind it", [delay(500)], partition=0)
    idle.produced()
    assert values(idle.consume(1)) == [b"behind it"]
    (dead,) = idle.dead_letters()
    assert (dead.key, dead.value) == (b"k", bytes(size))


def test_records_left_by_a_clean_stop_are_delivered_once_by_the_next_instance(idle: KafkaLevelLine) -> None:
    bridge = idle.run()
    for number in range(300):
        idle.produce(b"%d" % number, [delay(3000)])
    idle.produced()
    wait_for(lambda: sum(place.messages or 0 for place in count(idle.loaded())) == 300, "all of it waits", 20)
    assert bridge.terminate() == 0
    idle.run()
    came = idle.consume(300)
    assert len(set(values(came))) == 300
    idle.nothing_more()


def test_a_missing_target_makes_dead_letters_and_delays_no_other_route(idle: KafkaLevelLine) -> None:
    gone = f"{idle.topic}-gone"
    route = {**idle.settings["routes"][ROUTE], "intercept": f"{gone}.delay", "deliver_to": gone}
    kafka_admin.create_topic(idle.url, idle.partitions, name=f"{gone}.delay")
    idle.run({"routes": {"gone": route}})
    for number in range(100):
        idle.produce(b"gone %d" % number, [delay(500)] if number % 2 else [], topic=f"{gone}.delay")
    idle.produced()
    sent = time.time()
    idle.produce(b"behind them", [delay(500)])
    idle.produced()
    (record,) = idle.consume(1)
    assert record.at - sent >= 0.5
    assert record.at < record.due() + 1.0
    dead = idle.consume(lambda found: len(set(values(list(found)))) == 100, f"{idle.topic}.gone.dead")
    assert all((record.header("x-delay-reason") or b"").startswith(b"missing_topic: topic ") for record in dead)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])
def test_topics_that_wait_for_a_missing_target_get_its_partitions_when_it_exists(
    idle: KafkaLevelLine, workers: int
) -> None:
    target = f"{idle.topic}-later"
    route = {**idle.settings["routes"][ROUTE], "intercept": f"{target}.delay", "deliver_to": target}
    bridge = idle.run({"bridge": {"workers": workers}, "routes": {"later": route}})
    assert f"topic '{target}', to which route later delivers, does not exist, so '{target}.delay' is not created" in (
        bridge.log()
    )
    ours = {f"{target}.delay", *level_topics(idle.loaded({"routes": {"later": route}}), "later").levels.values()}
    assert not ours & kafka_admin.topics(idle.url)
    kafka_admin.create_topic(idle.url, 5, name=target)
    wait_for(lambda: ours <= kafka_admin.topics(idle.url), "they are made", 20)
    assert {len(kafka_admin.partitions(idle.url, topic)) for topic in ours} == {5}
    idle.produce(b"at last", [delay(500)], topic=f"{target}.delay")
    idle.produced()
    idle.partitions = 5
    assert values(idle.consume(1, target)) == [b"at last"]


def test_two_instances_share_the_work_and_one_takes_over_when_the_other_is_killed(idle: KafkaLevelLine) -> None:
    first = idle.run(name="first")
    idle.run(name="second")
    for number in range(900):
        idle.produce(b"%d" % number, [delay(1000)], partition=number % 3)
        if number == 450:
            idle.produced()
            first.kill()
    done = idle.produced()
    came = idle.consume(lambda found: len(set(values(list(found)))) == 900)
    ids: dict[bytes | None, set[bytes | None]] = {}
    for record in came:
        ids.setdefault(record.value, set()).add(record.header("x-delay-id"))
        assert record.due() <= record.at
    assert all(len(found) == 1 for found in ids.values()), "a copy has another id"
    assert came[-1].at - done < 30


def test_an_instance_that_joins_and_leaves_cleanly_makes_no_copy(idle: KafkaLevelLine) -> None:
    idle.run(name="first")
    came: list[Came] = []
    for number in range(1200):
        idle.produce(b"%d" % number, [delay(500)] if number % 2 else [], partition=number % 3)
        if number == 300:
            second = idle.run(name="second")
        if number == 900:
            assert second.terminate() == 0
        if number % 100 == 99:
            came += idle.consume(20)
    idle.produced()
    came += idle.consume(1200 - len(came))
    idle.nothing_more()
    assert len(set(values(came))) == 1200


def test_a_route_that_changes_from_a_store_to_levels_under_load_makes_no_copy(
    idle: KafkaLevelLine, redis_url: str, key_prefix: str
) -> None:
    store = {"redis": {"url": redis_url, "key_prefix": key_prefix.removesuffix(":"), "durability": "none"}}
    idle.run({**store, "routes": {ROUTE: {"mode": "redis"}}}, name="with a store")
    came: list[Came] = []
    second = False
    for number in range(6000):
        idle.produce(b"%d" % number, [delay(500)] if number % 2 else [], partition=number % 3)
        if number == 2000:
            idle.run(name="without a store")
            second = True
        if number % 100 == 99:
            came += idle.consume(20 if second else 1)
    idle.produced()
    came += idle.consume(6000 - len(came))
    idle.nothing_more()
    assert len(set(values(came))) == 6000


def test_a_changed_list_of_levels_loses_nothing_and_remove_deletes_the_old_topic_when_empty(
    idle: KafkaLevelLine,
) -> None:
    bridge = idle.run()
    sent = time.time()
    idle.produce(b"by the old list", [delay(3000)])
    idle.produced()
    old = idle.topics().levels[3000]
    waiting = {"headers": {"levels": ["500ms", "1s"]}}
    after = idle.loaded(waiting)
    wait_for(lambda: any(place.name == old and place.messages for place in count(idle.loaded())), "it waits", 20)
    assert bridge.terminate() == 0
    (kept,) = remove(after, everything=False, force=False, dry_run=False)
    assert (kept.name, kept.kept.partition(":")[0]) == (old, "it holds records")
    idle.run(waiting)
    (record,) = idle.consume(1)
    assert record.at - sent >= 3.0
    wait_for(lambda: [place.messages for place in count(after) if place.use is Use.OLD] == [0], "it is empty", 20)
    assert [place.name for place in remove(after, everything=False, force=False, dry_run=True)] == [old]
    assert [place.name for place in remove(after, everything=False, force=False, dry_run=False)] == [old]
    wait_for(lambda: old not in kafka_admin.topics(idle.url), "it is gone", 20)


def test_setup_creates_topics_that_keep_waiting_records_and_refuses_one_that_does_not(idle: KafkaLevelLine) -> None:
    settings = idle.loaded()
    assert {finding.state for finding in verify(settings) if finding.topic.ours} == {"missing"}
    made, _ = declare(settings)
    topics = idle.topics()
    assert {topic.name for topic, state in made if state == "made"} == {
        idle.intake,
        *topics.levels.values(),
        topics.dead,
    }
    wait_for(lambda: {finding.state for finding in verify(settings)} == {"same"}, "all of it is there", 20)
    assert all(state == "there" for _, state in declare(settings)[0])
    config = kafka_admin.topic_config(idle.url, topics.levels[3000])
    assert int(config["retention.ms"]) == 3000 + 7 * 86_400_000
    assert (config["cleanup.policy"], config["message.timestamp.type"]) == ("delete", "LogAppendTime")
    assert kafka_admin.topic_config(idle.url, topics.dead)["retention.ms"] == "-1"
    assert len(kafka_admin.partitions(idle.url, topics.levels[3000])) == idle.partitions
    longer = idle.loaded({"levels": {"retention": "30d"}})
    words = r"deletes records after retention.ms \(604803000\), read or not: set it to 2592003000"
    with pytest.raises(TopologyMismatch, match=words):
        declare(longer)


class Shell(Protocol):
    """Runs a command on a line's settings; what it wrote, as JSON, and what it said."""

    def __call__(self, *words: str, code: int = 0, settings: Tables | None = None) -> tuple[Any, str]: ...


@pytest.fixture
def shell(idle: KafkaLevelLine, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*words: str, code: int = 0, settings: Tables | None = None) -> tuple[Any, str]:
        ended = run_command([*words, "-o", "json", "--config", str(idle.file(settings))])
        out, said = capsys.readouterr()
        assert ended == code, f"{words} ended with {ended}, wrote {out} and said {said}"
        return json.loads(out) if out else [], said

    return run


def said_of(rows: list[dict[str, Any]], level: str) -> list[str]:
    return [row["text"] for row in rows if row["level"] == level]


def left_in_its_level(
    line: KafkaLevelLine, value: bytes, settings: Tables | None = None, route: str = ROUTE
) -> tuple[str, float]:
    """The level's topic in which a bridge that has stopped left a record of three seconds, and when that was sent."""
    loaded = line.loaded(settings)
    bridge = line.run(settings)
    sent = time.time()
    line.produce(value, [delay(3000)], topic=loaded.routes[route].intercept)
    line.produced()
    level = level_topics(loaded, route).levels[3000]
    wait_for(lambda: any(place.name == level and place.messages for place in count(loaded)), "it waits", 20)
    assert bridge.terminate() == 0
    return level, sent


def test_a_route_that_changes_between_levels_and_a_store_and_back_leaves_no_record_behind(
    idle: KafkaLevelLine, shell: Shell, redis_url: str, key_prefix: str
) -> None:
    store = {"redis": {"url": redis_url, "key_prefix": key_prefix.removesuffix(":"), "durability": "none"}}
    in_store: Tables = {**store, "routes": {ROUTE: {"mode": "redis"}}}
    level, sent = left_in_its_level(idle, b"in a level")
    words = "stale levels still hold messages: 1 ("
    warned = said_of(shell("check", settings=in_store)[0], "WARN")
    assert any(words in text for text in warned)
    old = {row["name"]: row["messages"] for row in shell("levels", "stats", settings=in_store)[0]}
    assert old == {**dict.fromkeys(idle.topics().levels.values(), 0), level: 1, idle.topics().dead: 0}
    assert {row["state"] for row in shell("levels", "verify", settings=in_store)[0]} == {"old"}
    removed, said = shell("levels", "remove", settings=in_store, code=5)
    assert {row["name"] for row in removed if row["state"] == "kept"} == {level, idle.topics().dead}
    assert f"Kept topic '{level}': it holds records: 1. " in said
    bridge = idle.run(in_store, name="with a store")
    bridge.wait_log(words)
    (record,) = idle.consume(1)
    assert (record.value, record.at - sent >= 3.0) == (b"in a level", True)
    wait_for(lambda: not any(place.messages for place in count(idle.loaded(in_store))), "its levels are empty", 20)
    assert {row["state"] for row in shell("levels", "remove", settings=in_store)[0]} == {"removed"}

    wait_for(lambda: shell("levels", "stats", settings=in_store)[0] == [], "they are gone", 20)
    assert bridge.terminate() == 0
    assert "does not exist" not in bridge.log()
    sent = time.time()
    shell("send", ROUTE, "parked", "--in", "2s", settings=in_store)
    assert "Redis still holds messages of Kafka routes that had mode redis before (payments): 1 parked" in " ".join(
        said_of(shell("check", settings=store)[0], "WARN")
    )
    bridge = idle.run(store, name="without a store")
    bridge.wait_log("Redis still holds messages of Kafka routes that had mode redis before (payments): 1 parked")
    idle.produce(b"in a level again", [delay(500)])
    idle.produced()
    came = {record.value: record for record in idle.consume(2)}
    assert came.keys() == {b"parked", b"in a level again"}
    assert came[b"parked"].at - sent >= 2.0
    assert bridge.terminate() == 0
    idle.nothing_more(0.5)


def test_records_in_levels_of_a_removed_route_are_reported_kept_and_delivered_when_it_is_back(
    idle: KafkaLevelLine, shell: Shell
) -> None:
    target = kafka_admin.create_topic(idle.url, idle.partitions, name=f"{idle.topic}-gone")
    route = {**idle.settings["routes"][ROUTE], "intercept": f"{target}.delay", "deliver_to": target}
    both: Tables = {"routes": {"gone": route}}
    level, _ = left_in_its_level(idle, b"left alone", both, "gone")
    words = "the levels of this route, which is not configured, hold messages: 1"
    (said,) = [row for row in shell("check")[0] if words in row["text"]]
    assert (said["level"], said["subject"]) == ("WARN", "route gone")
    rows = [row for row in shell("levels", "stats")[0] if row["messages"]]
    assert [(row["route"], row["name"], row["state"]) for row in rows] == [("gone", level, "no route")]
    assert shell("levels", "remove", "--force")[0] == []
    bridge = idle.run(name="without it")
    bridge.wait_log(words)
    assert bridge.terminate() == 0
    idle.run(both, name="with it")
    assert values(idle.consume(1, target)) == [b"left alone"]


@pytest.mark.long
@pytest.mark.rabbitmq
def test_waiting_records_are_reported_without_any_kafka_route_and_so_is_an_unreachable_kafka(
    idle: KafkaLevelLine, shell: Shell, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    level, _ = left_in_its_level(idle, b"left alone")
    before, payments = str(idle.file(name="before")), idle.settings
    with LevelLine(rabbitmq.url, tmp_path, {"kafka": payments["kafka"]}) as orders:
        idle.settings = orders.settings
        words = "the levels of this route, which is not configured, hold messages: 1"
        (told,) = [row for row in shell("check")[0] if words in row["text"]]
        assert (told["level"], told["subject"]) == ("WARN", f"route {ROUTE}")
        left = (ROUTE, level, "no route")
        assert left in [(row["route"], row["name"], row["state"]) for row in shell("levels", "stats")[0]]
        assert "no route" in {row["state"] for row in shell("levels", "verify")[0]}
        bridge = orders.run()
        bridge.wait_log(words)
        assert bridge.terminate() == 0

        idle.settings = {name: table for name, table in orders.settings.items() if name != "kafka"}
        assert {row["kind"] for row in shell("levels", "stats")[0]} == {"queue"}
        rows = shell("levels", "stats", "--before", before)[0]
        assert left in [(row["route"], row["name"], row["state"]) for row in rows]

        idle.settings = {**orders.settings, "kafka": {"bootstrap_servers": "127.0.0.1:1"}}
        words = "no route uses Kafka, and whether stale messages wait there is not known: no broker of "
        assert any(words in text for text in said_of(shell("check")[0], "WARN"))
        rows, said = shell("levels", "stats")
        assert ({row["kind"] for row in rows}, words in said) == ({"queue"}, True)
        bridge = orders.run({"kafka": {"bootstrap_servers": "127.0.0.1:1"}})
        bridge.wait_log(words)
        assert bridge.terminate() == 0

        idle.settings = payments
        rows = shell("levels", "stats", "--before", orders.loaded().file)[0]
        assert {row["state"] for row in rows if row["route"] == "orders"} == {"old"}
    idle.run(name="with it again")
    assert values(idle.consume(1)) == [b"left alone"]


def test_check_reports_the_backlog_of_an_intake_while_no_postdate_runs(idle: KafkaLevelLine, shell: Shell) -> None:
    assert shell("setup")[0]
    idle.produce(b"one", [delay(500)])
    idle.produced()
    (told,) = [text for text in said_of(shell("check")[0], "WARN") if idle.intake in text]
    assert told.startswith(f"topic '{idle.intake}' has no consumer. Messages there: 1. Start `postdate run`")
    (intake, *_) = shell("levels", "stats")[0]
    assert (intake["name"], intake["messages"], intake["state"]) == (idle.intake, 1, "intake, no consumer")
    idle.run()
    idle.consume(1)
    assert not [text for text in said_of(shell("check")[0], "WARN") if idle.intake in text]
    (intake, *_) = shell("levels", "stats")[0]
    assert (intake["name"], intake["state"]) == (idle.intake, "intake")


def test_the_commands_manage_the_topics_and_count_waiting_records(idle: KafkaLevelLine, shell: Shell) -> None:
    ours = {idle.intake, *idle.topics().levels.values(), idle.topics().dead}
    assert {row["name"] for row in shell("setup", "--dry-run")[0]} == ours
    assert {row["state"] for row in shell("levels", "stats")[0]} == {"missing"}
    assert {row["state"] for row in shell("levels", "setup")[0]} == {"made"}
    found = [row for row in shell("check")[0] if row["subject"] != "store"]
    assert [row["text"].partition(":")[0] for row in found if row["level"] != "OK"] == [
        f"topic '{idle.intake}' has no consumer. Messages there"
    ]
    assert {row["state"] for row in shell("levels", "verify")[0]} == {"same"}
    unfit = {"levels": {"retention": "8d"}}
    assert "different" in {row["state"] for row in shell("levels", "verify", settings=unfit, code=1)[0]}
    for dry_run in ([], ["--dry-run"]):
        assert "deletes records after retention.ms" in shell("levels", "setup", *dry_run, settings=unfit, code=5)[1]
    idle.produce(b"a stranger's", [], topic=idle.topics().levels[1000])
    idle.produced()
    waiting = [row for row in shell("levels", "stats")[0] if row["messages"]]
    assert [(row["kind"], row["name"], row["messages"]) for row in waiting] == [
        ("topic", idle.topics().levels[1000], 1)
    ]
    assert shell("levels", "remove")[0] == []
    assert "it holds records: 1. " in shell("levels", "remove", "--all", code=5)[1]
    assert len(shell("levels", "remove", "--all", "--force")[0]) == 2
    assert "no store (mode levels)" in shell("list", code=5)[1]
