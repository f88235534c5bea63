"""Policies of the broker that reach postdate's queues: a length limit drops nothing that RabbitMQ has confirmed.

Where possible, a test sets the policy before it declares the queue: nothing tells when a policy reaches a queue that
exists.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import NackError

from adapters.rabbitmq.levels.waits import plan_waits
from adapters.rabbitmq.topology.declaring import declare, verify
from adapters.rabbitmq.topology.findings import ArgumentDifference, Effect, Harm, PolicyFinding
from adapters.rabbitmq.topology.route_topology import plan
from bridge.desk.topology import Standing
from bridge.settings import Settings, load
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for

pytestmark = pytest.mark.rabbitmq

PUBLISHED = 20


def settings_of(url: str, **more: object) -> Settings:
    route = {"intercept": "orders.delay", "deliver_to": "orders"}
    return load(None, {}, {"rabbitmq.url": url, "routes.orders": {**route, **more}})


class Vhost:
    """A virtual host whose policies a test writes."""

    def __init__(self, broker: RabbitMQ, url: str) -> None:
        self.url = url
        self._broker = broker
        self.name = url.rpartition("/")[2]
        self.connection = pika.BlockingConnection(pika.URLParameters(url))

    def policy(self, pattern: str, definition: dict[str, object]) -> None:
        self._broker.ctl(
            "set_policy", "-p", self.name, "users", pattern, json.dumps(definition), "--apply-to", "queues"
        )

    def run_command(self, sentence: str) -> None:
        """Run the command between the backticks of a sentence."""
        words = shlex.split(sentence.split("`")[1])
        assert words[0] == "rabbitmqctl"
        self._broker.ctl(*words[1:])

    def publish(self, exchange: str, headers: dict[str, Any] | None = None, count: int = PUBLISHED) -> int:
        """Publish; return how many RabbitMQ confirms."""
        channel = self.connection.channel()
        channel.confirm_delivery()
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        confirmed = 0
        for number in range(count):
            try:
                channel.basic_publish(exchange, "new", b"%d" % number, properties)
            except NackError:
                continue
            confirmed += 1
        channel.close()
        return confirmed

    def waiting(self, queue: str) -> int:
        channel = self.connection.channel()
        try:
            return int(channel.queue_declare(queue, passive=True).method.message_count)
        finally:
            channel.close()

    def obeys(self, queue: str) -> str:
        """Return the name of the policy that governs a queue."""
        rows = self._broker.ctl("list_queues", "-p", self.name, "name", "policy").splitlines()
        return next(policy for name, _, policy in (row.partition("\t") for row in rows) if name == queue)

    def declare(self, queue: str, arguments: dict[str, Any]) -> None:
        self.connection.channel().queue_declare(queue, durable=True, arguments=arguments)


@pytest.fixture
def vhost(own_rabbitmq: RabbitMQ, rabbitmq_vhost: str) -> Iterator[Vhost]:
    found = Vhost(own_rabbitmq, rabbitmq_vhost)
    yield found
    found.connection.close()


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_an_intake_under_a_length_limit_keeps_every_confirmed_message(vhost: Vhost, queue_type: str) -> None:
    vhost.policy("^postdate", {"max-length": 5})
    declare(settings_of(vhost.url, queue_type=queue_type))
    confirmed = vhost.publish("orders.delay", {"x-delay": 60_000})
    assert 0 < confirmed < PUBLISHED
    wait_for(lambda: vhost.waiting("postdate.orders") == confirmed, f"{confirmed} messages wait in the intake")


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_a_level_under_a_length_limit_sends_no_message_early(vhost: Vhost, queue_type: str) -> None:
    """By default a full queue dead-letters its oldest message, and from a level that is an early delivery."""
    settings = settings_of(vhost.url, mode="levels", queue_type=queue_type)
    waits = plan_waits(settings, "orders")
    level = waits.levels[3_600_000]
    vhost.policy("level", {"max-length": 5})
    declare(settings)
    confirmed = vhost.publish(level)
    assert 0 < confirmed < PUBLISHED
    wait_for(lambda: vhost.waiting(level) == confirmed, f"{confirmed} messages wait in the level")
    assert vhost.waiting(waits.due) == 0


def test_dead_letters_of_a_route_without_a_store_are_kept_under_a_length_limit(vhost: Vhost) -> None:
    vhost.policy("dead$", {"max-length": 5})
    declare(settings_of(vhost.url, mode="levels"))
    confirmed = vhost.publish("postdate.orders.dead")
    assert 0 < confirmed < PUBLISHED
    wait_for(lambda: vhost.waiting("postdate.orders.dead") == confirmed, "what was confirmed is there")


def test_a_classic_due_queue_under_a_length_limit_loses_no_message_of_its_levels(vhost: Vhost) -> None:
    """A classic queue does not wait for the next one to accept a dead-lettered message: a due queue that refused would
    lose it. A full one sends its oldest message to the destination, and that message is due."""
    settings = settings_of(vhost.url, mode="levels", queue_type="classic")
    channel = vhost.connection.channel()
    channel.exchange_declare("orders", "fanout", durable=True)
    channel.queue_declare("consumer", durable=True)
    channel.queue_bind("consumer", "orders")
    waits = plan_waits(settings, "orders")
    vhost.policy("due", {"max-length": 5})
    declare(settings)
    assert vhost.publish(waits.levels[1000]) == PUBLISHED
    wait_for(lambda: vhost.waiting("consumer") == PUBLISHED, "all of them came")


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_the_command_in_a_policy_finding_protects_an_intake(vhost: Vhost, queue_type: str) -> None:
    settings = settings_of(vhost.url, queue_type=queue_type)
    declare(settings)
    vhost.policy("^postdate", {"max-length": 5})
    wait_for(lambda: vhost.obeys("postdate.orders") == "users", "the users' policy governs the queue")
    length = Harm("max-length", 5, Effect.REFUSES)
    finding = PolicyFinding("orders", "users", "", length, ("postdate.orders",), vhost.name, "postdate.orders")
    vhost.run_command(finding.text)
    wait_for(lambda: vhost.obeys("postdate.orders") == "postdate.orders", "the users' policy leaves the queue alone")
    assert vhost.publish("orders.delay", {"x-delay": 60_000}) == PUBLISHED
    wait_for(lambda: vhost.waiting("postdate.orders") == PUBLISHED, "all of them wait")


def without_overflow(settings: Settings) -> dict[str, Any]:
    (route,) = plan(settings)
    return {name: value for name, value in route.intake.arguments.items() if name != "x-overflow"}


def test_after_a_change_of_queue_type_the_type_is_the_named_difference(vhost: Vhost) -> None:
    declare(settings_of(vhost.url))
    (finding, *_) = verify(settings_of(vhost.url, queue_type="classic"))
    assert finding.state is Standing.DIFFERENT
    assert finding.difference == ArgumentDifference("x-queue-type", "quorum", "classic")


@pytest.mark.parametrize("overflow", ["drop-head", None])
def test_an_intake_that_drops_messages_when_full_is_refused(vhost: Vhost, overflow: str | None) -> None:
    settings = settings_of(vhost.url)
    arguments = without_overflow(settings)
    vhost.declare("postdate.orders", {**arguments, "x-overflow": overflow} if overflow else arguments)
    (finding,) = [comparison for comparison in verify(settings) if comparison.declaration.name == "postdate.orders"]
    assert finding.state is Standing.DIFFERENT
    assert finding.difference == ArgumentDifference("x-overflow", overflow, "reject-publish")
