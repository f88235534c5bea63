"""Every Kafka example, run as its README says, through one bridge with a topic for each example."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
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


@pytest.mark.parametrize("broker", ["rabbitmq", "kafka"])
def test_the_settings_beside_the_examples_are_in_order(broker: str) -> None:
    settings = load(EXAMPLES / broker / "postdate.toml", {})
    assert {route.broker for route in settings.routes.values()} == {broker}
