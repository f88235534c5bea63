"""The promises of ``bridge.core.journal.Tiers`` as tests. Every store with a cold tier passes them."""

from __future__ import annotations

from typing import cast

from bridge.core.journal import TierMoved, Tiers
from bridge.core.ports import Batch, Keyed, Store
from bridge.parking.envelope import as_loaded, index_field, unseal, with_due
from tests.conformance.rig import HOUR_MS, SHARDS, Message, Rig, claim, park, park_keyed

FIELD = index_field(b"orders", b"k")


def tiers_of(store: Store) -> Tiers:
    """The cold tier of a store."""
    return cast("Tiers", getattr(store, "tiers", store))


async def begun(rig: Rig) -> tuple[Store, Tiers]:
    """A store with a cold tier."""
    store = await rig.open()
    tiers = tiers_of(store)
    for shard in range(SHARDS):
        await tiers.begin(shard, {})
    return store, tiers


async def mark(tiers: Tiers) -> bytes:
    return (await tiers.marks([0]))[0]


async def cold(tiers: Tiers) -> int:
    return sum(sum(routes.values()) for routes in (await tiers.cold()).values())


def loading(message: Message) -> tuple[bytes, int, bytes]:
    """A message as it is loaded."""
    return message[0], message[1], as_loaded(message[0], message[2])


class TierSuite:
    """Messages go to the journal alone, and come back."""

    async def test_a_message_goes_and_comes_back_byte_for_byte_with_its_key(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        message = rig.message(await rig.now_ms() + HOUR_MS, key=b"k", payload=bytes(range(256)))
        await park_keyed(store, message, b"k", "replace")
        assert await tiers.unload(0, [message[:2]]) == 1
        assert (await rig.word(message[0]), await rig.index_fields()) == ("none", set())
        assert (await cold(tiers), await store.parked_by_route(["orders"])) == (1, {"orders": 1})
        assert await tiers.load(0, await mark(tiers), [loading(message)], [])
        assert (await rig.word(message[0]), await rig.index_fields()) == ("parked", {FIELD})
        assert (await cold(tiers), await store.parked_by_route(["orders"])) == (0, {"orders": 1})
        opened = unseal(await rig.envelope(message[0]) or b"")
        assert (opened.payload, opened.first, opened.due_ms) == (bytes(range(256)), message[0], message[1])
        assert await store.cancel([message[0]], False) == {message[0]: "parked"}

    async def test_what_was_loaded_is_delivered_under_its_own_id(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        (message,) = await rig.overdue()
        assert await tiers.load(0, await mark(tiers), [loading(message)], [])
        (found,) = (await claim(store)).claims
        assert (found.id, found.public_id, found.payload) == (message[0], message[0], unseal(message[2]).payload)

    async def test_a_look_into_the_journal_that_is_older_than_a_step_loads_nothing(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        later_ms = await rig.now_ms() + HOUR_MS
        first, second = rig.message(later_ms), rig.message(later_ms)
        await park(store, first)
        old = await mark(tiers)
        await tiers.unload(0, [first[:2]])
        assert not await tiers.load(0, old, [loading(second)], [])
        old = await mark(tiers)
        assert await tiers.load(0, old, [loading(first)], [])
        assert not await tiers.load(0, old, [loading(second)], [])
        assert not await tiers.load(0, b"", [loading(second)], [])
        assert (await rig.word(first[0]), await rig.word(second[0])) == ("parked", "none")

    async def test_what_is_in_the_store_is_not_parked_again_and_never_unloaded_again(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        message = rig.message(await rig.now_ms() + HOUR_MS)
        await park(store, message)
        assert await tiers.load(0, await mark(tiers), [loading(message)], [])
        assert (await store.parked_by_route(["orders"]), await cold(tiers)) == ({"orders": 1}, 0)
        assert await tiers.load(0, await mark(tiers), [], [message[0]])
        assert await tiers.unload(0, [message[:2]]) == 0
        assert await tiers.far(0, 0, 0, 10) == ([], [message[0]])

    async def test_what_was_rescheduled_tried_or_has_another_moment_stays(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        later_ms = await rig.now_ms() + HOUR_MS
        moved = rig.message(later_ms)
        await park(store, moved)
        await rig.reschedule(store, moved[0], later_ms + 5)
        assert await tiers.unload(0, [moved[:2]]) == 0
        assert await tiers.far(0, later_ms, 0, 10) == ([(moved[0], later_ms + 5)], [])
        assert await tiers.far(0, later_ms + 6, 0, 10) == ([], [])
        assert await tiers.unload(0, [(moved[0], later_ms + 5), (b"0" * 18 + b"00", 5)]) == 1

    async def test_far_messages_are_read_in_steps(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        later_ms = await rig.now_ms() + HOUR_MS
        messages = [rig.message(later_ms + number) for number in range(5)]
        await park(store, *messages)
        found = [await tiers.far(0, later_ms + 1, skip, 2) for skip in (0, 2, 4)]
        assert [len(page.messages) for page in found] == [2, 2, 0]
        assert [row for page in found for row in page.messages] == [message[:2] for message in messages[1:]]

    async def test_a_store_without_a_cold_tier_unloads_nothing(self, rig: Rig) -> None:
        store = await rig.open()
        tiers = tiers_of(store)
        message = rig.message(await rig.now_ms() + HOUR_MS)
        await park(store, message)
        assert (await mark(tiers), await tiers.unload(0, [message[:2]])) == (b"", 0)
        await tiers.begin(0, {"orders": 7, "bills": 1})
        begun_with = await mark(tiers)
        await tiers.begin(0, {"orders": 9})
        assert (await mark(tiers), await cold(tiers)) == (begun_with, 8)
        assert await store.parked_by_route(["orders", "bills"]) == {"orders": 8, "bills": 1}

    async def test_counts_change_only_beside_what_their_caller_has_seen(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        message = rig.message(await rig.now_ms() + HOUR_MS)
        await park(store, message)
        old = await mark(tiers)
        await tiers.unload(0, [message[:2]])
        await tiers.begin(0, {"orders": 9}, old)
        assert (await tiers.cold())[0] == {"orders": 1}
        seen = await mark(tiers)
        await tiers.begin(0, {"bills": 2}, seen)
        assert ((await tiers.cold())[0], await mark(tiers)) == ({"bills": 2}, seen)
        assert await store.parked_by_route(["orders", "bills"]) == {"orders": 0, "bills": 2}

    async def test_a_key_is_parked_only_beside_what_its_caller_has_seen(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        later_ms = await rig.now_ms() + HOUR_MS
        older, younger = rig.message(later_ms, key=b"k"), rig.message(later_ms, key=b"k")
        await park(store, older)
        old = await mark(tiers)
        await tiers.unload(0, [older[:2]])
        batch = Batch(store.new_token(), [younger], [Keyed(1, FIELD, "replace")], mark=old)
        assert isinstance((await store.park({0: batch}))[0], TierMoved)
        assert await rig.word(younger[0]) == "none"
        batch.mark = await mark(tiers)
        first = (await store.park({0: batch}))[0]
        await tiers.unload(0, [younger[:2]])
        assert (await store.park({0: batch}))[0] == first  # a repeated call has its reply, and parks nothing

    async def test_a_due_moment_of_the_journal_counts(self, rig: Rig) -> None:
        store, tiers = await begun(rig)
        message = rig.message(await rig.now_ms() + HOUR_MS)
        later = message[0], message[1] + 9, with_due(message[2], message[1] + 9)
        assert await tiers.load(0, await mark(tiers), [loading(later)], [])
        assert await tiers.far(0, message[1] + 9, 0, 5) == ([], [message[0]])
        assert await store.cancel([message[0]], False) == {message[0]: "parked"}
