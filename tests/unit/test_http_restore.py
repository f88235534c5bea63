"""Restore as an operation of the API, over the memory store and a journal in memory."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.memory import Memory
from adapters.memory.memory_journal import MemoryJournal
from bridge.cli import restore
from bridge.core.journal import JournalUnavailable
from bridge.http.access import Role
from bridge.operate.remote import ApiAddress, HttpOperator, client_of
from bridge.pipeline.restore import RestoreOrder
from tests.api import ADMIN, Api, api
from tests.unit.test_http_operations import ended, until

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def without_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore does not wait for instances that may have a message in hand: there are none."""
    monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.0)


async def lost(client: Api, number: int) -> list[str]:
    """Messages that the journal has and the store has lost. Return their ids."""
    stores = client.stores
    stores.journal = stores.journal or MemoryJournal()
    await stores.write()
    for _ in range(number):
        await stores.store_one("orders")
    ids = await stores.write()
    stores.memory.shards[:] = Memory(len(stores.memory.shards), stores.memory.clock).shards
    return ids


async def restored(client: Api, status: int = 202, **asked: Any) -> Any:
    """The operation at its end."""
    return await ended(client, (await client.call("POST", "/restore", status, asked))["id"])


async def test_a_command_whose_dry_run_was_cut_over_the_api_says_so_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.operations._COUNT_S", -1.0)
    async with api() as client:
        await lost(client, 3)
        operator = HttpOperator(client_of(ApiAddress("http://localhost:8480", ADMIN), client.client._transport))
        counts, trouble = await restore._restore(operator, RestoreOrder(), "", dry_run=True, yes=False)
        assert counts is not None
        assert trouble == "Not counted to the end: over the API that takes too long."


async def test_what_the_store_lost_comes_back_after_a_dry_run_with_counts_and_the_audit_says_who() -> None:
    async with api(Role.OPERATOR) as client:
        ids = await lost(client, 600)
        found = await client.call("POST", "/restore", 200, {"dry_run": True})
        assert (found["count"], found["complete"], found["counts"]["parked"], found["counts"]["overdue"]) == (
            *(600, True),
            *(600, 0),
        )
        assert (await client.get("/status"))["parked"] == 0
        found = await restored(client, reason="Redis was emptied")
        assert (found["state"], found["done"], found["skipped"], found["total"]) == ("done", 600, 0, 600)
        assert (found["counts"]["parked"], found["by"]) == (600, "operator (api)")
        page = await client.get("/messages", limit=200)
        assert {row["id"] for row in page["messages"]} <= set(ids)
        assert sorted(await client.stores.write()) == sorted(ids)
        end, begin = (await client.get("/audit"))["audit"]
        assert (begin["verb"], begin["who"], begin["reason"]) == ("bulk restore", "operator", "Redis was emptied")
        assert (end["verb"], end["messages"]) == ("bulk restore", 600)
        assert client.backend.processes.verbs["restore"] == 600
        assert (await restored(client))["counts"]["there"] == 600


async def test_a_journal_that_is_too_large_to_be_counted_in_time_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def count(*_: object) -> int:
        raise JournalUnavailable("the journal did not answer within 30 s")

    monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.0)
    monkeypatch.setattr(MemoryJournal, "count", count)
    async with api() as client:
        await lost(client, 3)
        found = await restored(client)
        assert (found["state"], found["done"], found["total"]) == ("done", 3, None)


@pytest.mark.parametrize("role", [None, Role.VIEWER])
async def test_a_role_that_only_reads_restores_nothing_and_counts_nothing(role: Role | None) -> None:
    async with api(role) as client:
        await lost(client, 1)
        for asked in ({}, {"dry_run": True}):
            await client.call("POST", "/restore", 403 if role else 401, asked)


async def test_a_restore_is_stopped_and_goes_on_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.operate.bulk._REPORT_S", 0.0)
    async with api() as client, api(stores=client.stores) as elsewhere:
        await lost(client, 1000)
        begun = await client.call("POST", "/restore", 202, {"max_rate": 200})
        await until(elsewhere, begun["id"], lambda found: found["done"] > 0)
        await elsewhere.call("DELETE", f"/operations/{begun['id']}", 202)
        found = await ended(client, begun["id"])
        assert (found["state"], 0 < found["done"] < 1000) == ("stopped", True)
        assert (await client.get("/status"))["parked"] == found["done"] == found["counts"]["parked"]
        again = await restored(client)
        assert (again["done"], again["skipped"]) == (1000 - found["done"], found["done"])


@pytest.mark.parametrize(("overdue", "counts"), [("deliver", [2, 0, 0]), ("skip", [1, 0, 1]), ("dead", [1, 1, 0])])
async def test_overdue_messages_become_what_the_request_says(overdue: str, counts: list[int]) -> None:
    async with api() as client:
        client.stores.journal = MemoryJournal()
        await client.stores.write()
        await client.stores.store_one("orders", 1000)
        await lost(client, 1)
        client.stores.memory.clock.advance(2000)  # type: ignore[attr-defined]
        for found in (
            (await client.call("POST", "/restore", 200, {"dry_run": True, "overdue": overdue})),
            await restored(client, overdue=overdue),
        ):
            assert [found["counts"][name] for name in ("parked", "dead", "overdue_skipped")] == counts


async def test_a_cancel_is_undone_by_its_filter_and_many_need_the_role_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.operations.OPERATOR_MAX", 2)
    async with api(Role.OPERATOR) as client, api(Role.ADMIN, stores=client.stores) as admin:
        client.stores.journal = MemoryJournal()
        await client.stores.write()
        ids = [await client.schedule(key=f"order-{number}") for number in range(3)]
        await client.stores.write()
        for message_id in ids:
            await client.call("DELETE", f"/messages/{message_id}")
        await client.stores.write()
        assert (await restored(client))["done"] == 0
        refused = await client.call("POST", "/restore", 409, {"cancelled": True})
        assert "more than 2 messages match" in refused["detail"]
        assert (await restored(client, cancelled=True, key="order-1"))["done"] == 1
        assert (await restored(admin, cancelled=True))["done"] == 2
        assert sorted(row["id"] for row in (await client.get("/messages"))["messages"]) == sorted(ids)


async def test_a_journal_that_is_away_refuses_to_begin_and_holds_up_what_has_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.operate.bulk._REPORT_S", 0.0)
    async with api() as client:
        await lost(client, 1000)
        assert client.stores.journal is not None
        client.stores.journal.away = "the journal is away"
        assert "is away" in (await client.call("POST", "/restore", 503, {}))["detail"]
        client.stores.journal.away = ""
        begun = await client.call("POST", "/restore", 202, {"max_rate": 1000})
        await until(client, begun["id"], lambda found: found["done"] > 0)
        client.stores.journal.away = "the journal is away"
        await until(client, begun["id"], lambda found: found["text"] == "Waiting: the journal is away.")
        client.stores.journal.away = ""
        found = await ended(client, begun["id"])
        assert (found["state"], found["done"] + found["skipped"], found["text"]) == ("done", 1000, "")
        assert len(await client.stores.write()) == 1000


@pytest.mark.parametrize(
    ("asked", "status", "why"),
    [
        ({}, 409, "Set journal.url"),
        ({"route": "order"}, 422, "not configured"),
        ({"ids": ["nonsense"]}, 422, "not a message id"),
        ({"ids": [], "cancelled": True}, 422, "ids"),
        ({"key": "", "cancelled": True}, 422, "key"),
        ({"route": ""}, 422, "route"),
        ({"overdue": "drop"}, 422, "overdue"),
        ({"due_after": "soon"}, 422, "is not a moment"),
        ({"state": "parked"}, 422, "state"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_wrong_request_is_refused_in_a_sentence(
    asked: dict[str, Any], status: int, why: str, dry_run: bool
) -> None:
    async with api() as client:
        assert why in (await client.call("POST", "/restore", status, {**asked, "dry_run": dry_run}))["detail"]


async def test_a_command_names_another_restore_that_is_running(capsys: pytest.CaptureFixture[str]) -> None:
    async with api() as client:
        await lost(client, 100)
        operator = HttpOperator(client_of(ApiAddress("http://localhost:8480", ADMIN), client.client._transport))
        begun = await client.call("POST", "/restore", 202, {"max_rate": 50})
        for dry_run in (True, False):
            counts, trouble = await restore._restore(operator, RestoreOrder(), "", dry_run, True)
            assert counts is not None
            assert (counts.parked + counts.there, trouble) == (100, "")
            errors = capsys.readouterr().err
            assert ("Another restore is running, by admin (api): " in errors) == dry_run, "the first one has ended"
            await ended(client, begun["id"])
