"""The promises of ``bridge.core.ports.Sink`` as tests. Every sink passes them."""

from __future__ import annotations

from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import Result
from tests.conformance.ends_rig import BYTES_MAX, EndFeature, SinkRig, until

ODD_BODIES = [b"", bytes(range(256)), b"\0", b"\xff\xfe", "ключ ☂".encode(), b"x" * 300_000]


def outcomes(results: list[Result[Claim]]) -> set[Outcome]:
    """Return the outcomes that occur."""
    return {result.outcome for result in results}


class Publish:
    """``publish`` and ``on_answers``: order, bytes, and one result for each letter."""

    async def test_order_of_publishing_is_order_of_sending(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open()
        sent = [b"%d" % number for number in range(700)]
        for start in range(0, len(sent), 7):
            sink.publish([sink_rig.letter(body) for body in sent[start : start + 7]])
        assert outcomes(await sink_rig.answers(700)) == {Outcome.CONFIRMED}
        assert await sink_rig.received(700) == sent

    async def test_a_consumer_gets_the_same_bytes(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open()
        sink.publish([sink_rig.letter(body) for body in ODD_BODIES])
        assert outcomes(await sink_rig.answers(len(ODD_BODIES))) == {Outcome.CONFIRMED}
        assert await sink_rig.received(len(ODD_BODIES)) == ODD_BODIES

    async def test_every_letter_comes_back_once_as_the_object_that_was_published(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open()
        letters = [sink_rig.letter(b"%d" % number) for number in range(50)]
        sink.publish(letters)
        results = await sink_rig.answers(50)
        assert {id(result.letter) for result in results} == set(map(id, letters))
        assert [result.refusal for result in results] == [None] * 50

    async def test_a_missing_destination_is_refused_and_the_next_letter_arrives(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open()
        lost = sink_rig.lost_letter()
        sink.publish([lost])
        (result,) = await sink_rig.answers(1)
        assert result.letter is lost
        assert result.outcome is Outcome.REFUSED
        assert isinstance(result.refusal, Refusal)
        assert result.refusal.reason
        assert result.refusal.reason.sentence
        await until(lambda: sink.room()[0] > 0, "there is no room after a refusal")
        sink.publish([sink_rig.letter(b"next")])
        assert outcomes(await sink_rig.answers(1)) == {Outcome.CONFIRMED}
        assert await sink_rig.received(1) == [b"next"]


class Room:
    """``room`` and ``able``: when there may be published."""

    async def test_the_room_is_the_window_without_what_has_no_answer(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open(window=10)
        assert (sink.able(), sink.room()) == (True, (10, BYTES_MAX))
        await sink_rig.hold()
        sink.publish([sink_rig.letter(b"x" * 1000) for _ in range(4)])
        messages, room_bytes = sink.room()
        assert messages == 6
        assert room_bytes <= BYTES_MAX - 4000
        assert sink_rig.results() == []

    async def test_answers_give_the_room_back(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open(window=10)
        sink.publish([sink_rig.letter() for _ in range(10)])
        await sink_rig.answers(10)
        assert sink.room() == (10, BYTES_MAX)

    async def test_letters_in_flight_on_a_lost_connection_are_unknown_and_so_are_later_ones(
        self, sink_rig: SinkRig
    ) -> None:
        sink = await sink_rig.open()
        await sink_rig.hold()
        letters = [sink_rig.letter(b"%d" % number) for number in range(20)]
        sink.publish(letters)
        await sink_rig.lose_connection()
        results = await sink_rig.answers(20)
        assert [(result.outcome, result.refusal) for result in results] == [(Outcome.UNKNOWN, None)] * 20
        assert {id(result.letter) for result in results} == set(map(id, letters))
        await until(lambda: not sink.able(), "it still calls itself connected")
        assert sink.room() == (0, 0)
        sink.publish([sink_rig.letter()])
        assert outcomes(await sink_rig.answers(1)) == {Outcome.UNKNOWN}

    async def test_an_empty_batch_says_that_there_is_room_after_a_new_connection(self, sink_rig: SinkRig) -> None:
        sink = await sink_rig.open(window=10)
        await sink_rig.lose_connection()
        await until(lambda: not sink.able(), "it still calls itself connected")
        sink_rig.batches.clear()
        await sink_rig.heal()
        await until(lambda: [] in sink_rig.batches and sink.room()[0], "the listener is not told")
        assert sink.room() == (10, BYTES_MAX)
        sink.publish([sink_rig.letter()])
        assert outcomes(await sink_rig.answers(1)) == {Outcome.CONFIRMED}

    async def test_a_blocked_sink_is_able_and_has_no_room_until_the_block_ends(self, sink_rig: SinkRig) -> None:
        sink_rig.need(EndFeature.BLOCKS)
        sink = await sink_rig.open()
        sink_rig.block(True)
        await until(lambda: sink.room() == (0, 0), "it is not blocked")
        assert (sink.able(), sink.room()) == (True, (0, 0))
        sink_rig.batches.clear()
        sink_rig.block(False)
        await until(lambda: [] in sink_rig.batches and sink.room()[0], "the listener is not told")
        assert sink.room()[0] > 0


class SinkSuite(Publish, Room):
    """Every promise of a sink. A subclass has a fixture ``sink_rig``."""
