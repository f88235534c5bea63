"""The endpoints of messages, over the memory store."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import pytest

from adapters.memory import Memory, MemoryStore
from adapters.memory.memory_desk import MemoryDesk
from adapters.rabbitmq.raw.payload import pack
from bridge.core.ports import Batch
from bridge.desk.rows import Row
from bridge.http import search
from bridge.http.access import Role
from bridge.operate import find
from bridge.operate.describe import headers_of
from bridge.operate.send import Message, send
from bridge.parking.envelope import index_field, seal
from bridge.parking.history import NO_HISTORY
from bridge.settings import Settings
from bridge.settings.model import BrokerKind, Route, Ui
from tests.api import AUTH, HOUR_MS, MemoryStores, api, settings
from tests.unit.raw_properties import Props, sized

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


async def test_a_filter_that_is_given_twice_or_has_a_mistake_in_its_name_is_refused() -> None:
    async with api(Role.VIEWER) as client:
        await client.get("/messages", 422, rout="orders")
        await client.get("/messages", 422, header=["nope=1", "tenant=globex"])


async def test_a_filter_that_can_find_nothing_and_an_unknown_parameter_are_mistakes() -> None:
    async with api() as client:
        await client.bury()
        assert (await client.get("/messages", 422, state="dead", reason="nope"))["detail"].startswith(
            "No reason starts with 'nope'. Known reasons: bad_header,"
        )
        assert (await client.get("/messages", state="history", reason="a note"))["messages"] == []
        body = {"verb": "retry", "dry_run": True, "filter": {"reason": "nope"}}
        assert "Known reasons" in (await client.call("POST", "/bulk", 422, body))["detail"]
        for path, more in (("/dead/reasons", {}), ("/search", {"q": "order-1"})):
            assert (await client.get(path, 422, route="order", **more))["detail"] == (
                "Route 'order' is not configured. Did you mean 'orders'?"
            )
            assert await client.get(path, route="", **more)
        for path, known in (("/status", "routes"), ("/search", "q, route"), ("/instances", "none")):
            assert (await client.get(path, 422, q="x", rout="orders"))["detail"] == (
                f"There is no parameter {'rout' if known[0] == 'q' else 'q'!r} here. Parameters: {known}."
            )
        await client.call("DELETE", "/messages/1gd4r5kq2000ab3c9d00?resaon=x", 422)


async def test_a_scheduled_message_is_listed_shown_rescheduled_delivered_and_cancelled() -> None:
    async with api(Role.OPERATOR) as client:
        message_id = await client.schedule(key="order-1")
        (row,) = (await client.get("/messages"))["messages"]
        assert (row["id"], row["state"], row["route"], row["routing_key"], row["key"]) == (
            message_id,
            "parked",
            "orders",
            "new",
            "order-1",
        )
        assert "body" not in row
        moved = await client.call("PATCH", f"/messages/{message_id}", body={"in": "2h", "reason": "asked to"})
        assert moved["due_ms"] == row["due_ms"] + HOUR_MS
        now = await client.call("POST", f"/messages/{message_id}/deliver")
        assert now["due_ms"] == client.stores.memory.now_ms()
        assert (await client.call("DELETE", f"/messages/{message_id}"))["state"] == "cancelled"
        assert (await client.get("/messages"))["messages"] == []
        await client.get("/messages/1gd4r5kq2000ab3c9d00", 404)


async def test_pages_follow_each_other_without_gaps_or_repeats_also_among_equal_due_moments() -> None:
    async with api() as client:
        ids = [await client.schedule(after="1h") for _ in range(7)] + [await client.schedule(after="2h")]
        seen: list[str] = []
        params: dict[str, Any] = {"limit": 3}
        while True:
            page = await client.get("/messages", **params)
            seen += [row["id"] for row in page["messages"]]
            if page["next"] is None:
                break
            params["cursor"] = page["next"]
        assert seen == ids


async def test_filters_restrict_a_list() -> None:
    async with api() as client:
        near = await client.schedule(after="1h", key="k1")
        far = await client.schedule(after="3h", route="bills", body="x" * 500, headers={"tenant": "a", "other": "b"})

        async def found(**params: Any) -> list[str]:
            return [row["id"] for row in (await client.get("/messages", **params))["messages"]]

        assert await found(route="orders") == [near]
        assert await found(key="k1") == [near]
        assert await found(key="k1", route="bills") == []
        assert await found(due_after="2h") == [far]
        assert await found(due_before="2h") == [near]
        assert await found(min_size=400) == [far]
        assert await found(header="tenant=a") == [far]
        assert await found(header="tenant=b") == []
        assert await found(header="other") == [far]
        assert await found(min_tries=1) == []
        assert (await client.get("/messages", 422, cursor="nonsense"))["detail"].startswith("The cursor")


async def test_a_route_that_neither_settings_nor_store_know_is_a_mistake() -> None:
    async with api() as client:
        payload = pack(b"new", sized(b""), b"x")
        await client.stores.store_one("removed", HOUR_MS, payload)
        assert len((await client.get("/messages", route="removed"))["messages"]) == 1
        for state in ("dead", "history"):
            assert (await client.get("/messages", state=state, route="removed"))["messages"] == []
            detail = (await client.get("/messages", 422, state=state, route="order"))["detail"]
            assert detail == "Route 'order' is not configured. Did you mean 'orders'?"
        await client.get("/messages", 422, route="order")
        await client.get("/messages", 422, route="order", key="k")


async def test_a_dead_letter_is_retried_once_and_a_parked_message_not() -> None:
    async with api() as client:
        dead = await client.bury()
        assert (await client.get("/messages", state="dead", reason="unroutable"))["messages"][0]["id"] == dead
        assert (await client.get("/dead/reasons"))["reasons"] == [{"reason": "unroutable", "count": 1}]
        assert (await client.call("POST", f"/messages/{dead}/retry"))["state"] == "parked"
        again = await client.call("POST", f"/messages/{dead}/retry", 409)
        assert again["state"] == "parked"


async def test_a_verb_on_a_claimed_message_answers_with_its_real_state() -> None:
    async with api() as client:
        message_id = await client.schedule(after="0s")
        client.stores.memory.clock.advance(5)  # type: ignore[attr-defined]
        await client.claim(message_id)
        for method, path, body in (
            ("DELETE", "", None),
            ("POST", "/deliver", None),
            ("PATCH", "", {"in": "5m"}),
            ("POST", "/retry", None),
        ):
            problem = await client.call(method, f"/messages/{message_id}{path}", 409, body)
            assert problem["state"] == "claimed"
        assert (await client.get(f"/messages/{message_id}"))["message"]["state"] == "claimed"


async def test_a_key_cancels_its_message_and_an_unknown_one_is_not_found() -> None:
    async with api() as client:
        message_id = await client.schedule(key="a/b c")
        assert (await client.call("DELETE", "/keys/a%2Fb%20c?route=orders"))["results"][0]["id"] == message_id
        await client.call("DELETE", "/keys/a%2Fb%20c?route=orders", 404)
        await client.call("DELETE", "/keys/a", 422)


async def test_search_finds_by_id_and_by_key() -> None:
    async with api() as client:
        message_id = await client.schedule(key="order-9")
        assert [row["id"] for row in (await client.get("/search", q=message_id))["found"]] == [message_id]
        assert [row["id"] for row in (await client.get("/search", q="order-9"))["found"]] == [message_id]
        assert (await client.get("/search", q="order-10"))["found"] == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"route": "nowhere"}, "not configured"),
        ({"in": "5"}, "no unit"),
        ({"at": "2026-12-24T18:00:00Z"}, "one of in"),
        ({"in": "9999d"}, "too far"),
        ({"headers": {"x-delay": "5"}}, "x-delay"),
        ({"routing_key": None}, "routing_key"),
        ({"body_base64": "eA=="}, "one of body"),
        ({"key": "k" * 300}, "too long"),
        ({"strange": 1}, "strange"),
        ({"body": "\ud800"}, "not valid Unicode"),
        ({"key": "\ud800"}, "key"),
        ({"routing_key": "\ud800"}, "routing_key"),
        ({"headers": {"a": "\ud800"}}, "not valid Unicode"),
        ({"headers": {"\ud800": "a"}}, "not valid Unicode"),
    ],
)
async def test_a_wrong_message_is_refused_in_a_sentence(wrong: dict[str, object], why: str) -> None:
    async with api() as client:
        new = {"route": "orders", "routing_key": "new", "body": "x", "in": "1h"} | wrong
        assert why in (await client.call("POST", "/messages", 422, new))["detail"]
        assert (await client.get("/messages"))["messages"] == []


async def test_a_body_that_is_not_json_is_a_bad_request_in_a_sentence() -> None:
    async with api() as client:
        sent = {"Content-Type": "application/json"}
        answer = await client.client.request("POST", "/api/v1/messages", content=b'{"route": ', headers=sent)
        assert (answer.status_code, answer.headers["Content-Type"]) == (400, "application/problem+json")
        assert answer.json()["detail"] == "The body is not valid JSON: Expecting value at character 10."


async def test_a_message_that_left_the_store_is_answered_from_the_history() -> None:
    async with api() as client:
        message_id = await client.schedule(key="order-3")
        await client.call("DELETE", f"/messages/{message_id}?reason=wrong%20address")
        problem = await client.call("DELETE", f"/messages/{message_id}", 409)
        assert (problem["state"], "was cancelled at" in problem["detail"]) == ("cancelled", True)
        details = await client.get(f"/messages/{message_id}")
        assert details["message"]["state"] == "cancelled"
        assert {event["what"] for event in details["life"]} == {"received", "due", "cancelled"}
        assert "no longer in the store" in details["body"]["hidden"]
        assert (details["headers"], details["properties"]) == (None, None), "it had some; they are not kept"
        (row,) = (await client.get("/messages", state="history"))["messages"]
        assert (row["id"], row["reason"]) == (message_id, "wrong address")
        assert (await client.get("/messages", state="history", route="bills"))["messages"] == []
        assert [found["id"] for found in (await client.get("/search", q="order-3"))["found"]] == [message_id]
        assert (await client.get(f"/messages/{message_id}/history"))["state"] == "cancelled"
        missing = await client.get("/messages/1gd4r5kq2000ab3c9d00", 404)
        assert "not seen in the last" in missing["detail"]


async def test_every_verb_leaves_an_entry_with_who_and_why_and_no_way_in_that_a_client_claims() -> None:
    async with api(Role.OPERATOR) as client:
        message_id = await client.schedule()
        await client.call("PATCH", f"/messages/{message_id}", body={"in": "5m", "reason": "sooner"})
        await client.call("DELETE", f"/messages/{message_id}?reason=wrong", 200, None, X_Postdate_Via="ui")
        await client.call("DELETE", f"/messages/{message_id}", 409)
        entries = (await client.get("/audit"))["audit"]
        told = [(entry["verb"], entry["who"], entry["via"], entry["reason"], entry["messages"]) for entry in entries]
        assert told == [
            ("cancel", "operator", "api", "wrong", 1),
            ("reschedule", "operator", "api", "sooner", 1),
            ("send", "operator", "api", "", 1),
        ]
        page = await client.get("/audit", limit=2)
        rest = await client.get("/audit", before=page["next"])
        assert [entry["verb"] for entry in rest["audit"]] == ["send"]


async def test_a_repeated_request_parks_one_message_and_a_failed_one_is_repeated_safely() -> None:
    async with api() as client:
        new = {"route": "orders", "routing_key": "new", "body": "x", "in": "1h"}
        first = await client.call("POST", "/messages", 201, new, Idempotency_Key="abc")
        again = await client.call("POST", "/messages", 200, new, Idempotency_Key="abc")
        assert again == first
        await client.call("POST", "/messages", 422, new | {"body": "y"}, Idempotency_Key="abc")
        client.stores.memory.full = True
        await client.call("POST", "/messages", 503, new, Idempotency_Key="def")
        client.stores.memory.full = False
        repeated = await client.call("POST", "/messages", 201, new, Idempotency_Key="def")
        assert {message["id"] for message in (await client.get("/messages"))["messages"]} == {
            first["id"],
            repeated["id"],
        }


async def test_a_message_that_is_not_parked_replaces_no_other_with_its_key() -> None:
    async with api() as client:
        new = {"route": "orders", "body": "x", "in": "1h", "key": "k"}
        first = await client.call("POST", "/messages", 201, new | {"routing_key": "0"})
        client.stores.memory.full = True
        for number in range(8):  # in several shards
            await client.call("POST", "/messages", 503, new | {"routing_key": str(number)})
        client.stores.memory.full = False
        assert [found["id"] for found in (await client.get("/messages", key="k"))["messages"]] == [first["id"]]
        for number in range(8):
            last = await client.call("POST", "/messages", 201, new | {"routing_key": str(number)})
            assert [found["id"] for found in (await client.get("/messages", key="k"))["messages"]] == [last["id"]]


async def test_a_repeated_request_parks_nothing_when_the_history_no_longer_has_its_message() -> None:
    stores = MemoryStores(MemoryStore(Memory(limits=NO_HISTORY)))
    async with api(stores=stores) as client:
        new = {"route": "orders", "routing_key": "new", "body": "x", "in": "1h"}
        first = await client.call("POST", "/messages", 201, new, Idempotency_Key="abc")
        await client.call("DELETE", f"/messages/{first['id']}", 200)
        assert await client.call("POST", "/messages", 200, new, Idempotency_Key="abc") == first
        assert (await client.get("/messages"))["messages"] == []


async def test_a_page_of_a_key_says_where_the_next_one_begins() -> None:
    async with api() as client:
        store, field = client.stores.store, index_field(b"orders", b"load")
        batch = Batch(store.new_token())
        for number in range(5):
            message_id, due_ms = client.stores.ids.next(store.clock.now_ms(), 0), 2**42 + number // 2
            batch.messages.append((message_id, due_ms, seal(due_ms, 0, b"orders", b"load", b"", b"\1k")))
            batch.found[field] = batch.found.get(field, b"") + message_id
        await store.park({0: batch})
        seen: list[str] = []
        more: dict[str, Any] = {}
        while len(seen) < 5:
            page = await client.get("/messages", key="load", limit=2, **more)
            seen += [message["id"] for message in page["messages"]]
            more = {"cursor": page["next"]}
        assert page["next"] is None
        assert seen == [message_id.decode() for message_id, *_ in batch.messages]


async def test_a_key_without_a_route_finds_messages_of_a_removed_route_too() -> None:
    async with api() as client:
        stores = client.stores
        for route in ("orders", "gone"):
            payload, due_ms = pack(b"new", sized(b""), b"x"), stores.memory.now_ms() + HOUR_MS
            message = Message(route, "key", "replace", b"", payload, due_ms, b"k")
            await send(stores.store, stores.ids, message)
        assert len((await client.get("/messages", key="k"))["messages"]) == 2
        assert len((await client.get("/search", q="k"))["found"]) == 2
        bulk = {"verb": "cancel", "filter": {"key": "k"}, "dry_run": True}
        assert (await client.call("POST", "/bulk", 200, bulk))["count"] == 2


SECRET = '{"card_number": "4111", "n": {"password": "x", "m": 1}}'


@pytest.mark.parametrize(
    ("bodies", "role", "seen"),
    [
        ("on", Role.VIEWER, "4111"),
        ("masked", Role.ADMIN, "4111"),
        ("masked", Role.OPERATOR, '"m": 1'),
        ("off", Role.ADMIN, ""),
    ],
)
async def test_the_setting_and_the_role_decide_how_much_of_a_body_is_seen(bodies: str, role: Role, seen: str) -> None:
    given = settings(ui=Ui.model_validate({"bodies": bodies}))
    async with api(given=given) as admin:
        message_id = await admin.schedule(SECRET, headers={"authorization": "Basic 1234"})
        async with api(role, given, admin.stores) as client:
            details = await client.get(f"/messages/{message_id}")
            text = details["body"]["text"]
            assert seen in (text or "")
            assert bool(text) is bool(seen)
            whole = "4111" in seen
            assert ("4111" in (text or "")) is whole
            assert ("1234" in str(details["headers"])) is whole
            raw = await client.get(f"/messages/{message_id}/body", 200 if whole else 403)
            assert not whole or raw == SECRET.encode()


async def test_a_hidden_header_is_no_filter_for_those_who_do_not_see_it() -> None:
    async with api() as admin:
        message_id = await admin.schedule("{}", headers={"cvv": "042", "tenant": "a"})
        assert [row["id"] for row in (await admin.get("/messages", header="cvv=042"))["messages"]] == [message_id]
        for role in (Role.VIEWER, Role.OPERATOR):
            async with api(role, stores=admin.stores) as client:
                assert "hidden from your role" in (await client.get("/messages", 403, header="cvv=042"))["detail"]
                assert len((await client.get("/messages", header="tenant=a"))["messages"]) == 1
        async with api(Role.OPERATOR, stores=admin.stores) as client:
            asked = {"verb": "cancel", "filter": {"header": "CVV=042"}, "dry_run": True}
            await client.call("POST", "/bulk", 403, asked)


async def test_what_is_hidden_within_a_header_cannot_be_guessed_by_a_filter() -> None:
    inner = '{"password": "x", "n": 1}'
    async with api() as admin:
        message_id = await admin.schedule("{}", headers={"meta": inner})
        assert [row["id"] for row in (await admin.get("/messages", header=f"meta={inner}"))["messages"]] == [message_id]
        async with api(Role.OPERATOR, stores=admin.stores) as client:
            assert (await client.get("/messages", header=f"meta={inner}"))["messages"] == []
            asked = {"verb": "cancel", "filter": {"header": f"meta={inner}"}, "dry_run": True}
            assert (await client.call("POST", "/bulk", 200, asked))["count"] == 0
            asked["filter"] = {"header": "meta"}
            assert (await client.call("POST", "/bulk", 200, asked))["count"] == 1


async def test_json_within_json_is_masked_too() -> None:
    async with api() as admin:
        message_id = await admin.schedule('{"payload": "{\\"password\\": \\"SECRET8\\", \\"n\\": 1}", "note": "{x"}')
        async with api(Role.VIEWER, stores=admin.stores) as client:
            text = (await client.get(f"/messages/{message_id}"))["body"]["text"]
            assert "SECRET8" not in text
            assert "{x" not in text


@pytest.mark.parametrize("headers", [{"Content_Type": "text/plain"}, {}])
async def test_a_request_without_a_json_object_says_what_to_send(headers: dict[str, str]) -> None:
    async with api(Role.OPERATOR) as client:
        problem = await client.call("POST", "/messages", 422, [1] if not headers else {"route": "orders"}, **headers)
        assert problem["detail"] == (
            "Body: it is no JSON object, or came without the header Content-Type: application/json."
        )


async def test_a_body_that_is_no_json_is_hidden_from_other_roles_and_bytes_are_base64_for_admin() -> None:
    async with api() as admin:
        content = {"body": None, "body_base64": b64encode(b"\xff\x00").decode()}
        message_id = await admin.schedule(**content)  # type: ignore[arg-type]
        assert (await admin.get(f"/messages/{message_id}"))["body"]["base64"] == b64encode(b"\xff\x00").decode()
        async with api(Role.OPERATOR, stores=admin.stores) as client:
            body = (await client.get(f"/messages/{message_id}"))["body"]
            assert (body["text"], body["base64"]) == (None, None)
            assert "no JSON" in body["hidden"]


async def test_a_store_that_is_away_is_a_503_with_its_sentence() -> None:
    async with api() as client:
        client.stores.memory.away = "Redis at localhost does not answer"
        problem = await client.get("/messages", 503)
        assert problem["detail"] == "Redis at localhost does not answer."


async def test_a_missing_routing_key_is_named_as_the_api_names_it() -> None:
    async with api() as client:
        problem = await client.call("POST", "/messages", 422, {"route": "orders", "body": "x", "in": "1h"})
    assert problem["detail"].startswith('"routing_key" is missing.')


def test_thousands_of_headers_of_one_name_are_told_apart_quickly() -> None:
    given = [{"name": "a", "value": str(number)} for number in range(30_000)] + [{"name": "a #2", "value": "own"}]
    began_s = time.monotonic()
    headers, rest = headers_of({"topic": "t", "headers": given})
    assert time.monotonic() - began_s < 5
    assert (headers["a"], headers["a #2"], headers["a #30000"]) == ("0", "1", "29999")
    assert (len(headers), rest) == (30_001, {"topic": "t"})


async def test_a_header_filter_over_hostile_messages_ends_and_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.operate.find.LOOK_EMPTY_S", 0.05)
    nested = sized(b"\0V" * 60_000)
    async with api(Role.VIEWER) as client:
        for number in range(60):
            wanted = [(b"wanted", "S", sized(b"yes"))] if number == 50 else []
            raw = Props([(b"nested", "F", nested), *wanted]).encode()
            await client.stores.store_one("orders", payload=pack(b"new", raw, b""))
        began_s = turn_s = time.monotonic()
        page = asyncio.ensure_future(client.get("/messages", header="wanted=yes"))
        longest_s = 0.0
        while not page.done():
            await asyncio.sleep(0)
            longest_s, turn_s = max(longest_s, time.monotonic() - turn_s), time.monotonic()
        assert time.monotonic() - began_s < 5
        assert longest_s < 1
        found, told = [], await page
        assert told["looked_at"] < 60
        while told["next"] is not None:
            found += told["messages"]
            told = await client.get("/messages", header="wanted=yes", cursor=told["next"])
        assert len([*found, *told["messages"]]) == 1


async def test_lists_wait_for_each_other_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.backend.LOOKS_MAX", 3)
    async with api(Role.VIEWER) as client, client.backend.looking():
        async with client.backend.looking():
            lists = [asyncio.ensure_future(client.client.get("/api/v1/messages")) for _ in range(2)]
            (refused,), (waiting,) = await asyncio.wait(lists, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            assert refused.result().status_code == 503
        assert (await waiting).status_code == 200


async def test_dead_letters_are_counted_by_reason_to_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LOOKED_MAX", 2)  # a page is short, as after its time
    async with api() as client:
        for reason in ("unroutable: x", "unroutable: y", "too_large: z", "unroutable: x", "expired: w"):
            await client.bury(reason)
        told = await client.get("/dead/reasons")
        assert {reason["reason"]: reason["count"] for reason in told["reasons"]} == {
            "unroutable": 3,
            "too_large": 1,
            "expired": 1,
        }
        assert (told["looked_at"], told["total"], told["complete"]) == (5, 5, True)


async def test_a_count_of_dead_letters_that_takes_too_long_says_of_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "LOOKED_MAX", 2)
    monkeypatch.setattr(search, "_COUNT_S", 0.0)
    async with api() as client:
        for _ in range(5):
            await client.bury()
        told = await client.get("/dead/reasons")
        assert (told["looked_at"], told["total"], told["complete"]) == (2, 5, False)


async def test_what_shows_a_due_moment_says_when_it_was_seen() -> None:
    async with api() as client:
        message_id = await client.schedule()
        bulk = {"verb": "cancel", "filter": {"state": "parked"}, "dry_run": True}
        for told in (
            await client.get("/messages"),
            await client.get(f"/messages/{message_id}"),
            await client.get("/search", q=message_id),
            await client.call("POST", "/bulk", 200, bulk),
            await client.call("POST", "/bulk", 200, {"verb": "cancel", "ids": [message_id], "dry_run": True}),
        ):
            assert told["now_ms"] == client.stores.memory.now_ms()


@pytest.mark.parametrize("kind", ["rabbitmq", "kafka"])
async def test_a_header_filter_reads_the_head_of_a_message_and_no_body(kind: BrokerKind) -> None:
    routes = {"orders": Route(broker=kind, intercept="orders.delay", deliver_to="orders")}
    given, stores = Settings(routes=routes, auth=AUTH), MemoryStores()
    stores.kept = MemoryDesk(stores.store, kind)
    place = {"routing_key": "new"} if kind == "rabbitmq" else {"record_key": "k"}
    async with api(given=given, stores=stores) as client:
        for tenant in ("a", "b"):
            new = {"route": "orders", "body": "x" * 5000, "in": "1h", "headers": {"tenant": tenant}, **place}
            await client.call("POST", "/messages", 201, new)
        looks = 0
        look = stores.kept.look

        async def counted(ids: Sequence[bytes], payload_bytes: int) -> list[Row]:
            nonlocal looks
            looks += 1
            return await look(ids, payload_bytes)

        stores.kept.look = counted  # type: ignore[method-assign]
        for header, number in (("tenant=a", 1), ("tenant", 2), ("tenant=c", 0), ("other", 0)):
            assert len((await client.get("/messages", header=header))["messages"]) == number, header
        assert looks == 0
