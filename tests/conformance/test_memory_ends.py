"""The memory source and sink keep the promises of their ports, and those of their own."""

from __future__ import annotations

import pytest

from adapters.memory import ManualClock, MemorySource
from bridge.core.message import Outcome, Refusal
from bridge.core.reasons import Reason, ReasonKind
from tests.conformance.ends_rig import MemoryLogRig, MemorySinkRig, MemorySourceRig
from tests.conformance.sink_suite import SinkSuite
from tests.conformance.source_suite import ALL, SourceSuite, numbered, take


@pytest.mark.usefixtures("leaping_time")
class TestMemorySource(SourceSuite):
    @pytest.fixture
    def source_rig(self) -> MemorySourceRig:
        return MemorySourceRig()


@pytest.mark.usefixtures("leaping_time")
class TestMemoryLog(SourceSuite):
    @pytest.fixture
    def source_rig(self) -> MemoryLogRig:
        return MemoryLogRig()


@pytest.mark.usefixtures("leaping_time")
class TestMemorySink(SinkSuite):
    @pytest.fixture
    def sink_rig(self) -> MemorySinkRig:
        return MemorySinkRig()


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
    assert [delivery.payload for delivery in again] == [b"4", b"7", b"other 4", b"other 7"]
    assert [delivery.origin for delivery in again[:2]] == [(b"log", 4), (b"log", 7)]
    assert not any(delivery.redelivered for delivery in again)


async def test_a_delivery_ends_once() -> None:
    rig = MemorySourceRig()
    source = await rig.open()
    await rig.feed(*numbered(2))
    deliveries = await take(source, 2)
    source.accept(deliveries[:1])
    source.drop(deliveries[1:])
    for end in (source.accept, source.drop):
        for delivery in deliveries:
            with pytest.raises(ValueError, match="already"):
                end([delivery])


async def test_what_the_broker_does_not_hear_is_not_accepted() -> None:
    rig = MemorySourceRig()
    source = await rig.open()
    await rig.feed(b"a")
    source.hears = False
    source.accept(await take(source, 1))
    assert (source.left(), source.accepted) == (1, [])


async def test_answers_are_given_as_scripted_and_never_within_the_call() -> None:
    rig = MemorySinkRig()
    sink = await rig.open()
    rig.batches.clear()
    full = Refusal(Reason(ReasonKind.NACKED, "a queue is full"))
    sink.script(Outcome.CONFIRMED, full, Outcome.UNKNOWN)
    sink.publish([rig.letter(b"%d" % number) for number in range(4)])
    assert rig.results() == []
    results = await rig.answers(4)
    assert [result.outcome for result in results] == [
        Outcome.CONFIRMED,
        Outcome.REFUSED,
        Outcome.UNKNOWN,
        Outcome.CONFIRMED,
    ]
    assert results[1].refusal == full
    assert sink.bodies() == [b"0", b"1", b"2", b"3"]


async def test_held_letters_get_one_answer_together() -> None:
    rig = MemorySinkRig()
    sink = await rig.open(window=10)
    await rig.hold()
    sink.publish([rig.letter(b"12345"), rig.letter(b"678")])
    assert len(sink.held()) == 2
    sink.answer_held(Refusal(Reason(ReasonKind.NACKED, "a queue is full")))
    assert {result.outcome for result in await rig.answers(2)} == {Outcome.REFUSED}
    assert sink.room()[0] == 10
