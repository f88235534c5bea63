"""The relay on memory adapters: accepted only when confirmed, nothing lost, nobody held up by what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import pytest

from adapters.memory import ManualClock, MemorySink, MemorySource
from adapters.memory.memory_sink import HOLD
from bridge.core.message import Delivery, HeaderValue, Outcome, Refusal
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.header import HeaderRules
from bridge.delay.levels import Bury, Hold, LevelRules, Move, rounding
from bridge.pipeline.relay import Carried, Owed, Packing, Parcel, Relay, RelayLimits
from bridge.pipeline.settle import RetryRules
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from tests.unit.house import turns

LEVELS = (1000, 5000)
GONE = Refusal(Reason(ReasonKind.UNROUTABLE, "no queue takes it"))
TOO_LARGE = Refusal(Reason(ReasonKind.TOO_LARGE, "it has too many bytes"), lasting=True)
QUICK = RetryRules(first_ms=1, factor=1, max_ms=1, attempts=3)
SLOW = RetryRules(first_ms=60_000, factor=1, max_ms=60_000, attempts=3)


class PlainPacking(Packing):
    """The place says what was decided."""

    def route_of(self, delivery: Delivery) -> str:
        return delivery.route

    def parcel(self, delivery: Delivery, move: Move, due_ms: int) -> Parcel:
        match move:
            case Hold(wait_ms):
                return Parcel(f"level {wait_ms}", delivery.payload)
            case Bury(None):
                return Parcel("dead", delivery.payload)
            case Bury(reason):
                return Parcel(f"dead: {reason}", delivery.payload)
        if delivery.payload == b"unreadable":
            raise ValueError("nobody can read it")
        return Parcel("target", delivery.payload)

    def owed(self, delivery: Delivery) -> Owed | None:
        return {b"cut short": Owed(5000, False), b"left out": Owed(2000, True)}.get(delivery.payload)

    def may_go_back(self, delivery: Delivery) -> bool:
        return delivery.route != "orders.due"


class Line:
    """A relay between a source and a sink."""

    def __init__(
        self, retries: RetryRules = QUICK, window: int = 1000, refused_max: int = 2, refused_bytes: int = 100
    ) -> None:
        self.clock = ManualClock()
        self.source = MemorySource(self.clock)
        self.sink = MemorySink[Carried](window)
        self.mended = 0
        self.health = Health()
        rules = {"orders": LevelRules(HeaderRules(levels_ms=LEVELS), rounding(LEVELS, "up"), "dead", 1000)}
        self.relay = Relay(
            self.source,
            self.sink,
            self.clock,
            rules,
            PlainPacking(),
            retries,
            self._mend,
            self.health,
            RelayLimits(100, 1 << 20, refused_max, refused_bytes),
            Metrics(["orders"]),
        )
        self.sink.on_answers(self.relay.answered)

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


Start = Callable[[Line], Line]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """``start(line)``: its loops run until the test ends."""
    tasks: list[asyncio.Task[None]] = []

    def begin(line: Line) -> Line:
        tasks.extend(asyncio.ensure_future(loop) for loop in (line.relay.run(), line.relay.run_again()))
        return line

    yield begin
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_delivery_is_accepted_when_the_broker_has_confirmed_where_it_went(start: Start) -> None:
    line = start(Line())
    line.sink.answer = HOLD
    line.source.feed(b"a", {"x-delay": 3000})
    line.source.feed(b"b", {}, route="orders.due")
    line.source.feed(b"c", {"x-delay": 6000})
    await turns()
    assert line.source.accepted == []
    line.sink.answer_held()
    await turns()
    assert [delivery.payload for delivery in line.source.accepted] == [b"a", b"c", b"b"]  # routes take turns
    assert line.places()[0::2] == ["level 5000", "target"]
    assert line.places()[1].startswith("dead: bad_header: the delay of 6s")
    assert line.relay.under_way() == 0


async def test_no_more_is_sent_than_there_is_room_for_and_the_order_is_kept(start: Start) -> None:
    line = start(Line(window=2))
    line.sink.answer = HOLD
    for n in range(5):
        line.source.feed(b"%d" % n, {}, route="orders.due")
    for sent in (2, 4, 5):
        await turns()
        assert len(line.sink.published) == sent
        line.sink.answer_held()
    assert [claim.payload for claim in line.sink.published] == [b"0", b"1", b"2", b"3", b"4"]


async def test_what_had_no_answer_is_sent_again(start: Start) -> None:
    line = start(Line())
    line.sink.script(Outcome.UNKNOWN)
    line.source.feed(b"a", {"x-delay": 1000})
    await line.until_accepted(1)
    assert line.places() == ["level 1000", "level 1000"]


async def test_what_the_target_refuses_is_tried_again_and_then_a_dead_letter(start: Start) -> None:
    line = start(Line())
    line.sink.script(GONE, GONE, GONE)
    line.source.feed(b"a", {}, route="orders.due")
    await line.until_accepted(1)
    assert line.places() == ["target", "target", "target", "dead: unroutable: no queue takes it"]
    assert line.mended == 0


async def test_what_no_wait_can_mend_is_a_dead_letter_at_once(start: Start) -> None:
    line = start(Line(SLOW))
    line.sink.script(TOO_LARGE)
    line.source.feed(b"a", {"x-delay": 1000})
    line.source.feed(b"unreadable", {}, route="orders.due")
    await line.until_accepted(2)
    assert line.places() == [
        "level 1000",
        "dead: unreadable: nobody can read it",
        "dead: too_large: it has too many bytes",
    ]


async def test_a_bounded_number_of_refused_messages_waits_and_later_ones_go_on(start: Start) -> None:
    line = start(Line(SLOW, refused_max=2))
    line.sink.script(GONE, GONE, GONE)
    for body in (b"a", b"b", b"c", b"behind them"):
        line.source.feed(body, {}, route="orders.due")
    await line.until_accepted(2)
    assert {delivery.payload for delivery in line.source.accepted} == {b"c", b"behind them"}
    assert line.relay.under_way() == 0  # those that wait for another try hold up no stop either


async def test_refused_messages_that_wait_are_bounded_in_bytes_too(start: Start) -> None:
    """What waits counts at the source, which stops reading for all routes when it holds too much."""
    line = start(Line(SLOW, refused_max=3, refused_bytes=10))
    line.sink.script(GONE, GONE, GONE)
    for body in (b"a long one", b"b", b"behind"):
        line.source.feed(body, {}, route="orders.due")
    await line.until_accepted(2)
    assert {delivery.payload for delivery in line.source.accepted} == {b"b", b"behind"}


@pytest.mark.parametrize(
    ("kind", "delays", "accepted"),
    [
        (ReasonKind.MISSING_EXCHANGE, {}, {b"b", b"c", b"behind"}),
        (ReasonKind.MISSING_EXCHANGE, {"x-delay": 1000}, {b"behind"}),
        (ReasonKind.NO_LEADER, {}, {b"behind"}),
    ],
)
async def test_messages_that_wait_untried_are_bounded_where_only_their_consumers_can_mend_it(
    start: Start, kind: ReasonKind, delays: dict[str, HeaderValue], accepted: set[bytes]
) -> None:
    """RabbitMQ's sink tries one of them in a second. A level is declared again, and a broker recovers."""
    line = start(Line(SLOW, refused_max=3, refused_bytes=10))
    untried = Refusal(Reason(kind, "not now"), again_ms=60_000)
    line.sink.script(GONE, untried, untried)
    for body in (b"a long one", b"b", b"c", b"behind"):
        line.source.feed(body, delays)
    await line.until_accepted(len(accepted))
    await turns()
    assert {delivery.payload for delivery in line.source.accepted} == accepted


async def test_a_level_that_is_gone_is_made_again(start: Start) -> None:
    line = start(Line())
    line.sink.script(Refusal(Reason(ReasonKind.MISSING_EXCHANGE, "no exchange")))
    line.source.feed(b"a", {"x-delay": 1000})
    await line.until_accepted(1)
    assert line.mended == 1
    assert line.places() == ["level 1000", "level 1000"]


async def test_a_dead_letter_that_is_refused_with_its_reason_is_kept_without(start: Start) -> None:
    line = start(Line())
    line.sink.script(TOO_LARGE)
    line.source.feed(b"a", {"x-delay": "soon"})
    await line.until_accepted(1)
    assert line.places()[1:] == ["dead"]


async def test_a_dead_letter_that_is_too_large_is_tried_until_it_is_kept(start: Start) -> None:
    line = start(Line())
    line.sink.script(TOO_LARGE, TOO_LARGE, TOO_LARGE)
    line.source.feed(b"too large", {}, route="orders.due")
    await line.until_accepted(1)
    assert line.places()[-2:] == ["dead", "dead"]


async def test_after_a_lost_connection_only_what_comes_again_is_sent(start: Start) -> None:
    line = start(Line(SLOW))
    line.sink.script(GONE)
    line.source.feed(b"a", {}, route="orders.due")
    await turns()
    line.source.lose_connection()
    await line.until_accepted(1)
    assert [claim.payload for claim in line.sink.published] == [b"a", b"a"]


async def test_what_was_cut_short_waits_again(start: Start) -> None:
    line = start(Line())
    line.source.feed(b"cut short", {}, route="orders.due")
    await line.until_accepted(1)
    assert line.places() == ["level 5000"]


@pytest.mark.usefixtures("leaping_time")
async def test_a_message_that_comes_early_waits_the_rest_in_the_recreated_queue(start: Start) -> None:
    line = start(Line())
    line.source.feed(b"left out", {}, route="orders.due")
    line.source.feed(b"b", {}, route="orders.due")
    await line.until_accepted(2)
    assert (line.places(), line.mended) == (["target", "level 2000"], 1)


async def test_a_place_for_dead_letters_that_is_gone_is_made_again(start: Start) -> None:
    line = start(Line())
    line.sink.script(GONE)
    line.source.feed(b"a", {"x-delay": "soon"})
    await line.until_accepted(1)
    assert (line.places()[1:], line.mended) == (["dead"], 1)
    assert line.health.troubles() == {}, "it is stored, so no dead letter blocks the route"


async def test_at_a_stop_what_may_not_go_back_becomes_a_dead_letter_and_the_rest_goes_back(start: Start) -> None:
    line = start(Line(SLOW))
    line.sink.answer = GONE
    line.source.feed(b"a", {}, route="orders.due")
    line.source.feed(b"b", {"x-delay": 3000})
    await turns()
    line.sink.answer = Outcome.CONFIRMED
    line.relay.stop()
    await line.until_accepted(1)
    assert [delivery.payload for delivery in line.source.accepted] == [b"a"]
    assert line.places()[2:] == ["dead: unroutable: no queue takes it"]
    assert line.relay.under_way() == 0
