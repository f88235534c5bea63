"""The promises of ``bridge.desk.past.PastDesk`` as tests: every store's desk passes them."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.orders import Actor
from bridge.core.ports import DeliveryCount
from bridge.desk.past import HOUR_MS as SLOT_HOUR_MS
from bridge.desk.past import PLACES, SLOT_MS, AuditEntry, PastCursor, PastSlot, Remembered
from bridge.parking.history import PastState
from tests.conformance.desk_rig import DeskRig
from tests.conformance.rig import HOUR_MS


class History:
    """``history``: what became of messages."""

    async def test_a_delivered_message_is_found_with_its_moments(self, desk_rig: DeskRig) -> None:
        (message_id,) = await desk_rig.deliver(0, key=b"order-1", tries=2, size=123)
        (row,) = await desk_rig.past(id=message_id)
        assert (row.id, row.route, row.key, row.state) == (message_id, "orders", b"order-1", PastState.DELIVERED)
        assert row.claimed_ms is not None
        assert row.published_ms is not None
        assert row.received_ms < row.due_ms < row.claimed_ms < row.published_ms < row.ended_ms
        assert (row.tries, row.size, row.reason, row.late_ms, row.broker) == (2, 123, "", 10, "rabbitmq")

    async def test_a_message_that_is_cancelled_replaced_or_dead_is_found(self, desk_rig: DeskRig) -> None:
        dead = await desk_rig.bury("unroutable: no queue", key=b"a")
        replaced = await desk_rig.park(key=b"b")
        cancelled = await desk_rig.park(key=b"b")
        await desk_rig.desk.cancel([cancelled], "wrong order")
        rows = {row.id: row for row in await desk_rig.past()}
        assert {message_id: row.state.value for message_id, row in rows.items()} == {
            dead: "dead",
            replaced: "replaced",
            cancelled: "cancelled",
        }
        assert [rows[message_id].reason for message_id in (dead, replaced, cancelled)] == [
            "unroutable: no queue",
            "",
            "wrong order",
        ]
        assert [rows[message_id].key for message_id in (dead, replaced, cancelled)] == [b"a", b"b", b"b"]
        for row in rows.values():
            assert (row.route, row.size, row.claimed_ms, row.published_ms) == ("orders", 12, None, None)
            # The nodes of a Cluster are asked for the time one by one, on a machine that may stand still in between.
            assert row.received_ms - 50 <= row.ended_ms <= await desk_rig.desk.now_ms() + 50

    async def test_a_message_that_is_replaced_from_another_shard_is_replaced(self, desk_rig: DeskRig) -> None:
        first = await desk_rig.park(key=b"a")
        await desk_rig.park(key=b"a", order_key=b"another shard")
        assert [(row.id, row.state) for row in await desk_rig.past()] == [(first, PastState.REPLACED)]

    async def test_a_message_that_cannot_be_opened_is_found_by_its_id(self, desk_rig: DeskRig) -> None:
        message_id = await desk_rig.park()
        await desk_rig.tamper(message_id, b"\x63whatever")
        await desk_rig.desk.cancel([message_id])
        (row,) = await desk_rig.past(id=message_id)
        assert (row.route, row.key, row.state) == ("", b"", PastState.CANCELLED)

    async def test_entries_of_all_shards_come_newest_first(self, desk_rig: DeskRig) -> None:
        moments = [-((place * 7919) % 5000) for place in range(300)]
        await desk_rig.deliver(*moments)
        rows = await desk_rig.past()
        assert len({row.id for row in rows}) == 300
        assert [row.ended_ms for row in rows] == sorted((row.ended_ms for row in rows), reverse=True)

    async def test_pages_leave_nothing_out_and_repeat_nothing(self, desk_rig: DeskRig) -> None:
        for _ in range(5):
            await desk_rig.deliver(*[-(place % 7) for place in range(40)])
        found, cursor = [], None
        while page := await desk_rig.past(17, cursor):
            found += [row.id for row in page]
            cursor = PastCursor(page[-1].ended_ms, page[-1].id)
        assert found == [row.id for row in await desk_rig.past()]
        assert len(set(found)) == 200

    async def test_filters_leave_out_what_does_not_match(self, desk_rig: DeskRig) -> None:
        now_ms = desk_rig.store.clock.now_ms()
        (old,) = await desk_rig.deliver(-2000, key=b"a")
        (other,) = await desk_rig.deliver(-1000, route="payments", key=b"a")
        dead = await desk_rig.bury("too_large: 9 bytes")

        async def ids(**wanted: Any) -> list[bytes]:
            return [row.id for row in await desk_rig.past(**wanted)]

        assert await ids() == [dead, other, old]
        assert await ids(route="orders") == [dead, old]
        assert await ids(key=b"a") == [other, old]
        assert await ids(key=b"a", route="payments") == [other]
        assert await ids(state=PastState.DEAD) == [dead]
        assert await ids(reason="too_large") == [dead]
        assert await ids(from_ms=now_ms - 1500) == [dead, other]
        assert await ids(before_ms=now_ms - 1500) == [old]
        assert await ids(id=old[:-2] + b"vv") == []

    async def test_a_call_that_is_repeated_shows_its_messages_once(self, desk_rig: DeskRig) -> None:
        piece = {0: [desk_rig.piece(desk_rig.ids.next(desk_rig.store.clock.now_ms(), 0))]}
        for _ in range(2):
            await desk_rig.store.record(piece, 1000)
        assert len(await desk_rig.past()) == 1

    async def test_a_shard_keeps_the_newest_up_to_its_number(self, desk_rig: DeskRig) -> None:
        ids = [desk_rig.ids.next(desk_rig.store.clock.now_ms(), 0) for _ in range(10)]
        kept = [(await desk_rig.store.record({0: [desk_rig.piece(message_id)]}, 4))[0] for message_id in ids]
        assert kept == [1, 2, 3, *[4] * 7]
        assert sorted(row.id for row in await desk_rig.past()) == ids[-4:]

    async def test_what_left_during_hours_without_memory_is_written_in_one_call(self, desk_rig: DeskRig) -> None:
        """A second with deliveries makes a piece, and a full store takes none until it has room."""
        ids = [desk_rig.ids.next(desk_rig.store.clock.now_ms(), 0) for _ in range(5000)]
        pieces = {0: list(map(desk_rig.piece, ids))}
        assert await desk_rig.store.record(pieces, 10_000) == {0: 5000}

    async def test_the_history_reaches_as_far_back_as_it_is_kept(self, desk_rig: DeskRig) -> None:
        await desk_rig.deliver(0)
        since_ms = await desk_rig.desk.history_since_ms()
        assert abs(await desk_rig.desk.now_ms() - 24 * HOUR_MS - since_ms) < 60_000


class Counts:
    """``past``: deliveries by time, route and lateness."""

    async def test_counts_are_added_up_by_slot_route_and_lateness(self, desk_rig: DeskRig) -> None:
        at_ms = desk_rig.store.clock.now_ms() // SLOT_HOUR_MS * SLOT_HOUR_MS
        for _ in range(2):
            await desk_rig.store.tally(
                [
                    DeliveryCount(at_ms, "orders", 0, 5),
                    DeliveryCount(at_ms, "orders", PLACES - 1, 1),
                    DeliveryCount(at_ms + SLOT_MS, "a route", 3, 7),
                ]
            )
        past_slot = PastSlot(at_ms, "orders", (10, *[0] * (PLACES - 2), 2))
        other = PastSlot(at_ms + SLOT_MS, "a route", (0, 0, 0, 14, *[0] * (PLACES - 4)))
        desk = desk_rig.desk
        assert await desk.past(at_ms, at_ms + SLOT_MS, SLOT_MS) == [past_slot, other]
        assert await desk.past(at_ms, at_ms, SLOT_MS) == [past_slot]
        assert await desk.past(at_ms + 1, at_ms + SLOT_MS, SLOT_MS) == [other]
        for step_ms in (10 * SLOT_MS, SLOT_HOUR_MS, 24 * SLOT_HOUR_MS):
            first_ms = at_ms // step_ms * step_ms
            slots = await desk.past(first_ms, at_ms + SLOT_MS, step_ms)
            assert [(slot.at_ms, slot.route, sum(slot.late)) for slot in slots] == [
                (first_ms, "a route", 14),
                (first_ms, "orders", 12),
            ]

    async def test_a_step_that_is_no_multiple_of_a_slot_is_refused(self, desk_rig: DeskRig) -> None:
        with pytest.raises(ValueError, match="30 s"):
            await desk_rig.desk.past(0, 10, 45_000)


class Audit:
    """``note`` and ``audit``: what people did."""

    async def test_entries_come_newest_first_and_in_pages(self, desk_rig: DeskRig) -> None:
        for number in range(5):
            await desk_rig.desk.note(AuditEntry(Actor("anna", "cli"), "cancel", f"id {number}", number, 'a "reason"'))
        first = await desk_rig.desk.audit(2)
        rest = await desk_rig.desk.audit(10, first[-1].id)
        assert [entry.messages for entry in (*first, *rest)] == [4, 3, 2, 1, 0]
        assert (first[0].by, first[0].verb, first[0].what) == (Actor("anna", "cli"), "cancel", "id 4")
        assert first[0].reason == 'a "reason"'
        assert abs(first[0].at_ms - await desk_rig.desk.now_ms()) < 60_000


class Requests:
    """``remember``: a request that comes twice."""

    async def test_a_key_keeps_its_first_digest_and_id(self, desk_rig: DeskRig) -> None:
        assert await desk_rig.desk.remember(b"key", b"digest", b"i" * 20, 60_000) is None
        assert await desk_rig.desk.remember(b"key", b"other", b"j" * 20, 60_000) == Remembered(b"digest", b"i" * 20)
        assert await desk_rig.desk.remember(b"another", b"other", b"j" * 20, 60_000) is None

    async def test_a_key_remembers_that_its_message_was_parked(self, desk_rig: DeskRig) -> None:
        parked = Remembered(b"digest", b"i" * 20, 1_700_000_000_000)
        assert await desk_rig.desk.remember(b"parked", b"digest", b"i" * 20, 60_000) is None
        await desk_rig.desk.remember_parked(b"parked", parked, 60_000)
        assert await desk_rig.desk.remember(b"parked", b"digest", b"j" * 20, 60_000) == parked


class PastSuite(History, Counts, Audit, Requests):
    """Every promise about the past. A subclass has a fixture ``desk_rig``."""
