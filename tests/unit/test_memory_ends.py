"""The memory source and sink keep the promises of their ports."""

from __future__ import annotations

import asyncio

import pytest

from adapters.memory import ManualClock, MemorySink, MemorySource
from adapters.memory.sink import HOLD
from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import Result, Sink, Source
from bridge.core.reasons import Reason, ReasonKind
from tests.unit.house import turns

ALL = (1000, 1 << 30)
FULL = Refusal(Reason(ReasonKind.NACKED, "a queue is full"))


def fed(*bodies: str, prefetch: int = 100) -> MemorySource:
    source = MemorySource(ManualClock(), prefetch)
    for body in bodies:
        source.feed(body.encode(), {})
    return source


async def bodies(source: MemorySource, messages_max: int = 1000, bytes_max: int = 1 << 30) -> list[str]:
    return [one.payload.decode() for one in await source.take(messages_max, bytes_max)]


async def test_deliveries_come_in_order_and_no_more_than_asked_for() -> None:
    source: Source = fed("a", "b", "c")
    assert [one.payload for one in await source.take(2, 1 << 30)] == [b"a", b"b"]
    assert [one.payload for one in source.more(2, 1 << 30)] == [b"c"]
    assert source.more(2, 1 << 30) == []


async def test_a_delivery_larger_than_the_bytes_asked_for_comes_alone() -> None:
    source = fed("x" * 50, "b", "c")
    assert await bodies(source, bytes_max=10) == ["x" * 50]
    assert await bodies(source, bytes_max=2) == ["b", "c"]


async def test_taking_waits_for_a_delivery() -> None:
    source = fed()
    taking = asyncio.create_task(bodies(source))
    await turns()
    assert not taking.done()
    source.feed(b"a", {})
    assert await taking == ["a"]


async def test_no_more_is_handed_out_than_the_prefetch_until_something_is_accepted() -> None:
    source = fed("a", "b", "c", prefetch=2)
    deliveries = await source.take(*ALL)
    assert len(deliveries) == 2
    assert source.more(*ALL) == []
    source.accept(deliveries[:1])
    assert [one.payload for one in source.more(*ALL)] == [b"c"]


async def test_what_was_not_accepted_comes_again_in_order_and_marked() -> None:
    source = fed("a", "b", "c")
    deliveries = await source.take(2, 1 << 30)
    source.accept(deliveries[1:])
    source.lose_connection()
    assert not source.alive(deliveries[0])
    again = await source.take(*ALL)
    assert [(one.payload, one.redelivered) for one in again] == [(b"a", True), (b"c", True)]
    assert again[0].digest == deliveries[0].digest
    assert all(map(source.alive, again))


async def test_a_log_is_read_again_from_an_offset_on_whatever_was_accepted() -> None:
    source = MemorySource(ManualClock())
    for offset in (3, 4, 7):
        source.feed(b"%d" % offset, {}, origin=(b"log", offset))
        source.feed(b"other %d" % offset, {}, origin=(b"other", offset))
    deliveries = await source.take(4, 1 << 30)
    source.accept(deliveries[:3])
    source.replay(b"log", 4)
    assert not any(map(source.alive, deliveries))
    again = await source.take(*ALL)
    assert [one.payload for one in again] == [b"4", b"7", b"other 4", b"other 7"]
    assert [one.origin for one in again[:2]] == [(b"log", 4), (b"log", 7)]
    assert not any(one.redelivered for one in again)


async def test_accepting_what_a_lost_connection_delivered_changes_nothing() -> None:
    source = fed("a")
    deliveries = await source.take(*ALL)
    source.lose_connection()
    source.accept(deliveries)
    assert source.left() == 1
    assert source.accepted == []


async def test_a_delivery_ends_once() -> None:
    source = fed("a", "b")
    deliveries = await source.take(*ALL)
    source.accept(deliveries[:1])
    source.drop(deliveries[1:])
    for end in (source.accept, source.drop):
        for one in deliveries:
            with pytest.raises(ValueError, match="already"):
                end([one])


async def test_a_source_that_stops_gives_what_the_broker_has_handed_out_and_nothing_more() -> None:
    source = fed("a", "b")
    [first] = await source.take(1, 1 << 30)
    source.stop()
    source.feed(b"c", {})
    assert not source.emptied()
    [second] = source.more(*ALL)
    assert source.emptied()
    source.accept([first, second])
    assert (source.left(), source.more(*ALL)) == (1, [])


def claim(body: bytes) -> Claim:
    return Claim(b"0" * 20, 0, b"token123", 1, 1, 0, "orders", b"", body, b"0" * 20, 0.0)


class Answers:
    def __init__(self, window: int = 10) -> None:
        self.results: list[Result] = []
        self.sink = MemorySink(window, window_bytes=100)
        self.sink.on_answers(self.results.extend)

    async def outcomes(self) -> list[Outcome]:
        await turns()
        return [result.outcome for result in self.results]


async def test_every_claim_comes_back_once_as_it_was_scripted() -> None:
    answers = Answers()
    answers.sink.script(Outcome.CONFIRMED, FULL, Outcome.UNKNOWN)
    claims = [claim(b"%d" % n) for n in range(4)]
    sink: Sink = answers.sink
    sink.publish(claims)
    assert answers.results == []  # never within the call
    assert await answers.outcomes() == [Outcome.CONFIRMED, Outcome.REFUSED, Outcome.UNKNOWN, Outcome.CONFIRMED]
    assert [result.letter for result in answers.results] == claims
    assert answers.results[1].refusal == FULL
    assert answers.sink.bodies() == [b"0", b"1", b"2", b"3"]


async def test_the_room_is_what_is_not_in_flight() -> None:
    answers = Answers()
    answers.sink.script(HOLD, HOLD)
    answers.sink.publish([claim(b"12345"), claim(b"678")])
    assert answers.sink.room() == (8, 92)
    assert await answers.outcomes() == []
    answers.sink.answer_held(FULL)
    assert await answers.outcomes() == [Outcome.REFUSED, Outcome.REFUSED]
    assert answers.sink.room() == (10, 100)


async def test_a_blocked_sink_has_no_room_and_is_able() -> None:
    sink = Answers().sink
    sink.blocked = True
    assert (sink.ready(), sink.able(), sink.room()) == (False, True, (0, 0))


async def test_a_lost_connection_leaves_everything_in_flight_unknown() -> None:
    answers = Answers()
    answers.sink.script(HOLD)
    answers.sink.publish([claim(b"a")])
    answers.sink.lose_connection()
    answers.sink.publish([claim(b"b")])
    assert await answers.outcomes() == [Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert answers.sink.bodies() == [b"a"]
    assert (answers.sink.ready(), answers.sink.able(), answers.sink.room()) == (False, False, (0, 0))
