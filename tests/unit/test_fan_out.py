"""One message to several destinations: each is confirmed on its own, and none gets a copy that it has."""

from __future__ import annotations

import asyncio
import time

from adapters.memory.memory_sink import HOLD, MemorySink
from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import Result
from bridge.core.reasons import Reason, ReasonKind
from bridge.pipeline.fan_out import Copy, FanOut

AWAY = Refusal(Reason(ReasonKind.UNROUTABLE, "no queue"))
NEVER = Refusal(Reason(ReasonKind.TOO_LARGE, "too large"), lasting=True)
LANES = {"orders": ("orders", "orders/1", "orders/2")}


def claim(route: str = "orders", number: int = 0, lease_s: float = 60, reached: int = 0) -> Claim:
    name = b"%020d" % number
    return Claim(
        name, 0, b"t" * 8, 1, 1, 0, route, b"", b"body", name, time.monotonic() + lease_s, 0, 0, reached=reached
    )


class Rig:
    def __init__(self, window: int = 100) -> None:
        self.inner = MemorySink[Claim | Copy](window)
        self.sink = FanOut(self.inner, LANES)
        self.results: list[Result[Claim]] = []
        self.sink.on_answers(self.results.extend)

    async def publish(self, *letters: Claim) -> None:
        self.sink.publish(letters)
        await self.answers()

    async def answers(self) -> None:
        """Let the sink give its answers, also those to what an answer let go."""
        for _ in range(10):
            await asyncio.sleep(0)

    def sent(self) -> list[str]:
        return [letter.route for letter in self.inner.published]

    def outcomes(self) -> list[Outcome]:
        return [result.outcome for result in self.results]


async def test_copies_that_wait_for_a_broker_that_is_lost_go_back() -> None:
    rig = Rig(window=1)
    rig.inner.answer = HOLD
    await rig.publish(claim(), claim("plain", 1))
    rig.inner.lose_connection()
    await rig.answers()
    assert [(result.letter.route, result.outcome) for result in rig.results] == [
        ("orders", Outcome.UNKNOWN),
        ("plain", Outcome.UNKNOWN),
    ]


async def test_a_message_is_confirmed_when_all_destinations_have_confirmed_it() -> None:
    rig = Rig()
    rig.inner.script(HOLD, HOLD, HOLD)
    taken = claim()
    await rig.publish(taken)
    assert rig.sent() == ["orders", "orders/1", "orders/2"]
    assert rig.results == []
    rig.inner.answer_held()
    await rig.answers()
    assert rig.results == [Result(taken, Outcome.CONFIRMED, None)]


async def test_a_refusal_by_one_is_tried_again_without_a_copy_for_the_others() -> None:
    rig = Rig()
    rig.inner.script(Outcome.CONFIRMED, AWAY, Outcome.CONFIRMED)
    taken = claim()
    await rig.publish(taken)
    assert rig.results == [Result(taken, Outcome.REFUSED, AWAY)]
    assert taken.reached == 0b101
    await rig.publish(taken)
    assert rig.sent()[3:] == ["orders/1"]
    assert rig.outcomes()[-1] is Outcome.CONFIRMED


async def test_an_answer_that_never_comes_makes_copies_only_where_it_was_missing() -> None:
    rig = Rig()
    rig.inner.script(Outcome.CONFIRMED, Outcome.UNKNOWN, Outcome.UNKNOWN)
    taken = claim()
    await rig.publish(taken)
    assert rig.results == [Result(taken, Outcome.UNKNOWN, None)]
    assert taken.reached == 0b001


async def test_a_lasting_refusal_buries_only_when_no_other_destination_can_still_confirm() -> None:
    rig = Rig()
    rig.inner.script(NEVER, AWAY, Outcome.CONFIRMED)
    taken = claim()
    await rig.publish(taken)
    assert rig.results[-1].refusal is AWAY
    rig.inner.script(NEVER, Outcome.UNKNOWN)
    await rig.publish(taken)
    assert rig.outcomes()[-1] is Outcome.UNKNOWN
    rig.inner.script(NEVER, Outcome.CONFIRMED)
    await rig.publish(taken)
    assert rig.results[-1].refusal is NEVER


async def test_other_routes_pass_as_they_are_and_in_their_order() -> None:
    rig = Rig()
    letters: list[Claim] = [claim("bills", 1), claim("orders", 2), claim("bills", 3)]
    await rig.publish(*letters)
    assert rig.sent() == ["bills", "orders", "orders/1", "orders/2", "bills"]
    assert rig.inner.published[0] is letters[0]


async def test_copies_wait_for_room_and_nothing_overtakes_them() -> None:
    rig = Rig(window=1)
    rig.inner.script(HOLD)
    taken = claim()
    await rig.publish(taken)
    assert rig.sent() == ["orders"]
    assert rig.sink.room() == (0, 0)
    rig.inner.answer_held()
    await rig.answers()
    assert rig.sent() == ["orders", "orders/1", "orders/2"]
    assert rig.outcomes() == [Outcome.CONFIRMED]


async def test_a_copy_is_not_sent_after_its_lease_has_ended() -> None:
    rig = Rig()
    taken = claim(lease_s=-1)
    await rig.publish(taken)
    assert rig.sent() == []
    assert rig.results == [Result(taken, Outcome.UNKNOWN, None)]


async def test_a_message_that_reached_all_destinations_of_changed_settings_is_done() -> None:
    rig = Rig()
    taken = claim(reached=0b111)
    await rig.publish(taken)
    assert rig.sent() == []
    assert rig.outcomes() == [Outcome.CONFIRMED]
