"""postdate detects, reports and replaces a hanging consumer and a producer without answers."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.errors import KafkaError

from adapters.kafka import sink as sink_module
from adapters.kafka import source as source_module
from adapters.kafka import watchdog
from adapters.kafka.client import new_consumer
from adapters.kafka.raw.record import Record
from bridge.core.message import Outcome
from bridge.settings import Kafka
from bridge.telemetry.subject import Subject
from tests.devstack.proxy import ThreadedProxy
from tests.integration.kafka.rig import Sink, Source, Topics, claim, to, until

pytestmark = pytest.mark.kafka

#: As much as a client may need that notices by itself when it waits for an answer that never comes.
RECOVERY_S = 15.0


def small(number: int) -> Record:
    return Record(0, 1_700_000_000_000, b"k", b"%d" % number, [])


class Consumers:
    """The consumers that a source has made, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[AIOKafkaConsumer] = []
        monkeypatch.setattr(source_module, "new_consumer", self._make)

    def _make(self, rules: Kafka) -> AIOKafkaConsumer:
        self.made.append(new_consumer(rules))
        return self.made[-1]


class Brokers:
    """Whether the brokers answer, for a source."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there = False
        monkeypatch.setattr(source_module, "answers", self._answer)

    async def _answer(self, *_: object) -> bool:
        return self.there


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks that come more often than in earnest; a broker with nothing to say says so after half a second."""
    monkeypatch.setattr(source_module, "_WATCH_S", 1.0)
    monkeypatch.setattr(sink_module, "_ASK_S", 1.0)
    monkeypatch.setattr(watchdog, "_QUIET_S", 1.5)


@pytest.mark.usefixtures("quick")
async def test_a_hanging_consumer_is_reported_and_replaced(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = Consumers(monkeypatch)
    topic = await topics.make("intake")
    async with Source(topics, topic, [topic]) as source:
        await topics.write(topic, [small(0)])
        await source.take(1)
        said: list[str] = []
        say = source.health.say

        def overheard(subject: Subject, text: str, for_s: float = float("inf")) -> None:
            said.append(text)
            say(subject, text, for_s)

        monkeypatch.setattr(source.health, "say", overheard)
        # As it hangs in the field: its fetching ends without an error, and all else goes on.
        fetcher = consumers.made[0]._fetcher
        fetcher._fetch_task.cancel()
        await until(lambda: not fetcher._in_flight, "its last request has no answer")
        await topics.write(topic, [small(1)])
        (delivery,) = await source.take(1)
        assert delivery.payload.endswith(b"1")
        assert len(consumers.made) == 2
        words = "nothing is taken from Kafka: records are waiting and the consumer fetches none. postdate replaces it"
        assert [text for text in said if text] == [words]
        await until(lambda: source.health.sentence() == "All well.", source.health.sentence())


async def test_a_consumer_that_follows_one_that_could_not_leave_joins_without_waiting_for_its_session(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer(coordinator: GroupCoordinator) -> None:
        coordinator.reset_generation()

    consumers = Consumers(monkeypatch)
    topic = await topics.make("intake")
    async with Source(topics, topic, [topic], session_timeout="30s") as source:
        await topics.write(topic, [small(0)])
        await source.take(1)
        with monkeypatch.context() as patched:
            patched.setattr(GroupCoordinator, "_maybe_leave_group", no_answer)
            consumers.made[0]._coordinator._pending_exception = KafkaError("away")
            await until(lambda: len(consumers.made) == 2, "the consumer is not replaced")
        await topics.write(topic, [small(1)])
        begun = time.monotonic()
        (delivery,) = await source.take(1)
        assert delivery.payload.endswith(b"1")
        assert time.monotonic() - begun < 5.0, "the group waits up to 8 s for a member that does not come"


@pytest.mark.usefixtures("quick")
async def test_a_single_partition_that_hangs_is_detected_too(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = Consumers(monkeypatch)
    monkeypatch.setattr(watchdog, "_PATIENCE_S", 3.0)
    topic = await topics.make("intake", partitions=2)
    async with Source(topics, topic, [topic]) as source:
        await topics.write(topic, [small(0), small(0)._replace(partition=1)])
        await source.take(2)
        fetcher = consumers.made[0]._fetcher
        select = fetcher._select_read_replica
        # It believes that it has asked somebody for this partition, and waits for the answer.
        fetcher._in_flight.add("nobody")
        fetcher._select_read_replica = lambda place: "nobody" if place.partition == 1 else select(place)
        await topics.write(topic, [small(9)])
        await source.take(1)
        await topics.write(topic, [small(1)._replace(partition=1)])
        values: list[bytes] = []
        number = 2
        while len(consumers.made) == 1:
            await topics.write(topic, [small(number)])
            values += [delivery.payload[-1:] for delivery in await source.take(1)]
            number += 1
        while b"1" not in values:
            values += [delivery.payload[-1:] for delivery in await source.take(1)]


@pytest.mark.usefixtures("quick")
async def test_an_idle_consumer_is_left_alone(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = Consumers(monkeypatch)
    looks: list[Any] = []
    look = watchdog.ConsumerWatchdog.look

    async def counted(self: watchdog.ConsumerWatchdog, took_at: float) -> None:
        await look(self, took_at)
        looks.append(took_at)

    monkeypatch.setattr(watchdog.ConsumerWatchdog, "look", counted)
    topic = await topics.make("intake", partitions=3)
    async with Source(topics, topic, [topic]) as source:
        await topics.write(topic, [small(0)])
        await source.take(1, accept=False)
        await until(lambda: len(looks) > 3, "no looks")
        assert len(consumers.made) == 1


@pytest.mark.usefixtures("quick")
async def test_removed_partitions_do_not_replace_the_consumer_and_a_narrower_topic_is_read_at_once(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumers = Consumers(monkeypatch)
    topic = await topics.make("intake", partitions=3)
    beside = await topics.make("beside")
    async with Source(topics, topic, [topic, beside]) as source:
        await topics.write(topic, [small(0)._replace(partition=number) for number in range(3)])
        await source.take(3)
        await topics.delete("intake")
        await until(lambda: "it does not exist" in source.health.sentence(), "health reports the missing topic")
        for _ in range(20):
            await topics.write(beside, [small(1)])
            await source.take(1)
        await topics.make("intake", partitions=1)
        made = time.monotonic()
        await topics.write(topic, [small(2)])
        assert [delivery.payload[-1:] for delivery in await source.take(1)] == [b"2"]
        assert time.monotonic() - made < RECOVERY_S / 2
        assert len(consumers.made) == 1


async def test_a_drained_topic_that_is_deleted_is_missed_without_waiting_for_an_ordinary_look(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_WATCH_S", 600.0)
    topic = await topics.make("intake")
    async with Source(topics, topic, [topic]) as source:
        await topics.write(topic, [small(0)])
        await source.take(1)
        await topics.delete("intake")
        await until(lambda: "it does not exist" in source.health.sentence(), "health reports the missing topic")


async def test_brokers_that_answer_again_are_found_sooner_than_by_an_ordinary_look(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await topics.make("intake")
    async with Source(topics, topic, [topic]) as source:
        brokers = Brokers(monkeypatch)
        await until(lambda: "nothing is taken from Kafka" in source.health.sentence(), source.health.sentence())
        brokers.there, healed = True, time.monotonic()
        await until(lambda: source.health.sentence() == "All well.", source.health.sentence())
        assert time.monotonic() - healed < source_module._WATCH_S - 1


@pytest.mark.usefixtures("quick")
async def test_after_an_outage_a_new_consumer_says_that_it_joins_its_group(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await topics.make("intake")
    async with Source(topics, topic, [topic]) as source:
        brokers = Brokers(monkeypatch)
        await until(lambda: "no broker of" in source.health.sentence(), source.health.sentence())
        await until(lambda: "the consumer joins its group again" in source.health.sentence(), source.health.sentence())
        brokers.there = True
        await until(lambda: source.health.sentence() == "All well.", source.health.sentence())
        await topics.write(topic, [small(0)])
        await source.take(1)


@pytest.mark.usefixtures("quick")
async def test_a_client_without_answers_reports_it_and_recovers_by_itself(
    topics: Topics, kafka_link: ThreadedProxy
) -> None:
    topic = await topics.make("both")
    url = f"127.0.0.1:{kafka_link.port}"
    outs = {"orders": to(topic)}
    rules = {"bootstrap_servers": url, "confirm_timeout": "2s"}
    async with (
        Sink(topics, outs, **rules) as sink,
        Source(topics, topic, [topic], session_timeout="2s", **rules) as source,
    ):
        assert [result.outcome for result in await sink.publish(claim(0, small(0)))] == [Outcome.CONFIRMED]
        await source.take(1)
        # What they say is heard, and what they are told is thrown away.
        kafka_link.swallow("down")
        (result,) = await sink.publish(claim(1, small(1)))
        assert result.outcome is Outcome.UNKNOWN
        await until(lambda: "nothing is taken from Kafka" in source.health.sentence(), source.health.sentence())
        await until(lambda: "nothing can be published to Kafka" in sink.health.sentence(), sink.health.sentence())
        kafka_link.heal()
        healed = time.monotonic()
        await until(sink.sink.able, sink.health.sentence())
        assert [found.outcome for found in await sink.publish(claim(2, small(2)))] == [Outcome.CONFIRMED]
        values = [delivery.payload[-1:] for delivery in await source.take(2)]
        assert values == [b"1", b"2"]
        assert time.monotonic() - healed < RECOVERY_S
        await until(lambda: source.health.sentence() == "All well.", source.health.sentence())
