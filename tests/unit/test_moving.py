"""Messages move from one store to another through a file: byte for byte, once, and as far as the file is whole."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from adapters.memory import Memory, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from bridge.core.message import Claim
from bridge.core.ports import Batch, Keyed, Parked, Release
from bridge.core.state import State
from bridge.desk.rows import Filter
from bridge.operate.export import DamagedLine, exported
from bridge.operate.find import Criteria
from bridge.operate.importing import Import, Imported
from bridge.operate.operator import silent
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids, shard_of
from bridge.pipeline.putback import Fate, Overdue, Pace, PutBack
from bridge.settings import Settings
from bridge.settings.model import BrokerKind, Route
from tests.conformance.rig import HOUR_MS

ROUTES = {
    "orders": Route(intercept="orders.delay", deliver_to="orders"),
    "bills": Route(broker="kafka", intercept="bills.delay", deliver_to="bills"),
}
SETTINGS = Settings(routes=ROUTES)
BODY = b"\1k" + bytes(range(256))
ALL = Criteria()
NO_HURRY = Pace(1_000_000)


class Place:
    """One store with its desk."""

    def __init__(self, shards: int = 4, clock: Any = None) -> None:
        self.memory = Memory(shards) if clock is None else Memory(shards, clock)
        self.store = MemoryStore(self.memory)
        self.desk = MemoryDesk(self.store)
        self.ids = Ids("tester")

    async def park(self, due_in_ms: int = HOUR_MS, shard: int = 0, route: str = "orders", key: bytes = b"") -> bytes:
        now_ms = self.memory.now_ms()
        message_id, name = self.ids.next(now_ms, shard), route.encode()
        envelope = seal(now_ms + due_in_ms, now_ms, name, key, b"", BODY)
        batch = Batch(self.store.new_token(), [(message_id, now_ms + due_in_ms, envelope)])
        if key and key[:1] != b"\0":
            batch.keyed.append(Keyed(1, index_field(name, key), "replace"))
        elif key:
            batch.found[index_field(name, key)] = message_id
        assert isinstance((await self.store.park({shard: batch}))[shard], Parked)
        return message_id

    async def claim(self) -> list[Claim]:
        claimed = await self.store.claim(range(self.store.shards), 1000, 1 << 30, 60_000, 60_000)
        return [claim for taken in claimed.values() for claim in taken.claims]  # type: ignore[union-attr]

    async def lines(self, state: State | None = None, wanted: Criteria = ALL) -> list[str]:
        return [json.dumps(document) async for document in exported(self.desk, state, wanted)]

    async def take(
        self, lines: Sequence[str], routes: Sequence[str] = (), overdue: Overdue = Overdue.DELIVER, dry: bool = False
    ) -> tuple[Imported, list[str]]:
        """Import lines. Return what became of them, and the complaints."""
        complaints: list[str] = []

        async def open_broker(broker: BrokerKind) -> PutBack:
            return PutBack(self.store, self.desk, overdue, NO_HURRY, dry)

        found = await Import(SETTINGS, frozenset(routes), open_broker).run(lines, complaints.append, silent)
        return found, complaints

    def content(self) -> dict[bytes, tuple[str, bytes, str]]:
        """State, envelope and reason by id."""
        return {
            message_id: (shard.word(message_id), envelope, shard.why.get(message_id, ""))
            for shard in self.memory.shards
            for message_id, envelope in shard.messages.items()
        }


def totals(found: Imported) -> dict[Fate, int]:
    counts = Counter[Fate]()
    for (_, fate), number in found.counts.items():
        counts[fate] += number
    return dict(counts)


async def filled() -> Place:
    """A store with a message in each state, keys of both kinds, and one that was refused."""
    place = Place()
    for shard in range(4):
        await place.park(HOUR_MS + shard, shard)
    await place.park(key=b"own")
    await place.park(key=b"\0found", shard=1)
    await place.park(0, 2)
    await place.park(0, 3)
    dead, refused = await place.claim()
    await place.store.bury([(dead, "unroutable: no queue")])
    await place.store.release([Release(refused, HOUR_MS // 2, 3, "nacked: by the broker")])
    return place


async def test_a_canary_is_in_no_export() -> None:
    place = Place()
    await place.park(route="postdate_canary_rabbitmq")
    await place.park()
    assert [json.loads(line).get("route") for line in await place.lines()] == [None, "orders", None]


async def test_a_message_is_put_back_byte_for_byte_with_its_id_key_and_state() -> None:
    source, target = await filled(), Place()
    found, complaints = await target.take(await source.lines())
    assert (found.whole, found.read, complaints) == (True, 8, [])
    assert totals(found) == {Fate.PARKED: 7, Fate.DEAD: 1}
    (refused,) = [message_id for message_id, row in source.content().items() if row[2].startswith("nacked")]
    expected = source.content()
    assert target.content() == expected | {refused: (*expected[refused][:2], "")}  # its next try writes a reason
    for shard, other in zip(source.memory.shards, target.memory.shards, strict=True):
        assert list(shard.due) == list(other.due)
        assert shard.routes == other.routes
        assert shard.keys.fields() == other.keys.fields()
    assert (await target.desk.find("orders", b"own")).ids == (await source.desk.find("orders", b"own")).ids


async def test_a_repeated_import_changes_nothing_also_while_messages_are_claimed() -> None:
    source, target = Place(), Place()
    ids = {await source.park(0, shard) for shard in range(4)}
    lines = await source.lines()
    await target.take(lines)
    claims = await target.claim()
    assert {claim.id for claim in claims} == ids
    assert totals((await target.take(lines))[0]) == {Fate.THERE: 4}
    assert await target.claim() == []
    assert await target.store.settle(claims) == 4
    assert target.content() == {}


async def test_what_was_claimed_while_it_was_exported_is_parked() -> None:
    source, target = Place(), Place()
    message_id = await source.park(0, key=b"own")
    await source.claim()
    younger = await source.park(HOUR_MS, key=b"own")
    found, _ = await target.take(await source.lines())
    assert totals(found) == {Fate.PARKED: 2}
    assert [claim.id for claim in await target.claim()] == [message_id]
    assert (await target.desk.look([younger], 0))[0].state is State.PARKED


@pytest.mark.parametrize("shards", [1, 3, 9])
async def test_a_store_with_other_shards_takes_every_message_and_consumers_see_its_id(shards: int) -> None:
    source, target = Place(), Place(shards)
    ids = [await source.park(0, n % 4) for n in range(200)]
    lines = await source.lines()
    assert totals((await target.take(lines))[0]) == {Fate.PARKED: 200}
    assert totals((await target.take(lines))[0]) == {Fate.THERE: 200}
    claims = await target.claim()
    assert sorted(claim.public_id for claim in claims) == sorted(ids)
    assert {claim.payload for claim in claims} == {BODY}
    for shard in range(4):
        assert [claim.public_id for claim in claims if shard_of(claim.public_id) == shard] == ids[shard::4]


async def test_a_damaged_line_is_named_and_the_others_are_put_back() -> None:
    source, target = Place(), Place()
    edits = {'"at_ms": 1': '"at_ms": 2', '"envelope": "A': '"envelope": "B', '"state": "parked"': '"state": "dead"'}
    for _ in range(2 + len(edits)):
        await source.park()
    head, *lines, end = await source.lines()
    edited = [line.replace(*edit) for line, edit in zip(lines, edits.items(), strict=False)]
    found, complaints = await target.take([head, *edited, lines[-2][:90], lines[-1], end])
    assert complaints == [
        *(f"line {number}: it was changed: the checksum does not fit" for number in range(2, 2 + len(edits))),
        "line 5: it is no JSON, or it was cut off",
    ]
    assert (found.damaged, totals(found), found.whole) == (1 + len(edits), {Fate.PARKED: 1}, True)


async def test_a_file_that_was_cut_off_is_noticed() -> None:
    source = Place()
    for _ in range(3):
        await source.park()
    lines = await source.lines()
    for cut in (lines[:-1], [*lines[:2], lines[-1]]):
        found, _ = await Place().take(cut)
        assert not found.whole


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("", "it is no JSON, or it was cut off"),
        ('{"id": 1}', "this is no file of `postdate export`"),
        ('{"postdate": "export", "format": 2}', "the file has format 2, and this postdate reads format 1"),
    ],
)
async def test_another_file_is_refused_before_anything_is_put_back(head: str, text: str) -> None:
    source, target = Place(), Place()
    await source.park()
    with pytest.raises(DamagedLine, match=text):
        await target.take([head, *(await source.lines())[1:]])
    assert target.content() == {}


@pytest.mark.parametrize(
    ("overdue", "fates", "states"),
    [
        (Overdue.DELIVER, {Fate.PARKED: 2}, ["parked", "parked"]),
        (Overdue.SKIP, {Fate.PARKED: 1, Fate.OVERDUE_SKIPPED: 1}, ["parked"]),
        (Overdue.DEAD, {Fate.PARKED: 1, Fate.DEAD: 1}, ["dead", "parked"]),
    ],
)
async def test_overdue_messages_are_delivered_skipped_or_dead(
    overdue: Overdue, fates: dict[Fate, int], states: list[str]
) -> None:
    source, target = Place(), Place()
    await source.park(0)
    await source.park(HOUR_MS)
    lines = await source.lines()
    assert totals((await target.take(lines, overdue=overdue, dry=True))[0]) == fates
    assert target.content() == {}
    assert totals((await target.take(lines, overdue=overdue))[0]) == fates
    assert sorted(row[0] for row in target.content().values()) == states


async def test_a_younger_message_with_the_same_key_stays_alone() -> None:
    source = Place()
    older = await source.park(key=b"own")
    lines = await source.lines()
    target = Place(clock=source.memory.clock)
    target.memory.clock.advance(5)  # type: ignore[attr-defined]
    younger = await target.park(shard=2, key=b"own")
    assert totals((await target.take(lines))[0]) == {Fate.KEY_TAKEN: 1}
    assert list(target.content()) == [younger]
    await target.store.cancel([younger], False)
    assert totals((await target.take(lines))[0]) == {Fate.PARKED: 1}
    assert list(target.content()) == [older]


async def test_a_message_without_a_configured_route_is_refused_with_the_reason() -> None:
    source, target = Place(), Place()
    await source.park(route="odrers")
    await source.park(route="bills")
    await source.park()
    found, _ = await target.take(await source.lines())
    assert totals(found) == {Fate.PARKED: 1}
    assert found.refused == {
        "Route 'odrers' is not configured. Did you mean 'orders'?": 1,
        "route bills is of kafka in the settings, and of rabbitmq in the file": 1,
    }
    assert (await target.take(await source.lines(), routes=["orders"]))[0].other_routes == 2


async def test_an_export_takes_the_filters_of_a_list() -> None:
    source = await filled()
    await source.park(route="bills", due_in_ms=3 * HOUR_MS)

    async def ids(state: State | None = None, **wanted: Any) -> set[str]:
        lines = await source.lines(state, Criteria(Filter(**wanted)))
        assert json.loads(lines[-1]) == {"end": True, "messages": len(lines) - 2}
        return {json.loads(line)["id"] for line in lines[1:-1]}

    assert len(await ids()) == 9
    assert len(await ids(route="bills")) == len(await ids(key=b"own")) == len(await ids(State.DEAD)) == 1
    assert await ids(due_from_ms=source.memory.now_ms() + 2 * HOUR_MS) == await ids(route="bills")
    assert len(await ids(reason="unroutable")) == 1
