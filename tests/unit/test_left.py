"""What is said when a run of `demo`, `bench` or `compare` cannot clear away what it has put on a broker."""

from __future__ import annotations

import pytest
from aiokafka.errors import KafkaError, NodeNotReadyError, TopicAuthorizationFailedError

from adapters.kafka.access import trial_errors
from bridge.core.errors import BrokerUnavailable, PostdateError, Refused, StoreUnavailable
from bridge.lab.bar import Bar
from bridge.lab.cleanup import cleared
from bridge.settings import Kafka

NAME = "postdate.compare.ttl.1a2b3c"


def refuse() -> None:
    raise Refused("RabbitMQ does not allow it")


def find_nobody() -> None:
    raise BrokerUnavailable("RabbitMQ does not answer")


def find_no_store() -> None:
    raise StoreUnavailable("Redis does not answer")


def test_the_error_that_ends_a_run_says_last_what_may_be_left_where_and_how_to_remove_it() -> None:
    bar = Bar(2)
    bar.step("ttl, flood", 10)
    places = cleared("rabbitmq", NAME, find_nobody), cleared("redis", NAME, find_no_store)
    with pytest.raises(BrokerUnavailable) as told, places[0], places[1], bar.named():
        raise BrokerUnavailable("RabbitMQ does not answer (Connection reset by peer)")
    said = str(told.value)
    assert said.startswith(
        "At the step 'ttl, flood': RabbitMQ does not answer (Connection reset by peer). Things named"
    )
    assert f"Things named {NAME}... may be left on RabbitMQ" in said
    assert "rabbitmqctl delete_queue" in said
    assert f"redis-cli --scan --pattern '{{{NAME}*'" in said


def test_a_run_that_went_well_and_cannot_clear_up_ends_with_the_error() -> None:
    with pytest.raises(Refused, match=r"Things named .* are left on RabbitMQ"), cleared("rabbitmq", NAME, refuse):
        pass


def test_an_interrupt_stays_one_and_what_is_left_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), cleared("kafka", NAME, find_nobody):
        raise KeyboardInterrupt
    assert f"Things named {NAME}... may be left on Kafka" in capsys.readouterr().err


def test_nothing_is_said_of_what_was_cleared_away(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PostdateError, match=r"^lost$"), cleared("rabbitmq", NAME, lambda: None):
        raise PostdateError("lost")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "kind"), [(TopicAuthorizationFailedError(), Refused), (NodeNotReadyError(), BrokerUnavailable)]
)
def test_a_lack_of_rights_on_kafka_ends_a_run_as_not_allowed(error: KafkaError, kind: type[PostdateError]) -> None:
    with pytest.raises(kind), trial_errors(Kafka(sasl_username="lame")):
        raise error
