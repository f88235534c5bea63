"""Every Kafka example, run as its README says, through one bridge with a topic for each example."""

from __future__ import annotations

import re
import time
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Message

from bridge.settings import load
from tests.devstack import kafka_admin
from tests.devstack.fixtures import need
from tests.devstack.kafka import Kafka
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.examples.readme import EXAMPLES, block, prepared, started
from tests.integration.kafka.clients import Clients, by_postdate, headers, running
from tests.kafka_line import KafkaLine

pytestmark = [pytest.mark.kafka, pytest.mark.redis, pytest.mark.timeout(900)]

PYTHON, SPRING = "Kafka: confluent-kafka, aiokafka", "Kafka: Spring"
DELAY_S = 1
DEADLINE_S = 60.0

#: What downloads packages: a machine that has only Python does not run these.
long = pytest.mark.long
SHOWN = [
    pytest.param("confluent", PYTHON, "later_confluent", "", id="confluent-kafka"),
    pytest.param("aiokafka", PYTHON, "later_aiokafka", "", id="aiokafka"),
    pytest.param("java", "Kafka: Java client", "", "mvn", id="java", marks=long),
    pytest.param("kafkajs", "Kafka: Node (kafkajs)", "", "npm", id="kafkajs", marks=long),
    pytest.param("franz", "Kafka: Go (franz-go)", "", "go", id="franz-go", marks=long),
    pytest.param("kcat", "Kafka: kcat", "", "", id="kcat"),
]
RETRIED = "Kafka: consumers that are retried"
FAILING = [
    pytest.param(0, "retried_confluent", "", id="confluent-kafka"),
    pytest.param(0, "retried_aiokafka", "", id="aiokafka"),
    pytest.param(1, "", "mvn", id="spring", marks=long),
]
#: The waits of the retry route, shorter than in the settings file.
WAITS_S = (0.4, 0.8)
#: How late a returned record may be, on a busy machine.
LATE_S = 3.0
WORDS = [*(str(shown.values[0]) for shown in SHOWN), "spring"]


@pytest.fixture(scope="module")
def clients(kafka: Kafka, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    with running(kafka, redis_server, tmp_path_factory.mktemp("clients"), WORDS) as made:
        yield made


def places(clients: Clients, word: str) -> dict[str, str]:
    """What the README's commands name, and what the tests have."""
    topic = clients.topic(word)
    written = ("127.0.0.1:9092", "payments.delay", "=payments ", "5s")
    return dict(zip(written, (clients.url, clients.intake(word), f"={topic} ", f"{DELAY_S}s"), strict=True))


def check(clients: Clients, word: str) -> None:
    """One record waited, and came once, as it was written."""
    ((_, came),) = clients.read(clients.topic(word), 1)
    ((_, went),) = clients.read(clients.intake(word), 1)
    assert by_postdate(came)
    assert (came.key(), came.value()) == (went.key(), went.value())
    assert came.key() == b"order-1"
    assert (came.value() or b"").startswith(word.encode())
    assert written_headers(went) == [("x-delay", f"{DELAY_S}s".encode())]
    assert headers(came) == []
    # Kafka's clients choose the same partition for a key, and so does postdate.
    assert came.partition() == went.partition()
    assert came.timestamp()[1] >= went.timestamp()[1] + DELAY_S * 1000
    time.sleep(0.3)
    assert kafka_admin.count(clients.url, clients.topic(word)) == 1


def written_headers(message: Message) -> list[tuple[str, bytes]]:
    return list(message.headers() or [])  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "title", "chosen", "needs"), SHOWN)
def test_each_client_delays_its_record(
    clients: Clients, request: pytest.FixtureRequest, word: str, title: str, chosen: str, needs: str, tmp_path: Path
) -> None:
    if word == "kcat":
        request.getfixturevalue("kcat")
    example = block(title)
    folder = need(lambda: prepared(example, needs)) if needs else EXAMPLES / example.folder
    with started(example.command(chosen), folder, places(clients, word), tmp_path / "log") as program:
        wait_for(lambda: not program.running(), f"{word} ends", DEADLINE_S)
        assert program.succeeded()
    check(clients, word)


@long
def test_spring_kafka_delays_its_record_and_its_listener_receives_it(clients: Clients, tmp_path: Path) -> None:
    example = block(SPRING)
    folder = need(lambda: prepared(example, "mvn"))
    with started(example.command(), folder, places(clients, "spring"), tmp_path / "log") as program:
        wait_for(lambda: "arrived: " in program.printed() or not program.running(), "it arrived", DEADLINE_S)
        assert re.findall(r"^arrived: (.*)$", program.printed(), re.MULTILINE) == ["spring"], program.printed()
    check(clients, "spring")


@pytest.fixture
def retries(kafka: Kafka, redis_server: Redis, tmp_path: Path) -> Iterator[KafkaLine]:
    """A bridge with the settings beside the examples, on topics of this test."""
    line = KafkaLine(kafka.url, tmp_path, {}, redis_server.url)
    written = (EXAMPLES / "kafka" / "postdate.toml").read_text()
    written = re.sub('(?<=["> ])payments(?=[".-])', line.topic, written)
    line.settings["routes"] = tomllib.loads(written)["routes"]
    line.settings["routes"]["payments_retry"]["schedule"] = [f"{wait_s}s" for wait_s in WAITS_S]
    line.run().wait_ready()
    yield line
    line.close()


@pytest.mark.parametrize(("number", "word", "needs"), FAILING)
def test_a_failed_record_returns_to_its_consumer_by_the_schedule(
    retries: KafkaLine, number: int, word: str, needs: str, tmp_path: Path
) -> None:
    example = block(RETRIED, number)
    folder = need(lambda: prepared(example, needs)) if needs else EXAMPLES / example.folder
    here = {"127.0.0.1:9092": retries.url, " payments": f" {retries.topic}", "=payments": f"={retries.topic}"}
    attempts = re.compile(r"^hello: attempt (\d) at ([\d.]+)$", re.MULTILINE)
    retries.produce(b"hello", [("own", b"1")], topic=retries.topic)
    retries.produced()
    with started(example.command(word), folder, here, tmp_path / "log") as program:
        wait_for(lambda: len(attempts.findall(program.printed())) >= 3 or not program.running(), "it came", DEADLINE_S)
        found = attempts.findall(program.printed())
    assert [attempt for attempt, _ in found] == ["0", "1", "2"], program.printed()
    for wait_s, (before, after) in zip(WAITS_S, pairwise(float(at) for _, at in found), strict=True):
        assert wait_s <= after - before < wait_s + LATE_S
    came = retries.consume(3)
    assert [record.header("own") for record in came] == [b"1"] * 3
    (last,) = (dict(record.headers) for record in came if ("x-retry-attempt", b"2") in record.headers)
    assert (last["x-retry-reason"] or b"").endswith(b"no answer")
    assert not any("kafka_dlt-" in name for record in came for name, _ in record.headers)


@pytest.mark.parametrize("broker", ["rabbitmq", "kafka"])
def test_the_settings_beside_the_examples_are_in_order(broker: str) -> None:
    settings = load(EXAMPLES / broker / "postdate.toml", {})
    assert {route.broker for route in settings.routes.values()} == {broker}
