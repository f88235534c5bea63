"""Bulk operations over the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from adapters.memory import Memory
from bridge.core.orders import Actor
from bridge.http.access import Role
from bridge.operate import bulk
from bridge.operate.bulk import BATCH, DEAD_MS, RunningOperation, read_operation
from bridge.operate.documents import OperationFacts
from bridge.operate.local import LocalOperator
from tests.api import HOUR_MS, Api, api, settings

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


async def until(client: Api, message_id: str, holds: Callable[[Any], bool]) -> Any:
    """The operation as soon as it is as expected."""
    async with asyncio.timeout(20):
        while True:
            if holds(found := await client.get(f"/operations/{message_id}")):
                return found
            await asyncio.sleep(0.01)  # it runs in the background, as for any client


async def ended(client: Api, message_id: str) -> Any:
    return await until(client, message_id, lambda found: found["state"] != "running")


async def test_a_dry_run_counts_and_shows_some_and_changes_nothing() -> None:
    async with api(Role.OPERATOR) as client:
        for _ in range(8):
            await client.schedule()
        await client.schedule(route="bills")
        asked = {"verb": "cancel", "filter": {"route": "orders"}, "dry_run": True}
        found = await client.call("POST", "/bulk", 200, asked)
        assert (found["count"], found["complete"], len(found["sample"])) == (8, True, 5)
        assert {row["route"] for row in found["sample"]} == {"orders"}
        assert len((await client.get("/messages"))["messages"]) == 9
        assert (await client.get("/operations"))["operations"] == []


async def test_a_dry_run_by_ids_counts_each_message_once_and_only_those_that_the_verb_changes() -> None:
    async with api(Role.OPERATOR) as client:
        message_id = await client.schedule()
        for verb, count in (("cancel", 1), ("deliver", 1), ("retry", 0)):
            asked = {"verb": verb, "ids": [message_id] * 50, "dry_run": True}
            assert (await client.call("POST", "/bulk", 200, asked))["count"] == count


async def test_a_dry_run_that_was_cut_has_a_cursor_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_COUNT_S", 0.0)
    async with api(Role.OPERATOR) as client:
        for _ in range(6):
            await client.schedule()
        for route in ("orders", "bills"):
            await client.schedule(route=route, key="order-1")
        for chosen, number in (({"route": "orders"}, 7), ({"key": "order-1"}, 2)):
            asked = {"verb": "cancel", "filter": chosen, "dry_run": True}
            counts, cursor = [], None
            while True:
                found = await client.call("POST", "/bulk", 200, {**asked, "cursor": cursor})
                counts.append(found["count"])
                assert found["complete"] is (found["next"] is None)
                if (cursor := found["next"]) is None:
                    break
            assert (sum(counts), len(counts) > 1) == (number, True)
        found = await client.call("POST", "/bulk", 422, {**asked, "cursor": "x", "dry_run": False})
        assert "cursor" in found["detail"]


async def test_a_filter_is_cancelled_in_the_background_with_progress_and_reason() -> None:
    async with api(Role.OPERATOR) as client:
        for _ in range(600):
            await client.stores.store_one("orders")
        kept = await client.schedule(route="bills")
        asked = {"verb": "cancel", "filter": {"route": "orders"}, "reason": "wrong campaign"}
        started = await client.call("POST", "/bulk", 202, asked)
        assert (started["state"], started["by"], started["reason"]) == ("running", "operator (api)", "wrong campaign")
        found = await ended(client, started["id"])
        assert (found["state"], found["done"], found["skipped"], found["total"]) == ("done", 600, 0, 600)
        assert [row["id"] for row in (await client.get("/messages"))["messages"]] == [kept]
        assert [operation["id"] for operation in (await client.get("/operations"))["operations"]] == [started["id"]]


async def test_ids_are_rescheduled_and_those_that_are_gone_are_skipped() -> None:
    async with api(Role.OPERATOR) as client:
        parked, gone = await client.schedule(), await client.schedule()
        await client.call("DELETE", f"/messages/{gone}")
        asked = {"verb": "reschedule", "ids": [parked, gone], "in": "2h"}
        found = await ended(client, (await client.call("POST", "/bulk", 202, asked))["id"])
        assert (found["done"], found["skipped"]) == (1, 1)
        (row,) = (await client.get("/messages"))["messages"]
        assert row["due_ms"] == client.stores.memory.now_ms() + 2 * HOUR_MS


async def test_dead_letters_are_retried_by_reason() -> None:
    async with api(Role.OPERATOR) as client:
        await client.bury("unroutable: no queue")
        other = await client.bury("bad_header: x-delay")
        asked = {"verb": "retry", "filter": {"state": "dead", "reason": "unroutable"}}
        found = await ended(client, (await client.call("POST", "/bulk", 202, asked))["id"])
        assert (found["state"], found["done"]) == ("done", 1)
        assert [row["id"] for row in (await client.get("/messages", state="dead"))["messages"]] == [other]


async def test_a_filter_without_a_state_means_what_the_command_means() -> None:
    async with api(Role.OPERATOR) as client:
        dead = [await client.bury("unroutable: no queue"), await client.bury("bad_header: x-delay")]
        waits = await client.schedule(route="bills")
        for verb, chosen, meant in (
            ("retry", {"reason": "unroutable"}, dead[:1]),
            ("cancel", {"reason": "bad_header"}, dead[1:]),
            ("cancel", {"route": "bills"}, [waits]),
        ):
            asked = {"verb": verb, "filter": chosen}
            found = await client.call("POST", "/bulk", 200, {**asked, "dry_run": True})
            assert [row["id"] for row in found["sample"]] == meant
            started = await client.call("POST", "/bulk", 202, asked)
            assert (await ended(client, started["id"]))["done"] == 1
            assert '"state": "' in started["what"]


async def test_another_instance_stops_an_operation_and_what_was_done_stays_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "_REPORT_S", 0.0)
    async with api() as client, api(stores=client.stores) as elsewhere:
        for _ in range(1000):
            await client.stores.store_one("orders")
        started = await client.call(
            "POST", "/bulk", 202, {"verb": "cancel", "filter": {"state": "parked"}, "max_rate": 100}
        )
        await until(elsewhere, started["id"], lambda found: found["done"] > 0)
        await elsewhere.call("DELETE", f"/operations/{started['id']}", 202)
        found = await ended(client, started["id"])
        assert found["state"] == "stopped"
        assert 0 < found["done"] < 1000
        assert (await client.get("/status"))["parked"] == 1000 - found["done"]
        assert (await elsewhere.call("DELETE", f"/operations/{started['id']}", 409))["state"] == "stopped"


async def test_an_operator_may_act_on_ten_thousand_messages_and_an_admin_on_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bridge.http.operations.OPERATOR_MAX", 3)
    async with api(Role.OPERATOR) as client:
        for _ in range(4):
            await client.schedule()
        asked = {"verb": "cancel", "filter": {"state": "parked"}}
        found = await ended(client, (await client.call("POST", "/bulk", 202, asked))["id"])
        assert (found["state"], found["done"]) == ("failed", 0)
        assert "Nothing was done" in found["text"]
        async with api(Role.ADMIN, stores=client.stores) as admin:
            found = await ended(admin, (await admin.call("POST", "/bulk", 202, asked))["id"])
            assert (found["state"], found["done"]) == ("done", 4)


def test_an_operation_whose_process_died_is_shown_as_failed() -> None:
    begun = OperationFacts(
        id="1",
        verb="cancel",
        state="running",
        done=5,
        skipped=0,
        total=None,
        started_ms=0,
        ended_ms=None,
        beat_ms=1000,
        by="admin (api)",
        reason="",
        text="",
    )
    document = begun.model_dump_json()
    assert read_operation(document, 1000 + DEAD_MS).state == "running"
    found = read_operation(document, 1001 + DEAD_MS).as_dict()
    assert (found["state"], found["done"], found["ended_ms"]) == ("failed", 5, 1000)


async def test_the_end_of_an_operation_whose_process_died_is_in_the_audit_log_with_its_count() -> None:
    async with api(Role.OPERATOR) as client, api(Role.VIEWER, stores=client.stores) as reader:
        for _ in range(600):
            await client.stores.store_one("orders")
        asked = {"verb": "cancel", "filter": {"state": "parked"}, "max_rate": 50, "reason": "wrong"}
        started = await client.call("POST", "/bulk", 202, asked)
        found = await until(client, started["id"], lambda found: found["done"] > 0)
        for _, task in client.backend.operations._running.values():  # as kill -9: it writes nothing more
            task.cancel()
        await asyncio.sleep(0)
        gone = 600 - (await client.get("/status"))["parked"]
        client.stores.memory.clock.advance(DEAD_MS + 1000)  # type: ignore[attr-defined]
        for _ in range(2):  # once, however often it is read
            end, begin = (await reader.get("/audit"))["audit"]
            assert (begin["verb"], begin["messages"]) == ("bulk cancel", 0)
            assert (end["verb"], end["who"], end["via"], end["reason"]) == ("bulk cancel", "operator", "api", "wrong")
            assert started["id"] in end["what"]
            assert "failed. The process that ran it ended" in end["what"]
            assert found["done"] <= end["messages"] <= gone <= end["messages"] + BATCH
        (operation,) = (await reader.get("/operations"))["operations"]
        assert (operation["state"], operation["by"]) == ("failed", "operator (api)")


class LastWord:
    """Work at whose end the store goes away for a moment."""

    verb, what = "restore", "{}"

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def run(self, run: RunningOperation) -> None:
        run.set(done=3)
        self._memory.away = "failing over"
        asyncio.get_running_loop().call_later(0.2, setattr, self._memory, "away", "")


async def test_an_operation_that_ends_while_the_store_is_away_is_done_once_it_is_back() -> None:
    async with api(Role.ADMIN) as client:
        began = await client.backend.operations.start(LastWord(client.stores.memory), Actor("admin", "api"), "")
        (_, task) = client.backend.operations._running[began.id]
        await asyncio.wait_for(task, 20)
        (operation,) = (await client.get("/operations"))["operations"]
        assert (operation["state"], operation["done"], operation["text"]) == ("done", 3, "")
        assert [entry["what"] for entry in (await client.get("/audit"))["audit"]] == [f"operation {began.id}: done"]


class SlowBatch:
    """Work whose first batch takes as long as a test wants."""

    verb, what = "restore", "{}"

    def __init__(self) -> None:
        self.over = asyncio.Event()

    async def run(self, run: RunningOperation) -> None:
        await self.over.wait()
        run.set(done=1)


async def test_a_batch_that_is_only_slow_ends_no_operation_and_the_audit_log_has_one_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk, "_BEAT_S", 0.01, raising=False)
    async with api() as client, api(stores=client.stores) as elsewhere:
        memory, work = client.stores.memory, SlowBatch()
        started = await client.backend.operations.start(work, Actor("me", "cli"), "")
        memory.clock.advance(DEAD_MS + 1000)  # type: ignore[attr-defined]
        # The process that runs it knows better, before its next sign of life too.
        assert (await client.get(f"/operations/{started.id}"))["state"] == "running"
        async with asyncio.timeout(20):
            while True:
                if read_operation(memory.operations[started.id], memory.now_ms()).state == "running":
                    break
                await asyncio.sleep(0.01)  # its process gives it
        assert (await elsewhere.get("/operations"))["operations"][0]["state"] == "running"
        work.over.set()
        found = await ended(client, started.id)
        assert (found["state"], found["done"], found["text"]) == ("done", 1, "")
        (end,) = (await elsewhere.get("/audit"))["audit"]
        assert end["what"] == f"operation {started.id}: done"


async def test_whoever_follows_an_operation_of_its_own_process_needs_no_store() -> None:
    async with api() as client:
        work = SlowBatch()
        started = await client.backend.operations.start(work, Actor("me", "cli"), "")
        client.stores.memory.away = "Redis does not answer"
        operator = LocalOperator(client.stores, settings(), Actor("me", "cli"), operations=client.backend.operations)
        assert (await operator.operation(started.id)).state == "running"
        client.stores.memory.away = ""
        work.over.set()
        assert (await ended(client, started.id))["state"] == "done"


async def test_a_stopping_process_says_that_it_ended_the_operation() -> None:
    async with api() as client:
        for _ in range(600):
            await client.stores.store_one("orders")
        started = await client.call(
            "POST", "/bulk", 202, {"verb": "cancel", "filter": {"state": "parked"}, "max_rate": 100}
        )
        await client.backend.operations.close()
        assert (await client.get(f"/operations/{started['id']}"))["state"] == "failed"


async def test_a_store_that_is_away_for_a_while_does_not_end_an_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api() as client:
        for _ in range(600):
            await client.stores.store_one("orders")
        started = await client.call(
            "POST", "/bulk", 202, {"verb": "cancel", "filter": {"state": "parked"}, "max_rate": 1000}
        )
        await until(client, started["id"], lambda found: found["total"] is not None)
        client.stores.memory.away = "Redis does not answer"
        await asyncio.sleep(0.3)
        client.stores.memory.away = ""
        assert (await ended(client, started["id"]))["state"] == "done"
        assert (await client.get("/status"))["parked"] == 0


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"verb": "cancel"}, "one of ids"),
        ({"verb": "cancel", "ids": [], "filter": {}}, "one of ids"),
        ({"verb": "explode", "filter": {"state": "parked"}}, "verb"),
        ({"verb": "retry", "filter": {"state": "parked"}}, "needs messages in the state dead"),
        ({"verb": "reschedule", "filter": {"state": "parked"}}, "one of in"),
        ({"verb": "cancel", "filter": {"state": "parked"}, "in": "5m"}, "no due time"),
        ({"verb": "cancel", "filter": {}}, "An empty filter matches everything"),
        ({"verb": "cancel", "filter": {}, "dry_run": True}, "An empty filter matches everything"),
        ({"verb": "cancel", "filter": {"route": "", "key": None}}, "An empty filter matches everything"),
        ({"verb": "cancel", "filter": {"rout": "x"}}, "rout"),
        ({"verb": "cancel", "ids": ["nonsense"]}, "not a message id"),
    ],
)
async def test_a_wrong_request_is_refused_in_a_sentence(asked: dict[str, Any], why: str) -> None:
    async with api() as client:
        assert why in (await client.call("POST", "/bulk", 422, asked))["detail"]


@pytest.mark.parametrize(
    ("path", "body"),
    [("/bulk", {"verb": "cancel", "filter": {"key": "\ud800"}}), ("/restore", {"key": "\ud800", "dry_run": True})],
)
async def test_a_key_that_is_half_of_a_surrogate_pair_is_refused(path: str, body: dict[str, object]) -> None:
    async with api() as client:
        assert "key" in (await client.call("POST", path, 422, body))["detail"]
