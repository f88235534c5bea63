"""Who may do what: every route, every role, and what is refused before a request is read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import SecretStr

from bridge.http.access import (
    GuardedRoute,
    Rates,
    Role,
    exceeds_besides_texts,
    is_local,
    network,
    path_trick,
    same_site,
)
from bridge.http.app import create_app, guarded_routes
from bridge.http.line import Processes
from bridge.http.problems import Problem
from bridge.http.schemas import ProblemDetails
from bridge.settings.model import Auth, Http, Limits, NamedToken, Ui
from tests.api import AUTH, TOKENS, MemoryStores, api, settings

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow

#: What needs no token. The one for /metrics is judged by `auth.open_metrics`.
OPEN = {"/openapi.json", "/livez", "/readyz", "/startupz", "/version", "/metrics"}
#: The lowest role of everything that is no plain reading. A new route is added here on purpose.
ROLES = {
    ("POST", "/api/v1/messages"): Role.OPERATOR,
    ("POST", "/api/v1/restore"): Role.OPERATOR,
    ("PATCH", "/api/v1/messages/{id}"): Role.OPERATOR,
    ("DELETE", "/api/v1/messages/{id}"): Role.OPERATOR,
    ("POST", "/api/v1/messages/{id}/deliver"): Role.OPERATOR,
    ("POST", "/api/v1/messages/{id}/retry"): Role.OPERATOR,
    ("DELETE", "/api/v1/keys/{key:path}"): Role.OPERATOR,
    ("GET", "/api/v1/config"): Role.ADMIN,
    ("POST", "/api/v1/bulk"): Role.OPERATOR,
    ("DELETE", "/api/v1/operations/{operation}"): Role.OPERATOR,
    ("PUT", "/api/v1/routes/{route}/pause"): Role.ADMIN,
    ("PUT", "/api/v1/routes/{route}/resume"): Role.ADMIN,
    ("PUT", "/api/v1/routes/{route}/drain"): Role.ADMIN,
    ("POST", "/-/reload"): Role.ADMIN,
}


def endpoints() -> Iterator[tuple[str, GuardedRoute]]:
    for route in guarded_routes():
        for method in route.methods or ():
            yield method, route


async def test_every_path_that_is_served_has_a_role_or_is_open_on_purpose() -> None:
    app = create_app(settings(), MemoryStores(), Processes())
    served = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    served |= {("GET", route.path) for route in app.routes if isinstance(route, APIRoute)}
    guarded = {(method, route.path_format) for method, route in endpoints()}
    assert {path for _, path in served - guarded} == OPEN


def test_every_route_has_the_role_of_the_table() -> None:
    for method, route in endpoints():
        expected = Role.VIEWER if method == "GET" else None
        assert route.role == ROLES.get((method, route.path), expected), f"{method} {route.path}"


async def test_every_route_is_documented_with_summary_role_and_errors() -> None:
    async with api() as client:
        document = (await client.client.get("/openapi.json")).json()
    for path, operations in document["paths"].items():
        if path in OPEN:
            continue
        for method, operation in operations.items():
            assert operation["summary"], (method, path)
            assert operation["x-role"] in ("viewer", "operator", "admin")
            assert operation["responses"].keys() >= {"401", "403", "422", "503"}
            assert "application/problem+json" in operation["responses"]["401"]["content"]
    schemas = document["components"]["schemas"]
    assert "HTTPValidationError" not in schemas
    for name in (
        "NewMessage",
        "MessageFacts",
        "RouteCounts",
        "RouteFacts",
        "StatsFacts",
        "OperationFacts",
        "BulkFilter",
    ):
        described = {field for field, schema in schemas[name]["properties"].items() if "description" in schema}
        assert described == schemas[name]["properties"].keys(), name


def test_the_example_of_an_error_is_one_that_the_api_answers() -> None:
    examples = ProblemDetails.model_json_schema()["examples"]
    assert examples == [json.loads(bytes(Problem(404, "No message has this id.").response().body))]


@pytest.mark.parametrize("role", [None, *Role])
async def test_a_role_may_do_what_is_its_own_and_nothing_above(role: Role | None) -> None:
    async with api(role, settings(ui=Ui(bodies="on"))) as client:
        for method, route in endpoints():
            path = route.path.replace("{id}", "1gd4r5kq2000ab3c9d00").replace("{route}", "orders")
            if path.endswith(("/events", "/levels", "/doctor")):  # one never ends, two ask brokers
                continue
            path = path.replace("{key:path}", "k").replace("{operation}", "x")
            answer = await client.client.request(method, path, headers={"Content-Type": "application/json"})
            if role is None:
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith("Bearer")
            elif role < route.role:
                assert answer.status_code == 403, (method, path)
                assert answer.json()["needs"] == route.role.title
            else:
                assert answer.status_code not in (401, 403), (method, path, answer.text)


@pytest.mark.parametrize(
    "authorization",
    ["Bearer ", "Bearer wrong", "Basic dXNlcjpwYXNz", "Bearer é", f"Token {TOKENS[Role.ADMIN]}", TOKENS[Role.ADMIN]],
)
async def test_wrong_tokens_are_refused_alike(authorization: str) -> None:
    async with api(None) as client:
        headers = [(b"Authorization", authorization.encode("latin-1"))]
        answer = await client.client.get("/api/v1/me", headers=headers)
        assert answer.status_code == 401
        assert "Bearer TOKEN" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/messages?key=%FF"), ("GET", "/search?q=a%C3"), ("DELETE", "/keys/%FF"), ("GET", "/stats?%FF=1")],
)
async def test_an_address_that_is_not_utf_8_is_refused_and_finds_no_other_key(method: str, path: str) -> None:
    async with api() as client:
        answer = await client.client.request(method, f"/api/v1{path}")
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith("The address is not UTF-8 text.")
        assert (await client.client.get("/api/v1/messages?key=%EF%BF%BD%C3%A9")).is_success


async def test_a_named_token_has_its_role_and_the_audit_log_its_name() -> None:
    named = {
        "alice": NamedToken(role="operator", token=SecretStr("alice-0123456789")),
        "carol": NamedToken(token=SecretStr("carol-0123456789")),
    }
    async with api(None, settings(auth=AUTH.model_copy(update={"tokens": named}))) as client:
        alice, carol = ({"Authorization": f"Bearer {name}-0123456789"} for name in ("alice", "carol"))
        assert await client.call("GET", "/me", 200, **alice) == {"role": "operator", "name": "alice"}
        assert await client.call("GET", "/me", 200, **carol) == {"role": "viewer", "name": "carol"}
        new = {"route": "orders", "routing_key": "new", "body": "{}", "in": "1h"}
        await client.call("POST", "/messages", 403, new, **carol)
        await client.call("POST", "/messages", 201, new, **alice, X_Postdate_Via="cli")
        (entry,) = (await client.call("GET", "/audit", 200, **carol))["audit"]
        assert (entry["who"], entry["via"], entry["verb"]) == ("alice", "api", "send")


@pytest.mark.parametrize("name", ["token", "access_token", "Authorization"])
async def test_a_token_in_the_address_is_refused(name: str) -> None:
    async with api() as client:
        assert "logs" in (await client.get("/me", 400, **{name: TOKENS[Role.ADMIN]}))["detail"]


async def test_every_answer_has_the_security_headers_and_no_cookie() -> None:
    async with api() as client:
        for path in ("/api/v1/me", "/api/v1/nothing", "/openapi.json", "/api/v1/messages/nonsense"):
            headers = (await client.client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert "script-src 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert "set-cookie" not in headers
            assert "access-control-allow-origin" not in headers


async def test_unknown_paths_and_methods_are_problems() -> None:
    async with api() as client:
        await client.get("/nothing", 404)
        await client.call("PUT", "/messages", 405)


LOCAL = {"Host": "127.0.0.1:8480"}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", LOCAL, 200),
        ("GET", {"Host": "localhost"}, 200),
        ("GET", {"Host": "[::1]:8480"}, 200),
        ("GET", {"Host": "evil.example:8480"}, 421),
        ("GET", {"Host": "127.0.0.1.evil.example"}, 421),
        ("GET", {"Host": "localhost.evil.example"}, 421),
        ("POST", LOCAL, 415),
        ("POST", LOCAL | {"Content-Type": "text/plain"}, 415),
        ("POST", LOCAL | {"Content-Type": "application/json"}, 404),
        ("POST", LOCAL | {"X-Postdate-Via": "ui"}, 404),
        ("POST", LOCAL | {"Content-Type": "application/json", "Origin": "http://evil.example"}, 403),
        ("POST", LOCAL | {"Content-Type": "application/json", "Origin": "null"}, 403),
        ("POST", LOCAL | {"Content-Type": "application/json", "Origin": "http://localhost:3000"}, 403),
        ("POST", LOCAL | {"Content-Type": "application/json", "Origin": "http://127.0.0.1:8480"}, 404),
        ("POST", LOCAL | {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"}, 403),
        ("DELETE", LOCAL | {"Origin": "http://evil.example"}, 403),
        ("DELETE", LOCAL, 404),
    ],
)
async def test_without_tokens_no_other_web_site_can_read_or_write(
    method: str, headers: dict[str, str], status: int
) -> None:
    async with api(None, settings(Auth())) as client:
        more = {"GET": "/me", "POST": "/messages/1gd4r5kq2000ab3c9d00/deliver"}
        path = more.get(method, "/messages/1gd4r5kq2000ab3c9d00")
        assert (await client.client.request(method, f"/api/v1{path}", headers=headers)).status_code == status


async def test_a_large_body_is_refused_announced_or_chunked() -> None:
    given = settings(http=Http.model_validate({"request_max": "2000B"}))
    async with api(given=given) as client:

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(30):
                yield b"x" * 100

        headers = {"Content-Type": "application/json"}
        announced = await client.client.post("/api/v1/messages", content=b"x" * 2049, headers=headers)
        chunked = await client.client.post("/api/v1/messages", content=chunks(), headers=headers)
        for answer in (announced, chunked):
            assert answer.status_code == 413
            assert "http.request_max" in answer.json()["detail"]
        assert (await client.get("/messages"))["messages"] == []


def scope_of(method: str, target: str, token: str) -> dict[str, Any]:
    """A request as the server hands it to the app."""
    return {
        "type": "http",
        "method": method,
        "path": target,
        "raw_path": target.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {token}".encode()), (b"host", b"localhost")],
        "client": ("127.0.0.1", 5),
        "server": ("localhost", 80),
        "scheme": "http",
        "http_version": "1.1",
    }


async def test_a_body_of_a_caller_without_the_role_is_not_read() -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body is read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = scope_of("POST", "/api/v1/messages", TOKENS[Role.VIEWER])
    await create_app(settings(), MemoryStores(), Processes())(scope, receive, send)
    assert sent[0]["status"] == 403


@pytest.mark.parametrize(
    ("method", "path", "most"),
    [
        ("POST", "/messages/1gd4r5kq2000ab3c9d00/deliver", 64 * 1024),
        ("PATCH", "/messages/1gd4r5kq2000ab3c9d00", 64 * 1024),
        ("PUT", "/routes/orders/pause", 64 * 1024),
        ("POST", "/bulk", 1024 * 1024),
    ],
)
async def test_a_body_is_bounded_by_what_its_path_needs(method: str, path: str, most: int) -> None:
    async with api() as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.client.request(method, f"/api/v1{path}", content=b" " * (most + 1), headers=headers)
        assert answer.status_code == 413
        assert str(most) in answer.json()["detail"]
        answer = await client.client.request(method, f"/api/v1{path}", content=b" " * most, headers=headers)
        assert answer.status_code == (400 if most == 64 * 1024 else 422), "no JSON, or too much of it to be read"


async def test_the_largest_message_is_bounded_by_limits_max_body() -> None:
    given = settings(limits=Limits.model_validate({"max_body": "100KiB"}))
    async with api(given=given) as client:
        await client.schedule("x" * 90_000)
        new = {"route": "orders", "routing_key": "new", "in": "1h"}
        await client.call("POST", "/messages", 422, {**new, "body": "x" * 110_000})
        assert (
            "limits.max_body" in (await client.call("POST", "/messages", 413, {**new, "body": "x" * 300_000}))["detail"]
        )


async def test_a_body_that_is_not_utf_8_is_called_so() -> None:
    async with api() as client:
        sent = {"Content-Type": "application/json"}
        answer = await client.client.post("/api/v1/messages", content=b'{"route": "\xff"}', headers=sent)
        assert (answer.status_code, answer.json()["detail"]) == (400, "The body is not UTF-8 text. Send JSON in UTF-8.")


async def test_many_unknown_members_are_answered_briefly() -> None:
    async with api() as client:
        members = {f"{number}{'x' * 1000}": 0 for number in range(900)}
        problem = await client.call("POST", "/bulk", 422, {"verb": "cancel", **members})
        assert len(problem["errors"]) == 20
        assert len(str(problem)) < 20_000
        ids: list[Any] = [*range(10_000)]
        problem = await client.call("POST", "/bulk", 422, {"verb": "cancel", "ids": ids})
        assert len(problem["errors"]) == 1


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{" + b",".join(b'"%d":0' % number for number in range(2000)) + b"}", 422),
        (b'{"filter": {' + b",".join(b'"%d":0' % number for number in range(2000)) + b"}}", 422),
        (b"[" + b"[]," * 100_000 + b"0]", 422),
        (b"[" * 300_000, 422),
        (json.dumps({f"{number:x}": 0 for number in range(80_000)}).encode(), 422),
        (b'{"reason": "' + b'\\"' * 300_000, 400),
    ],
    ids=["members", "inner members", "empty lists", "depth", "80,000 members", "a text without its end"],
)
async def test_json_that_costs_more_than_its_bytes_is_refused_at_once(body: bytes, status: int) -> None:
    async with api() as client:
        began_s = time.monotonic()
        headers = {"Content-Type": "application/json"}
        answer = await client.client.post("/api/v1/bulk", content=body, headers=headers)
        assert answer.status_code == status
        assert len(answer.content) < 1000
        assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    ("raw", "besides"), [(b'{"a": 0}', 5), (b'["a\\"b", "c"] ', 5), (b'"without its end', 0), (b"[[[1", 4), (b"", 0)]
)
def test_bytes_besides_texts_are_counted(raw: bytes, besides: int) -> None:
    assert [exceeds_besides_texts(raw, most) for most in (besides - 1, besides)] == [True, False]


async def test_a_message_may_hold_any_json_as_text() -> None:
    async with api() as client:
        await client.schedule(json.dumps([{"a": [1, 2, '"']}] * 20_000))


async def test_large_bodies_share_a_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.access.BODIES_BYTES", 0)
    given = settings(http=Http.model_validate({"request_max": "100KiB"}))

    taken = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 60_000
        taken.set()
        await asyncio.sleep(60)

    async with api(given=given) as client:
        headers = {"Content-Type": "application/json"}
        first = asyncio.ensure_future(client.client.post("/api/v1/messages", content=slow(), headers=headers))
        async with asyncio.timeout(20):
            await taken.wait()
        refused = await client.client.post("/api/v1/messages", content=b"x" * 60_000, headers=headers)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        first.cancel()
        await asyncio.wait([first])
        await client.schedule("x" * 90_000)


async def test_the_openapi_document_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[FastAPI] = []

    def write(app: FastAPI) -> dict[str, str]:
        written.append(app)
        return {"openapi": "3.1.0"}

    monkeypatch.setattr("bridge.http.app._document", write)
    async with api(None) as client:
        answers = [await client.client.get("/openapi.json") for _ in range(3)]
    assert {answer.text for answer in answers} == {'{"openapi":"3.1.0"}'}
    assert len(written) == 1


async def test_wrong_tokens_do_not_lock_out_a_valid_one_from_the_same_address() -> None:
    given = settings(http=Http(requests_per_second=2))
    async with api(given=given) as client:
        wrong = {"Authorization": "Bearer wrong"}
        assert {(await client.client.get("/api/v1/me", headers=wrong)).status_code for _ in range(20)} == {401, 429}
        assert (await client.get("/me"))["role"] == "admin"
        viewer = {"Authorization": f"Bearer {TOKENS[Role.VIEWER]}"}
        assert {(await client.client.get("/api/v1/me", headers=viewer)).status_code for _ in range(20)} == {200, 429}
        assert (await client.get("/me"))["role"] == "admin"
        assert {(await client.client.get("/openapi.json")).status_code for _ in range(20)} == {200}


async def test_an_address_of_thousands_of_parameters_is_refused() -> None:
    async with api() as client:
        assert (await client.client.get(f"/api/v1/me?{'a=1&' * 5000}")).status_code == 400


@pytest.mark.parametrize(
    ("auth", "host", "status"), [(AUTH, "evil.example", 200), (Auth(), "localhost", 200), (Auth(), "evil.example", 421)]
)
async def test_an_absolute_target_is_its_path_and_its_host(auth: Auth, host: str, status: int) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = scope_of("GET", f"http://{host}/api/v1/me", TOKENS[Role.VIEWER])
    await create_app(settings(auth), MemoryStores(), Processes())(scope, receive, send)
    assert sent[0]["status"] == status


async def test_a_quick_client_is_told_to_slow_down_and_health_is_not_limited() -> None:
    given = settings(http=Http(requests_per_second=1))
    async with api(given=given) as client:
        answers = [await client.client.get("/api/v1/me") for _ in range(8)]
        assert [response.status_code for response in answers][-1] == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await client.client.get("/livez")).status_code != 429


def test_rates_refill_and_remember_a_bounded_number_of_addresses() -> None:
    now = 0.0
    rates = Rates(2, lambda: now)
    assert [rates.wait_s("1.2.3.4") for _ in range(3)] == [0, 0, 0.5]
    now = 0.5
    assert rates.wait_s("1.2.3.4") == 0
    for number in range(10_000):
        rates.wait_s(f"10.0.{number // 256}.{number % 256}")
    assert len(rates._buckets) <= 4096


def test_an_ipv6_network_is_one_client() -> None:
    assert network("2001:db8:1:2::5") == network("2001:db8:1:2:ffff::1") != network("2001:db8:1:3::5")
    assert network("10.1.2.3") == "10.1.2.3"
    assert network("x" * 500) == "x" * 64


@pytest.mark.parametrize(
    ("raw", "path", "refused"),
    [
        (b"/api/v1/me", "/api/v1/me", False),
        (b"/api/v1/keys/a%2F%2Fb", "/api/v1/keys/a//b", False),
        (b"/api/v1/../me", "/api/v1/../me", True),
        (b"/api/v1/%2e%2e/me", "/api/v1/../me", True),
        (b"//me", "//me", True),
        (b"/a%00b", "/a\x00b", True),
        (b"/a%5cb", "/a\\b", True),
        ("/é".encode(), "/é", True),
    ],
)
def test_paths_that_mean_something_else_to_a_proxy_are_refused(raw: bytes, path: str, refused: bool) -> None:
    assert bool(path_trick(raw, path)) is refused


@pytest.mark.parametrize(
    "host", ["", "[", "::1", "localhost@evil", "user@localhost:1@evil", "evil#localhost", "evil.com@127.0.0.1"]
)
def test_a_strange_host_is_not_this_machine(host: str) -> None:
    assert not is_local(host)


def test_an_origin_is_compared_with_its_port() -> None:
    assert same_site("http://localhost:8480", "LOCALHOST:8480")
    assert not same_site("http://localhost:8481", "localhost:8480")
    assert not same_site("null", "null")


@pytest.mark.parametrize("path", ["/postdate/api/v1/me", "/api/v1/me"])
async def test_a_prefix_works_whether_the_proxy_cuts_it_or_not(path: str) -> None:
    async with api(given=settings(http=Http(base_path="/postdate"))) as client:
        assert (await client.client.get(path)).status_code == 200
        assert (await client.client.get(path, headers={"X-Forwarded-Prefix": "/other"})).status_code == 200
        assert (await client.client.get(path, headers={"X-Forwarded-Prefix": "//evil.example"})).status_code == 200


async def test_a_failure_inside_is_a_500_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api() as client:

        async def fails() -> Any:
            raise RuntimeError("secret detail")

        monkeypatch.setattr(client.stores, "desk", fails)
        problem = await client.get("/messages", 500)
        assert "secret detail" not in str(problem)


async def test_a_body_that_does_not_arrive_ends_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.access.BODY_S", 0.05)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(30)

    async with api() as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.client.post("/api/v1/messages", content=chunks(), headers=headers)
        assert answer.status_code == 408
