"""The Kafka source at a broker: nothing is lost or changed, and only accepted records are committed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from adapters.kafka.raw.record import Record, topic_of, unpack
from bridge.core.message import Delivery
from tests.integration.kafka.rig import DEADLINE_S, NOT_TEXT, ODD_RECORDS, Source, Topics, until, until_true

pytestmark = pytest.mark.kafka

#: The members of a group wait so long for one another.
REBALANCE_S = 8.0


async def test_every_odd_record_is_handed_over_byte_for_byte(topics: Topics) -> None:
    topic = await topics.make("intake")
    await topics.write(topic, ODD_RECORDS)
    async with Source(topics, topic, [topic]) as source:
        taken = await source.take(len(ODD_RECORDS))
    assert [unpack(delivery.payload) for delivery in taken] == ODD_RECORDS
    assert [delivery.published_ms for delivery in taken] == [record.timestamp for record in ODD_RECORDS]
    assert [delivery.fault for delivery in taken] == [""] * len(ODD_RECORDS)


async def test_a_delivery_has_its_origin_and_only_the_wanted_headers(topics: Topics) -> None:
    topic = await topics.make("intake", partitions=3)
    headers = [(b"x-delay", b"1"), (b"trace", b"2"), (b"x-delay", b"60000")]
    await topics.write(topic, [Record(2, 1_700_000_000_000, b"k", b"v", list(headers))] * 2)
    async with Source(topics, topic, [topic]) as source:
        first, second = await source.take(2)
    place = f"{topic}/2".encode()
    assert (first.route, first.order_key, first.headers, first.message_id) == (
        topic,
        place,
        {"x-delay": b"60000"},
        None,
    )
    assert first.origin is not None
    log = first.origin[0]
    assert log.endswith(b"/2")
    assert [first.origin, second.origin] == [(log, 0), (log, 1)]


async def test_a_recreated_topic_is_another_origin(topics: Topics) -> None:
    """Its offsets begin again, and must not pass for those that were read already."""
    topic = await topics.make("intake")
    await topics.write_many(topic, 1, 20)
    async with Source(topics, topic, [topic]) as source:
        before = {delivery.origin for delivery in await source.take(20)}
        await topics.delete("intake")
        await topics.make("intake")
        await topics.write_many(topic, 1, 10)
        after = await source.take(10)
    assert [int(unpack(d.payload).value or b"") for d in after] == list(range(10))
    assert not before & {delivery.origin for delivery in after}


async def test_records_accepted_out_of_order_are_committed_up_to_the_first_gap(topics: Topics) -> None:
    topic = await topics.make("intake")
    await topics.write_many(topic, 1, 100)
    async with Source(topics, topic, [topic]) as source:
        taken = await source.take(100, accept=False)
        source.source.accept(taken[60:])
        source.source.accept(taken[:40])

        async def forty() -> bool:
            return await topics.committed(topic, topic) == {0: 40}

        await until_true(forty, "the first 40 are not committed")
    assert await topics.committed(topic, topic) == {0: 40}
    async with Source(topics, topic, [topic]) as again:
        assert [int(unpack(d.payload).value or b"") for d in await again.take(60)] == list(range(40, 100))
    assert await topics.committed(topic, topic) == {0: 100}


VICTIM = """
import asyncio, sys
from tests.integration.kafka.rig import Source, Topics

async def main(url, topic):
    topics = Topics(url, "victim")
    async with Source(topics, topic, [topic]) as source:
        taken = await source.take(100, accept=False)
        source.source.accept(taken[:30])
        print("taken", flush=True)
        await asyncio.sleep(1000)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_records_that_a_killed_consumer_did_not_accept_are_read_again(topics: Topics) -> None:
    topic = await topics.make("intake")
    await topics.write_many(topic, 1, 100)
    victim = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, topics.url, topic, stdout=asyncio.subprocess.PIPE, env={**os.environ}
    )
    assert victim.stdout is not None
    assert await asyncio.wait_for(victim.stdout.readline(), DEADLINE_S) == b"taken\n"

    async def thirty() -> bool:
        return await topics.committed(topic, topic) == {0: 30}

    await until_true(thirty, "the first 30 are not committed")
    victim.send_signal(signal.SIGKILL)
    await victim.wait()
    async with Source(topics, topic, [topic]) as again:
        taken = await again.take(70)
    assert [delivery.origin[1] for delivery in taken if delivery.origin] == list(range(30, 100))


async def test_a_second_member_takes_over_half_and_starts_where_the_first_was(topics: Topics) -> None:
    topic = await topics.make("intake", partitions=4)
    await topics.write_many(topic, 4, 50)
    async with Source(topics, topic, [topic]) as first:
        taken = await first.take(200, accept=False)
        first.source.accept([delivery for delivery in taken if delivery.origin and delivery.origin[1] < 20])
        async with Source(topics, topic, [topic]) as second:
            await until(lambda: not any(map(first.source.alive, taken)), "the first one has lost nothing")
            halves = await asyncio.gather(second.take(60), first.take(60))
        places = [{delivery.order_key for delivery in half} for half in halves]
        assert [len(half) for half in places] == [2, 2]
        assert not places[0] & places[1]
        for half in halves:
            for place in {delivery.order_key for delivery in half}:
                offsets = [d.origin[1] for d in half if d.origin and d.order_key == place]
                assert offsets == list(range(20, 50))
        first.source.accept(taken)  # too late: they are another assignment's by now
    assert await topics.committed(topic, topic) == dict.fromkeys(range(4), 50)


@asynccontextmanager
async def shared_out_anew(topics: Topics, topic: str) -> AsyncIterator[tuple[Source, Source, list[Delivery]]]:
    """Two partitions of 50 records, all in the hands of the first of two sources, which no longer has them all."""
    await topics.write_many(topic, 2, 50)
    async with Source(topics, topic, [topic]) as first:
        held = await first.take(100, accept=False)
        async with Source(topics, topic, [topic]) as second:
            await until(lambda: not any(map(first.source.alive, held)), "the first one does not let go")
            yield first, second, held


async def test_a_rebalance_waits_for_deliveries_in_hand_and_no_other_member_reads_them(
    topics: Topics,
) -> None:
    topic = await topics.make("intake", partitions=2)
    async with shared_out_anew(topics, topic) as (first, second, held):
        first.source.accept(held)
        await topics.write_many(topic, 2, 10)
        halves = await asyncio.gather(first.take(10), second.take(10))
    for half in halves:
        assert [delivery.origin[1] for delivery in half if delivery.origin] == list(range(50, 60))
    assert await topics.committed(topic, topic) == {0: 60, 1: 60}


async def test_a_delivery_that_is_never_released_does_not_block_a_rebalance(topics: Topics) -> None:
    topic = await topics.make("intake", partitions=2)
    async with shared_out_anew(topics, topic) as (_, second, held):
        since = time.monotonic()
        taken = await second.take(50)
        assert time.monotonic() - since < REBALANCE_S
    assert {delivery.origin for delivery in taken} <= {delivery.origin for delivery in held}


@pytest.mark.parametrize("one_batch", [True, False])
async def test_a_record_that_cannot_be_decoded_is_a_fault_and_costs_no_other_a_record(
    topics: Topics, one_batch: bool
) -> None:
    topic = await topics.make("intake", partitions=4)
    for partition in range(4):
        good = [Record(partition, 1_700_000_000_000, b"k", b"%d" % number, []) for number in range(20)]
        bad = NOT_TEXT._replace(partition=partition)
        written = [*good[:10], bad, bad, *good[10:]] if partition in (1, 2) else good
        await topics.write(topic, written, one_batch)
    async with Source(topics, topic, [topic]) as source:
        taken = await source.take(84)
        for partition in range(4):
            part = [delivery for delivery in taken if delivery.order_key == f"{topic}/{partition}".encode()]
            assert [d.origin[1] for d in part if d.origin] == list(range(len(part)))
            assert len({d.origin[0] for d in part if d.origin}) == 1
            assert [unpack(d.payload).value for d in part if not d.fault] == [b"%d" % n for n in range(20)]
            faults = [unpack(d.payload) for d in part if d.fault]
            assert faults == [NOT_TEXT._replace(partition=partition)] * (2 if partition in (1, 2) else 0)
        await topics.write_many(topic, 4, 5)
        assert len(await source.take(20)) == 20
    assert await topics.committed(topic, topic) == {0: 25, 1: 27, 2: 27, 3: 25}


async def test_aborted_records_beside_an_undecodable_record_are_not_handed_over(
    topics: Topics,
) -> None:
    topic = await topics.make("in")
    producer = AIOKafkaProducer(bootstrap_servers=topics.url, transactional_id=topic)
    await producer.start()
    try:
        for value, kept in ((b"taken back", False), (b"kept", True), (b"taken back", False)):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, value, partition=0)
            await (producer.commit_transaction() if kept else producer.abort_transaction())
            await topics.write(topic, [NOT_TEXT])
    finally:
        await producer.stop()
    async with Source(topics, topic, [topic]) as source:
        values = [unpack(delivery.payload).value for delivery in await source.take(4)]
    assert values == [NOT_TEXT.value, b"kept", NOT_TEXT.value, NOT_TEXT.value]


async def transactions(topics: Topics, topic: str, kept: Sequence[bool]) -> None:
    """A transaction of one record each: the record's offset is even, and that of the marker that ends it odd."""
    producer = AIOKafkaProducer(bootstrap_servers=topics.url, transactional_id=topic)
    await producer.start()
    try:
        for number, keep in enumerate(kept):
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
            await (producer.commit_transaction() if keep else producer.abort_transaction())
    finally:
        await producer.stop()


async def test_the_group_commits_past_transaction_markers_and_aborted_records(topics: Topics) -> None:
    topic = await topics.make("intake")
    await transactions(topics, topic, [True, False, True, False, False])

    async def all_of_it() -> bool:
        return await topics.committed(topic, topic) == {0: 10}

    async with Source(topics, topic, [topic]) as source:
        taken = await source.take(2, accept=False)
        assert [unpack(delivery.payload).value for delivery in taken] == [b"0", b"2"]
        source.source.accept(taken[:1])

        async def the_first() -> bool:
            return bool(await topics.committed(topic, topic))

        await until_true(the_first, "the first record is not committed")
        assert await topics.committed(topic, topic) == {0: 1}  # the second record is not durable yet
        source.source.accept(taken[1:])
        await until_true(all_of_it, "markers and aborted records are not committed")
    assert await topics.committed(topic, topic) == {0: 10}


async def test_a_topic_with_only_aborted_records_leaves_no_lag_and_loses_nothing_later(topics: Topics) -> None:
    topic = await topics.make("intake")
    await transactions(topics, topic, [False] * 3)

    async def all_of_it() -> bool:
        return await topics.committed(topic, topic) == {0: 6}

    async with Source(topics, topic, [topic]):
        await until_true(all_of_it, "aborted records are not committed")
    await topics.remove_records(topic)
    async with Source(topics, topic, [topic]) as source:
        await topics.write_many(topic, 1, 1)
        await source.take(1)
        assert source.health.troubles() == {}


async def test_a_full_buffer_keeps_its_bounds_and_resumes_when_there_is_room(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    pause = AIOKafkaConsumer.pause

    def counted(consumer: AIOKafkaConsumer, *places: TopicPartition) -> None:
        pause(consumer, *places)
        pauses.append(len(consumer.paused()))

    monkeypatch.setattr(AIOKafkaConsumer, "pause", counted)
    topic = await topics.make("intake", partitions=2)
    await topics.write_many(topic, 2, 600)
    async with Source(topics, topic, [topic], window=100) as source:
        held = await source.take(100, accept=False)
        # The second pause comes after a poll of partitions that were paused: it brought nothing.
        await until(lambda: pauses[:2] == [2, 2], "the partitions are not paused")
        assert source.source._held.messages == 100
        source.source.accept(held)
        rest = await source.take(1100)
    offsets = sorted((d.order_key, d.origin[1]) for d in [*held, *rest] if d.origin)
    assert offsets == [(f"{topic}/{p}".encode(), n) for p in range(2) for n in range(600)]


@pytest.mark.long
async def test_a_missing_topic_is_reported_not_created_and_delays_no_other(topics: Topics) -> None:
    topic = await topics.make("there")
    missing = topics.name("later")
    await topics.write_many(topic, 1, 3)
    async with Source(topics, topic, [topic, missing]) as source:
        assert len(await source.take(3)) == 3
        await until(lambda: missing in source.health.sentence(), "nobody says that a topic is missing")
        assert source.health.sentence().startswith(f"nothing is taken from the topic {missing}: it does not exist")
        assert missing not in await topics.all()
        await topics.make("later")
        await topics.write_many(missing, 1, 2)
        assert [delivery.route for delivery in await source.take(2)] == [missing] * 2
        await until(lambda: missing not in source.health.sentence(), "it is still called missing")


async def test_a_rule_reads_every_matching_topic_including_new_ones_but_no_internal_ones(
    topics: Topics,
) -> None:
    first = await topics.make("first_offsets")
    await topics.make("other")
    await topics.write_many(first, 1, 3)
    async with Source(topics, first, ["*_offsets"], refresh="1s") as source:
        taken = await source.take(3)
        new = await topics.make("new_offsets")
        await topics.write_many(new, 1, 2)
        taken += await source.take(2)

        async def committed() -> bool:  # from now on there are records in __consumer_offsets
            return await topics.committed(first, new) == {0: 2}

        await until_true(committed, "the new topic is not committed")
        await topics.write_many(first, 1, 1)
        taken += await source.take(1)
    assert [topic_of(delivery.payload).decode() for delivery in taken] == [first] * 3 + [new] * 2 + [first]


async def commit(topics: Topics, group: str, topic: str, offset: int, note: str) -> None:
    """As somebody else in the group: he commits, and leaves."""
    consumer = AIOKafkaConsumer(bootstrap_servers=topics.url, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        await consumer.commit({place: (offset, note)})
    finally:
        await consumer.stop()


async def test_a_commit_for_an_earlier_topic_is_ignored_and_one_without_a_note_is_believed_and_reported(
    topics: Topics,
) -> None:
    topic = await topics.make("intake")
    await topics.write_many(topic, 1, 5)
    async with Source(topics, topic, [topic]) as source:
        await source.take(5)
    note = await topics.note(topic, topic)
    await topics.delete("intake")
    await topics.make("intake")
    await topics.write_many(topic, 1, 10)
    await commit(topics, topic, topic, 5, note)
    async with Source(topics, topic, [topic]) as source:
        assert [int(unpack(d.payload).value or b"") for d in await source.take(10)] == list(range(10))
    assert await topics.committed(topic, topic) == {0: 10}
    await commit(topics, topic, topic, 7, "")
    async with Source(topics, topic, [topic]) as source:
        assert [int(unpack(d.payload).value or b"") for d in await source.take(3)] == [7, 8, 9]
        said = f"the group's offset 7 of partition 0 of topic {topic} was set by another tool"
        assert said in source.health.sentence()


async def test_an_offset_set_by_another_tool_is_noted_as_this_topics_from_then_on(topics: Topics) -> None:
    topic = await topics.make("intake")
    await topics.write_many(topic, 1, 10)
    await commit(topics, topic, topic, 10, "")
    async with Source(topics, topic, [topic]):

        async def noted() -> bool:
            return (await topics.note(topic, topic)).startswith("postdate ")

        await until_true(noted, "there is no note beside the offset")
    note = await topics.note(topic, topic)
    await topics.delete("intake")
    await topics.make("intake")
    await topics.write_many(topic, 1, 15)
    await commit(topics, topic, topic, 10, note)  # which Kafka may keep, or forget with the topic
    async with Source(topics, topic, [topic]) as source:
        assert [int(unpack(d.payload).value or b"") for d in await source.take(15)] == list(range(15))


async def test_records_that_reuse_the_offsets_of_lost_ones_are_new(
    topics: Topics,
) -> None:
    """Offsets up to 15 were read, and the topic ends at 10: as after a crash of a Kafka that had not written them."""
    topic = await topics.make("intake")
    await topics.write_many(topic, 1, 10)
    async with Source(topics, topic, [topic]) as source:
        before = [delivery.origin for delivery in await source.take(10)]
    await commit(topics, topic, topic, 15, await topics.note(topic, topic))
    async with Source(topics, topic, [topic]) as source:
        assert [delivery.origin for delivery in await source.take(10, accept=False)] == before
        assert f"Kafka lost the offsets 10 to 14 of partition 0 of topic {topic}" in source.health.sentence()
    await topics.write_many(topic, 1, 3)
    names = set()
    for _ in range(2):  # the second one knows it from the first
        async with Source(topics, topic, [topic]) as source:
            taken = [delivery.origin for delivery in await source.take(13, accept=False)]
        assert taken[:10] == before
        assert [origin[1] for origin in taken[10:] if origin] == [10, 11, 12]
        names |= {origin[0] for origin in taken[10:] if origin}
    assert len(names) == 1
    assert not names & {origin[0] for origin in before if origin}
