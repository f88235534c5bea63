"""Every RabbitMQ example, run as its README says, through one bridge with the settings file beside the examples."""

from __future__ import annotations

import re
import secrets
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pika.exceptions import ChannelClosedByBroker

from bridge.cli import run_command
from tests.bridge_line import merged
from tests.bridge_process import Bridge
from tests.delay_line import blocking
from tests.devstack.fixtures import need
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.examples.readme import EXAMPLES, MADE, block, prepared, started

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.timeout(900)]

WRITTEN, WRITTEN_PLAIN = "amqp://guest:guest@127.0.0.1:5672/%2F", "amqp://guest:guest@127.0.0.1:5672"
PYTHON = "RabbitMQ: pika, aio-pika, kombu"
CELERY = "RabbitMQ: Celery"
SPRING = "RabbitMQ: Spring AMQP"
#: What the programs write.
DELAY_S = 2.0
#: The tests may see a publish so much later than postdate does, on a busy machine.
SEEN_LATE_S = 1.5
#: How late a message may arrive, or a task start, on a busy machine.
LATE_S = 3.0
DEADLINE_S = 60.0

#: What downloads packages: a machine that has only Python does not run these.
long = pytest.mark.long
SHOWN = [
    pytest.param(PYTHON, "later_pika", "", id="pika"),
    pytest.param(PYTHON, "later_aio_pika", "python3", id="aio-pika", marks=long),
    pytest.param(PYTHON, "later_kombu", "python3", id="kombu", marks=long),
    pytest.param("RabbitMQ: Java client", "", "mvn", id="java", marks=long),
    pytest.param("RabbitMQ: Node (amqplib)", "", "npm", id="amqplib", marks=long),
    pytest.param("RabbitMQ: Go (amqp091-go)", "", "go", id="amqp091-go", marks=long),
]
RETRIED = "RabbitMQ: consumers that are retried"
FAILING = [
    pytest.param(0, "retried_pika", "", id="pika"),
    pytest.param(0, "retried_aio_pika", "python3", id="aio-pika", marks=long),
    pytest.param(1, "", "npm", id="amqplib", marks=long),
    pytest.param(2, "", "mvn", id="spring", marks=long),
]
#: The waits of the retry routes, shorter than in the settings file.
WAITS_S = (0.4, 0.8)


class Seen(NamedTuple):
    """A message in one of the tests' own queues, and its arrival (Unix seconds)."""

    at: float
    exchange: str
    key: str
    body: str
    headers: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """The headers, without the delay and without what postdate adds."""
        ours = ("x-delay", "x-deliver-at", "x-delay-id", "x-delay-due")
        return {name: value for name, value in self.headers.items() if name not in ours}


class Broker:
    """A virtual host with a bridge. Two queues of the tests see what is published and what is delivered."""

    def __init__(self, url: str) -> None:
        #: Of the bridge.
        self.settings_file = Path()
        self.places = {WRITTEN: url, WRITTEN_PLAIN: url}
        self._connection = blocking(url)
        self._channel = self._connection.channel()
        self._channel.exchange_declare("orders", "topic", durable=True)
        # As the consumers declare them. postdate binds a queue that appears later within seconds.
        for queue, route in (("orders.work", "work_retry"), ("shipping", "shipping_retry")):
            returned = {"x-dead-letter-exchange": "postdate.retry", "x-dead-letter-routing-key": route}
            self._channel.queue_declare(queue, durable=True, arguments=returned)
        self.published: list[Seen] = []
        self.delivered: list[Seen] = []
        #: Delayed calls of Celery.
        self.calls: list[Seen] = []
        self.watch("orders", self.delivered)

    def watch(self, exchange: str, seen: list[Seen]) -> None:
        """Receive a copy of everything that is published to an exchange."""

        def note(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            headers = properties.headers or {}
            seen.append(Seen(time.time(), method.exchange, method.routing_key, body.decode(), headers))

        queue = self._channel.queue_declare("", exclusive=True).method.queue
        self._channel.queue_bind(queue, exchange, "#")
        self._channel.basic_consume(queue, note, auto_ack=True)

    def wait(self, condition: Callable[[], bool], what: Callable[[], str]) -> None:
        """Receive until the condition is true."""
        give_up = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < give_up, f"{what()}; delivered: {self.delivered}"
            self._connection.process_data_events(0.02)

    def nothing_more(self) -> None:
        """Assert that no second copy comes."""
        before = len(self.delivered)
        self._connection.process_data_events(0.3)
        assert len(self.delivered) == before

    def forget(self) -> None:
        for seen in (self.published, self.delivered, self.calls):
            seen.clear()

    def consumers(self, queue: str) -> int:
        """How many consumers a queue has; 0 for a queue that does not exist."""
        channel = self._connection.channel()
        try:
            found: int = channel.queue_declare(queue, passive=True).method.consumer_count
        except ChannelClosedByBroker:
            return 0
        channel.close()
        return found

    def publish(self, exchange: str, key: str, body: str) -> None:
        self._channel.basic_publish(exchange, key, body.encode())

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def shared(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    if not rabbitmq.owned:
        pytest.skip(f"{rabbitmq.url} was given by URL, and the examples use names such as orders")
    name = f"t{secrets.token_hex(6)}"
    settings = tomllib.loads((EXAMPLES / "rabbitmq" / "postdate.toml").read_text())
    for route in settings["routes"].values():
        if route.get("kind") == "retry":
            route["schedule"] = [f"{wait_s}s" for wait_s in WAITS_S]
    with rabbitmq.vhost(name) as url:
        broker = Broker(url)
        own = {"redis": {"url": redis_server.url, "key_prefix": name}, "rabbitmq": {"url": url}}
        with Bridge(tmp_path_factory.mktemp("bridge"), merged(own, settings)).start() as bridge:
            bridge.wait_ready()
            broker.settings_file = bridge.settings_file
            broker.watch("orders.delay", broker.published)
            broker.watch("celery.delay", broker.calls)
            yield broker
        broker.close()


@pytest.fixture
def broker(shared: Broker) -> Broker:
    shared.forget()
    return shared


def check(broker: Broker) -> None:
    """Three messages waited, and came once, as they were published."""
    broker.nothing_more()
    published = {message.body: message for message in broker.published}
    delivered = {message.body: message for message in broker.delivered}
    assert set(delivered) == set(published) == {"number", "text", "moment"}
    assert len(broker.delivered) == len(broker.published) == 3
    for body, came in delivered.items():
        went = published[body]
        assert (came.exchange, came.key, went.key) == ("orders", "order.timeout", "order.timeout")
        assert came.plain() == went.plain()
        assert came.headers["x-delay-id"]
        assert came.at >= came.headers["x-delay-due"] / 1000
        assert not {"x-delay", "x-deliver-at"} & set(came.headers)
        due = went.headers["x-deliver-at"] / 1000 if body == "moment" else went.at + DELAY_S - SEEN_LATE_S
        assert came.at >= due


@pytest.mark.parametrize(("title", "word", "needs"), SHOWN)
def test_each_client_delays_its_messages(broker: Broker, title: str, word: str, needs: str, tmp_path: Path) -> None:
    example = block(title)
    folder = need(lambda: prepared(example, needs)) if needs else EXAMPLES / example.folder
    with started(example.command(word), folder, broker.places, tmp_path / "log") as program:
        broker.wait(lambda: program.succeeded() and len(broker.delivered) >= 3, program.printed)
    check(broker)


@long
def test_spring_amqp_delays_its_messages_and_its_listener_receives_them(broker: Broker, tmp_path: Path) -> None:
    example = block(SPRING)
    folder = need(lambda: prepared(example, "mvn"))
    with started(example.command(), folder, broker.places, tmp_path / "log") as program:
        broker.wait(lambda: program.printed().count("arrived: ") >= 3 or not program.running(), program.printed)
        check(broker)
        arrived = re.findall(r"^arrived: (.*)$", program.printed(), re.MULTILINE)
        assert sorted(arrived) == ["moment", "number", "text"]


def test_the_consumer_prints_what_arrives(broker: Broker, tmp_path: Path) -> None:
    folder = EXAMPLES / "rabbitmq" / "python"
    with started(f"python consumer.py {WRITTEN}", folder, broker.places, tmp_path / "consumer") as consumer:
        publish = block(PYTHON).command("later_pika")
        # It has no queue before its first moment: messages that are delayed find one.
        with started(publish, folder, broker.places, tmp_path / "producer") as producer:
            three = re.compile(r"^\d\d:\d\d:\d\d order\.timeout (?:moment|number|text)$", re.MULTILINE)
            broker.wait(lambda: len(three.findall(consumer.printed())) >= 3, consumer.printed)
            assert producer.succeeded()


@pytest.mark.parametrize(("number", "word", "needs"), FAILING)
def test_a_rejected_message_returns_to_its_queue_by_the_schedule(
    broker: Broker, number: int, word: str, needs: str, tmp_path: Path
) -> None:
    example = block(RETRIED, number)
    folder = need(lambda: prepared(example, needs)) if needs else EXAMPLES / example.folder
    attempts = re.compile(r"^hello: attempt (\d) at ([\d.]+)$", re.MULTILINE)
    broker.wait(lambda: not broker.consumers("orders.work"), lambda: "a consumer of another test")
    with started(example.command(word), folder, broker.places, tmp_path / "log") as program:
        broker.wait(lambda: bool(broker.consumers("orders.work")) or not program.running(), program.printed)
        broker.publish("orders", "order.work", "hello")
        broker.wait(lambda: len(attempts.findall(program.printed())) >= 3 or not program.running(), program.printed)
        broker.nothing_more()
        found = attempts.findall(program.printed())
    assert [attempt for attempt, _ in found] == ["0", "1", "2"]
    check_waits([float(at) for _, at in found])
    returned = [seen for seen in broker.delivered if seen.key == "order.work"]  # one of the last test may come late
    assert len(returned) == 1  # other queues got no copy of what returned


def check_waits(times: list[float]) -> None:
    for wait_s, (before, after) in zip(WAITS_S, pairwise(times), strict=True):
        assert wait_s <= after - before < wait_s + LATE_S


def celery(way: str, prepared_folder: Path, folder: Path) -> Path:
    """A copy of the example in which the app uses the router in Celery's settings, or the class in its place."""
    shutil.copytree(prepared_folder, folder, ignore=shutil.ignore_patterns(*MADE))
    (folder / ".venv").symlink_to(prepared_folder / ".venv")
    if way == "class":
        for name, written, meant in (
            ("tasks.py", "from celery import Celery", "from later import Later as Celery"),
            ("celeryconfig.py", "task_routes = ", "unused = "),
        ):
            text = (folder / name).read_text()
            assert written in text
            (folder / name).write_text(text.replace(written, meant))
    return folder


@long
@pytest.mark.parametrize("way", ["router", "class"])
def test_postdate_delays_celerys_countdown_eta_and_retries(broker: Broker, way: str, tmp_path: Path) -> None:
    worker, caller = block(CELERY, 0), block(CELERY, 1)
    folder = celery(way, need(lambda: prepared(worker, "python3")), tmp_path / "app")
    tries = re.compile(r"] (\w[\w ]*): try (\d) at ([\d.]+)")
    with started(worker.command(), folder, broker.places, tmp_path / "worker") as process:
        broker.wait(lambda: "ready." in process.printed() or not process.running(), process.printed)
        with started(caller.command(), folder, broker.places, tmp_path / "caller") as sent:
            broker.wait(lambda: sent.succeeded(), sent.printed)
        broker.wait(lambda: len(tries.findall(process.printed())) >= 12, process.printed)
        # The task that is due in an hour is not in the worker.
        inspect = f"export BROKER={WRITTEN}\ncelery -A tasks inspect scheduled"
        with started(inspect, folder, broker.places, tmp_path / "inspect") as looked:
            broker.wait(lambda: looked.succeeded(), looked.printed)
        assert "- empty -" in looked.printed()
        broker.nothing_more()
        found = tries.findall(process.printed())
    task_id = sent.printed().split()[-1]
    assert run_command(["cancel", "--route", "celery", "--key", task_id, "--config", str(broker.settings_file)]) == 0

    times = {(name, int(number)): float(at) for name, number, at in found}
    delayed = {(name, 1) for name in ("countdown", "eta", "queue", "name")} | {("retry", 2), ("autoretry", 2)}
    at_once = {("at once", 1), ("retry", 1), ("autoretry", 1), ("rejected", 1)}
    assert set(times) == delayed | at_once | {("rejected", 2), ("rejected", 3)}
    assert len(found) == len(times)
    # What went to postdate: with the class only the delayed calls, and the retries are among them.
    went = {(message.body.split('"')[1], message.headers["retries"] + 1): message for message in broker.calls}
    assert set(went) == delayed | {("never", 1)} | (at_once if way == "router" else set())
    assert len(broker.calls) == len(went)
    for name in delayed:
        eta = datetime.fromisoformat(went[name].headers["eta"]).timestamp()
        assert eta <= times[name] < eta + LATE_S
    check_waits([times["rejected", attempt] for attempt in (1, 2, 3)])
