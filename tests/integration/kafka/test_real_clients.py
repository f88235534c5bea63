"""Clients that nobody here wrote, through one bridge: Kafka's own programs, the Java interceptor in them, kcat
and confluent-kafka. The examples are tried in tests/examples.

What a client wrote to a topic itself and what the bridge delivered there stand side by side, so a record's partition is
compared with the one that the client chose.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_tools import CONSOLE_CONSUMER, CONSOLE_PRODUCER, PERF_TEST, KafkaTools
from tests.devstack.redis import Redis
from tests.devstack.service import clean_env
from tests.integration.kafka.clients import Clients, headers, running

pytestmark = [pytest.mark.kafka, pytest.mark.redis]

HERE = Path(__file__).parent
DEPLOY = HERE.parents[2] / "deploy"
JAVA = DEPLOY / "kafka-java"
INTERCEPTOR = "postdate.kafka.DelayInterceptor"
PROGRAM_S = 60.0
DELAY_MS = 2000


@pytest.fixture(scope="module")
def clients(kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    folder = tmp_path_factory.mktemp("clients")
    with running(kafka, redis_server, folder, ("java", "kcat", "perf"), single=("perf",)) as made:
        yield made


@pytest.fixture(scope="module")
def classes(kafka_tools: KafkaTools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interceptor, and the one that delays what can set no headers."""
    sources = [*(JAVA / "src" / "main").rglob("*.java"), HERE / "java" / "FixedDelay.java"]
    return kafka_tools.compile(tmp_path_factory.mktemp("classes"), *sources)


def start(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=clean_env(), stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def end(program: subprocess.Popen[str], given: str = "") -> str:
    """What it printed."""
    try:
        printed, errors = program.communicate(given, timeout=PROGRAM_S)
    finally:
        program.kill()
        program.wait()
    assert program.returncode == 0, errors
    return printed


class Line(NamedTuple):
    """A record as the console consumer prints it."""

    timestamp_ms: int
    partition: str
    headers: dict[str, str]
    key: str

    @classmethod
    def read(cls, words: str) -> tuple[str, Line]:
        """Its value, and the rest."""
        when, partition, names, key, value = words.split("\t")
        pairs = () if names == "NO_HEADERS" else (pair.split(":", 1) for pair in names.split(","))
        return value, cls(int(when.removeprefix("CreateTime:")), partition, dict(pairs), key)


@pytest.fixture(scope="module")
def printed(clients: Clients, kafka_tools: KafkaTools, classes: Path) -> dict[str, Line]:
    """Two console producers, one of which names the intake topic and one the real topic, and a console consumer."""
    server = ("--bootstrap-server", clients.url)
    told = [f"--formatter-property=print.{what}=true" for what in ("timestamp", "partition", "headers", "key")]
    topic, group = clients.topic("java"), ("--group", clients.group, "--from-beginning")
    limits = ("--max-messages", "5", "--timeout-ms", "50000")
    consumer = start(kafka_tools.command(CONSOLE_CONSUMER, *server, "--topic", topic, *group, *limits, *told))
    parse = [f"--reader-property=parse.{what}=true" for what in ("headers", "key")]
    producer = (CONSOLE_PRODUCER, *server, *parse, "--topic")
    plain = start(kafka_tools.command(*producer, clients.intake("java")))
    rerouting = (topic, "--command-property", f"interceptor.classes={INTERCEPTOR}")
    intercepted = start(kafka_tools.command(*producer, *rerouting, classes=classes))
    end(plain, f"x-delay:{DELAY_MS},trace:1\tone\tplain later\ntrace:2\tone\tplain at once\n")
    at = int(time.time() * 1000) + 2 * DELAY_MS
    lines = (f"x-delay:{DELAY_MS}\tone\tlater", f"trace:3,x-deliver-at:{at}\ttwo\tat a moment", "trace:4\tone\tat once")
    end(intercepted, "\n".join(lines) + "\n")
    return dict(Line.read(line) for line in end(consumer).splitlines())


def check_it_waited(line: Line, trace: dict[str, str]) -> None:
    """It has no delay header any more, and left no earlier than it was due."""
    due_ms = int(line.headers["x-delay-due"])
    assert line.headers == {**trace, "x-delay-id": line.headers["x-delay-id"], "x-delay-due": str(due_ms)}
    assert line.timestamp_ms >= due_ms


def test_the_console_consumer_gets_what_the_console_producer_delayed(printed: dict[str, Line]) -> None:
    check_it_waited(printed["plain later"], {"trace": "1"})
    straight = printed["plain at once"]
    assert (straight.headers["trace"], straight.key) == ("2", "one")
    assert "x-delay" not in straight.headers
    assert straight.timestamp_ms < printed["plain later"].timestamp_ms


def test_with_the_interceptor_the_console_producer_names_the_real_topic(clients: Clients, printed: Any) -> None:
    assert set(printed) == {"plain later", "plain at once", "later", "at a moment", "at once"}
    check_it_waited(printed["later"], {})
    check_it_waited(printed["at a moment"], {"trace": "3"})
    straight = printed["at once"]
    assert (straight.headers, straight.key) == ({"trace": "4"}, "one")
    # Only what has a delay header went by way of the intake topic, beside the two that were written to it.
    assert kafka_admin.count(clients.url, clients.intake("java")) == 4


def test_a_delayed_record_has_the_partition_that_javas_own_partitioner_gives_its_key(printed: dict[str, Line]) -> None:
    assert {line.partition for line in printed.values() if line.key == "one"} == {printed["at once"].partition}


def test_the_perf_tests_records_come_in_order_whether_they_wait_or_not(
    clients: Clients, kafka_tools: KafkaTools, classes: Path
) -> None:
    count, topic = 5000, clients.topic("perf")
    numbers = ("--num-records", str(count), "--throughput", "-1", "--payload-monotonic")
    perf = (PERF_TEST, "--bootstrap-server", clients.url, *numbers, "--command-property", "acks=all")
    end(start(kafka_tools.command(*perf, "--topic", clients.intake("perf"))))
    clients.read(topic, count)
    delayed, sent_ms = (f"interceptor.classes=FixedDelay,{INTERCEPTOR}", f"test.delay={DELAY_MS}"), time.time() * 1000
    end(start(kafka_tools.command(*perf, *delayed, "--topic", topic, classes=classes)))
    found = [message for _, message in clients.read(topic, 2 * count)]
    assert [message.value() for message in found] == 2 * [b"%d" % number for number in range(count)]
    assert min(message.timestamp()[1] for message in found[count:]) >= sent_ms + DELAY_MS


def test_kcat_gets_what_kcat_delayed(clients: Clients, kcat: str) -> None:
    topic, sent = clients.topic("kcat"), time.time()
    produce = (kcat, "-q", "-b", clients.url, "-P", "-k", "key", "-H", "trace=1", "-t", clients.intake("kcat"))
    end(start((*produce, "-H", f"x-delay={DELAY_MS}")), "later")
    end(start(produce), "at once")
    consume = (kcat, "-q", "-b", clients.url, "-C", "-t", topic, "-o", "beginning", "-c", "2", "-f", "%h %k %s\n")
    found = end(start(consume)).splitlines()
    assert time.time() >= sent + DELAY_MS / 1000
    for words, value in zip(found, ("at once", "later"), strict=True):
        names, *rest = words.split(" ", 2)
        assert [name.partition("=")[0] for name in names.split(",")] == ["trace", "x-delay-id", "x-delay-due"]
        assert rest == ["key", value]


def test_a_delayed_record_has_the_partition_that_confluent_kafkas_own_partitioner_gives_its_key(
    kafka: Kafka, redis_server: Redis, tmp_path: Path
) -> None:
    keys, trace = [b"key %d" % number for number in range(30)], ("trace", b"\xff")
    with running(kafka, redis_server, tmp_path, ("confluent",), partitioner="crc32") as clients:
        producer = Producer({"bootstrap.servers": clients.url, "acks": "all"})
        for key in keys:
            producer.produce(clients.topic("confluent"), b"straight", key)
            producer.produce(clients.intake("confluent"), b"later", key, headers=[trace, ("x-delay", b"500ms")])
        assert producer.flush(PROGRAM_S) == 0
        found = [message for _, message in clients.read(clients.topic("confluent"), 2 * len(keys))]
    places = {
        value: {message.key(): message.partition() for message in found if message.value() == value}
        for value in (b"straight", b"later")
    }
    assert places[b"later"] == places[b"straight"]
    assert set(places[b"later"]) == set(keys)
    assert all(headers(message) == [trace] for message in found if message.value() == b"later")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_interceptors_own_tests_pass(kafka_tools: KafkaTools, tmp_path: Path) -> None:
    project = shutil.copytree(JAVA, tmp_path / "project", ignore=shutil.ignore_patterns("target"))
    done = subprocess.run([kafka_tools.maven, "-q", "-B", "verify"], cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert list(project.glob("target/surefire-reports/*DelayInterceptorTest.txt"))
