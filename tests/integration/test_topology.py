"""The topology on a real RabbitMQ: where messages go, and what happens where other declarations exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq.declarations import Binding, Declaration
from adapters.rabbitmq.topology.declaring import declare, open_session, verify
from adapters.rabbitmq.topology.route_topology import plan
from bridge.core.errors import BrokerUnavailable, Refused, TopologyMismatch
from bridge.desk.topology import Standing
from bridge.settings import Settings, load
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports

pytestmark = pytest.mark.rabbitmq

Message = tuple[bytes, str]


class Broker:
    """A virtual host with names of the test's own in it."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix.rstrip(":")
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()
        self.settings = self.route()

    def name(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def route(self, **more: object) -> Settings:
        return self.routes(orders=more)

    def routes(self, **routes: Mapping[str, object]) -> Settings:
        overrides: dict[str, object] = {"rabbitmq.url": self.url}
        for name, more in routes.items():
            own = {"intercept": self.name(f"{name}.delay"), "deliver_to": self.name(name), "queue": self.queue(name)}
            overrides[f"routes.{name}"] = {**own, **more}
        return load(None, {}, overrides)

    def queue(self, route: str = "orders") -> str:
        return self.name(f"{route}.intake")

    def consumers(self) -> str:
        """The consumers' exchange and queue, as they declare them."""
        self.channel.exchange_declare(self.name("orders"), "direct", durable=True)
        self.channel.queue_declare(self.name("consumer"), durable=True)
        self.channel.queue_bind(self.name("consumer"), self.name("orders"), "new")
        return self.name("consumer")

    def publish(self, body: bytes, headers: Mapping[str, object] | None, key: str = "new") -> None:
        properties = pika.BasicProperties(headers=headers, delivery_mode=2)
        self.channel.basic_publish(self.name("orders.delay"), key, body, properties)

    def get(self, queue: str, deadline_s: float = 20.0) -> Message:
        """Return body and routing key of the next message. A single active consumer allows no basic.get."""
        channel = self.connection.channel()
        channel.basic_qos(prefetch_count=1)
        method, _, body = next(channel.consume(queue, inactivity_timeout=deadline_s))
        assert method is not None, f"no message came to {queue}"
        channel.basic_ack(method.delivery_tag)
        channel.close()
        return body, method.routing_key

    def exists(self, kind: str, name: str) -> bool:
        channel = self.connection.channel()
        try:
            (channel.queue_declare if kind == "queue" else channel.exchange_declare)(name, passive=True)
        except ChannelClosedByBroker as closed:
            if closed.reply_code != 404:
                raise
            return False
        channel.close()
        return True

    def planned(self) -> tuple[Declaration, ...]:
        """Return what this version of RabbitMQ needs for the first route."""
        with open_session(self.settings) as session:
            return plan(self.settings, session.native)[0].declarations()

    def close(self) -> None:
        channel = self.connection.channel()
        for route in ("orders", "second"):
            channel.queue_delete(self.queue(route))
            channel.exchange_delete(self.name(f"{route}.delay"))
        channel.queue_delete(self.name("consumer"))
        channel.exchange_delete(self.name("orders"))
        self.connection.close()


@pytest.fixture(scope="module")
def vhost(rabbitmq: RabbitMQ) -> Iterator[str]:
    """Return one for all tests here, whose names differ: creating one takes a second."""
    if not rabbitmq.owned:
        yield rabbitmq.url
        return
    with rabbitmq.vhost("topology") as url:
        yield url


@pytest.fixture
def broker(vhost: str, key_prefix: str) -> Iterator[Broker]:
    broker = Broker(vhost, key_prefix)
    yield broker
    broker.close()


class TestWhereMessagesGo:
    def test_without_a_delay_header_a_message_goes_straight_to_the_consumers(self, broker: Broker) -> None:
        consumer = broker.consumers()
        declare(broker.settings)
        broker.publish(b"plain", None)
        broker.publish(b"with others", {"eta": "2026-01-01T00:00:00Z", "x-delay-key": "k"})
        assert [broker.get(consumer), broker.get(consumer)] == [(b"plain", "new"), (b"with others", "new")]

    @pytest.mark.parametrize(
        "headers",
        [
            {"x-delay": 5000},
            {"x-delay": "5m"},
            {"x-delay": None},
            {"x-deliver-at": "2126-01-01T00:00:00Z"},
            {"x-delay-level": 3},
            {"x-delay-cancel": "order-1"},
            {"x-delay": {"not": "a delay"}},
        ],
    )
    def test_with_a_delay_header_of_any_type_a_message_goes_to_the_intake_queue_with_its_routing_key(
        self, broker: Broker, headers: dict[str, object]
    ) -> None:
        declare(broker.settings)
        broker.publish(b"delayed", headers, "any.key")
        assert broker.get(broker.queue()) == (b"delayed", "any.key")

    def test_the_header_of_a_dialect_delays_if_the_route_has_the_dialect(self, broker: Broker) -> None:
        declare(broker.route(dialects=["eta"]))
        broker.publish(b"celery", {"eta": "2126-01-01T00:00:00Z"})
        assert broker.get(broker.queue()) == (b"celery", "new")

    def test_with_the_default_exchange_as_target_all_messages_come_to_the_intake_queue(self, broker: Broker) -> None:
        declare(broker.route(deliver_to=""))
        broker.publish(b"plain", None, "some.queue")
        broker.publish(b"delayed", {"x-delay": 1}, "some.queue")
        assert [broker.get(broker.queue()), broker.get(broker.queue())] == [
            (b"plain", "some.queue"),
            (b"delayed", "some.queue"),
        ]

    def test_the_default_exchange_cannot_be_an_alternate_exchange(self, broker: Broker) -> None:
        """Why all messages go to the intake: RabbitMQ accepts the name and then drops what goes there."""
        consumer = broker.consumers()
        name = broker.name("second.delay")
        broker.channel.exchange_declare(name, "headers", durable=True, arguments={"alternate-exchange": ""})
        broker.channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError):
            broker.channel.basic_publish(name, consumer, b"lost", mandatory=True)

    def test_a_message_that_is_redelivered_often_stays_in_the_intake_queue(self, broker: Broker) -> None:
        """3.10 drops it at the first redelivery with a delivery limit of -1, and 4.3 at the 21st without a limit."""
        declare(broker.settings)
        broker.publish(b"patient", {"x-delay": 1})
        for _ in range(25):
            connection = pika.BlockingConnection(pika.URLParameters(broker.url))
            channel = connection.channel()
            received = []
            channel.basic_consume(broker.queue(), lambda *call: received.append(call))  # noqa: B023
            connection.process_data_events(time_limit=5)
            assert received
            connection.close()  # with the message unacknowledged
        assert broker.get(broker.queue())[0] == b"patient"


class TestDeclare:
    def test_declaring_twice_changes_nothing(self, broker: Broker) -> None:
        broker.consumers()
        first, warnings = declare(broker.settings)
        again, _ = declare(broker.settings)
        assert [made[1:] for made in first] == [(part, True) for part in broker.planned()]
        assert not any(new for _, _, new in again)
        assert not warnings

    def test_a_missing_target_exchange_is_a_warning_and_is_not_declared(self, broker: Broker) -> None:
        _, warnings = declare(broker.settings)
        assert len(warnings) == 1
        assert f"exchange '{broker.name('orders')}'" in warnings[0]
        assert not broker.exists("exchange", broker.name("orders"))

    def test_a_mismatch_in_the_last_declaration_leaves_nothing_declared(self, broker: Broker) -> None:
        broker.channel.exchange_declare(broker.name("second.delay"), "direct", durable=True)
        with pytest.raises(TopologyMismatch) as caught:
            declare(broker.routes(orders={}, second={}))
        assert f"exchange '{broker.name('second.delay')}' of route second exists with type 'direct'" in str(
            caught.value
        )
        assert not broker.exists("queue", broker.queue("orders"))
        assert not broker.exists("exchange", broker.name("orders.delay"))
        assert not broker.exists("queue", broker.queue("second"))

    @pytest.mark.parametrize(
        ("arguments", "has", "needs"),
        [
            ({"x-queue-type": "classic", "x-single-active-consumer": True}, "x-queue-type", "'quorum'"),
            ({"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}, "no x-single-active-consumer", "'true'"),
            ({"x-queue-type": "quorum", "x-single-active-consumer": True}, "no x-delivery-limit", "'2147483647'"),
        ],
    )
    def test_a_queue_with_another_argument_is_refused_and_the_argument_is_named(
        self, broker: Broker, arguments: dict[str, Any], has: str, needs: str
    ) -> None:
        # RabbitMQ names one difference, and x-overflow first.
        broker.channel.queue_declare(
            broker.queue(), durable=True, arguments={**arguments, "x-overflow": "reject-publish"}
        )
        with pytest.raises(TopologyMismatch) as caught:
            declare(broker.settings)
        text = str(caught.value)
        assert f"queue '{broker.queue()}' of route orders exists with {has}" in text
        assert f"postdate needs {needs}" in text

    def test_one_error_names_all_mismatches(self, broker: Broker) -> None:
        declare(broker.settings)
        with pytest.raises(TopologyMismatch) as caught:
            declare(broker.route(queue_type="classic", deliver_to="elsewhere"))
        assert len(str(caught.value).splitlines()) == 3
        assert str(caught.value).endswith(".\nNothing was changed")

    def test_a_missing_right_to_configure_is_an_error_that_names_the_resource(
        self, broker: Broker, own_rabbitmq: RabbitMQ
    ) -> None:
        route = {"intercept": broker.name("orders.delay"), "deliver_to": "x", "queue": broker.queue()}
        with own_rabbitmq.user(broker.prefix, "secret", "topology", ("^$", ".*", ".*")) as url:
            settings = load(None, {}, {"rabbitmq.url": url.replace("@", ":secret@"), "routes.orders": route})
            with pytest.raises(Refused) as caught:
                declare(settings)
        assert not isinstance(caught.value, TopologyMismatch)
        assert f"queue '{broker.queue()}'" in str(caught.value)
        assert "secret" not in str(caught.value)


class TestVerify:
    def test_it_changes_nothing(self, broker: Broker) -> None:
        states = [finding.state for finding in verify(broker.settings)]
        named = [part for part in broker.planned() if not isinstance(part, Binding)]
        assert states == [Standing.MISSING] * (len(named) + 1), "and the target"
        assert not broker.exists("queue", broker.queue())
        assert not broker.exists("exchange", broker.name("orders.delay"))

    def test_verify_tells_equal_from_different_declarations(self, broker: Broker) -> None:
        broker.consumers()
        declare(broker.settings)
        assert {finding.state for finding in verify(broker.settings)} == {Standing.SAME}
        states = {finding.declaration.name: finding.state for finding in verify(broker.route(order="none"))}
        assert states[broker.queue()] is Standing.DIFFERENT
        assert states[broker.name("orders.delay")] is Standing.SAME


class TestUnreachable:
    def test_a_broker_that_does_not_answer_is_unavailable(self) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{free_ports(1)[0]}/%2F"
        settings = load(None, {}, {"rabbitmq.url": url, "routes.o": {"intercept": "o.delay", "deliver_to": "o"}})
        with pytest.raises(BrokerUnavailable, match="Connection refused"):
            verify(settings)

    def test_a_wrong_password_is_named_and_not_shown(self, broker: Broker) -> None:
        url = broker.url.replace("guest:guest", "guest:sesame")
        with pytest.raises(BrokerUnavailable) as caught:
            verify(load(None, {}, {"rabbitmq.url": url, "routes.o": {"intercept": "o.delay", "deliver_to": "o"}}))
        assert "refuses the user or the password" in str(caught.value)
        assert "sesame" not in str(caught.value)

    def test_a_missing_virtual_host_is_named(self, broker: Broker) -> None:
        url = f"{broker.url.rpartition('/')[0]}/nowhere"
        with pytest.raises(BrokerUnavailable, match="nowhere"):
            verify(load(None, {}, {"rabbitmq.url": url, "routes.o": {"intercept": "o.delay", "deliver_to": "o"}}))
