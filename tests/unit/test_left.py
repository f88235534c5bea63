"""What is said when a run of `demo`, `bench` or `compare` cannot clear away what it has put on a broker."""

from __future__ import annotations

import pytest
from aiokafka.errors import KafkaError, NodeNotReadyError, TopicAuthorizationFailedError

from adapters.kafka.access import trial_errors
from bridge.core.errors import BrokerUnavailable, PostdateError, Refused, StoreUnavailable
from bridge.lab.load_runner import ProgressBar
from bridge.lab.trial import deleting
from bridge.settings import Kafka

NAME = "postdate.compare.ttl.1a2b3c"


def refuse() -> None:
    raise Refused("RabbitMQ does not allow it")


def find_nobody() -> None:
    raise BrokerUnavailable("RabbitMQ does not answer")


def find_no_store() -> None:
    raise StoreUnavailable("Redis does not answer")


def test_the_error_that_ends_a_run_says_last_what_may_be_left_where_and_how_to_remove_it() -> None:
    bar = ProgressBar(2)
    bar.step("ttl, flood", 10)
    places = deleting("rabbitmq", NAME, find_nobody), deleting("redis", NAME, find_no_store)
    with pytest.raises(BrokerUnavailable) as told, places[0], places[1], bar.naming_steps():
        raise BrokerUnavailable("RabbitMQ does not answer (Connection reset by peer)")
    said = str(told.value)
    assert said.startswith(
        "At the step 'ttl, flood': RabbitMQ does not answer (Connection reset by peer). Objects named"
    )
    assert f"Objects named {NAME}... may remain on RabbitMQ" in said
    assert "rabbitmqctl delete_queue" in said
    assert f"redis-cli --scan --pattern '{{{NAME}*'" in said


def test_a_run_that_went_well_and_cannot_clear_up_ends_with_the_error() -> None:
    with pytest.raises(Refused, match=r"Objects named .* remain on RabbitMQ"), deleting("rabbitmq", NAME, refuse):
        pass


def test_an_interrupt_stays_one_and_what_is_left_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), deleting("kafka", NAME, find_nobody):
        raise KeyboardInterrupt
    assert f"Objects named {NAME}... may remain on Kafka" in capsys.readouterr().err


def test_nothing_is_said_of_what_was_cleared_away(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PostdateError, match=r"^lost$"), deleting("rabbitmq", NAME, lambda: None):
        raise PostdateError("lost")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "kind"), [(TopicAuthorizationFailedError(), Refused), (NodeNotReadyError(), BrokerUnavailable)]
)
def test_a_lack_of_rights_on_kafka_ends_a_run_as_not_allowed(error: KafkaError, kind: type[PostdateError]) -> None:
    with pytest.raises(kind), trial_errors(Kafka(sasl_username="lame")):
        raise error
