"""Where is my message: parked, claimed, dead, or what became of it."""

from __future__ import annotations

import pytest

from adapters.memory import ManualClock, Memory, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from bridge.core.ports import Batch
from bridge.delay.duration import write_moment
from bridge.operate.describe import past_of
from bridge.operate.where import ended, ends, not_seen, where_is
from bridge.parking.envelope import index_field, seal
from bridge.parking.history import NO_HISTORY, HistoryLimits, HistoryRow, PastState
from tests.conformance.desk_rig import MemoryDeskRig

DELIVERED = HistoryRow(
    b"1" * 20, "orders", b"k", PastState.DELIVERED, 1000, 2000, 1995, 2001, 2005, 1, 7, "", "rabbitmq"
)


async def test_a_parked_message_is_found_by_id_and_by_key() -> None:
    rig = MemoryDeskRig()
    message_id = await rig.park(key=b"order-1")
    for wanted in (message_id, b"order-1"):
        found = await where_is(rig.desk, ["orders"], wanted)
        assert ([row.id for row in found.rows], found.past, found.text) == ([message_id], [], "")


async def test_a_message_that_left_the_store_is_found_by_id_and_by_key() -> None:
    rig = MemoryDeskRig()
    (message_id,) = await rig.deliver(0, key=b"order-1")
    for wanted in (message_id, b"order-1"):
        found = await where_is(rig.desk, ["orders"], wanted)
        assert (found.rows, [entry.id for entry in found.past], found.text) == ([], [message_id], "")
    assert (await ends(rig.desk, [message_id]))[message_id].state is PastState.DELIVERED


async def test_a_dead_letter_is_found_once() -> None:
    rig = MemoryDeskRig()
    message_id = await rig.bury("unroutable: no queue")
    found = await where_is(rig.desk, [], message_id)
    assert ([row.id for row in found.rows], found.past) == ([message_id], [])


async def test_a_key_of_many_messages_is_not_called_unseen() -> None:
    rig = MemoryDeskRig()
    batch, field = Batch(rig.store.new_token()), index_field(b"orders", b"load")
    for _ in range(17):
        message_id = rig.ids.next(rig.store.clock.now_ms(), 0)
        batch.messages.append((message_id, 2**42, seal(2**42, 0, b"orders", b"load", b"", b"\1k")))
        batch.found[field] = batch.found.get(field, b"") + message_id
    await rig.store.park({0: batch})
    found = await where_is(rig.desk, ["bills", "orders"], b"load")
    assert (found.rows, found.past) == ([], [])
    assert found.text == "the key of too many messages to show here: 17. `postdate list --key KEY` lists them"


async def test_an_unknown_message_is_not_seen_for_as_long_as_the_history_reaches() -> None:
    rig = MemoryDeskRig()
    found = await where_is(rig.desk, ["orders"], b"no such key")
    assert (found.rows, found.past, found.text) == ([], [], "not seen in the last 24 h")


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (NO_HISTORY, "the history is switched off"),
        (HistoryLimits(90_000, 10), "not seen in the last 1 min"),
        (HistoryLimits(7 * 24 * 3_600_000, 10), "not seen in the last 168 h"),
    ],
)
async def test_the_sentence_says_how_far_back_the_history_reaches(limits: HistoryLimits, text: str) -> None:
    desk = MemoryDesk(MemoryStore(Memory(2, ManualClock(), limits), "tester"))
    assert (await not_seen(desk)).startswith(text)


async def test_a_history_that_begins_later_says_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = MemoryDeskRig()

    async def since_ms() -> int:
        return await rig.desk.now_ms() - 90_000

    monkeypatch.setattr(rig.desk, "history_since_ms", since_ms)
    begin = write_moment(await since_ms())
    expected = f"not seen since {begin}. The history begins there (history.max, or Redis was emptied)"
    assert await not_seen(rig.desk) == expected


def test_a_view_has_the_moments_in_their_order() -> None:
    view = past_of(DELIVERED)
    assert [(event.what, event.at_ms) for event in view.life] == [
        ("received", 1000),
        ("claimed", 1995),
        ("due", 2000),
        ("published", 2001),
        ("confirmed", 2005),
    ]
    assert (view.state, view.late_ms, view.key) == ("delivered", 5, "k")
    assert ended(DELIVERED) == "it was delivered at 1970-01-01T00:00:02.005Z"
