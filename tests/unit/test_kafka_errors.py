"""What health says when a request to Kafka fails: plain words first, aiokafka's own text behind them."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
)

from adapters.kafka.access import broker_errors
from bridge.core.errors import BrokerUnavailable
from bridge.settings import Kafka

WHERE = "a:9092,b:9092"
NOT_READY = "Attempt to send a request to node which is not ready (node id 2)"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NodeNotReadyError(f"{NOT_READY}."), f"broker 2 of {WHERE} does not answer (NodeNotReadyError: {NOT_READY})"),
        (RequestTimedOutError(), f"a broker of {WHERE} does not answer ([Error 7] RequestTimedOutError)"),
        (NotCoordinatorForGroupError(), "[Error 16] NotCoordinatorForGroupError"),
        (KafkaConnectionError("Connection at b:9092 closed"), "the broker at b:9092 does not answer"),
        (KafkaConnectionError("Unable to bootstrap from [('a', 9092, 0)]"), f"no broker of {WHERE} answers"),
        (TimeoutError(), f"a broker of {WHERE} does not answer in time"),
    ],
)
def test_a_broker_that_is_away_is_named_before_the_text_of_the_library(error: Exception, words: str) -> None:
    with pytest.raises(BrokerUnavailable) as caught, broker_errors(Kafka(bootstrap_servers=WHERE)):
        raise error
    assert str(caught.value) == words


async def test_a_client_that_cancels_itself_is_a_broker_that_is_away_also_around_a_loop_of_its_own() -> None:
    async def stops_itself() -> None:
        raise asyncio.CancelledError

    def in_a_thread() -> None:
        with broker_errors(Kafka(bootstrap_servers=WHERE)):
            asyncio.run(stops_itself())

    with pytest.raises(BrokerUnavailable):
        await asyncio.to_thread(in_a_thread)
    with pytest.raises(BrokerUnavailable), broker_errors(Kafka(bootstrap_servers=WHERE)):
        await stops_itself()
