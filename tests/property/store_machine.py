"""Drives a real store and the memory store through the same random moves and compares everything they keep.

The real clock cannot be moved, so moments are far from it: a second and more before the start of the run, or an hour
after. A lease ends when its end is written over, and a drain lapses when its key is deleted; nothing waits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from adapters.memory.shard import Shard
from adapters.memory.store import HISTORY_LIMITS
from adapters.redis.connect import connect
from adapters.redis.keys import StoreKeys
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Origin
from bridge.core.orders import HELD_MS
from bridge.core.ports import FIRST_HELD, Batch, Claimed, DeadBatch, HeldStep, Keyed, Parked, Release
from bridge.parking.envelope import index_field, route_in, seal
from bridge.parking.history import unpack_entries
from bridge.parking.identity import Ids, shard_of
from tests.conformance.redis_rig import RedisRig, claimed_ids

T = TypeVar("T")

#: One, so that the moves meet: what several shards have to do with each other is in the conformance suite.
SHARDS = 1
#: What stands before the route of a moment (half ms) before which none of its held messages was due.
_SINCE = b"\0held_ms\0"
HOUR_MS = 3_600_000
RECENT_MAX = 6
#: A message without a key may be of the other route.
ROUTE, OTHER = b"orders", b"bills"

instances = st.sampled_from(["a", "b"])
shards = st.integers(0, SHARDS - 1)
#: Milliseconds from the start of the run: so long ago, or so far ahead.
past = st.integers(-60, -1).map(lambda s: s * 1000)
moments = st.one_of(past, past, past, st.integers(1, 5).map(lambda h: h * HOUR_MS))
picks = st.integers(0, 2**32)
sizes = st.sampled_from([1, 150, 1 << 20])
modes = st.sampled_from(["none", "find", "replace", "keep", "reject"])
#: How far from the end of the log a batch begins, and by how much its offsets rise.
places = st.integers(-6, 2)
rises = st.integers(1, 2)
logs = st.sampled_from([b"orders-0", b"orders-1"])
routes = st.sets(st.sampled_from(["orders", "bills"]))
messages = st.tuples(moments, modes, st.sampled_from([b"k", b"m"]))


class StoreMachine(RuleBasedStateMachine):
    """``rig`` is set by the test: which server, and a key prefix that nobody else uses."""

    url = ""
    prefixes: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.prefix: str = next(self.prefixes)
        self.rig = RedisRig(self.url, self.prefix)
        self.stores: dict[str, RedisStore] = {}
        self.keys = StoreKeys(self.prefix, SHARDS, "a")
        self.base_ms = 0
        self.hints: list[int] = []
        self.model = [Shard(lambda: self.base_ms, self.hints.append, limits=HISTORY_LIMITS) for _ in range(SHARDS)]
        self.ids = Ids("tester")
        self.known: list[bytes] = []  # every id there ever was
        self.claims: list[Claim] = []  # every claim there ever was
        self.parks: list[tuple[str, int, Batch]] = []
        #: By instance and shard, the first and the last token of the claims whose reply was lost.
        self.lost: dict[str, dict[int, tuple[bytes, bytes]]] = {"a": {}, "b": {}}

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        # Not the runner's own run(): it looks after SIGINT at each call, and there are ten thousands of them.
        return self.runner.get_loop().run_until_complete(work)

    @initialize()
    def start(self) -> None:
        self.base_ms = self.do(self.rig.now_ms())
        for name in ("a", "b"):
            self.stores[name] = self.do(self.open(name))

    async def open(self, name: str) -> RedisStore:
        store = RedisStore(connect(self.rig.settings), self.prefix, SHARDS, name, StoreClock(), HISTORY_LIMITS)
        await store.open("everysec", 1, 1000)
        return store

    def teardown(self) -> None:
        for store in self.stores.values():
            self.do(store.close())
        self.do(self.rig.close())
        self.runner.close()

    # -- the way in -------------------------------------------------------------------------------------------------

    @rule(instance=instances, shard=shards, new=st.lists(messages, min_size=1, max_size=8))
    def park(self, instance: str, shard: int, new: list[tuple[int, str, bytes]]) -> None:
        self.parks.append((instance, shard, self.batch(instance, shard, new)))
        self.park_again(-1, lost=False)

    def batch(self, instance: str, shard: int, new: list[tuple[int, str, bytes]]) -> Batch:
        batch = Batch(self.stores[instance].new_token(), recent_max=RECENT_MAX)
        for moment_ms, mode, key in new:
            owned, due_ms = mode not in ("none", "find"), self.base_ms + moment_ms
            message_id = self.ids.next(self.base_ms, shard)
            self.known.append(message_id)
            route = OTHER if mode == "none" and moment_ms // 1000 % 2 else ROUTE
            envelope = seal(due_ms, self.base_ms, route, b"" if mode == "none" else key, b"", b"body")
            batch.messages.append((message_id, due_ms, envelope))
            batch.recent += b"digest!!" + message_id
            field = index_field(ROUTE, key)
            if owned:
                batch.keyed.append(Keyed(len(batch.messages), field, mode))
            elif mode == "find":
                batch.found[field] = batch.found.get(field, b"") + message_id
        return batch

    def records(self, shard: int, log: bytes, place: int, rise: int, number: int) -> list[Origin]:
        """Some that were there before, some that are new."""
        first = max(0, self.model[shard].offsets.marks.get(log, 0) + place)
        return [(log, first + n * rise) for n in range(number)]

    @rule(
        instance=instances,
        shard=shards,
        new=st.lists(messages, min_size=1, max_size=6),
        log=logs,
        place=places,
        rise=rises,
        owed=st.integers(0, 3),
        owed_first=st.booleans(),
        lost=st.booleans(),
    )
    def park_records(
        self,
        instance: str,
        shard: int,
        new: list[tuple[int, str, bytes]],
        log: bytes,
        place: int,
        rise: int,
        owed: int,
        owed_first: bool,
        lost: bool,
    ) -> None:
        """Those that are owed a dead letter come before the others, or after them."""
        origins = self.records(shard, log, place, rise, len(new) + owed)
        batch = self.batch(instance, shard, new)
        middle = owed if owed_first else len(new)
        batch.owed, batch.origins = (origins[:middle], origins[middle:])[:: 1 if owed_first else -1]
        self.parks.append((instance, shard, batch))
        self.park_again(-1, lost)

    @rule(instance=instances, shard=shards, log=logs, place=places, rise=rises, number=st.integers(1, 3))
    def reject_records(self, instance: str, shard: int, log: bytes, place: int, rise: int, number: int) -> None:
        self.reject(instance, shard, self.records(shard, log, place, rise, number))

    @rule(instance=instances, shard=shards, log=logs)
    def reject_what_is_owed(self, instance: str, shard: int, log: bytes) -> None:
        if owed := sorted(self.model[shard].offsets.owed.get(log, ())):
            self.reject(instance, shard, [(log, offset) for offset in owed])

    @rule(instance=instances, shard=shards, log=logs, place=places, number=st.integers(1, 3))
    def mark_done(self, instance: str, shard: int, log: bytes, place: int, number: int) -> None:
        store, model = self.stores[instance], self.model[shard].offsets
        asked = self.records(shard, log, place, 1, 8)
        assert self.do(store.done(shard, asked)) == {message_id for message_id in asked if model.done(message_id)}
        for message_id in asked[:number]:
            model.note(message_id)
        self.do(store.mark_done(shard, asked[:number]))

    @rule(instance=instances, shard=shards, number=st.sampled_from([9, 15, 16, 17]))
    def park_many_of_one_message_id(self, instance: str, shard: int, number: int) -> None:
        self.park(instance, shard, [(-1000, "find", b"k")] * number)

    @precondition(lambda self: self.parks)
    @rule(at=st.integers(-3, -1), lost=st.booleans())
    def park_again(self, at: int, lost: bool) -> None:
        """Only the last call of an instance in a shard is ever repeated; the loop has one under way."""
        instance, shard, batch = self.parks[max(at, -len(self.parks))]
        if batch is not [b for i, s, b in self.parks if (i, s) == (instance, shard)][-1]:
            return
        expected = self.model[shard].park(instance, batch)
        if lost:
            self.rig.lose_reply(self.stores[instance])
        [reply] = self.do(self.stores[instance].park({shard: batch})).values()
        assert reply == expected or (lost and not isinstance(reply, Parked))

    @rule(instance=instances, shard=shards)
    def reject_one(self, instance: str, shard: int) -> None:
        self.reject(instance, shard, [])

    def reject(self, instance: str, shard: int, origins: list[Origin]) -> None:
        ids = [self.ids.next(self.base_ms, shard) for _ in range(len(origins) or 1)]
        self.known += ids
        envelope = seal(self.base_ms, self.base_ms, ROUTE, b"", b"", b"bad")
        rows = [(message_id, envelope, "bad_header: x") for message_id in ids]
        token = self.stores[instance].new_token()
        for _ in range(2):
            expected = self.model[shard].reject(instance, DeadBatch(token, rows, origins))
            assert self.do(self.stores[instance].reject(shard, DeadBatch(token, rows, origins))) == expected

    # -- the way out ------------------------------------------------------------------------------------------------

    @rule(instance=instances, shard=shards, limit=st.integers(0, 9), bytes_max=sizes)
    def claim(self, instance: str, shard: int, limit: int, bytes_max: int) -> None:
        reply = self.do(self.stores[instance].claim([shard], limit, bytes_max, HOUR_MS, HOUR_MS))[shard]
        assert isinstance(reply, Claimed)
        model = self.model[shard]
        self.give_back(instance, shard)
        assert reply.owner == model.owner(instance, HOUR_MS)
        if reply.owner is not None:
            assert reply.claims == []
            return
        taken = model.claim(reply.claims[0].token if reply.claims else b"", HOUR_MS, limit, bytes_max)
        assert [claim.id for claim in reply.claims] == list(taken.messages)
        self.claims += reply.claims

    @rule(shard=shards)
    def claim_all(self, shard: int) -> None:
        self.claim(self.model[shard].drain[0] or "a", shard, 100, 1 << 20)

    @precondition(lambda self: self.claims)
    @rule(picked=st.lists(picks, min_size=1, max_size=4))
    def refuse_and_deliver(self, picked: list[int]) -> None:
        """Several steps that a random walk seldom takes in this order."""
        self.release(picked, None, 1)
        self.claim_all(0)
        self.settle("a", list(range(8)))

    @rule(instance=instances, shard=shards, limit=st.integers(1, 6))
    def claim_whose_reply_is_lost(self, instance: str, shard: int, limit: int) -> None:
        store = self.stores[instance]
        self.rig.lose_reply(store)
        self.do(store.claim([shard], limit, 1 << 20, HOUR_MS, HOUR_MS))
        first, token = store._lost[shard]
        if shard in self.lost[instance]:
            self.model[shard].recover(0, self.lost[instance][shard])
        self.lost[instance][shard] = first, token
        if self.model[shard].owner(instance, HOUR_MS) is None:
            self.model[shard].claim(token, HOUR_MS, limit, 1 << 20)

    def give_back(self, instance: str, shard: int) -> int:
        lost = self.lost[instance].pop(shard, None)
        return self.model[shard].recover(0, lost) if lost else 0

    def some(self, picked: list[int]) -> list[Claim]:
        """Mostly of the youngest, which are held still; each at most once."""
        places = {(pick // 4 if pick % 4 == 0 else pick % 8) % len(self.claims) for pick in picked}
        return [self.claims[-1 - place] for place in sorted(places)]

    @precondition(lambda self: self.claims)
    @rule(instance=instances, picked=st.lists(picks, min_size=1, max_size=4))
    def settle(self, instance: str, picked: list[int]) -> None:
        claims = self.some(picked)
        expected = sum(self.model[claim.shard].settle(claim) for claim in claims)
        assert self.do(self.stores[instance].settle(claims)) == expected

    @precondition(lambda self: self.claims)
    @rule(
        picked=st.lists(picks, min_size=1, max_size=4),
        wait_ms=st.sampled_from([None, None, HOUR_MS]),
        tries=st.integers(0, 9),
    )
    def release(self, picked: list[int], wait_ms: int | None, tries: int) -> None:
        claims, reason = self.some(picked), "nacked: full" if tries else ""
        releases = [Release(claim, wait_ms, tries, reason) for claim in claims]
        expected = sum(self.model[release.claim.shard].release(*release) for release in releases)
        assert self.do(self.stores["a"].release(releases)) == expected

    @precondition(lambda self: self.claims)
    @rule(picked=st.lists(picks, min_size=1, max_size=4), reason=st.sampled_from(["", None, "no_route: a reason"]))
    def hold(self, picked: list[int], reason: str | None) -> None:
        claims = self.some(picked)
        expected = sum(self.model[claim.shard].hold(claim, reason) for claim in claims)
        assert self.do(self.stores["a"].hold((claim, reason) for claim in claims)) == expected

    @rule(instance=instances, shard=shards, limited=routes, limit=st.integers(1, 5), steps=st.integers(1, 4))
    def let_go(self, instance: str, shard: int, limited: set[str], limit: int, steps: int) -> None:
        after = FIRST_HELD
        for _ in range(steps):
            step = HeldStep(after, dict.fromkeys(limited, 0), True)
            expected = self.model[shard].let_go(instance, step, limit, 0)
            [reply] = self.do(self.stores[instance].let_go({shard: step}, limit)).values()
            assert reply == expected
            if not expected.owned or expected.ended:
                return
            after = expected.last

    @precondition(lambda self: self.claims)
    @rule(picked=st.lists(picks, min_size=1, max_size=4))
    def bury(self, picked: list[int]) -> None:
        claims = self.some(picked)
        expected = sum(self.model[claim.shard].bury(claim, "unroutable: x") for claim in claims)
        assert self.do(self.stores["b"].bury([(claim, "unroutable: x") for claim in claims])) == expected

    @precondition(lambda self: self.claims)
    @rule(picked=st.lists(picks, min_size=1, max_size=4))
    def leases_end(self, picked: list[int]) -> None:
        """Or had ended already, which changes nothing."""
        for claim in self.some(picked):
            leases = self.model[claim.shard].claimed
            leases |= {member: self.base_ms - 1 for member in leases if member.endswith(claim.token)}
            key, end = self.keys.shards[claim.shard].claims, (self.base_ms - 1).to_bytes(8, "big")
            for field, record in self.do(self.rig.client.hgetall(key)).items():
                if field.startswith(claim.token):
                    self.do(self.rig.client.hset(key, field, end + record[8:]))

    @precondition(lambda self: self.claims)
    @rule(picked=st.lists(picks, min_size=1, max_size=4))
    def renew(self, picked: list[int]) -> None:
        claims = self.some(picked)
        expected = sum(self.model[claim.shard].renew(claim, HOUR_MS) for claim in claims)
        assert self.do(self.stores["a"].renew(claims, HOUR_MS)) == expected

    @rule(instance=instances, shard=shards)
    def recover(self, instance: str, shard: int) -> None:
        expected = sum(self.give_back(instance, number) for number in range(SHARDS) if number != shard)
        expected += self.model[shard].recover(HOUR_MS)
        assert self.do(self.stores[instance].recover([shard], HOUR_MS)) == expected

    @rule(instance=instances, shard=shards)
    def hand_over(self, instance: str, shard: int) -> None:
        self.give_back(instance, shard)
        self.model[shard].hand_over(instance)
        self.do(self.stores[instance].hand_over([shard]))

    @rule(shard=shards)
    def drain_lapses(self, shard: int) -> None:
        self.model[shard].drain = ("", 0)
        self.do(self.rig.client.delete(self.keys.shards[shard].drain))

    # -- by hand ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.known)
    @rule(picked=st.lists(picks, min_size=1, max_size=4), dead_too=st.booleans())
    def cancel(self, picked: list[int], dead_too: bool) -> None:
        ids = {self.known[pick % len(self.known)] for pick in picked}
        expected = {message_id: self.model[shard_of(message_id)].cancel(message_id, dead_too) for message_id in ids}
        assert self.do(self.stores["a"].cancel(list(ids), dead_too)) == expected

    @precondition(lambda self: self.known)
    @rule(pick=picks)
    def retry(self, pick: int) -> None:
        message_id = self.known[pick % len(self.known)]
        worked = self.model[shard_of(message_id)].retry(message_id)
        assert self.do(self.rig.retry(self.stores["a"], message_id)) == worked
        if worked:  # due "now", which is not the same moment for both
            self.reschedule(pick, 0, at_base=True)

    @precondition(lambda self: self.known)
    @rule(pick=picks, moment_ms=moments)
    def reschedule(self, pick: int, moment_ms: int, at_base: bool = False) -> None:
        message_id = self.known[pick % len(self.known)]
        due_ms = self.base_ms + (0 if at_base else moment_ms)
        word = self.model[shard_of(message_id)].reschedule(message_id, due_ms)
        assert self.do(self.rig.reschedule(self.stores["a"], message_id, due_ms)) == word

    # -- what always holds ------------------------------------------------------------------------------------------

    @invariant()
    def both_keep_the_same_and_every_message_is_in_one_place(self) -> None:
        for shard, model in enumerate(self.model):
            real = self.do(self.read(shard))
            self.both_keep_the_same(model, real)
            self.every_message_is_in_one_place(real)
            self.no_held_message_is_older_than_its_route_says(real)

    def both_keep_the_same(self, model: Shard, real: dict[str, Any]) -> None:
        parked = {message_id: due_ms for due_ms, message_id in model.due}
        assert real["due"].keys() == parked.keys()
        for message_id, due_ms in parked.items():
            # A release counts its wait from now, and now is not the same for both; but both are far ahead.
            same = real["due"][message_id] == due_ms
            assert same or min(real["due"][message_id], due_ms) > self.base_ms + HOUR_MS // 2
        assert real["claimed"] == model.claimed.keys()
        assert real["dead"] == model.dead.keys()
        assert real["messages"] == model.messages
        assert real["why"] == model.why
        assert real["refused"] == sorted(model.refused)
        counts: dict[bytes, int] = {name.encode(): number for name, number in model.counts.items() if number}
        counts |= {b"\0%s\0%s" % (state.encode(), route): number for (state, route), number in model.routes.items()}
        assert real["counts"] == counts
        assert model.routes == self.counted(real)
        assert real["recent"] == b"".join(model.recent)
        offsets: dict[bytes, bytes] = {log: b"%d" % mark for log, mark in model.offsets.marks.items()}
        for log, owed in model.offsets.owed.items():
            offsets[log + b"\0owed"] = b"".join(offset.to_bytes(8, "big") for offset in sorted(owed))
        offsets |= {log + b"\0first": b"%d" % first for log, first in model.offsets.firsts.items()}
        assert real["offsets"] == offsets
        assert real["history"] == Counter(replace(row, ended_ms=0) for row in model.history)
        found = {field: model.keys.found(field) for field in model.keys.fields()}
        expected = {
            field: b"*%d" % entry.unlisted if entry.unlisted else b"".join(entry.ids) for field, entry in found.items()
        }
        assert real["keys"] == expected

    def counted(self, real: dict[str, Any]) -> Counter[tuple[str, bytes]]:
        """Count the messages of each route by looking at every one of them."""
        found = Counter[tuple[str, bytes]]()
        for message_id, envelope in real["messages"].items():
            found["dead" if message_id in real["dead"] else "parked", route_in(envelope)] += 1
            if real["due"].get(message_id, 0) >= HELD_MS:
                found["held", route_in(envelope)] += 1
        return found

    def every_message_is_in_one_place(self, real: dict[str, Any]) -> None:
        claimed = [member[:20] for member in real["claimed"]]
        places = [*real["due"], *claimed, *real["dead"]]
        assert len(places) == len(set(places))
        assert set(places) == real["messages"].keys()

    def no_held_message_is_older_than_its_route_says(self, real: dict[str, Any]) -> None:
        held: dict[bytes, list[int]] = {}
        for message_id, score in real["due"].items():
            if score >= HELD_MS:
                held.setdefault(route_in(real["messages"][message_id]), []).append(score - HELD_MS)
        assert real["held_since"].keys() == held.keys()
        assert all(real["held_since"][route] <= min(due_ms) for route, due_ms in held.items())

    async def read(self, shard: int) -> dict[str, Any]:
        keys = self.keys.shards[shard]
        pipe = self.rig.client.pipeline(transaction=True)
        pipe.zrange(keys.due, 0, -1, withscores=True)
        pipe.hgetall(keys.claims)
        pipe.zrange(keys.dead, 0, -1)
        pipe.hgetall(keys.messages).hgetall(keys.why).hgetall(keys.index).hgetall(keys.counts)
        pipe.lrange(keys.recent, 0, -1).hgetall(keys.offsets).xrange(keys.history).zrange(keys.refused, 0, -1)
        due, claimed, dead, stored, why, index, counts, recent, offsets, history, refused = await pipe.execute()
        return {
            "due": {message_id: int(score) for message_id, score in due},
            "claimed": {message_id + token for message_id, token in claimed_ids(claimed).items()},
            "dead": set(dead),
            "messages": stored,
            "why": {message_id: reason.decode() for message_id, reason in why.items()},
            "refused": refused,
            "keys": index,
            "counts": {
                name: int(number)
                for name, number in counts.items()
                if name[:1] != b"\1" and int(number) and not name.startswith(_SINCE)
            },
            "held_since": {name[len(_SINCE) :]: int(ms) // 2 for name, ms in counts.items() if name.startswith(_SINCE)},
            "recent": b"".join(entry[8:] for entry in recent),
            "offsets": offsets,
            "history": Counter(replace(row, ended_ms=0) for _, entry in history for row in unpack_entries(entry[b"m"])),
        }
