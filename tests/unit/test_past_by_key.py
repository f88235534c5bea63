"""The history by key or id where a journal is on: what is looked at, and that each entry and event comes once."""

from __future__ import annotations

import pytest

from adapters.memory.memory_desk import MemoryDesk
from adapters.memory.memory_journal import MemoryJournal
from bridge.desk.protocol import Desk, Desks
from bridge.operate.journaled_desk import JournaledDesk
from bridge.pipeline.tiers import Loader
from tests.api import HOUR_MS, MemoryStores, api

#: Each test of the API builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


def journaled(stores: MemoryStores, broker: str, journal: MemoryJournal) -> Desk:
    """The desk of a store and its journal."""
    loader = Loader(journal, stores.store, stores.store, stores.store.shards)
    return JournaledDesk(MemoryDesk(stores.store, broker), journal, broker, loader)


async def test_a_page_by_key_looks_at_the_entries_of_this_key_alone() -> None:
    async with api() as client:
        for number in range(30):
            message_id = await client.schedule(key=f"order-{number}")
            await client.call("DELETE", f"/messages/{message_id}")
        page = await client.get("/messages", state="history", key="order-7")
        assert ([row["key"] for row in page["messages"]], page["looked_at"], page["next"]) == (["order-7"], 1, None)


async def test_a_page_by_key_has_what_the_journal_alone_knows_and_each_entry_once() -> None:
    stores = MemoryStores()
    stores.kept, stores.journal = journaled(stores, "rabbitmq", stores.spare), stores.spare
    async with api(stores=stores) as client:
        ids = []
        for last in range(4):
            ids.append(await client.schedule(key="order-1"))
            await stores.write()
            stores.memory.clock.advance(1000)  # type: ignore[attr-defined]
            await client.call("DELETE", f"/messages/{ids[-1]}")
            await stores.write()
            if last == 1:
                for shard in stores.memory.shards:
                    shard.history.clear()  # as after history.keep
        found, cursor = [], None
        while True:
            more: dict[str, str] = {"cursor": cursor} if cursor else {}
            page = await client.get("/messages", state="history", key="order-1", limit=1, **more)
            found += [row["id"] for row in page["messages"]]
            if (cursor := page["next"]) is None:
                break
        assert found == ids[::-1]


async def test_of_many_messages_with_a_key_the_journal_tells_those_that_ended_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.operate.journaled_desk._KEY_MAX", 2)
    stores = MemoryStores()
    stores.kept, stores.journal = journaled(stores, "rabbitmq", stores.spare), stores.spare
    async with api(stores=stores) as client:
        ids = []
        for hours in (4, 1, 2, 3):
            ids.append(await client.schedule(key="order-1", after=f"{hours}h"))
            await stores.write()
            stores.memory.clock.advance(1000)  # type: ignore[attr-defined]
            await client.call("DELETE", f"/messages/{ids[-1]}")
        sizes = [row["size"] for row in (await client.get("/messages", state="history", key="order-1"))["messages"]]
        await stores.write()
        for shard in stores.memory.shards:
            shard.history.clear()  # as after history.keep
        found = (await client.get("/messages", state="history", key="order-1"))["messages"]
        assert [row["id"] for row in found] == ids[:-3:-1]
        assert [row["size"] for row in found] == sizes[:2]
        assert (await client.get(f"/messages/{ids[0]}"))["message"]["size"] == sizes[0]


async def test_two_stores_with_one_journal_tell_each_event_once() -> None:
    stores = MemoryStores()
    stores.journal = stores.spare
    async with api(stores=stores) as client:
        message_id = await client.schedule()
        await stores.write()
        await stores.store.reschedule([message_id.encode()], stores.memory.now_ms() + 2 * HOUR_MS)
        stores.memory.clock.advance(1000)  # type: ignore[attr-defined]
        await client.call("DELETE", f"/messages/{message_id}")
        await stores.write()
        both = {"rabbitmq": stores, "kafka": MemoryStores()}
        stores.kept = Desks([journaled(kept, broker, stores.spare) for broker, kept in both.items()])
        life = (await client.get(f"/messages/{message_id}/history"))["life"]
        assert [event["what"].partition(" ")[0] for event in life] == ["received", "rescheduled", "cancelled", "due"]
