"""The bridge for one run: its settings, its usage of the machine, and what happens if it cannot clean up."""

from __future__ import annotations

import os
import socket
import sys
import tempfile

import pytest
from aiokafka.errors import KafkaError, NodeNotReadyError, TopicAuthorizationFailedError
from pydantic import SecretStr

from adapters.kafka.access import trial_errors
from bridge.core.errors import BrokerUnavailable, PostdateError, Refused, StoreUnavailable
from bridge.lab.load_runner import ProgressBar
from bridge.lab.machine import command_of, listening_pid, usage_of
from bridge.lab.trial import ROUTE, broker_kind, deleting, new_names, trial_settings
from bridge.process.handover import Handover, packed
from bridge.settings import Kafka, Settings, load
from bridge.settings.process_plan import store_of


def handed(settings: Settings) -> Settings:
    """The settings as the bridge of a run gets them."""
    with tempfile.TemporaryFile() as file:
        file.write(packed(settings))
        file.seek(0)
        found: Settings = Handover(file.fileno()).first()
    return found


def test_the_bridge_gets_the_same_settings_with_secrets() -> None:
    users = load(
        None,
        {},
        {
            "redis.password": 'p"a\\s\x7f\ns ü',
            "redis.shards": 3,
            "headers.levels": "1s,90s",
            "routes.mine.intercept": "mine.delay",
            "routes.mine.deliver_to": "mine",
        },
    )
    own = trial_settings(users, new_names("test"), bridge={"workers": 1})
    again = handed(own)
    assert again.model_dump() == own.model_dump()
    assert again.redis.password == SecretStr('p"a\\s\x7f\ns ü')
    assert list(again.routes) == [ROUTE]


def test_a_run_has_one_route_with_unique_names_and_keys() -> None:
    first, second = new_names("demo"), new_names("demo")
    assert not set(vars(first).values()) & set(vars(second).values())
    own = trial_settings(load(None, {}, {"bridge.setup": False}), first)
    assert list(own.routes) == [ROUTE]
    assert own.redis.key_prefix == first.prefix
    assert own.bridge.setup


def test_on_kafka_a_run_has_its_own_topics_and_group() -> None:
    names = new_names("bench", "kafka")
    own = trial_settings(load(None, {}, {"kafka.group": "users"}), names, broker="kafka")
    assert broker_kind(own) == "kafka"
    assert (own.routes[ROUTE].intercept, own.routes[ROUTE].deliver_to) == (names.front, names.target)
    assert own.kafka.group == names.prefix
    assert store_of(own, "kafka").settings.redis.key_prefix.startswith(names.prefix)


def test_a_run_has_no_journal_because_the_users_belongs_to_another_store() -> None:
    users = load(None, {}, {"journal.url": "sqlite:////tmp/journal.db", "journal.cold_after": "1d"})
    assert trial_settings(users, new_names("bench")).journal == Settings().journal


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_usage_is_known_for_a_running_process_and_none_for_an_ended_one() -> None:
    used = usage_of(os.getpid())
    assert used.bytes is not None
    assert used.bytes > 1_000_000
    assert used.cpu_s is not None
    assert used.cpu_s > 0
    assert usage_of(2**22 + 1) == (None, None)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_the_process_behind_a_port_is_found_while_it_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pid(port) == os.getpid()
    assert listening_pid(port) is None
    assert command_of(os.getpid()) != ""
    assert command_of(2**22 + 1) == ""


# -- cleaning up -------------------------------------------------------------------------------------------------------

NAME = "postdate.compare.ttl.1a2b3c"


def refuse() -> None:
    raise Refused("RabbitMQ does not allow it")


def broker_away() -> None:
    raise BrokerUnavailable("RabbitMQ does not answer")


def store_away() -> None:
    raise StoreUnavailable("Redis does not answer")


def test_the_final_error_ends_with_what_may_remain_where_and_how_to_delete_it() -> None:
    bar = ProgressBar(2)
    bar.step("ttl, flood", 10)
    places = deleting("rabbitmq", NAME, broker_away), deleting("redis", NAME, store_away)
    with pytest.raises(BrokerUnavailable) as caught, places[0], places[1], bar.naming_steps():
        raise BrokerUnavailable("RabbitMQ does not answer (Connection reset by peer)")
    text = str(caught.value)
    assert text.startswith(
        "At the step 'ttl, flood': RabbitMQ does not answer (Connection reset by peer). Objects named"
    )
    assert f"Objects named {NAME}... may remain on RabbitMQ" in text
    assert "rabbitmqctl delete_queue" in text
    assert f"redis-cli --scan --pattern '{{{NAME}*'" in text


def test_a_successful_run_that_cannot_clean_up_ends_with_that_error() -> None:
    with pytest.raises(Refused, match=r"Objects named .* remain on RabbitMQ"), deleting("rabbitmq", NAME, refuse):
        pass


def test_an_interrupt_stays_an_interrupt_and_remaining_objects_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), deleting("kafka", NAME, broker_away):
        raise KeyboardInterrupt
    assert f"Objects named {NAME}... may remain on Kafka" in capsys.readouterr().err


def test_a_successful_cleanup_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PostdateError, match=r"^lost$"), deleting("rabbitmq", NAME, lambda: None):
        raise PostdateError("lost")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "kind"), [(TopicAuthorizationFailedError(), Refused), (NodeNotReadyError(), BrokerUnavailable)]
)
def test_missing_rights_on_kafka_end_a_run_with_refused(error: KafkaError, kind: type[PostdateError]) -> None:
    with pytest.raises(kind), trial_errors(Kafka(sasl_username="lame")):
        raise error
