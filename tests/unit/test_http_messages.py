"""The endpoints of messages, over the memory store."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest

from bridge.http.access import Role
from bridge.settings.model import Ui
from tests.api import HOUR_MS, api, settings

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


async def test_a_scheduled_message_is_listed_shown_rescheduled_delivered_and_cancelled() -> None:
    async with api(Role.OPERATOR) as client:
        one = await client.schedule(key="order-1")
        (row,) = (await client.get("/messages"))["messages"]
        assert (row["id"], row["state"], row["route"], row["routing_key"], row["key"]) == (
            one,
            "parked",
            "orders",
            "new",
            "order-1",
        )
        assert "body" not in row
        moved = await client.call("PATCH", f"/messages/{one}", body={"in": "2h", "reason": "asked to"})
        assert moved["due_ms"] == row["due_ms"] + HOUR_MS
        now = await client.call("POST", f"/messages/{one}/deliver")
        assert now["due_ms"] == client.stores.memory.now_ms()
        assert (await client.call("DELETE", f"/messages/{one}"))["state"] == "gone"
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
        one = await client.schedule(after="0s")
        client.stores.memory.clock.advance(5)  # type: ignore[attr-defined]
        await client.claim(one)
        for method, path, body in (
            ("DELETE", "", None),
            ("POST", "/deliver", None),
            ("PATCH", "", {"in": "5m"}),
            ("POST", "/retry", None),
        ):
            problem = await client.call(method, f"/messages/{one}{path}", 409, body)
            assert problem["state"] == "claimed"
        assert (await client.get(f"/messages/{one}"))["message"]["state"] == "claimed"


async def test_a_key_cancels_its_message_and_an_unknown_one_is_not_found() -> None:
    async with api() as client:
        one = await client.schedule(key="a/b c")
        assert (await client.call("DELETE", "/keys/a%2Fb%20c?route=orders"))["results"][0]["id"] == one
        await client.call("DELETE", "/keys/a%2Fb%20c?route=orders", 404)
        await client.call("DELETE", "/keys/a", 422)


async def test_search_finds_by_id_and_by_key() -> None:
    async with api() as client:
        one = await client.schedule(key="order-9")
        assert [row["id"] for row in (await client.get("/search", q=one))["found"]] == [one]
        assert [row["id"] for row in (await client.get("/search", q="order-9"))["found"]] == [one]
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
        ({"body": "\ud800"}, ""),
    ],
)
async def test_a_wrong_message_is_refused_in_a_sentence(wrong: dict[str, object], why: str) -> None:
    async with api() as client:
        new = {"route": "orders", "routing_key": "new", "body": "x", "in": "1h"} | wrong
        assert why in (await client.call("POST", "/messages", 422, new))["detail"]
        assert (await client.get("/messages"))["messages"] == []


async def test_a_message_that_left_the_store_is_answered_from_the_history() -> None:
    async with api() as client:
        one = await client.schedule(key="order-3")
        await client.call("DELETE", f"/messages/{one}?reason=wrong%20address")
        problem = await client.call("DELETE", f"/messages/{one}", 409)
        assert (problem["state"], "was cancelled at" in problem["detail"]) == ("cancelled", True)
        details = await client.get(f"/messages/{one}")
        assert details["message"]["state"] == "cancelled"
        assert {event["what"] for event in details["life"]} == {"received", "due", "cancelled"}
        assert "no longer in the store" in details["body"]["hidden"]
        (row,) = (await client.get("/messages", state="history"))["messages"]
        assert (row["id"], row["reason"]) == (one, "wrong address")
        assert (await client.get("/messages", state="history", route="bills"))["messages"] == []
        assert [found["id"] for found in (await client.get("/search", q="order-3"))["found"]] == [one]
        assert (await client.get(f"/messages/{one}/history"))["state"] == "cancelled"
        missing = await client.get("/messages/1gd4r5kq2000ab3c9d00", 404)
        assert "not seen in the last" in missing["detail"]


async def test_every_verb_leaves_an_entry_with_who_via_and_why() -> None:
    async with api(Role.OPERATOR) as client:
        one = await client.schedule()
        await client.call("PATCH", f"/messages/{one}", body={"in": "5m", "reason": "sooner"})
        await client.call("DELETE", f"/messages/{one}?reason=wrong", 200, None, X_Postdate_Via="ui")
        await client.call("DELETE", f"/messages/{one}", 409)
        entries = (await client.get("/audit"))["audit"]
        told = [(one["verb"], one["who"], one["via"], one["reason"], one["messages"]) for one in entries]
        assert told == [
            ("cancel", "operator", "ui", "wrong", 1),
            ("reschedule", "operator", "api", "sooner", 1),
            ("send", "operator", "api", "", 1),
        ]
        page = await client.get("/audit", limit=2)
        rest = await client.get("/audit", before=page["next"])
        assert [one["verb"] for one in rest["audit"]] == ["send"]


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
        assert {one["id"] for one in (await client.get("/messages"))["messages"]} == {first["id"], repeated["id"]}


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
        one = await admin.schedule(SECRET, headers={"authorization": "Basic 1234"})
        async with api(role, given, admin.stores) as client:
            details = await client.get(f"/messages/{one}")
            text = details["body"]["text"]
            assert seen in (text or "")
            assert bool(text) is bool(seen)
            whole = "4111" in seen
            assert ("4111" in (text or "")) is whole
            assert ("1234" in str(details["headers"])) is whole
            raw = await client.get(f"/messages/{one}/body", 200 if whole else 403)
            assert not whole or raw == SECRET.encode()


async def test_a_hidden_header_is_no_filter_for_those_who_do_not_see_it() -> None:
    async with api() as admin:
        one = await admin.schedule("{}", headers={"cvv": "042", "tenant": "a"})
        assert [row["id"] for row in (await admin.get("/messages", header="cvv=042"))["messages"]] == [one]
        for role in (Role.VIEWER, Role.OPERATOR):
            async with api(role, stores=admin.stores) as client:
                assert "hidden from your role" in (await client.get("/messages", 403, header="cvv=042"))["detail"]
                assert len((await client.get("/messages", header="tenant=a"))["messages"]) == 1
        async with api(Role.OPERATOR, stores=admin.stores) as client:
            asked = {"verb": "cancel", "filter": {"header": "CVV=042"}, "dry_run": True}
            await client.call("POST", "/bulk", 403, asked)


async def test_json_within_json_is_masked_too() -> None:
    async with api() as admin:
        one = await admin.schedule('{"payload": "{\\"password\\": \\"SECRET8\\", \\"n\\": 1}", "note": "{not json"}')
        async with api(Role.VIEWER, stores=admin.stores) as client:
            text = (await client.get(f"/messages/{one}"))["body"]["text"]
            assert "SECRET8" not in text
            assert "{not json" in text


async def test_a_body_that_is_no_json_is_hidden_from_other_roles_and_bytes_are_base64_for_admin() -> None:
    async with api() as admin:
        content = {"body": None, "body_base64": b64encode(b"\xff\x00").decode()}
        one = await admin.schedule(**content)  # type: ignore[arg-type]
        assert (await admin.get(f"/messages/{one}"))["body"]["base64"] == b64encode(b"\xff\x00").decode()
        async with api(Role.OPERATOR, stores=admin.stores) as client:
            body = (await client.get(f"/messages/{one}"))["body"]
            assert (body["text"], body["base64"]) == (None, None)
            assert "no JSON" in body["hidden"]


async def test_a_store_that_is_away_is_a_503_with_its_sentence() -> None:
    async with api() as client:
        client.stores.memory.away = "Redis at localhost does not answer"
        problem = await client.get("/messages", 503)
        assert problem["detail"] == "Redis at localhost does not answer."


async def test_a_missing_routing_key_is_named_as_the_api_names_it() -> None:
    async with api() as one:
        problem = await one.call("POST", "/messages", 422, {"route": "orders", "body": "x", "in": "1h"})
    assert problem["detail"].startswith('"routing_key" is missing.')
