"""The relay on memory adapters: accepted only when confirmed, nothing lost, nobody held up by what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

import pytest

from adapters.memory import ManualClock, MemorySink, MemorySource
from adapters.memory.sink import HOLD
from bridge.core.message import Delivery, Outcome, Refusal
from bridge.delay.header import HeaderRules
from bridge.delay.levels import Bury, Hold, LevelRules, Move, rounding
from bridge.pipeline.relay import Parcel, Relay, RelayLimits
from bridge.pipeline.retry import RetryRules
from bridge.telemetry.health import Health
from tests.unit.house import turns

LEVELS = (1000, 5000)
GONE = Refusal("unroutable", "no queue takes it")
TOO_LARGE = Refusal("too_large", "it has too many bytes", lasting=True)
QUICK = RetryRules(first_ms=1, factor=1, max_ms=1, attempts=3)
SLOW = RetryRules(first_ms=60_000, factor=1, max_ms=60_000, attempts=3)


class PlainPacking:
    """The place says what was decided."""

    def route_of(self, delivery: Delivery) -> str:
        return delivery.route

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        match move:
            case Hold(wait_ms):
                return Parcel(f"level {wait_ms}", delivery.payload)
            case Bury(reason):
                return Parcel(f"dead: {reason}", delivery.payload)
        if delivery.payload == b"unreadable":
            raise ValueError("nobody can read it")
        return Parcel("target", delivery.payload)

    def cut_short(self, delivery: Delivery) -> int | None:
        return 5000 if delivery.payload == b"cut short" else None

    def left_out(self, delivery: Delivery) -> int | None:
        return 2000 if delivery.payload == b"left out" else None

    def may_go_back(self, delivery: Delivery) -> bool:
        return delivery.route != "orders.due"

    def plain_dead_letter(self, delivery: Delivery) -> Parcel:
        return Parcel("dead", delivery.payload)

    def in_parts(self, delivery: Delivery, reason: str) -> Iterator[Parcel] | None:
        if delivery.payload == b"cannot be parted":
            return None
        return (Parcel("dead", bytes((byte,))) for byte in delivery.payload)


class Way:
    """A relay between a source and a sink."""

    def __init__(self, retries: RetryRules = QUICK, window: int = 1000, refused_max: int = 2) -> None:
        self.clock = ManualClock()
        self.source = MemorySource(self.clock)
        self.sink = MemorySink(lambda results: self.relay.answered(results), window)
        self.mended = 0
        rules = {"orders": LevelRules(HeaderRules(levels_ms=LEVELS), rounding(LEVELS, "up"), "dead", 1000)}
        self.relay = Relay(
            self.source,
            self.sink,
            self.clock,
            rules,
            PlainPacking(),
            retries,
            self._mend,
            Health(),
            RelayLimits(100, 1 << 20, refused_max),
        )

    def _mend(self) -> None:
        self.mended += 1

    def places(self) -> list[str]:
        return [claim.route for claim in self.sink.published]

    async def until_accepted(self, count: int) -> None:
        for _ in range(5000):
            if len(self.source.accepted) >= count:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(f"{len(self.source.accepted)} of {count} are accepted")


Start = Callable[[Way], Way]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """``start(way)``: its loops run until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    def begin(way: Way) -> Way:
        tasks.extend(asyncio.ensure_future(loop) for loop in (way.relay.run(), way.relay.run_again()))
        return way

    yield begin
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_delivery_is_accepted_when_the_broker_has_confirmed_where_it_went(start: Start) -> None:
    way = start(Way())
    way.sink.answer = HOLD
    way.source.feed(b"a", {"x-delay": 3000})
    way.source.feed(b"b", {}, route="orders.due")
    way.source.feed(b"c", {"x-delay": 6000})
    await turns()
    assert way.source.accepted == []
    way.sink.answer_held()
    await turns()
    assert [one.payload for one in way.source.accepted] == [b"a", b"c", b"b"]  # routes take turns
    assert way.places()[0::2] == ["level 5000", "target"]
    assert way.places()[1].startswith("dead: bad_header: the delay of 6s")
    assert way.relay.under_way() == 0


async def test_no_more_is_sent_than_there_is_room_for_and_the_order_is_kept(start: Start) -> None:
    way = start(Way(window=2))
    way.sink.answer = HOLD
    for n in range(5):
        way.source.feed(b"%d" % n, {}, route="orders.due")
    for sent in (2, 4, 5):
        await turns()
        assert len(way.sink.published) == sent
        way.sink.answer_held()
    assert [claim.payload for claim in way.sink.published] == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_had_no_answer_is_sent_again(start: Start) -> None:
    way = start(Way())
    way.sink.script(Outcome.UNKNOWN)
    way.source.feed(b"a", {"x-delay": 1000})
    await way.until_accepted(1)
    assert way.places() == ["level 1000", "level 1000"]


async def test_what_the_target_refuses_is_tried_again_and_then_a_dead_letter(start: Start) -> None:
    way = start(Way())
    way.sink.script(GONE, GONE, GONE)
    way.source.feed(b"a", {}, route="orders.due")
    await way.until_accepted(1)
    assert way.places() == ["target", "target", "target", "dead: unroutable: no queue takes it"]
    assert way.mended == 0


async def test_what_no_wait_can_mend_is_a_dead_letter_at_once(start: Start) -> None:
    way = start(Way(SLOW))
    way.sink.script(TOO_LARGE)
    way.source.feed(b"a", {"x-delay": 1000})
    way.source.feed(b"unreadable", {}, route="orders.due")
    await way.until_accepted(2)
    assert way.places() == [
        "level 1000",
        "dead: unreadable: nobody can read it",
        "dead: too_large: it has too many bytes",
    ]


async def test_only_so_many_refused_ones_wait_and_those_behind_go_on(start: Start) -> None:
    way = start(Way(SLOW, refused_max=2))
    way.sink.script(GONE, GONE, GONE)
    for body in (b"a", b"b", b"c", b"behind them"):
        way.source.feed(body, {}, route="orders.due")
    await way.until_accepted(2)
    assert {one.payload for one in way.source.accepted} == {b"c", b"behind them"}
    assert way.relay.under_way() == 0  # those that wait for another try hold up no stop either


async def test_a_level_that_is_gone_is_made_again(start: Start) -> None:
    way = start(Way())
    way.sink.script(Refusal("missing_exchange", "no exchange"))
    way.source.feed(b"a", {"x-delay": 1000})
    await way.until_accepted(1)
    assert way.mended == 1
    assert way.places() == ["level 1000", "level 1000"]


async def test_a_dead_letter_that_is_refused_with_its_reason_is_kept_without(start: Start) -> None:
    way = start(Way())
    way.sink.script(TOO_LARGE)
    way.source.feed(b"a", {"x-delay": "soon"})
    await way.until_accepted(1)
    assert way.places()[1:] == ["dead"]


async def test_a_dead_letter_that_is_too_large_is_kept_in_parts_and_accepted_with_the_last(start: Start) -> None:
    way = start(Way())
    way.sink.script(TOO_LARGE, TOO_LARGE, Outcome.CONFIRMED, Outcome.UNKNOWN, TOO_LARGE, Outcome.CONFIRMED, HOLD)
    way.source.feed(b"abc", {}, route="orders.due")
    while not way.sink.held():  # noqa: ASYNC110 - pytest's own time limit ends it
        await asyncio.sleep(0.001)
    assert way.source.accepted == []
    way.sink.answer_held()
    await way.until_accepted(1)
    assert way.sink.bodies() == [b"abc", b"abc", b"a", b"b", b"b", b"b", b"c"]


async def test_a_dead_letter_that_cannot_be_parted_is_tried_until_it_is_kept(start: Start) -> None:
    way = start(Way())
    way.sink.script(TOO_LARGE, TOO_LARGE, TOO_LARGE)
    way.source.feed(b"cannot be parted", {}, route="orders.due")
    await way.until_accepted(1)
    assert way.places()[-2:] == ["dead", "dead"]


async def test_after_a_lost_connection_only_what_comes_again_is_sent(start: Start) -> None:
    way = start(Way(SLOW))
    way.sink.script(GONE)
    way.source.feed(b"a", {}, route="orders.due")
    await turns()
    way.source.lose_connection()
    await way.until_accepted(1)
    assert [claim.payload for claim in way.sink.published] == [b"a", b"a"]


async def test_what_was_cut_short_waits_again(start: Start) -> None:
    way = start(Way())
    way.source.feed(b"cut short", {}, route="orders.due")
    await way.until_accepted(1)
    assert way.places() == ["level 5000"]


async def test_what_comes_too_early_waits_for_the_rest_when_its_place_was_made_again(start: Start) -> None:
    way = start(Way())
    way.source.feed(b"left out", {}, route="orders.due")
    way.source.feed(b"b", {}, route="orders.due")
    await way.until_accepted(2)
    assert (way.places(), way.mended) == (["target", "level 2000"], 1)


async def test_a_place_for_dead_letters_that_is_gone_is_made_again(start: Start) -> None:
    way = start(Way())
    way.sink.script(GONE)
    way.source.feed(b"a", {"x-delay": "soon"})
    await way.until_accepted(1)
    assert (way.places()[1:], way.mended) == (["dead"], 1)


async def test_at_a_stop_what_may_not_go_back_becomes_a_dead_letter_and_the_rest_goes_back(start: Start) -> None:
    way = start(Way(SLOW))
    way.sink.answer = GONE
    way.source.feed(b"a", {}, route="orders.due")
    way.source.feed(b"b", {"x-delay": 3000})
    await turns()
    way.sink.answer = Outcome.CONFIRMED
    way.relay.stop()
    await way.until_accepted(1)
    assert [one.payload for one in way.source.accepted] == [b"a"]
    assert way.places()[2:] == ["dead: unroutable: no queue takes it"]
    assert way.relay.under_way() == 0
