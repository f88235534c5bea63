"""The historian: what it writes, what it drops, and that it never fails a delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from adapters.memory import ManualClock, Memory, MemoryStore
from bridge.core.message import Claim
from bridge.core.ports import Piece
from bridge.desk.past import PLACES, coarse, percentile_class_ms, percentile_ms
from bridge.parking.history import PIECE_MAX, HistoryLimits, HistoryRow, PastState, unpack_entries
from bridge.parking.identity import Ids
from bridge.pipeline.history import Historian, share_of
from bridge.telemetry.lateness import LATENESS_BOUNDS_MS
from tests.entries import pack_entry
from tests.unit.house import House

SHARDS = 4
LIMITS = HistoryLimits(3_600_000, 100_000)
texts = st.text(max_size=60)
moments = st.integers(1, 2**45)
rows = st.builds(
    HistoryRow,
    id=st.binary(min_size=20, max_size=20),
    route=texts,
    key=st.binary(max_size=255).filter(lambda key: key[:1] != b"\0"),
    state=st.sampled_from(PastState),
    received_ms=moments,
    due_ms=moments,
    claimed_ms=st.none() | moments,
    published_ms=st.none() | moments,
    ended_ms=moments,
    tries=st.integers(0, 65535),
    size=st.integers(0, 2**32 - 1),
    reason=texts,
)
held_rows = st.builds(replace, rows, state=st.just(PastState.DELIVERED), reason=st.just(""), let_go_ms=moments)


class Desk:
    """A historian at a memory store."""

    def __init__(self, limits: HistoryLimits = LIMITS) -> None:
        self.memory = Memory(SHARDS, ManualClock(), limits)
        self.store = MemoryStore(self.memory)
        self.historian = Historian(self.store, self.memory.clock, limits, lambda route: route == "canary")
        self.ids = Ids("tester")

    def claim(self, shard: int = 0, route: str = "orders", late_ms: int = 0, key: bytes = b"") -> Claim:
        now_ms = self.memory.now_ms()
        message_id, due_ms = self.ids.next(now_ms - 100, shard), now_ms - late_ms
        return Claim(
            message_id,
            shard,
            bytes(8),
            due_ms,
            now_ms - 100,
            1,
            route,
            key,
            b"body",
            message_id,
            0.0,
            due_ms,
            due_ms + 1,
        )

    def rows(self) -> list[HistoryRow]:
        return [row for shard in self.memory.shards for row in shard.history]


@given(st.lists(rows | held_rows, max_size=5))
def test_entries_come_back_as_they_were_packed(written: list[HistoryRow]) -> None:
    assert list(unpack_entries(b"".join(map(pack_entry, written)))) == written


@given(st.binary(max_size=300))
def test_damaged_entries_raise_nothing(data: bytes) -> None:
    list(unpack_entries(data))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=16), st.integers(1, 2000))
def test_shares_keep_the_maximum_and_each_shard_gets_a_fair_one(kept: list[int], most: int) -> None:
    share = share_of(kept, most)
    assert sum(min(count, share) for count in kept) <= most
    assert share >= most // len(kept)
    if sum(kept) <= most:
        assert share >= max(kept)


async def test_a_delivery_is_written_with_all_its_moments() -> None:
    desk = Desk()
    claim = desk.claim(shard=2, late_ms=7, key=b"order-1")
    desk.historian.confirmed(desk.memory.now_ms(), [claim])
    await desk.historian.flush()
    (row,) = desk.memory.shards[2].history
    now_ms = desk.memory.now_ms()
    assert row == HistoryRow(
        claim.id,
        "orders",
        b"order-1",
        PastState.DELIVERED,
        now_ms - 100,
        now_ms - 7,
        now_ms - 7,
        now_ms - 6,
        now_ms,
        1,
        4,
        "",
    )
    slot_ms = now_ms // 30_000 * 30_000
    assert desk.memory.tallies == {(slot_ms, "orders", 3): 1}


async def test_messages_of_the_canary_are_left_out() -> None:
    desk = Desk()
    desk.historian.confirmed(desk.memory.now_ms(), [desk.claim(route="canary"), desk.claim()])
    await desk.historian.flush()
    assert [row.route for row in desk.rows()] == ["orders"]
    assert sum(desk.memory.tallies.values()) == 1


async def test_what_a_store_does_not_take_is_written_later() -> None:
    desk = Desk()
    desk.memory.away = "the machine is off"
    desk.historian.confirmed(desk.memory.now_ms(), [desk.claim(shard) for shard in range(SHARDS)])
    await desk.historian.flush()
    desk.memory.away = ""
    await desk.historian.flush()
    await desk.historian.flush()
    assert len(desk.rows()) == SHARDS
    assert sum(desk.memory.tallies.values()) == SHARDS


async def test_what_does_not_fit_is_dropped_and_counted_and_room_comes_back() -> None:
    desk = Desk()
    desk.memory.away = "the machine is off"
    claims = [desk.claim() for _ in range(1000)]
    with capture_logs() as logs:
        for _ in range(60):
            desk.historian.confirmed(desk.memory.now_ms(), claims)
        await desk.historian.flush()
    (line,) = [line for line in logs if line["event"] == "history entries dropped"]
    assert line["messages"] == 10_000
    desk.memory.away = ""
    await desk.historian.flush()
    assert len(desk.rows()) == 50_000
    desk.historian.confirmed(desk.memory.now_ms(), claims)
    await desk.historian.flush()
    assert len(desk.rows()) == 51_000


async def test_many_messages_are_written_in_pieces() -> None:
    desk = Desk()
    written: list[int] = []
    record = desk.store.record

    async def counting(pieces: object, most: int) -> object:
        written.extend(piece.entries for some in pieces.values() for piece in some)  # type: ignore[attr-defined]
        return await record(pieces, most)  # type: ignore[arg-type]

    desk.store.record = counting  # type: ignore[method-assign,assignment]
    desk.historian.confirmed(desk.memory.now_ms(), [desk.claim() for _ in range(PIECE_MAX * 2 + 1)])
    await desk.historian.flush()
    assert written == [PIECE_MAX, PIECE_MAX, 1]


async def test_one_shard_may_hold_what_the_others_leave_free() -> None:
    desk = Desk(HistoryLimits(3_600_000, 100))
    for _ in range(5):
        desk.historian.confirmed(desk.memory.now_ms(), [desk.claim(1) for _ in range(40)])
        await desk.historian.flush()
    assert len(desk.rows()) == 100
    desk.historian.confirmed(desk.memory.now_ms(), [desk.claim(2) for _ in range(60)])
    for _ in range(3):  # the shares follow the counts of the flush before
        desk.historian.confirmed(desk.memory.now_ms(), [desk.claim(2) for _ in range(11)])
        await desk.historian.flush()
    assert len(desk.rows()) <= 111


async def test_the_loop_writes_after_a_second_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pipeline.history._GATHER_S", 0.01)
    desk = Desk()
    running = asyncio.create_task(desk.historian.run())
    desk.historian.confirmed(desk.memory.now_ms(), [desk.claim()])
    written = asyncio.Event()

    async def tally(_: object) -> None:
        written.set()

    monkeypatch.setattr(desk.store, "tally", tally)
    await asyncio.wait_for(written.wait(), 5)
    assert len(desk.rows()) == 1
    running.cancel()


async def test_no_call_keeps_the_store_from_claims_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.pipeline.history._PACK_SOON_S", 0.0)
    desk = Desk()
    calls: list[int] = []
    written = asyncio.Event()
    record = desk.store.record

    async def counting(pieces: Mapping[int, Sequence[Piece]], most: int) -> object:
        calls.append(sum(piece.entries for some in pieces.values() for piece in some))
        if sum(calls) == 10_000:
            written.set()
        return await record(pieces, most)

    monkeypatch.setattr(desk.store, "record", counting)
    running = asyncio.create_task(desk.historian.run())
    for _ in range(100):
        desk.historian.confirmed(desk.memory.now_ms(), [desk.claim(n % SHARDS) for n in range(100)])
    await asyncio.wait_for(written.wait(), 5)
    running.cancel()
    assert max(calls) <= 2_500
    assert len(desk.rows()) == 10_000


async def test_a_message_that_was_delivered_was_claimed_and_published_before() -> None:
    house = House()
    historian = Historian(house.store, house.clock, LIMITS)
    house.settler._historian = historian
    house.publish("a", 1000)
    await house.park()
    house.clock.advance(1007)
    assert await house.deliver() == 1
    await historian.flush()
    (row,) = [row for shard in house.memory.shards for row in shard.history]
    assert row.claimed_ms is not None
    assert row.published_ms is not None
    assert row.received_ms < row.due_ms <= row.claimed_ms <= row.published_ms <= row.ended_ms
    assert row.late_ms == 7


def test_percentiles_lie_within_their_class() -> None:
    late = [0] * PLACES
    assert percentile_ms(late, 0.5) is None
    late[0], late[6] = 99, 1
    assert percentile_ms(late, 0.5) == pytest.approx(50 / 99)
    assert percentile_ms(late, 1.0) == 100
    late[-1] = 900
    assert percentile_ms(late, 0.99) == 300_000


def test_the_class_of_a_percentile_holds_what_was_counted() -> None:
    late = [0] * PLACES
    assert percentile_class_ms(late, 0.5) is None
    late[0], late[6] = 99, 1
    assert percentile_class_ms(late, 0.5) == (0.0, LATENESS_BOUNDS_MS[0])
    assert percentile_class_ms(late, 1.0) == (LATENESS_BOUNDS_MS[5], LATENESS_BOUNDS_MS[6])
    late[-1] = 900
    assert percentile_class_ms(late, 0.99) == (300_000, None)


def test_a_chart_has_four_classes() -> None:
    assert coarse([1] * PLACES) == [7, 3, 3, 4]


async def test_a_delivery_after_a_hold_is_late_from_the_end_of_the_hold() -> None:
    desk = Desk()
    now_ms = desk.memory.now_ms()
    held = desk.claim(late_ms=60_000)
    held.let_go_ms = now_ms - 30
    desk.historian.confirmed(now_ms, [held, desk.claim(late_ms=70)])
    await desk.historian.flush()
    assert [row.late_ms for row in desk.rows()] == [30, 70]
    assert [row.let_go_ms for row in desk.rows()] == [now_ms - 30, None]
    assert sum(number for (_, _, place), number in desk.memory.tallies.items() if place > 6) == 0
