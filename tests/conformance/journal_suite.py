"""The promises of ``bridge.core.journal.Journal`` as tests. Every journal passes them."""

from __future__ import annotations

from itertools import count

from bridge.core.journal import (
    START,
    UNDONE,
    Journal,
    JournalEntry,
    JournalFilter,
    StoreMove,
    Written,
)
from bridge.core.message import Origin
from bridge.parking.envelope import found_key, seal
from bridge.parking.identity import Ids, rank_of

DUE_MS = 1_800_000_000_000
WAITING, COLD = JournalFilter(), JournalFilter((Written.COLD,))
_IDS = Ids("jrnl00")
_MOVES, _ARRIVALS = count(1), count(1)


def entry(
    due_ms: int = DUE_MS,
    payload: bytes = b"body",
    *,
    route: str = "orders",
    key: bytes = b"",
    origin: Origin | None = None,
    dead: str | None = None,
    priority: int | None = None,
) -> JournalEntry:
    """A message to be written."""
    message_id = _IDS.next(DUE_MS - 1000 + next(_ARRIVALS), 3, rank_of(priority))
    envelope = seal(due_ms, DUE_MS - 1000, route.encode(), key, b"", payload)
    return JournalEntry(message_id, due_ms, envelope, origin, dead)


def move(state: Written | None, *entries: JournalEntry, at_ms: int = DUE_MS, **facts: object) -> StoreMove:
    """What happened to these messages."""
    name = state.name.lower() if state is not None else "rescheduled"
    return StoreMove([entry.id for entry in entries], next(_MOVES), at_ms, name, state, **facts)  # type: ignore[arg-type]


async def waiting(journal: Journal, wanted: JournalFilter = WAITING) -> list[bytes]:
    """The ids of the rows that match, in order."""
    return [row.id for row in await journal.page(wanted, START, 1000)]


class JournalSuite:
    """What a journal keeps, and what it knows of it."""

    async def test_a_message_comes_back_byte_for_byte_with_its_facts(self, journal: Journal) -> None:
        body = bytes(range(256)) * 300
        written = entry(payload=body, route="zürich", key=b"\xff key")
        await journal.write([written])
        (row,) = await journal.page(WAITING, START, 10)
        assert row.envelope == written.envelope
        assert (row.id, row.route, row.key, row.due_ms) == (written.id, "zürich", b"\xff key", DUE_MS)
        assert (row.arrived_ms, row.state, row.ended_ms) == (DUE_MS - 1000, Written.WAITING, None)

    async def test_the_same_message_written_twice_has_one_row(self, journal: Journal) -> None:
        written = entry()
        await journal.write([written])
        await journal.write([written, entry()])
        assert await journal.count(WAITING) == 2

    async def test_a_record_that_comes_again_replaces_its_row(self, journal: Journal) -> None:
        first, other = entry(origin=(b"log", 7)), entry(origin=(b"log", 8))
        await journal.write([first, other])
        again = entry(origin=(b"log", 7))
        await journal.write([again])
        assert set(await waiting(journal)) == {other.id, again.id}

    async def test_a_row_keeps_its_record_where_another_instance_writes_it_again(self, journal: Journal) -> None:
        """That instance took the message from the store, which does not tell of which record it is."""
        first = entry(origin=(b"log", 7))
        await journal.write([first])
        await journal.write([first._replace(origin=None)])
        again = entry(origin=(b"log", 7))
        assert await journal.propose([again]) == {first.id: again.id}

    async def test_a_record_may_have_two_rows_until_one_is_parked(self, journal: Journal) -> None:
        first, other = entry(origin=(b"log", 7)), entry(origin=(b"log", 8))
        assert await journal.propose([first, other, entry()]) == {}
        again = entry(origin=(b"log", 7))
        assert await journal.propose([again]) == {first.id: again.id}
        assert await journal.propose([again]) == {first.id: again.id}
        assert await journal.count(WAITING) == 4
        assert [(key, row.id, row.state) for key, row in await journal.rivals([first.id, other.id])] == [
            (first.id, again.id, Written.WAITING)
        ]
        await journal.drop([first.id])
        assert await journal.rivals([again.id]) == []

    async def test_what_waits_is_read_by_due_moment_and_id_in_pages(self, journal: Journal) -> None:
        entries = [entry(DUE_MS + number % 3) for number in range(10)]
        await journal.write(entries)
        found, place = [], START
        while page := await journal.page(WAITING, place, 4):
            place = page[-1].due_ms, page[-1].id
            found += [row.id for row in page]
        assert found == [entry.id for entry in sorted(entries, key=lambda entry: (entry.due_ms, entry.id))]

    async def test_what_was_delivered_cancelled_or_replaced_waits_no_more(self, journal: Journal) -> None:
        delivered, cancelled, replaced, kept = (entry() for _ in range(4))
        await journal.write([delivered, cancelled, replaced, kept])
        await journal.record([move(Written.DELIVERED, delivered), move(Written.CANCELLED, cancelled, reason="why")])
        await journal.record([move(Written.REPLACED, replaced)])
        assert await waiting(journal) == [kept.id]
        assert set(await waiting(journal, JournalFilter(UNDONE))) == {cancelled.id, replaced.id}
        row = (await journal.look([cancelled.id]))[cancelled.id]
        assert (row.state, row.reason, row.ended_ms) == (Written.CANCELLED, "why", DUE_MS)

    async def test_a_move_that_comes_again_late_changes_nothing(self, journal: Journal) -> None:
        written = entry()
        await journal.write([written])
        earlier, later = move(None, written, due_ms=DUE_MS + 1), move(None, written, due_ms=DUE_MS + 2)
        await journal.record([earlier, later])
        await journal.record([earlier])
        assert (await journal.look([written.id]))[written.id].due_ms == DUE_MS + 2
        assert len(await journal.flow(written.id)) == 1

    async def test_a_row_has_the_place_of_its_last_move(self, journal: Journal) -> None:
        rescheduled, retried, new = written = entry(), entry(), entry()
        await journal.write(written)
        later, last = move(None, rescheduled, due_ms=DUE_MS + 7), move(Written.WAITING, retried)
        await journal.record([later, last])
        await journal.record([StoreMove([retried.id], 0, DUE_MS, "restored", None)])
        places = {rescheduled.id: later.at, retried.id: last.at, new.id: 0}
        assert {row.id: row.changed for row in await journal.page(WAITING, START, 10)} == places
        assert {row.id: row.changed for row in (await journal.look(list(places))).values()} == places

    async def test_an_end_that_comes_before_its_message_counts(self, journal: Journal) -> None:
        written = entry()
        await journal.record([move(Written.DELIVERED, written)])
        await journal.write([written])
        assert await waiting(journal) == []
        row = (await journal.look([written.id]))[written.id]
        assert (row.state, row.route, row.due_ms) == (Written.DELIVERED, "orders", DUE_MS)

    async def test_messages_and_what_became_of_them_are_written_at_once(self, journal: Journal) -> None:
        delivered, moved, waits, known = (entry() for _ in range(4))
        await journal.write([known])
        moves = [
            move(None, moved, due_ms=DUE_MS + 5),
            move(Written.DELIVERED, delivered, moved, known, at_ms=DUE_MS + 7),
        ]
        for _ in range(2):  # the reply of the first call was lost
            await journal.write([delivered, moved, waits, known], moves)
            assert await waiting(journal) == [waits.id]
            rows = await journal.look([delivered.id, moved.id, known.id])
            assert {(row.state, row.route, row.ended_ms) for row in rows.values()} == {
                (Written.DELIVERED, "orders", DUE_MS + 7)
            }
            assert [rows[row.id].due_ms for row in (delivered, moved, known)] == [DUE_MS, DUE_MS + 5, DUE_MS]
            assert [row.due_ms for row in await journal.flow(moved.id)] == [DUE_MS + 5]

    async def test_a_batch_may_have_a_message_twice(self, journal: Journal) -> None:
        written, other = entry(), entry()
        await journal.write([written, other, written])
        dead, delivered = move(Written.DEAD, written), move(Written.DELIVERED, written, at_ms=DUE_MS + 7)
        await journal.record([dead, delivered, dead])
        assert await waiting(journal) == [other.id]

    async def test_a_dead_letter_is_one_from_the_start_and_waits_again_after_a_retry(self, journal: Journal) -> None:
        written = entry(dead="bad_header: no moment")
        await journal.write([written])
        (row,) = await journal.page(WAITING, START, 10)
        assert (row.state, row.reason) == (Written.DEAD, "bad_header: no moment")
        await journal.record([move(Written.WAITING, written, due_ms=DUE_MS + 5)])
        (row,) = await journal.page(WAITING, START, 10)
        assert (row.state, row.due_ms) == (Written.WAITING, DUE_MS + 5)

    async def test_a_dead_letter_is_still_there_to_be_restored(self, journal: Journal) -> None:
        written = entry()
        await journal.write([written])
        await journal.record([move(Written.DEAD, written, reason="unroutable")])
        (row,) = await journal.page(WAITING, START, 10)
        assert (row.state, row.reason, row.ended_ms) == (Written.DEAD, "unroutable", None)

    async def test_whatever_text_a_broker_or_a_person_wrote_the_row_is_written(self, journal: Journal) -> None:
        texts = ["exhausted: java.io.IOException: \0", "half a pair: \udcff", "\N{PARTY POPPER} приказ 注文" * 30]
        for text in texts:
            dead, cancelled = entry(dead=text), entry()
            await journal.write([dead, cancelled], [move(Written.CANCELLED, cancelled, reason=text, by=text)])
            await journal.record([move(Written.DEAD, dead, reason=text), move(None, dead, due_ms=DUE_MS, reason=text)])
            assert {row.state for row in (await journal.look([dead.id, cancelled.id])).values()} == {
                Written.DEAD,
                Written.CANCELLED,
            }
        assert (await journal.look([dead.id]))[dead.id].reason.startswith("\N{PARTY POPPER} приказ 注文")

    async def test_a_filter_selects_by_route_key_id_and_due_moment(self, journal: Journal) -> None:
        orders, keyed = entry(DUE_MS), entry(DUE_MS + 10, key=b"k", route="mails")
        found = entry(DUE_MS + 20, key=found_key(b"m-1"))
        await journal.write([orders, keyed, found])
        assert await waiting(journal, JournalFilter(route="mails")) == [keyed.id]
        assert await waiting(journal, JournalFilter(key=b"k")) == [keyed.id]
        assert await waiting(journal, JournalFilter(key=b"m-1")) == [found.id]
        assert await waiting(journal, JournalFilter(ids=(orders.id, found.id))) == [orders.id, found.id]
        between = JournalFilter(due_from_ms=DUE_MS + 1, due_before_ms=DUE_MS + 20)
        assert await waiting(journal, between) == [keyed.id]
        assert await journal.count(between) == 1

    async def test_the_flow_tells_what_happened_in_order(self, journal: Journal) -> None:
        written = entry()
        await journal.write([written])
        moves = [
            move(None, written, at_ms=DUE_MS, due_ms=DUE_MS + 9),
            move(Written.CANCELLED, written, at_ms=DUE_MS + 1, reason="a mistake"),
            move(Written.WAITING, written, at_ms=DUE_MS + 2, by="anna (cli)"),
        ]
        await journal.record(moves)
        flow = await journal.flow(written.id)
        assert [row.move for row in flow] == ["rescheduled", "cancelled", "waiting"]
        assert (flow[0].due_ms, flow[1].reason, flow[2].by) == (DUE_MS + 9, "a mistake", "anna (cli)")
        assert await waiting(journal) == [written.id]

    async def test_rows_go_when_their_messages_ended_long_ago_and_no_earlier(self, journal: Journal) -> None:
        old, new, kept = entry(), entry(), entry()
        await journal.write([old, new, kept])
        await journal.record(
            [move(Written.CANCELLED, old, at_ms=DUE_MS), move(Written.DELIVERED, new, at_ms=DUE_MS + 9)]
        )
        assert await journal.prune(DUE_MS + 1, 100) == 1
        assert set(await journal.look([old.id, new.id, kept.id])) == {new.id, kept.id}
        assert await journal.flow(old.id) == []

    async def test_it_knows_which_messages_lack_a_whole_row(self, journal: Journal) -> None:
        written, ended, unknown = entry(), entry(), entry()
        await journal.write([written])
        await journal.record([move(Written.DELIVERED, ended)])
        assert await journal.lacking([written.id, ended.id, unknown.id]) == [ended.id, unknown.id]

    async def test_a_dropped_row_is_gone(self, journal: Journal) -> None:
        written = entry()
        await journal.write([written])
        await journal.drop([written.id])
        assert await waiting(journal) == []

    async def test_the_newest_are_those_that_arrived_last(self, journal: Journal) -> None:
        entries = [entry(DUE_MS - number) for number in range(5)]
        await journal.write(entries)
        assert [row.id for row in await journal.newest(2)] == [entries[4].id, entries[3].id]

    async def test_the_newest_are_of_all_priorities(self, journal: Journal) -> None:
        entries = [entry(priority=priority) for priority in (0, 15, 0, None, 7)]
        await journal.write(entries)
        assert [row.id for row in await journal.newest(4)] == [written.id for written in entries[:0:-1]]

    async def test_those_that_ended_last_come_first(self, journal: Journal) -> None:
        entries = [entry(DUE_MS - number, key=b"k") for number in range(4)]
        waits, cold = entry(key=b"k"), entry(key=b"k")
        await journal.write([*entries, waits, cold])
        await journal.shift([cold.id], Written.WAITING, Written.COLD)
        await journal.record([move(Written.DELIVERED, written, at_ms=DUE_MS + n) for n, written in enumerate(entries)])
        wanted = JournalFilter((Written.DELIVERED, Written.CANCELLED), "orders", b"k")
        found = await journal.ended(wanted, 2, 10)
        assert [row.id for row in found] == [entries[3].id, entries[2].id]
        assert [(row.envelope, row.size) for row in found] == [
            (written.envelope[:10], len(written.envelope)) for written in entries[:1:-1]
        ]
        by_id = JournalFilter(wanted.states, ids=(entries[0].id, waits.id))
        assert [row.id for row in await journal.ended(by_id, 2, 10)] == [entries[0].id]

    async def test_a_row_goes_to_the_cold_tier_and_comes_back_and_keeps_its_end(self, journal: Journal) -> None:
        written, ended, unknown = entry(key=b"k"), entry(), entry()
        await journal.write([written, ended])
        await journal.record([move(Written.CANCELLED, ended)])
        ids = [written.id, ended.id, unknown.id]
        for _ in "12":
            assert await journal.shift(ids, Written.WAITING, Written.COLD) == [written.id]
        assert await waiting(journal) == []
        assert await journal.prune(DUE_MS * 2, 10) == 1
        (row,) = await journal.page(COLD, START, 10)
        assert (row.id, row.state, row.ended_ms, row.envelope) == (written.id, Written.COLD, None, written.envelope)
        assert await journal.shift([written.id], Written.COLD, Written.WAITING) == [written.id]
        assert (await waiting(journal), await waiting(journal, COLD)) == ([written.id], [])

    async def test_a_move_ends_a_cold_row_as_any_other(self, journal: Journal) -> None:
        cold = [entry() for _ in range(3)]
        await journal.write(cold)
        await journal.shift([entry.id for entry in cold], Written.WAITING, Written.COLD)
        await journal.record([move(None, cold[0], due_ms=DUE_MS + 7), move(Written.DELIVERED, cold[1])])
        assert [(row.id, row.due_ms) for row in await journal.page(COLD, START, 10)] == [
            (cold[2].id, DUE_MS),
            (cold[0].id, DUE_MS + 7),
        ]
        assert (await journal.look([cold[1].id]))[cold[1].id].ended_ms == DUE_MS

    async def test_cold_rows_are_found_by_route_and_key_and_counted(self, journal: Journal) -> None:
        cold = [entry(DUE_MS + n, key=b"k", route=route) for n, route in enumerate(["orders", "orders", "bills"])]
        hot, found = entry(key=b"k"), entry(DUE_MS + 9, key=found_key(b"k"))
        await journal.write([*cold, hot, found])
        await journal.shift([entry.id for entry in [*cold, found]], Written.WAITING, Written.COLD)
        named = await journal.named([("orders", b"k"), ("orders", b"other")], 10)
        assert {row.id: row.size for row in named} == {row.id: len(row.envelope) for row in [*cold[:2], found]}
        assert len(await journal.named([("orders", b"k"), ("bills", b"k")], 2)) == 3
        assert await journal.cold_counts() == {3: {"orders": 3, "bills": 1}}
        assert await journal.cold_counts(DUE_MS + 1) == {3: {"orders": 2, "bills": 1}}
        await journal.write([other := entry(route="Orders")])
        await journal.shift([other.id], Written.WAITING, Written.COLD)
        assert await journal.cold_counts() == {3: {"orders": 3, "bills": 1, "Orders": 1}}
        assert await waiting(journal, JournalFilter((Written.COLD,), route="Orders")) == [other.id]
        await journal.drop([other.id])
        assert await journal.density([0, DUE_MS + 1, DUE_MS + 9, DUE_MS + 10]) == [1, 2, 1]

    async def test_a_page_may_have_the_start_of_each_envelope_alone(self, journal: Journal) -> None:
        written = entry(payload=b"x" * 5000)
        await journal.write([written])
        (row,) = await journal.page(WAITING, START, 10, 100)
        assert (row.envelope, row.size) == (written.envelope[:100], len(written.envelope))

    async def test_thousands_of_rows_and_moves_go_in_one_call(self, journal: Journal) -> None:
        entries = [entry(origin=(b"log", 1000 + number)) for number in range(2500)]
        await journal.write(entries)
        await journal.record([move(Written.DELIVERED, *entries[:2499])])
        assert await waiting(journal) == [entries[2499].id]
