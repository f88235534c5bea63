"""The promises of ``bridge.core.journal.MoveLog`` as tests. Every store with a log passes them."""

from __future__ import annotations

from typing import cast

from bridge.core.journal import MoveLog, Written
from bridge.core.ports import Batch, DeadBatch, Keyed, Parked, Store
from bridge.parking.envelope import index_field
from tests.conformance.rig import HOUR_MS, SHARDS, Rig, claim, ids, park, park_keyed


async def logged(log: MoveLog, limit: int = 100) -> list[tuple[str, Written | None, list[bytes]]]:
    """Name, state and ids of all moves in the log, which is then empty."""
    found = []
    for shard, moves in (await log.read(range(SHARDS), limit)).items():
        found += [(move.name, move.state, list(move.ids)) for move in moves.moves]
        await log.forget(shard, moves.names)
    return found


class Moves:
    """What left the store, and what was rescheduled or retried, from the first reading on."""

    def log(self, store: Store) -> MoveLog:
        """The log of a store."""
        return cast("MoveLog", getattr(store, "moves", store))

    async def test_without_a_reader_nothing_is_logged(self, rig: Rig) -> None:
        store = await rig.open()
        await store.settle(await rig.claimed(store))
        assert await logged(self.log(store)) == []

    async def test_a_call_that_parks_begins_the_logs_that_it_names(self, rig: Rig) -> None:
        """An emptied store has none, and what it gets may leave before a reader comes."""
        store = await rig.open()
        log, soon_ms = self.log(store), await rig.now_ms() + HOUR_MS
        first, second, third = (rig.message(soon_ms) for _ in "123")
        for logs, message in enumerate((first, second, third)):
            batch = Batch(store.new_token(), [message], logs=logs)
            assert (await store.park({0: batch}))[0] == Parked((), (), ())
            await store.cancel([message[0]], False)
        assert [ids for _, _, ids in await logged(log)] == [[second[0]], [third[0]]]
        parks = (await log.read([0], 9, parks=True))[0].moves
        assert [list(move.ids) for move in parks] == [[third[0]]]

    async def test_every_end_is_logged_in_its_order(self, rig: Rig) -> None:
        store = await rig.open()
        assert await logged(self.log(store)) == []
        await park(store, *(await rig.overdue(2)))
        claims = (await claim(store)).claims
        await store.settle(claims[:1])
        await store.bury([(claims[1], "unroutable: no queue")])
        soon_ms = await rig.now_ms() + HOUR_MS
        older, younger = rig.message(soon_ms, key=b"k"), rig.message(soon_ms, key=b"k")
        await park_keyed(store, older, b"k", "replace")
        await park_keyed(store, younger, b"k", "replace")
        await store.cancel([younger[0]], False, reason="a mistake")
        rejected = rig.message(soon_ms)
        await store.reject(0, DeadBatch(store.new_token(), [(rejected[0], rejected[2], "bad_header: soon")]))
        assert await logged(self.log(store)) == [
            ("delivered", Written.DELIVERED, [claims[0].id]),
            ("dead", Written.DEAD, [claims[1].id]),
            ("replaced", Written.REPLACED, [older[0]]),
            ("cancelled", Written.CANCELLED, [younger[0]]),
            ("dead", Written.DEAD, [rejected[0]]),
        ]
        assert await logged(self.log(store)) == []

    async def test_what_is_put_back_waits_again_and_what_the_store_has_is_not_named(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        there, gone, keyed = (rig.message(soon_ms, key=b"k" * (n == 2)) for n in range(3))
        await park(store, there)
        batch = Batch(store.new_token(), [gone, there, keyed], [Keyed(3, index_field(b"orders", b"k"), "keep")])
        batch.once, batch.logs = True, 1
        assert (await store.park({0: batch}))[0] == Parked((), (), (2,))
        found = await logged(self.log(store))
        assert {(name, state) for name, state, _ in found} == {("restored", Written.WAITING)}
        assert {message_id for _, _, ids in found for message_id in ids} == {gone[0], keyed[0]}

    async def test_a_repeated_call_leaves_what_was_put_back_meanwhile_as_it_is(self, rig: Rig) -> None:
        """A restore reads the row of a message that is still being parked, or whose call the store has lost."""
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        under_way, keyed, new = (rig.message(due_ms + n * HOUR_MS, key=key) for n, key in enumerate((b"f", b"k", b"f")))
        field, own = index_field(b"orders", b"f"), [Keyed(2, index_field(b"orders", b"k"), "replace")]
        await park(store, under_way, keyed, keyed=own, found={field: under_way[0]}, once=True)
        assert ids(await claim(store)) == [under_way[0]]
        batch = Batch(store.new_token(), [under_way, keyed, new], own, {field: under_way[0] + new[0]}, again=True)
        assert (await store.park({0: batch}))[0] == Parked((), (), ())
        assert ids(await claim(store)) == []
        assert (await store.find([field]))[field].ids == [under_way[0], new[0]]
        assert await store.parked_by_route(["orders"]) == {"orders": 3}
        assert (await rig.counts())["parked"] == 3
        assert await store.cancel([keyed[0], new[0]], False) == {keyed[0]: "parked", new[0]: "parked"}

    async def test_a_new_moment_and_a_retry_are_logged_with_their_moment(self, rig: Rig) -> None:
        store = await rig.open()
        log = self.log(store)
        await log.read(range(SHARDS), 1)
        message = rig.message(await rig.now_ms() + HOUR_MS)
        await park(store, message)
        await rig.reschedule(store, message[0], message[1] + 5)
        rejected = rig.message(message[1])
        await store.reject(0, DeadBatch(store.new_token(), [(rejected[0], rejected[2], "bad_header")]))
        await rig.retry(store, rejected[0])
        moves = [move for move in (await log.read([0], 100))[0].moves if move.due_ms is not None]
        assert [(move.name, move.state) for move in moves] == [("rescheduled", None), ("retried", Written.WAITING)]
        assert moves[0].due_ms == message[1] + 5
        assert abs((moves[1].due_ms or 0) - await rig.now_ms()) < 60_000
        assert [move.at for move in moves] == sorted({move.at for move in moves})

    async def test_moves_that_come_after_a_reading_stay_when_it_is_forgotten(self, rig: Rig) -> None:
        store = await rig.open()
        log = self.log(store)
        assert await logged(log) == []
        await park(store, *(await rig.overdue(2)))
        claims = (await claim(store)).claims
        await store.settle(claims[:1])
        read = (await log.read([0], 100))[0]
        await store.settle(claims[1:])
        await log.forget(0, read.names)
        assert await logged(log) == [("delivered", Written.DELIVERED, [claims[1].id])]

    async def test_moves_that_were_not_read_stay_also_where_their_places_are_lower(self, rig: Rig) -> None:
        """As those of a new log, whose store lost the other one and the clock of which was set back."""
        store = await rig.open()
        log = self.log(store)
        assert await logged(log) == []
        await park(store, *(await rig.overdue(2)))
        claims = (await claim(store)).claims
        await store.settle(claims[:1])
        await store.settle(claims[1:])
        await log.forget(0, (await log.read([0], 100))[0].names[-1:])
        assert await logged(log) == [("delivered", Written.DELIVERED, [claims[0].id])]

    async def test_a_reading_may_begin_at_a_moment(self, rig: Rig) -> None:
        store = await rig.open()
        log = self.log(store)
        await log.read([0], 1, parks=True)
        message = rig.message(await rig.now_ms() + HOUR_MS)
        await park(store, message)
        at_ms = (await log.read([0], 9, parks=True))[0].moves[-1].at_ms
        for from_ms, keys in [(at_ms, [message[0]]), (at_ms + 1, [])]:
            found = await log.read([0], 9, parks=True, from_ms=from_ms)
            assert [key for logged in found.values() for move in logged.moves for key in move.ids] == keys

    async def test_a_reading_may_end_where_the_log_ended_before(self, rig: Rig) -> None:
        store = await rig.open()
        log = self.log(store)
        await log.ends([0])
        soon_ms = await rig.now_ms() + HOUR_MS
        first, second = rig.message(soon_ms), rig.message(soon_ms)
        await park(store, first)
        ends = await log.ends([0])
        await park(store, second)
        assert await log.ends([0]) != ends
        for wanted, keys in [(ends, [first[0]]), (await log.ends([0]), [first[0], second[0]]), ({1: ends[0]}, None)]:
            found = (await log.read([0], 9, parks=True, ends=wanted))[0]
            assert [key for move in found.moves for key in move.ids] == (keys or [first[0], second[0]])
        await log.forget(0, (await log.read([0], 9, parks=True, ends=ends))[0].names, parks=True)
        assert await log.read([0], 9, parks=True, ends=ends) == {}

    async def test_moves_come_after_a_place_of_an_earlier_log(self, rig: Rig) -> None:
        """An emptied store has lost its log, and its clock may have been set back."""
        store = await rig.open()
        log, due_ms = self.log(store), await rig.now_ms() + HOUR_MS
        for place in (1, due_ms << 20 | 7, due_ms << 20 | 7, 1, due_ms + 1 << 20):
            await log.pass_by({0: place})
            message = rig.message(due_ms)
            await park(store, message)
            await store.cancel([message[0]], False)
            read = (await log.read([0], 100))[0]
            assert [list(move.ids) for move in read.moves] == [[message[0]]]
            assert read.moves[0].at > place
            await log.forget(0, read.names)

    async def test_what_is_parked_or_rejected_is_logged_where_someone_asks_and_read_whole(self, rig: Rig) -> None:
        store = await rig.open()
        log = self.log(store)
        assert await log.read(range(SHARDS), 1, parks=True) in ({}, await log.read(range(SHARDS), 1, parks=True))
        for shard, logged_moves in (await log.read(range(SHARDS), 9, parks=True)).items():
            await log.forget(shard, logged_moves.names, parks=True)
        soon_ms = await rig.now_ms() + HOUR_MS
        first, second, rejected = (rig.message(soon_ms, payload=bytes(range(256))) for _ in "123")
        await park(store, first, second)
        await store.reject(0, DeadBatch(store.new_token(), [(rejected[0], rejected[2], "bad_header")]))
        moves = (await log.read([0], 9, parks=True))[0].moves
        ids = [message_id for move in moves for message_id in move.ids]
        assert ids == [first[0], second[0], rejected[0]]
        entries = {entry.id: (entry.due_ms, entry.envelope) for entry in await log.envelopes([*ids, b"0" * 20])}
        assert entries[first[0]] == first[1:]
        assert entries.keys() == set(ids)
        assert await logged(log) == []

    async def test_it_knows_which_messages_the_store_has_in_any_state(self, rig: Rig) -> None:
        store = await rig.open()
        (claimed,) = await rig.claimed(store)
        soon_ms = await rig.now_ms() + HOUR_MS
        parked, gone, dead = (rig.message(soon_ms) for _ in range(3))
        await park(store, parked)
        await store.reject(0, DeadBatch(store.new_token(), [(dead[0], dead[2], "bad_header")]))
        known = await self.log(store).known([claimed.id, parked[0], gone[0], dead[0]])
        assert known == {claimed.id, parked[0], dead[0]}
