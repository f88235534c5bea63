"""The promises of ``bridge.core.ports.Store`` as tests. Every store passes them."""

from __future__ import annotations

import pytest

from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Batch, Claimed, DeadBatch, Found, Keyed, Parked, Release
from bridge.parking.envelope import index_field, unseal
from bridge.parking.identity import shard_of
from tests.conformance.clock_suite import ClockSteps
from tests.conformance.hints_suite import Hints
from tests.conformance.holding_suite import Holding
from tests.conformance.journaled_suite import Journaled
from tests.conformance.leases_suite import Leases
from tests.conformance.moves_suite import Moves
from tests.conformance.origins_suite import Origins, PutBack
from tests.conformance.rig import HOUR_MS, LEASE_MS, SHARDS, Message, Rig, claim, ids, park, park_keyed
from tests.conformance.tiers_suite import TierSuite

FIELD = index_field(b"orders", b"k")
#: Emptied, cut off twice, and of a version that there cannot be.
DAMAGED = (b"", b"\x01", b"\x01" + bytes(18) + b"\xff", b"\xee" + bytes(8) + b" as nobody here knows it")
#: And of a later version, which has its due moment in the same place.
UNREADABLE = (*DAMAGED, b"\x02" + bytes(8) + b" as nobody here knows it")


def unread(claimed: Claimed) -> list[bytes]:
    """The ids of what could not be read."""
    return [*claimed.newer, *(claim.id for claim, _ in claimed.damaged)]


def digests(*messages: Message) -> bytes:
    """What ``Batch.recent`` holds of these messages."""
    return b"".join(b"digest" + message[0][-2:] + message[0] for message in messages)


class Park:
    """new -> parked, and what a token, a key and the recent list have to do with it."""

    async def test_what_is_parked_is_claimed_as_it_was_given(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        body = bytes(range(256))
        message = rig.message(due_ms, key=b"k", payload=body, first=b"an earlier id, 20 ch")

        assert await park(store, message) == Parked((), ())
        [taken] = (await claim(store)).claims

        assert (taken.id, taken.shard, taken.due_ms, taken.arrived_ms) == (message[0], 0, due_ms, due_ms - 1000)
        assert (taken.route, taken.key, taken.payload, taken.tries) == ("orders", b"k", body, 0)
        assert taken.public_id == b"an earlier id, 20 ch"

    async def test_the_same_token_parks_once(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        token = store.new_token()
        await park(store, *messages, token=token)
        await park(store, *messages, token=token)
        assert len((await claim(store)).claims) == 3
        assert (await rig.counts())["parked"] == 3

    async def test_the_same_token_parks_nothing_after_the_message_was_delivered(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue()
        token = store.new_token()
        await park(store, *messages, token=token)
        claims = (await claim(store)).claims
        await park(store, *messages, token=token)
        assert await rig.word(messages[0][0]) == "claimed"
        assert await store.settle(claims) == 1
        await park(store, *messages, token=token)
        assert await rig.word(messages[0][0]) == "none"

    async def test_the_same_token_answers_what_it_answered_first(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        await park_keyed(store, rig.message(soon_ms, key=b"k"), b"k", "keep")
        younger = [rig.message(soon_ms, key=b"k"), rig.message(soon_ms), rig.message(soon_ms, key=b"k")]
        keyed = [Keyed(1, FIELD, "reject"), Keyed(3, FIELD, "keep")]
        token = store.new_token()
        assert await park(store, *younger, keyed=keyed, token=token) == Parked((3,), (1,))
        assert await park(store, *younger, keyed=keyed, token=token) == Parked((3,), (1,))
        assert (await rig.counts())["parked"] == 2

    async def test_what_an_instance_puts_back_beside_its_intake_lets_neither_be_parked_twice(self, rig: Rig) -> None:
        store = await rig.open()
        taken_in, put_back = await rig.overdue(), await rig.overdue()
        tokens = store.new_token(), store.new_token()
        for _ in "12":
            await park(store, *taken_in, token=tokens[0])
            await park(store, *put_back, token=tokens[1], once=True)
            await store.settle((await claim(store)).claims)
        assert (await rig.counts())["delivered"] == 2

    async def test_two_tokens_park_two(self, rig: Rig) -> None:
        store = await rig.open()
        first, second = await rig.overdue(2)
        await park(store, first)
        await park(store, second)
        assert ids(await claim(store)) == [first[0], second[0]]

    async def test_tokens_of_two_instances_never_meet(self, rig: Rig) -> None:
        first, other = await rig.open("a"), await rig.open("b")
        tokens = {store.new_token() for store in (first, other) for _ in range(1000)}
        assert len(tokens) == 2000
        assert {len(token) for token in tokens} == {8}

    async def test_a_call_whose_reply_was_lost_may_be_repeated(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(2)
        token = store.new_token()
        rig.lose_reply(store)
        with pytest.raises(StoreUnavailable, match="lost"):
            await park(store, *messages, token=token)
        await park(store, *messages, token=token)
        assert (await rig.counts())["parked"] == 2

    async def test_several_shards_are_parked_in_one_call(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        messages = [rig.message(due_ms, shard) for shard in range(SHARDS)]
        token = store.new_token()
        replies = await store.park({shard: Batch(token, [messages[shard]]) for shard in range(SHARDS)})
        assert replies == dict.fromkeys(range(SHARDS), Parked((), ()))
        for shard in range(SHARDS):
            assert ids(await claim(store, shard)) == [messages[shard][0]]

    async def test_as_many_as_the_settings_allow_go_through_every_move_at_once(self, rig: Rig) -> None:
        # limits.batch_max may be 5000; Lua can unpack 8000 values, and a message takes two.
        store = await rig.open()
        await park(store, *(await rig.overdue(5000)))
        claims = (await claim(store, limit=5000)).claims
        assert len(claims) == 5000
        assert await store.renew(claims, HOUR_MS) == 5000
        assert await store.release([Release(claim, None, 0, "") for claim in claims]) == 5000
        again = (await claim(store, limit=5000)).claims
        assert [claim.id for claim in again] == [claim.id for claim in claims]
        assert await store.settle(again) == 5000

    async def test_the_recent_list_keeps_the_youngest_and_forgets_by_messages(self, rig: Rig) -> None:
        store = await rig.open()
        batches = [await rig.overdue(size) for size in (3, 2, 1, 4, 1, 1, 1, 1)]
        for messages in batches:
            await park(store, *messages, recent=digests(*messages), recent_max=5)
        kept = b"".join(await store.recent(0))
        # Whole pieces go with every eighth, and only while at least five messages stay.
        assert kept == b"".join(digests(*messages) for messages in batches[3:])

    async def test_a_recent_list_of_no_length_is_empty(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue()
        assert await park(store, *messages, recent=digests(*messages), recent_max=0) == Parked((), ())
        assert await store.recent(0) == []

    async def test_a_repeated_call_is_remembered_once(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue()
        token = store.new_token()
        for _ in range(2):
            await park(store, *messages, recent=digests(*messages), recent_max=5, token=token)
        assert b"".join(await store.recent(0)) == digests(*messages)


class Keys:
    """A producer's own key: replace, keep, reject, and finding."""

    async def test_replace_leaves_the_younger_one(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        older, younger = rig.message(soon_ms, key=b"k"), rig.message(soon_ms - 1, key=b"k")
        await park_keyed(store, older, b"k", "replace")
        assert await park_keyed(store, younger, b"k", "replace") == Parked((), ())
        assert await rig.word(older[0]) == "none"
        assert await rig.word(younger[0]) == "parked"
        assert (await store.find([FIELD]))[FIELD] == Found([younger[0]], 0)
        assert (await rig.counts())["replaced"] == 1

    async def test_keep_leaves_the_older_one_and_says_so(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        older, younger = rig.message(soon_ms, key=b"k"), rig.message(soon_ms, key=b"k")
        await park_keyed(store, older, b"k", "keep")
        assert await park_keyed(store, younger, b"k", "keep") == Parked((1,), ())
        assert (await store.find([FIELD]))[FIELD] == Found([older[0]], 0)
        assert await rig.word(younger[0]) == "none"

    async def test_reject_leaves_the_older_one_and_says_so(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        older, younger = rig.message(soon_ms, key=b"k"), rig.message(soon_ms, key=b"k")
        await park_keyed(store, older, b"k", "reject")
        assert await park_keyed(store, younger, b"k", "reject") == Parked((), (1,))
        assert (await store.find([FIELD]))[FIELD] == Found([older[0]], 0)

    async def test_the_same_key_twice_in_one_batch_is_taken_in_order(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        messages = [rig.message(soon_ms, key=b"k") for _ in range(3)]
        keyed = [Keyed(1, FIELD, "replace"), Keyed(2, FIELD, "replace"), Keyed(3, FIELD, "keep")]
        assert await park(store, *messages, keyed=keyed) == Parked((3,), ())
        assert [await rig.word(message[0]) for message in messages] == ["none", "parked", "none"]

    @pytest.mark.parametrize("mode", ["replace", "keep", "reject"])
    async def test_a_message_on_its_way_is_no_obstacle(self, rig: Rig, mode: str) -> None:
        store = await rig.open()
        [older] = await rig.overdue(key=b"k")
        await park_keyed(store, older, b"k", mode)
        [on_its_way] = (await claim(store)).claims
        younger = rig.message(await rig.now_ms() + HOUR_MS, key=b"k")
        assert await park_keyed(store, younger, b"k", mode) == Parked((), ())
        assert (await store.find([FIELD]))[FIELD] == Found([older[0], younger[0]], 0)
        assert await store.settle([on_its_way]) == 1
        assert (await store.find([FIELD]))[FIELD] == Found([younger[0]], 0)

    async def test_a_replaced_message_leaves_no_reason_behind(self, rig: Rig) -> None:
        store = await rig.open()
        [older] = await rig.overdue(key=b"k")
        await park_keyed(store, older, b"k", "replace")
        claims = (await claim(store)).claims
        await store.release([Release(claims[0], HOUR_MS, 1, "unroutable: no queue")])
        await park_keyed(store, rig.message(await rig.now_ms() + HOUR_MS, key=b"k"), b"k", "replace")
        assert await rig.reasons() == {}

    async def test_an_index_field_is_empty_again_when_its_last_message_is_gone(self, rig: Rig) -> None:
        store = await rig.open()
        [message] = await rig.overdue(key=b"k")
        await park_keyed(store, message, b"k", "replace")
        assert await store.settle((await claim(store)).claims) == 1
        assert (await store.find([FIELD]))[FIELD] == Found([], 0)
        assert await rig.index_fields() == set()

    async def test_messages_may_share_a_message_id(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(2, key=b"k")
        for message in messages:
            await park(store, message, found={FIELD: message[0]})
        assert (await store.find([FIELD]))[FIELD] == Found([message[0] for message in messages], 0)
        assert len((await claim(store)).claims) == 2

    @pytest.mark.parametrize("at_once", [True, False])
    async def test_above_sixteen_a_message_id_is_a_number_and_then_nothing_again(self, rig: Rig, at_once: bool) -> None:
        store = await rig.open()
        messages = await rig.overdue(17, key=b"k")
        if at_once:
            await park(store, *messages, found={FIELD: b"".join(message[0] for message in messages)})
        else:
            for message in messages:
                await park(store, message, found={FIELD: message[0]})
        assert (await store.find([FIELD]))[FIELD] == Found([], 17)

        claims = (await claim(store)).claims
        assert await store.settle(claims[:16]) == 16
        assert (await store.find([FIELD]))[FIELD] == Found([], 1)
        assert await store.settle(claims[16:]) == 1
        assert (await store.find([FIELD]))[FIELD] == Found([], 0)
        assert await rig.index_fields() == set()

    async def test_sixteen_of_one_message_id_are_still_found_one_by_one(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(16, key=b"k")
        await park(store, *messages, found={FIELD: b"".join(message[0] for message in messages)})
        assert (await store.find([FIELD]))[FIELD] == Found([message[0] for message in messages], 0)

    async def test_a_key_is_found_in_whichever_shard_it_is(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        other = index_field(b"orders", b"other")
        messages = [rig.message(soon_ms, shard, key=b"k") for shard in (1, 3)]
        for message in messages:
            await park(store, message, shard=shard_of(message[0]), found={FIELD: message[0]})
        found = await store.find([other, FIELD])
        assert found == {other: Found([], 0), FIELD: Found([message[0] for message in messages], 0)}

    async def test_parked_are_those_that_wait(self, rig: Rig) -> None:
        store = await rig.open()
        [due] = await rig.overdue()
        waiting = rig.message(await rig.now_ms() + HOUR_MS, 2)
        nowhere = rig.message(await rig.now_ms(), 1)
        await park(store, due)
        await park(store, waiting, shard=2)
        await claim(store)
        assert await store.parked([due[0], waiting[0], nowhere[0]]) == {waiting[0]}


class Claims:
    """parked -> claimed, and the drain of a shard."""

    async def test_claims_come_in_the_order_of_due_and_id(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        dues = [now_ms - 5, now_ms - 9, now_ms - 5, now_ms - 1, now_ms - 9]
        messages = [rig.message(due_ms) for due_ms in dues]
        await park(store, *reversed(messages))
        expected = [message[0] for message in sorted(messages, key=lambda m: (m[1], m[0]))]
        assert ids(await claim(store)) == expected

    async def test_nothing_is_claimed_before_it_is_due(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        [due] = await rig.overdue()
        await park(store, due, rig.message(soon_ms), rig.message(soon_ms + 1))
        claimed = await claim(store)
        assert ids(claimed) == [due[0]]
        assert claimed.next_due_ms == soon_ms

    async def test_an_empty_shard_has_no_next_due_moment(self, rig: Rig) -> None:
        store = await rig.open()
        assert await claim(store) == Claimed([], None, None, 0, [])

    async def test_no_more_than_the_limit_is_claimed(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(250)
        await park(store, *messages)
        claimed = await claim(store, limit=120)
        assert ids(claimed) == [message[0] for message in messages[:120]]
        assert claimed.next_due_ms == messages[0][1]
        assert ids(await claim(store, limit=500)) == [message[0] for message in messages[120:]]

    async def test_a_limit_of_nothing_claims_nothing(self, rig: Rig) -> None:
        store = await rig.open()
        await park(store, *(await rig.overdue()))
        assert ids(await claim(store, limit=0)) == []

    async def test_no_more_bytes_than_the_limit_are_claimed(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(10, payload=b"x" * 1000)
        await park(store, *messages)
        size = len(messages[0][2])
        assert ids(await claim(store, bytes_max=3 * size)) == [message[0] for message in messages[:3]]
        assert ids(await claim(store, bytes_max=3 * size - 1)) == [message[0] for message in messages[3:5]]

    async def test_a_message_larger_than_the_bytes_limit_travels_alone(self, rig: Rig) -> None:
        store = await rig.open()
        [large] = await rig.overdue(payload=b"x" * 5000)
        small = await rig.overdue(2)
        await park(store, large, *small)
        assert ids(await claim(store, bytes_max=100)) == [large[0]]
        assert ids(await claim(store, bytes_max=1000)) == [message[0] for message in small]

    async def test_what_will_be_due_in_a_moment_is_claimed_on_request(self, rig: Rig) -> None:
        store = await rig.open()
        now_ms = await rig.now_ms()
        messages = [rig.message(now_ms + delay_ms) for delay_ms in (60_000, 0, 30_000, 300_000)]
        await park(store, *messages)
        reply = await claim(store, ahead_ms=120_000)
        assert ids(reply) == [messages[1][0], messages[2][0], messages[0][0]]
        assert reply.next_due_ms == now_ms + 300_000

    async def test_what_is_claimed_is_not_claimed_again(self, rig: Rig) -> None:
        store = await rig.open()
        await park(store, *(await rig.overdue(3)))
        assert len((await claim(store)).claims) == 3
        assert ids(await claim(store)) == []

    async def test_several_shards_are_claimed_in_one_call(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        messages = {shard: rig.message(due_ms, shard) for shard in (0, 2)}
        for shard, message in messages.items():
            await park(store, message, shard=shard)
        replies = await store.claim([0, 1, 2], 10, 1 << 20, 60_000, 60_000)
        assert {shard: ids(reply) for shard, reply in replies.items() if isinstance(reply, Claimed)} == {
            0: [messages[0][0]],
            1: [],
            2: [messages[2][0]],
        }

    async def test_a_shard_is_drained_by_one_instance_at_a_time(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await park(store, *(await rig.overdue(2)))
        assert len((await claim(store, limit=1)).claims) == 1
        assert await claim(other) == Claimed([], None, "a", 0, [])
        assert len((await claim(store)).claims) == 1

    async def test_a_shard_that_is_handed_over_is_the_next_ones_at_once(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await park(store, *(await rig.overdue(2)))
        await claim(store, limit=1)
        await other.hand_over([0])
        assert (await claim(other)).owner == "a"
        await store.hand_over(range(SHARDS))
        assert len((await claim(other)).claims) == 1
        assert (await claim(store)).owner == "b"

    async def test_a_drain_that_is_not_renewed_lapses(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await claim(store)
        await rig.after_leases()
        assert (await claim(other)).owner is None

    async def test_an_id_without_envelope_is_dropped_and_counted(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        await park(store, *messages)
        await rig.tamper(messages[1][0], None)
        claimed = await claim(store)
        assert ids(claimed) == [messages[0][0], messages[2][0]]
        assert claimed.ghosts == 1
        assert await claim(store) == Claimed([], None, None, 0, [])

    @pytest.mark.parametrize("envelope", UNREADABLE)
    async def test_an_unreadable_envelope_is_reported_left_alone_and_blocks_no_other(
        self, rig: Rig, envelope: bytes
    ) -> None:
        store = await rig.open()
        messages = await rig.overdue(3)
        await park(store, *messages)
        await rig.tamper(messages[0][0], envelope)
        claimed = await claim(store, limit=2)
        assert unread(claimed) == [messages[0][0]]
        assert ids(claimed) == [messages[1][0]]

        # It does not spin: it is out of the way until the lease ends, and then comes again, unchanged.
        assert ids(await claim(store)) == [messages[2][0]]
        assert await claim(store) == Claimed([], None, None, 0, [])
        await rig.after_leases()
        assert await store.recover([0], LEASE_MS) == 3
        assert unread(await claim(store)) == [messages[0][0]]
        assert await rig.envelope(messages[0][0]) == envelope

    @pytest.mark.parametrize("envelope", DAMAGED)
    async def test_a_damaged_envelope_is_buried_as_it_is_and_can_be_cancelled(self, rig: Rig, envelope: bytes) -> None:
        store = await rig.open()
        [message] = await rig.overdue()
        await park(store, message)
        await rig.tamper(message[0], envelope)
        claimed = await claim(store)
        [(damaged, reason)] = claimed.damaged
        assert (damaged.id, damaged.public_id, claimed.newer) == (message[0], message[0], [])
        assert await store.bury([(damaged, reason)]) == 1
        assert await rig.word(message[0]) == "dead"
        assert (await rig.reasons())[message[0]].startswith("damaged: ")
        assert await rig.envelope(message[0]) == envelope
        assert await store.cancel([message[0]], True) == {message[0]: "dead"}

    async def test_a_newer_version_is_delivered_by_who_can_read_it(self, rig: Rig) -> None:
        store = await rig.open()
        [message] = await rig.overdue()
        newer = b"\x02" + message[2][1:]
        await park(store, (message[0], message[1], newer))
        claimed = await claim(store)
        assert (claimed.newer, list(claimed.damaged)) == ([message[0]], [])
        await rig.after_leases()
        assert await store.recover([0], LEASE_MS) == 1
        await rig.tamper(message[0], message[2])  # stands for an instance that reads version 2
        assert [taken.due_ms for taken in (await claim(store)).claims] == [message[1]]


class Endings:
    """claimed -> gone, parked again, dead; and what a lease that ended means."""

    async def test_what_is_settled_is_gone(self, rig: Rig) -> None:
        store = await rig.open()
        claims = await rig.claimed(store, 3)
        assert await store.settle(claims) == 3
        assert await store.settle(claims) == 0
        assert [await rig.word(claim.id) for claim in claims] == ["none"] * 3
        assert await claim(store) == Claimed([], None, None, 0, [])
        counts = await rig.counts()
        assert (counts["parked"], counts["delivered"]) == (3, 3)

    async def test_nothing_to_settle_is_no_error(self, rig: Rig) -> None:
        store = await rig.open()
        assert await store.settle([]) == 0
        assert await store.release([]) == 0
        assert await store.bury([]) == 0
        assert await store.renew([], 1000) == 0

    async def test_a_release_with_a_wait_comes_later_and_keeps_its_due_moment(self, rig: Rig) -> None:
        store = await rig.open()
        [taken] = await rig.claimed(store)
        before_ms = await rig.now_ms()
        assert await store.release([Release(taken, HOUR_MS, 3, "nacked: a queue is full")]) == 1
        claimed = await claim(store)
        assert ids(claimed) == []
        assert claimed.next_due_ms is not None
        assert before_ms + HOUR_MS <= claimed.next_due_ms <= await rig.now_ms() + HOUR_MS
        assert await rig.reasons() == {taken.id: "nacked: a queue is full"}

        assert await rig.reschedule(store, taken.id, taken.due_ms) == "parked"
        [again] = (await claim(store)).claims
        assert (again.due_ms, again.tries, again.public_id) == (taken.due_ms, 3, taken.public_id)

    async def test_the_second_try_counts_its_lateness_from_the_first_due_moment(self, rig: Rig) -> None:
        store = await rig.open()
        [taken] = await rig.claimed(store)
        await store.release([Release(taken, 0, 1, "nacked: full")])
        [again] = (await claim(store)).claims
        assert (again.due_ms, again.tries) == (taken.due_ms, 1)

    async def test_a_release_without_a_wait_takes_its_old_place(self, rig: Rig) -> None:
        store = await rig.open()
        claims = await rig.claimed(store, 3)
        await store.release([Release(claims[2], None, 0, ""), Release(claims[0], None, 0, "")])
        assert ids(await claim(store)) == [claims[0].id, claims[2].id]
        assert await rig.reasons() == {}

    async def test_a_delivery_after_a_refusal_leaves_no_reason_behind(self, rig: Rig) -> None:
        store = await rig.open()
        [taken] = await rig.claimed(store)
        await store.release([Release(taken, None, 1, "nacked: full")])
        await store.settle((await claim(store)).claims)
        assert await rig.reasons() == {}

    async def test_what_is_buried_is_dead_with_its_reason(self, rig: Rig) -> None:
        store = await rig.open()
        [taken] = await rig.claimed(store)
        taken.tries = 8
        assert await store.bury([(taken, "unroutable: no queue")]) == 1
        assert await rig.word(taken.id) == "dead"
        assert await rig.reasons() == {taken.id: "unroutable: no queue"}
        assert unseal(await rig.envelope(taken.id) or b"").tries == 8
        assert (await rig.counts())["dead"] == 1
        assert ids(await claim(store)) == []

    async def test_a_lease_that_ended_is_recovered_and_the_old_holder_has_no_say(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        claims = await rig.claimed(store, 4)
        await rig.after_leases()
        assert await other.recover([0], LEASE_MS) == 4

        assert await store.renew(claims, HOUR_MS) == 0
        assert await store.settle(claims[:1]) == 0
        assert await store.release([Release(claims[1], HOUR_MS, 9, "late")]) == 0
        assert await store.bury([(claims[2], "late")]) == 0

        again = (await claim(other)).claims
        assert [(c.id, c.tries) for c in again] == [(c.id, 0) for c in claims]
        assert await store.settle(claims) == 0
        assert await other.settle(again) == 4
        assert (await rig.counts())["recovered"] == 4

    async def test_a_lease_that_ended_but_was_not_recovered_can_still_be_settled(self, rig: Rig) -> None:
        store = await rig.open()
        claims = await rig.claimed(store)
        await rig.after_leases()
        assert await store.settle(claims) == 1
        assert await store.recover([0], LEASE_MS) == 0

    async def test_a_lease_that_runs_is_not_recovered(self, rig: Rig) -> None:
        store = await rig.open()
        [claim] = await rig.claimed(store)
        assert await store.recover([0], LEASE_MS) == 0
        assert await rig.word(claim.id) == "claimed"

    async def test_a_renewed_lease_runs_longer(self, rig: Rig) -> None:
        store = await rig.open()
        claims = await rig.claimed(store)
        await rig.after_leases()
        assert await store.renew(claims, HOUR_MS) == 1
        assert await store.recover([0], LEASE_MS) == 0
        assert await store.settle(claims) == 1

    async def test_what_claims_without_a_reply_took_leaves_before_newer_messages(self, rig: Rig) -> None:
        store = await rig.open()
        messages = await rig.overdue(5)
        for message in messages[:2]:
            await park(store, message)
            rig.lose_reply(store)
            with pytest.raises(StoreUnavailable, match="lost"):
                await claim(store)
        await park(store, *messages[2:])
        assert await store.recover([0], LEASE_MS) == 0, (
            "only the next claim gives them back, so that nothing passes them"
        )
        assert ids(await claim(store)) == [message[0] for message in messages]
        assert (await rig.counts())["recovered"] == 3, "the first one twice"

    async def test_a_shard_is_handed_over_with_what_claims_without_a_reply_took(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        messages = await rig.overdue(2)
        await park(store, messages[0])
        rig.lose_reply(store)
        with pytest.raises(StoreUnavailable, match="lost"):
            await claim(store)
        await park(store, messages[1])
        await store.hand_over([0])
        assert ids(await claim(other)) == [message[0] for message in messages]

    async def test_a_claim_without_a_reply_in_another_shard_is_given_back_at_once(self, rig: Rig) -> None:
        store = await rig.open()
        await park(store, *(await rig.overdue(3)))
        rig.lose_reply(store)
        with pytest.raises(StoreUnavailable, match="lost"):
            await claim(store)
        assert await store.recover([1], LEASE_MS) == 3

    async def test_giving_back_a_lost_claim_takes_nothing_from_another(self, rig: Rig) -> None:
        store = await rig.open()
        known = await rig.claimed(store, 2)
        await park(store, *(await rig.overdue()))
        rig.lose_reply(store)
        with pytest.raises(StoreUnavailable):
            await claim(store)
        assert len((await claim(store)).claims) == 1
        assert await store.settle(known) == 2

    async def test_only_the_shards_asked_for_are_recovered(self, rig: Rig) -> None:
        store = await rig.open()
        due_ms = await rig.now_ms() - 1
        for shard in (0, 1):
            await park(store, rig.message(due_ms, shard), shard=shard)
            await claim(store, shard)
        await rig.after_leases()
        assert await store.recover([1], LEASE_MS) == 1
        assert await store.recover([0, 1], LEASE_MS) == 1


class DeadLetters:
    """new -> dead, and the ways out of there."""

    async def test_a_rejected_message_is_found_by_its_key_until_it_is_cancelled(self, rig: Rig) -> None:
        store = await rig.open()
        [(message_id, _, envelope)] = await rig.overdue(key=b"\0k")
        field = index_field(b"orders", b"\0k")
        await store.reject(0, DeadBatch(store.new_token(), [(message_id, envelope, "exhausted: enough")]))
        assert (await store.find([field]))[field] == Found([message_id], 0)
        assert await store.cancel([message_id], dead_too=True) == {message_id: "dead"}
        assert (await store.find([field]))[field] == Found([], 0)

    async def test_a_rejected_message_is_a_dead_letter_with_its_reason(self, rig: Rig) -> None:
        store = await rig.open()
        [message] = await rig.overdue()
        await store.reject(0, DeadBatch(store.new_token(), [(message[0], message[2], "bad_header: not a number")]))
        assert await rig.word(message[0]) == "dead"
        assert await rig.reasons() == {message[0]: "bad_header: not a number"}
        assert await rig.envelope(message[0]) == message[2]

    async def test_the_same_token_rejects_once(self, rig: Rig) -> None:
        store = await rig.open()
        [message] = await rig.overdue()
        token = store.new_token()
        await store.reject(0, DeadBatch(token, [(message[0], message[2], "bad")]))
        assert await store.cancel([message[0]], True) == {message[0]: "dead"}
        await store.reject(0, DeadBatch(token, [(message[0], message[2], "bad")]))
        assert await rig.word(message[0]) == "none"
        counts = await rig.counts()
        assert (counts["dead"], counts["rejected"], counts.get("parked", 0)) == (1, 1, 0)

    async def test_a_dead_letter_that_is_retried_is_due_at_once_with_its_tries_forgotten(self, rig: Rig) -> None:
        store = await rig.open()
        [taken] = await rig.claimed(store)
        taken.tries = 8
        await store.bury([(taken, "unroutable: no queue")])
        before_ms = await rig.now_ms()
        assert await rig.retry(store, taken.id)
        assert not await rig.retry(store, taken.id)
        [again] = (await claim(store)).claims
        assert (again.id, again.tries) == (taken.id, 0)
        assert before_ms <= again.due_ms <= await rig.now_ms()
        assert await rig.reasons() == {}

    async def test_only_dead_letters_are_retried(self, rig: Rig) -> None:
        store = await rig.open()
        waiting = rig.message(await rig.now_ms() + HOUR_MS)
        await park(store, waiting)
        assert not await rig.retry(store, waiting[0])
        assert not await rig.retry(store, rig.message(1000)[0])
        assert await rig.word(waiting[0]) == "parked"

    async def test_cancel_removes_what_is_parked_and_says_what_it_found(self, rig: Rig) -> None:
        store = await rig.open()
        [claim] = await rig.claimed(store)
        [dying] = await rig.claimed(store)
        await store.bury([(dying, "bad")])
        soon_ms = await rig.now_ms() + HOUR_MS
        parked, elsewhere = rig.message(soon_ms, key=b"k"), rig.message(soon_ms, 3)
        await park(store, parked, found={FIELD: parked[0]})
        await park(store, elsewhere, shard=3)
        nowhere = rig.message(soon_ms, 1)[0]

        words = await store.cancel([claim.id, dying.id, parked[0], elsewhere[0], nowhere], False)

        assert words == {
            claim.id: "claimed",
            dying.id: "dead",
            parked[0]: "parked",
            elsewhere[0]: "parked",
            nowhere: "none",
        }
        assert await rig.word(parked[0]) == await rig.word(elsewhere[0]) == "none"
        assert await rig.word(dying.id) == "dead"
        assert await rig.word(claim.id) == "claimed"
        assert await rig.index_fields() == set()
        assert (await rig.counts())["cancelled"] == 1

    async def test_dead_letters_are_cancelled_only_when_asked(self, rig: Rig) -> None:
        store = await rig.open()
        [claim] = await rig.claimed(store)
        await store.bury([(claim, "bad")])
        assert await store.cancel([claim.id], True) == {claim.id: "dead"}
        assert await rig.word(claim.id) == "none"
        assert await rig.reasons() == {}

    async def test_nothing_to_cancel_is_no_error(self, rig: Rig) -> None:
        store = await rig.open()
        assert await store.cancel([], True) == {}
        assert await store.parked([]) == set()

    @pytest.mark.parametrize("envelope", UNREADABLE)
    async def test_what_cannot_be_read_can_still_be_cancelled(self, rig: Rig, envelope: bytes) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        unreadable, other = rig.message(soon_ms), rig.message(soon_ms)
        await park(store, (unreadable[0], soon_ms, envelope), other)
        words = await store.cancel([unreadable[0], other[0]], False)
        assert words == {unreadable[0]: "parked", other[0]: "parked"}

    async def test_reschedule_gives_another_moment_to_what_is_parked(self, rig: Rig) -> None:
        store = await rig.open()
        soon_ms = await rig.now_ms() + HOUR_MS
        message = rig.message(soon_ms)
        await park(store, message)
        assert await rig.reschedule(store, message[0], soon_ms + 5) == "parked"
        assert (await claim(store)).next_due_ms == soon_ms + 5
        before_ms = await rig.now_ms()
        assert await rig.reschedule(store, message[0], 0) == "parked"
        [now] = (await claim(store)).claims
        assert before_ms <= now.due_ms <= await rig.now_ms()

        assert await rig.reschedule(store, message[0], soon_ms) == "claimed"
        await store.bury([(now, "bad")])
        assert await rig.reschedule(store, message[0], soon_ms) == "dead"
        assert await rig.reschedule(store, rig.message(soon_ms)[0], soon_ms) == "none"

    async def test_a_message_that_waits_for_its_next_try_can_be_rescheduled_and_cancelled(self, rig: Rig) -> None:
        store = await rig.open()
        [taken] = await rig.claimed(store)
        await store.release([Release(taken, HOUR_MS, 2, "nacked: full")])
        assert await rig.reschedule(store, taken.id, taken.due_ms - 7) == "parked"
        [again] = (await claim(store)).claims
        assert (again.due_ms, again.tries) == (taken.due_ms - 7, 2)
        await store.release([Release(again, HOUR_MS, 3, "nacked: full")])
        assert await store.cancel([taken.id], False) == {taken.id: "parked"}
        assert await rig.reasons() == {}


class Instances:
    """Who is there, and what they hear of each other."""

    async def test_instances_that_can_deliver_meet(self, rig: Rig) -> None:
        store, other, third = await rig.open("b"), await rig.open("a"), await rig.open("c")
        assert (await store.meet(60_000, True, "{}")).able == ["b"]
        assert (await other.meet(60_000, True, "{}")).able == ["a", "b"]
        assert (await third.meet(60_000, False, "{}")).able == ["a", "b"]
        assert (await third.meet(60_000, True, "{}")).able == ["a", "b", "c"]
        assert (await store.meet(60_000, False, "{}")).able == ["a", "c"]

    async def test_an_instance_that_leaves_is_gone_at_once(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await store.meet(60_000, True, "{}")
        await other.meet(60_000, True, "{}")
        assert (await store.meet(0, False, "{}")).able == ["b"]
        assert (await other.meet(60_000, True, "{}")).able == ["b"]

    async def test_an_instance_that_says_nothing_more_is_gone_after_its_time(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await store.meet(60_000, True, "{}")
        await rig.after_leases()
        assert (await other.meet(60_000, True, "{}")).able == ["b"]
        assert (await store.meet(60_000, True, "{}")).able == ["a", "b"]

    async def test_a_deal_is_in_force_until_an_instance_that_has_read_it_writes_another(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        assert (await store.deal("", "")).deal == ""
        assert (await store.deal("", "first")).deal == "first"
        assert (await other.deal("", "not read")).deal == "first"
        assert (await other.deal("first", "second")).deal == "second"
        assert (await store.deal("first", "too late")).deal == "second"
        assert (await store.deal("second", "")).deal == "second"

    async def test_with_the_deal_come_the_reports_of_instances_that_can_deliver(self, rig: Rig) -> None:
        store, other = await rig.open("a"), await rig.open("b")
        await store.meet(60_000, True, '{"routes": ["orders"]}')
        await other.meet(60_000, False, "{}")
        assert (await other.deal("", "")).reports == {"a": '{"routes": ["orders"]}'}
        await other.meet(60_000, True, '{"name": "zwölf"}')
        assert (await store.deal("", "")).reports == {"a": '{"routes": ["orders"]}', "b": '{"name": "zwölf"}'}


class StoreSuite(
    Park,
    Keys,
    Origins,
    PutBack,
    Claims,
    Leases,
    Endings,
    DeadLetters,
    Holding,
    Instances,
    Hints,
    ClockSteps,
    Journaled,
    Moves,
    TierSuite,
):
    """All of it."""
