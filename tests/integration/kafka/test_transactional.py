"""The transactional way out at a broker: aborted records stay unseen, and no record is delivered by two sessions."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.producer.sender import EndTxnHandler

from adapters.kafka.client import new_transactional_producer
from adapters.kafka.delivered import DeliveredKeys
from adapters.kafka.raw.record import Record
from adapters.kafka.transaction import ShardSession
from bridge.core.message import Claim
from bridge.core.ports import Result
from bridge.settings import Kafka
from tests.integration.kafka.rig import NOT_TEXT, ODD_RECORDS, Sink, Topics, claim, to, until

pytestmark = pytest.mark.kafka


def letter(number: int, record: Record | None = None, route: str = "orders") -> Claim:
    """A claim of shard 0."""
    made = claim(number, record or Record(0, 1_700_000_000_000, b"k", b"%d" % number, []), route)
    return replace(made, public_id=b"%018d00" % number)


def expired(number: int) -> Claim:
    """A claim that another instance may have by now."""
    return replace(letter(number), lease_ends=time.monotonic())


def words(results: list[Result[Claim]]) -> list[str]:
    """Outcome, or reason of the refusal."""
    return [result.refusal.reason.kind if result.refusal else result.outcome.value for result in results]


def opened(topics: Topics, topic: str, **outs: Any) -> Sink:
    """A sink with a transactional route to a topic."""
    routes = {"orders": to(topic, transactional=True), **outs}
    return Sink(topics, routes, timestamp="original", group=topics.name("group"))


@pytest.fixture
async def topic(topics: Topics) -> str:
    """The consumers' topic; the marker topic is there, too."""
    await topics.make("group.released")
    return await topics.make("target")


async def values(topics: Topics, topic: str, count: int) -> list[bytes | None]:
    return [record.value for record in await topics.read(topic, count)]


async def test_every_odd_record_arrives_byte_for_byte(topics: Topics, topic: str) -> None:
    async with opened(topics, topic) as sink:
        results = await sink.publish(*(letter(number, record) for number, record in enumerate(ODD_RECORDS)))
    assert words(results) == ["confirmed"] * len(ODD_RECORDS)
    assert await topics.read(topic, len(ODD_RECORDS)) == ODD_RECORDS


async def test_a_header_name_that_is_not_utf8_arrives_unchanged(topics: Topics, topic: str) -> None:
    async with opened(topics, topic) as sink:
        assert words(await sink.publish(letter(1, NOT_TEXT))) == ["confirmed"]
    assert await topics.read_raw(topic, 0) == NOT_TEXT


async def test_a_later_session_confirms_what_an_earlier_one_delivered_without_sending_it(
    topics: Topics, topic: str
) -> None:
    async with opened(topics, topic) as sink:
        assert words(await sink.publish(letter(1), letter(2))) == ["confirmed"] * 2
    for again in range(2):
        async with opened(topics, topic) as sink:
            assert words(await sink.publish(letter(1), letter(3 + again))) == ["confirmed"] * 2
    assert await values(topics, topic, 4) == [b"1", b"2", b"3", b"4"]


async def test_a_commit_whose_answer_is_lost_is_found_by_the_next_session(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(topics, topic) as sink:
        await sink.publish(letter(0))
        with monkeypatch.context() as patched:
            # The answer to the commit is dropped with its connection.
            def lost(handler: EndTxnHandler, _: Any) -> None:
                raise RuntimeError("no answer")

            patched.setattr(EndTxnHandler, "handle_response", lost)
            assert words(await sink.publish(letter(1))) == ["unknown"]
        assert words(await sink.publish(letter(1), letter(2))) == ["confirmed"] * 2
    assert await values(topics, topic, 3) == [b"0", b"1", b"2"]


async def test_a_session_whose_commit_was_sent_twice_delivers_nothing_more(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle_response, ends = EndTxnHandler.handle_response, 0

    def again(handler: EndTxnHandler, response: Any) -> Any:
        nonlocal ends
        ends += 1
        return 0.01 if ends == 1 else handle_response(handler, response)

    async with opened(topics, topic) as sink:
        await sink.publish(letter(0))
        (shard,) = sink.sink._transactions._shards.values()  # type: ignore[union-attr]
        before = shard._session
        monkeypatch.setattr(EndTxnHandler, "handle_response", again)
        assert words(await sink.publish(letter(1))) == ["confirmed"]
        assert words(await sink.publish(letter(2))) == ["confirmed"]
        assert ends == 4, "two ends of the first, an empty marker, the second"
        assert shard._session is not before
    assert await values(topics, topic, 3) == [b"0", b"1", b"2"]


async def test_a_fenced_session_delivers_nothing_and_the_next_one_delivers_it_once(topics: Topics, topic: str) -> None:
    async with opened(topics, topic) as first, opened(topics, topic) as second:
        assert words(await first.publish(letter(1))) == ["confirmed"]
        assert words(await second.publish(letter(2))) == ["confirmed"]
        assert words(await first.publish(expired(3))) == ["unknown"]
        assert words(await second.publish(letter(3))) == ["confirmed"]
        assert words(await first.publish(letter(3), letter(2))) == ["confirmed"] * 2
        assert words(await second.publish(expired(4))) == ["unknown"]
    assert await values(topics, topic, 3) == [b"1", b"2", b"3"]


async def test_a_shard_that_comes_back_from_another_instance_keeps_its_order(topics: Topics, topic: str) -> None:
    async with opened(topics, topic) as first, opened(topics, topic) as second:
        for number in range(0, 8, 2):
            sink = (first, second)[number // 2 % 2]
            # Whichever was the last to write is fenced off first; what has no answer is published again.
            for later in (number, number + 1):
                while words(await sink.publish(letter(later))) != ["confirmed"]:
                    pass
    assert await values(topics, topic, 8) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize(("while_it_begins", "tries"), [(True, 1), (False, 2)])
async def test_two_instances_that_fence_each_other_come_to_an_end(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch, while_it_begins: bool, tries: int
) -> None:
    begin, begun = ShardSession.begin, 0

    async def fenced(session: ShardSession, rules: Kafka, delivered: DeliveredKeys) -> None:
        nonlocal begun
        begun += 1
        if not while_it_begins:
            await begin(session, rules, delivered)
        rival = new_transactional_producer(rules, f"{session._markers.topic}.0", 10_000)
        await rival.start()
        await rival.stop()
        if while_it_begins:
            await begin(session, rules, delivered)

    async with opened(topics, topic) as sink:
        with monkeypatch.context() as patched:
            patched.setattr(ShardSession, "begin", fenced)
            assert words(await sink.publish(letter(1), letter(2))) == ["unknown"] * 2
        assert begun == tries
        assert sink.health.sentence() == "All well."
        assert words(await sink.publish(letter(1), letter(2))) == ["confirmed"] * 2
    assert await values(topics, topic, 2) == [b"1", b"2"]


async def test_a_transaction_that_was_left_open_is_aborted_and_its_records_stay_unseen(
    topics: Topics, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: AIOKafkaProducer) -> None:
        raise RuntimeError("it stops before the commit")

    async with opened(topics, topic) as sink:
        await sink.publish(letter(0))
        with monkeypatch.context() as patched:
            patched.setattr(AIOKafkaProducer, "commit_transaction", never)
            assert words(await sink.publish(letter(1), letter(2))) == ["unknown"] * 2
        assert words(await sink.publish(letter(2), letter(3))) == ["confirmed"] * 2
    assert await values(topics, topic, 3) == [b"0", b"2", b"3"]


async def test_one_record_that_is_too_large_is_refused_and_the_others_of_its_transaction_come_once(
    topics: Topics, topic: str
) -> None:
    small = await topics.make("small", config={"max.message.bytes": "60000"})
    letters = [letter(number) for number in range(9)]
    letters[3] = letter(3, Record(0, 1_700_000_000_000, b"k", os.urandom(100_000), []))
    async with opened(topics, small) as sink:
        assert words(await sink.publish(*letters)) == [*["confirmed"] * 3, "too_large", *["confirmed"] * 5]
    assert set(await values(topics, small, 8)) == {b"%d" % number for number in range(9) if number != 3}


async def test_without_a_marker_topic_nothing_is_tried_and_health_says_what_to_do(topics: Topics) -> None:
    topic = await topics.make("target")
    async with opened(topics, topic) as sink:
        (result,) = await sink.publish(letter(1))
        assert words([result]) == ["not_known"]
        assert result.refusal
        assert result.refusal.again_ms == 1000
        assert "Run `postdate setup`" in sink.health.sentence()
        await topics.make("group.released")
        while words(await sink.publish(letter(1))) != ["confirmed"]:
            pass
        await until(lambda: sink.health.sentence() == "All well.", "health remembers it")
    assert await values(topics, topic, 1) == [b"1"]


async def test_plain_and_transactional_routes_share_a_sink(topics: Topics, topic: str) -> None:
    other = await topics.make("plain")
    async with opened(topics, topic, plain=to(other)) as sink:
        mixed = [letter(number, route="plain" if number % 2 else "orders") for number in range(20)]
        assert words(await sink.publish(*mixed)) == ["confirmed"] * 20
    assert await values(topics, topic, 10) == [b"%d" % number for number in range(0, 20, 2)]
    assert await values(topics, other, 10) == [b"%d" % number for number in range(1, 20, 2)]


async def test_a_message_for_several_destinations_is_known_for_each_one_on_its_own(topics: Topics, topic: str) -> None:
    other = await topics.make("other")
    lanes = {"orders/1": to(other, transactional=True)}
    async with opened(topics, topic, **lanes) as sink:
        assert words(await sink.publish(letter(1))) == ["confirmed"]
    async with opened(topics, topic, **lanes) as sink:
        both = [letter(1), letter(1, route="orders/1"), letter(2), letter(2, route="orders/1")]
        assert words(await sink.publish(*both)) == ["confirmed"] * 4
    assert await values(topics, topic, 2) == [b"1", b"2"]
    assert await values(topics, other, 2) == [b"1", b"2"]
