"""The part of the store's suite about records that can be read again: each is dealt with once, by any instance."""

from __future__ import annotations

import pytest

from bridge.core.ports import DeadBatch, Found, Keyed, Parked
from bridge.parking.envelope import index_field
from tests.conformance.rig import HOUR_MS, Message, Rig, claim, ids, park

FIELD = index_field(b"orders", b"k")
LOG = b"orders.delay-0"


def at(*offsets: int, log: bytes = LOG) -> list[tuple[bytes, int]]:
    """Origins in one log."""
    return [(log, offset) for offset in offsets]


def row(message: Message) -> tuple[bytes, bytes, str]:
    """A message as a dead letter."""
    return message[0], message[2], "bad_header: not a number"


class Origins:
    """A record that was dealt with is passed over, whichever call and whichever instance brings it again."""

    async def test_a_record_is_parked_once(self, rig: Rig) -> None:
        opened, other = await rig.open("a"), await rig.open("b")
        first, second = await rig.overdue(2)
        assert await park(opened, first, origins=at(100)) == Parked((), (), ())
        for store in (opened, other):
            assert await park(store, second, origins=at(100)) == Parked((), (), (1,))
        assert ids(await claim(opened)) == [first[0]]
        assert await rig.word(second[0]) == "none"
        assert (await rig.counts())["parked"] == 1

    async def test_a_record_that_was_delivered_is_not_parked_again(self, rig: Rig) -> None:
        store = await rig.open()
        first, second = await rig.overdue(2)
        await park(store, first, origins=at(100))
        assert await store.settle((await claim(store)).claims) == 1
        assert await park(store, second, origins=at(100)) == Parked((), (), (1,))
        assert await rig.word(second[0]) == "none"

    async def test_of_a_batch_only_what_is_new_is_parked(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(6)
        await park(store, *messages[:2], origins=at(100, 105))  # a log has gaps
        assert await park(store, *messages[2:], origins=at(100, 105, 106, 230)) == Parked((), (), (1, 2))
        assert ids(await claim(store)) == [messages[n][0] for n in (0, 1, 4, 5)]

    async def test_a_record_that_stands_twice_in_a_batch_is_parked_once(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(2)
        assert await park(store, *messages, origins=at(7, 7)) == Parked((), (), (2,))
        assert ids(await claim(store)) == [messages[0][0]]

    async def test_logs_and_shards_know_nothing_of_each_other(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        messages = [rig.message(due_ms), rig.message(due_ms), rig.message(due_ms, 1)]
        await park(store, messages[0], origins=at(100))
        assert await park(store, messages[1], origins=at(3, log=b"orders.delay-1")) == Parked((), (), ())
        assert await park(store, messages[2], shard=1, origins=at(3)) == Parked((), (), ())

    async def test_a_message_without_origin_is_always_new(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        await park(store, messages[0], origins=at(1 << 52))
        assert await park(store, *messages[1:]) == Parked((), (), ())
        assert len((await claim(store)).claims) == 3

    async def test_the_same_token_answers_the_same_of_origins(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        await park(store, messages[0], origins=at(100))
        token = store.new_token()
        for _ in range(2):
            assert await park(store, *messages[1:], origins=at(100, 101), token=token) == Parked((), (), (1,))
        assert (await rig.counts())["parked"] == 2

    async def test_as_many_as_the_settings_allow_are_known_again(self, rig: Rig) -> None:
        store = await rig.open()
        offsets = at(*range(0, 10_000, 2))
        await park(store, *(await rig.overdue(5000)), origins=offsets)
        again = await park(store, *(await rig.overdue(5000)), origins=offsets)
        assert again.before == tuple(range(1, 5001))
        assert (await rig.counts())["parked"] == 5000

    @pytest.mark.parametrize("mode", ["replace", "keep", "reject"])
    async def test_a_record_that_is_passed_over_leaves_its_key_alone(self, rig: Rig, mode: str) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        older, younger, again = (rig.message(soon_ms, key=b"k") for _ in range(3))
        await park(store, older, keyed=[Keyed(1, FIELD, mode)], origins=at(100))
        await park(store, younger, keyed=[Keyed(1, FIELD, "replace")], origins=at(102))
        assert await park(store, again, keyed=[Keyed(1, FIELD, mode)], origins=at(100)) == Parked((), (), (1,))
        assert (await store.find([FIELD]))[FIELD] == Found([younger[0]], 0)
        assert await rig.word(younger[0]) == "parked"

    async def test_a_record_that_is_passed_over_is_not_found(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3, key=b"k")
        await park(store, messages[0], found={FIELD: messages[0][0]}, origins=at(100))
        both = {FIELD: messages[1][0] + messages[2][0]}
        await park(store, *messages[1:], found=both, origins=at(100, 101))
        assert (await store.find([FIELD]))[FIELD] == Found([messages[0][0], messages[2][0]], 0)
        await store.settle((await claim(store)).claims)
        [again] = await rig.overdue(key=b"k")
        await park(store, again, found={FIELD: again[0]}, origins=at(101))
        assert await rig.index_fields() == set()

    async def test_a_record_that_was_kept_away_does_not_come_back_when_the_older_one_is_gone(self, rig: Rig) -> None:
        store = await rig.open()
        older, kept, again = await rig.overdue(3, key=b"k")
        await park(store, older, keyed=[Keyed(1, FIELD, "keep")], origins=at(100))
        assert await park(store, kept, keyed=[Keyed(1, FIELD, "keep")], origins=at(101)) == Parked((1,), (), ())
        await store.settle((await claim(store)).claims)
        assert await park(store, again, keyed=[Keyed(1, FIELD, "keep")], origins=at(101)) == Parked((), (), (1,))

    async def test_a_record_is_rejected_once(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        messages = await rig.overdue(3)
        assert await store.reject(0, DeadBatch(store.new_token(), [row(messages[0])], at(100))) == ()
        token = other.new_token()
        for _ in range(2):
            assert await other.reject(0, DeadBatch(token, list(map(row, messages[1:])), at(100, 101))) == (1,)
        assert [await rig.word(message[0]) for message in messages] == ["dead", "none", "dead"]
        assert (await rig.counts())["dead"] == 2

    async def test_what_is_owed_a_dead_letter_is_new_for_the_next_call(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        messages = await rig.overdue(6)
        await park(store, *messages[:2], origins=at(100, 102), owed=at(101))
        assert await store.done(0, at(100, 101, 102, 103)) == {*at(100, 102)}

        # It crashed here. The next one reads the three again, and then the first one comes back to life.
        again = await park(other, *messages[2:4], origins=at(100, 102), owed=at(101))
        assert again.before == (1, 2)
        assert await other.reject(0, DeadBatch(other.new_token(), [row(messages[4])], at(101))) == ()
        assert await store.reject(0, DeadBatch(store.new_token(), [row(messages[5])], at(101))) == (1,)
        assert (await rig.counts())["dead"] == 1
        assert await store.done(0, at(100, 101, 102, 103)) == {*at(100, 101, 102)}

    async def test_what_was_rejected_is_owed_nothing_when_it_is_read_again(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        await store.reject(0, DeadBatch(store.new_token(), [row(messages[0])], at(100)))
        await park(store, messages[1], origins=at(101), owed=at(100))
        assert await store.reject(0, DeadBatch(store.new_token(), [row(messages[2])], at(100))) == (1,)

    async def test_what_is_owed_a_dead_letter_may_be_parked_instead(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(4)
        await park(store, messages[0], origins=at(102), owed=at(100, 101))
        assert await park(store, messages[1], origins=at(101)) == Parked((), (), ())
        assert await store.reject(0, DeadBatch(store.new_token(), list(map(row, messages[2:])), at(100, 101))) == (2,)
        assert set(ids(await claim(store))) == {messages[0][0], messages[1][0]}

    async def test_a_message_whose_key_is_taken_is_owed_a_dead_letter(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        messages = [rig.message(soon_ms, key=b"k") for _ in range(4)]
        keyed = [Keyed(1, FIELD, "reject"), Keyed(2, FIELD, "reject")]
        assert await park(store, *messages[:2], keyed=keyed, origins=at(100, 101)) == Parked((), (2,), ())
        # It crashed before the dead letter, and the two are read again.
        assert await park(store, *messages[2:], keyed=keyed, origins=at(100, 101)) == Parked((), (2,), (1,))
        assert await store.reject(0, DeadBatch(store.new_token(), [row(messages[3])], at(101))) == ()
        assert await park(store, *messages[2:], keyed=keyed, origins=at(100, 101)) == Parked((), (), (1, 2))

    async def test_a_cancellation_is_done_when_it_is_marked_and_so_is_all_before_it(self, rig: Rig) -> None:
        store = await rig.open()
        [message] = await rig.overdue()
        assert await store.done(0, at(100, 101)) == set()
        await store.mark_done(0, at(101))
        assert await store.done(0, at(100, 101, 102)) == {*at(100, 101)}
        assert await store.done(1, at(101)) == set()
        await store.mark_done(0, at(50))
        assert await store.done(0, at(101)) == {*at(101)}
        assert await park(store, message, origins=at(102)) == Parked((), (), ())

    async def test_a_name_waits_for_the_latest_moment_of_that_name(self, rig: Rig) -> None:
        store, now_ms = await rig.open(), await rig.now_ms()
        soon, late = now_ms + 60_000, now_ms + 90_000
        assert await store.line_up(0, [(b"a", late), (b"b", soon), (b"a", soon)]) == [late, soon, late]
        assert await store.line_up(0, [(b"a", soon), (b"b", late), (b"c", soon)]) == [late, late, soon]
        assert await store.line_up(1, [(b"a", soon)]) == [soon]

    async def test_what_is_parked_after_an_outage_stays_behind_an_earlier_one_whose_moment_has_come(
        self, rig: Rig
    ) -> None:
        store, now_ms = await rig.open(), await rig.now_ms()
        first, second, other = (now_ms - 900_000 + wait for wait in (2_000, 500, 300))
        assert await store.line_up(0, [(b"a", first)]) == [first]
        assert await store.line_up(0, [(b"b", other)]) == [other]
        assert await store.line_up(0, [(b"a", second)]) == [first]

    async def test_a_moment_that_came_a_minute_ago_holds_nothing_up(self, rig: Rig) -> None:
        store, now_ms = await rig.open(), await rig.now_ms()
        await store.line_up(0, [(b"a", now_ms - 70_000)])
        await store.line_up(0, [(b"b", now_ms)])
        assert await store.line_up(0, [(b"a", now_ms - 80_000)]) == [now_ms - 80_000]

    async def test_what_is_marked_is_owed_nothing_more(self, rig: Rig) -> None:
        store = await rig.open()
        await park(store, *(await rig.overdue()), origins=at(102), owed=at(101))
        await store.mark_done(0, at(101))
        assert await store.done(0, at(101)) == {*at(101)}

    async def test_records_of_several_logs_are_told_apart(self, rig: Rig) -> None:
        store = await rig.open()
        other = b"orders.delay-1"
        await park(store, *(await rig.overdue(2)), origins=[*at(100), *at(5, log=other)], owed=at(4, log=other))
        asked = [*at(5, 100), *at(4, 5, 100, log=other)]
        assert await store.done(0, asked) == {*at(5, 100), *at(5, log=other)}

    async def test_the_store_knows_the_first_record_that_it_parked_of_each_log(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(4)
        assert await store.firsts(0, [LOG]) == {}
        await store.mark_done(0, at(98))  # a cancellation may be marked after the messages that follow it
        await store.reject(0, DeadBatch(store.new_token(), [row(messages[0])], at(99)))
        assert await store.firsts(0, [LOG]) == {}
        await park(store, *messages[1:3], origins=at(101, 103), owed=at(100))
        await park(store, messages[3], origins=at(104))
        assert await store.firsts(0, [LOG, b"other-0"]) == {LOG: 100}
        assert await store.firsts(1, [LOG]) == {}


class PutBack:
    """A message that is put back under its own id is there once, whatever became of it meanwhile."""

    async def test_a_message_is_put_back_once_while_it_waits_is_claimed_or_dead(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        (message,) = await rig.overdue(key=b"k")
        found = {FIELD: message[0]}
        assert await park(store, message, found=found, once=True) == Parked((), (), ())
        assert await park(other, message, found=found, once=True) == Parked((), (), (1,))
        claims = (await claim(store)).claims
        assert await park(other, message, found=found, once=True) == Parked((), (), (1,))
        assert await rig.word(message[0]) == "claimed"
        await store.bury([(claims[0], "unroutable: no queue")])
        assert await park(other, message, found=found, once=True) == Parked((), (), (1,))
        assert await rig.word(message[0]) == "dead"
        assert (await rig.counts())["parked"] == 1
        assert await store.find([FIELD]) == {FIELD: Found([message[0]], 0)}
        assert await store.parked_by_route(["orders"]) == {"orders": 0}

    async def test_of_a_batch_only_the_missing_messages_are_put_back(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        await park(store, messages[1])
        assert await park(store, *messages, once=True) == Parked((), (), (2,))
        assert ids(await claim(store)) == [message[0] for message in messages]

    async def test_one_that_was_delivered_comes_again(self, rig: Rig) -> None:
        store = await rig.open()
        (message,) = await rig.overdue()
        await park(store, message, once=True)
        assert await store.settle((await claim(store)).claims) == 1
        assert await park(store, message, once=True) == Parked((), (), ())
        assert ids(await claim(store)) == [message[0]]

    async def test_a_dead_letter_is_put_back_once_and_disturbs_no_parked_message(self, rig: Rig) -> None:
        store = await rig.open()
        dead, parked = await rig.overdue(2)
        assert await store.reject(0, DeadBatch(store.new_token(), [row(dead)])) == ()
        assert await store.reject(0, DeadBatch(store.new_token(), [row(dead)])) == (1,)
        await park(store, parked)
        assert await store.reject(0, DeadBatch(store.new_token(), [row(parked)])) == (1,)
        assert (await rig.word(dead[0]), await rig.word(parked[0])) == ("dead", "parked")
        assert (await rig.counts())["dead"] == 1
