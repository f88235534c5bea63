"""The API behind the real server over a real Redis: the commands through it, and hostile clients."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog

from bridge.cli import run_command
from bridge.desk.severity import CheckResult, Severity
from bridge.settings import Redis as RedisSettings
from bridge.settings import Settings
from tests.api import ADMIN, AUTH, ROUTES, VIEWER
from tests.bridge_process import Bridge, toml
from tests.devstack.redis import Redis
from tests.http_line import HttpLine
from tests.http_server import served

pytestmark = pytest.mark.redis


@pytest.fixture
def given(redis_server: Redis) -> Settings:
    prefix = f"http{time.time_ns()}"
    section = RedisSettings.model_validate({"url": redis_server.url, "durability": "none", "key_prefix": prefix})
    return Settings(routes=ROUTES, redis=section, auth=AUTH)


@pytest.fixture
def port(given: Settings) -> Iterator[int]:
    # The server would log into the output of this process, which the tests read.
    with Path(os.devnull).open("w") as nowhere:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(nowhere), cache_logger_on_first_use=False)
        with served(given) as port:
            yield port
    structlog.reset_defaults()


class Console:
    """Runs commands in this process: at the store, or over the API."""

    def __init__(self, capsys: pytest.CaptureFixture[str], file: Path, url: str) -> None:
        self._capsys = capsys
        self._file = file
        self._url = url

    def __call__(self, *arguments: str, api: bool) -> tuple[int, str, str]:
        where = ("--api", self._url) if api else ("--config", str(self._file))
        code = run_command([*arguments, *where])
        told = self._capsys.readouterr()
        return code, told.out, told.err


@pytest.fixture
def console(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, port: int, given: Settings, monkeypatch: pytest.MonkeyPatch
) -> Console:
    file = tmp_path / "postdate.toml"
    routes = {name: {"intercept": route.intercept, "deliver_to": route.deliver_to} for name, route in ROUTES.items()}
    url = given.redis.url.get_secret_value()
    file.write_text(
        toml({"redis": {"url": url, "durability": "none", "key_prefix": given.redis.key_prefix}, "routes": routes})
    )
    file.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTDATE_API_TOKEN", ADMIN)
    return Console(capsys, file, f"http://127.0.0.1:{port}")


def test_commands_print_the_same_over_the_api_as_at_the_store(console: Console) -> None:
    ids = []
    for api in (False, True):
        more = ("--routing-key", "new", "--in", "2h", "--header", "tenant=a", "-o", "json")
        code, out, err = console("send", "orders", '{"n": 1}', "--key", f"key-{api}", *more, api=api)
        assert code == 0, err
        ids.append(json.loads(out)["id"])
    asked: tuple[tuple[str, ...], ...] = (
        ("list",),
        ("list", "-o", "json"),
        ("list", "--route", "orders", "--key", "key-True", "-o", "json"),
        ("list", "--state", "dead"),
        ("show", ids[0]),
        ("show", ids[0], "-o", "json"),
        ("show", ids[0], "--raw"),
        ("show", "--key", "key-True", "--route", "orders"),
        ("show", "1gd4r5kq2000ab3c9d00"),
        ("reschedule", "1gd4r5kq2000ab3c9d00", "--in", "5m"),
        ("cancel", "--key", "nothing", "--route", "orders"),
        ("retry", ids[0]),
        ("cancel", "nonsense"),
    )
    for arguments in asked:
        at_store, over_api = console(*arguments, api=False), console(*arguments, api=True)
        assert without_waits(over_api) == without_waits(at_store), arguments
    for api, message_id in zip((False, True), ids, strict=True):
        moved = json.loads(console("reschedule", message_id, "--at", "2026-12-24T18:00:00Z", "-o", "json", api=api)[1])
        assert moved[0]["due"] == "2026-12-24T18:00:00.000Z"
        assert console("deliver", message_id, api=api)[0] == 0
        assert console("cancel", message_id, api=api)[:2] == (0, f"id\tstate\tdue\n{message_id}\tcancelled\t\n")
        assert console("cancel", message_id, api=api)[0] in (3, 5)
    assert console("pause", "orders", "-o", "json", api=True)[0] == 0
    assert json.loads(console("stats", "-o", "json", api=True)[1])["parked"] == 0
    assert console("resume", "orders", api=True)[0] == 0
    noted = json.loads(console("audit", "-o", "json", api=True)[1])
    assert {entry["verb"] for entry in noted} >= {"pause", "resume"}


def without_waits(told: tuple[int, str, str]) -> tuple[int, str, str]:
    """What a command told, without the column "wait", which changes."""
    code, out, err = told
    if out.startswith("["):
        return code, json.dumps([{**row, "wait": ""} for row in json.loads(out)]), err
    head = out.partition("\n")[0].split("\t")
    if "wait" not in head:
        return told
    place = head.index("wait")
    lines = [line.split("\t") for line in out.splitlines()]
    return code, "\n".join("\t".join([*line[:place], *line[place + 1 :]]) for line in lines), err


def test_a_wrong_token_and_an_api_that_is_away_are_told_in_a_sentence(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTDATE_API_TOKEN", "wrong")
    code, _, err = console("list", api=True)
    assert (code, "valid token" in err) == (5, True)
    monkeypatch.setenv("POSTDATE_API_TOKEN", VIEWER)
    code, _, err = console("cancel", "1gd4r5kq2000ab3c9d00", api=True)
    assert (code, "role operator" in err) == (5, True)


# -- hostile clients --------------------------------------------------------------------------------------------------


def raw(port: int, data: bytes, wait_s: float = 5.0) -> bytes:
    """Send bytes; what the server answers until it closes or is silent."""
    with socket.create_connection(("127.0.0.1", port), wait_s) as end:
        answer = b""
        with suppress(OSError):  # it is silent, or closes the connection while bytes are on their way
            end.sendall(data)
            while piece := end.recv(65536):
                answer += piece
        return answer


HEAD = b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\n"
TOKEN = f"Authorization: Bearer {ADMIN}\r\n".encode()


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (HEAD + TOKEN + b"Connection: close\r\n\r\n", (200,)),
        (HEAD + b"Connection: close\r\n\r\n", (401,)),
        (HEAD + TOKEN + TOKEN + b"Connection: close\r\n\r\n", (400,)),
        (HEAD + b"Authorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n", (400, 401)),
        (HEAD + b"X: " + b"a" * 500_000 + b"\r\n\r\n", (0, 400, 431)),
        (HEAD + TOKEN + b"Content-Length: -5\r\n\r\n", (400,)),
        (HEAD + TOKEN + b"Content-Length: 99999999999999999999\r\nConnection: close\r\n\r\n", (400, 413)),
        (HEAD + TOKEN + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", (400,)),
        (HEAD + b"X: " + b"a" * 65_536 + b"\r\nConnection: close\r\n\r\n", (0, 400, 431)),
        (b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (400,)),
        (b"GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (400,)),
        (b"GET //evil.example/%2f.. HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", (400,)),
        (b"GET /api/v1/me\x00 HTTP/1.1\r\nHost: localhost\r\n\r\n", (400,)),
        (
            b"GET http://evil.example/api/v1/me HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
            (401,),
        ),
        (
            b"GET http://localhost/api/v1/me HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Connection: close\r\n\r\n",
            (200,),
        ),
        (b"TRACE /api/v1/me HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Connection: close\r\n\r\n", (405,)),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400,)),
    ],
)
def test_strange_requests_are_refused_and_the_server_goes_on(port: int, data: bytes, statuses: tuple[int, ...]) -> None:
    answer = raw(port, data)
    assert int(answer.split(b" ", 2)[1] if answer else 0) in statuses, answer[:300]
    assert b"Traceback" not in answer
    assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200


def test_slow_clients_are_dropped_and_others_are_served(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.patience.HEAD_S", 0.5)
    slow = []
    for number in range(100):
        end = socket.create_connection(("127.0.0.1", port), 5)
        end.sendall(HEAD if number % 2 else b"")  # half of a request, or nothing
        slow.append(end)
    assert httpx.get(f"http://127.0.0.1:{port}/livez", timeout=10).status_code == 200  # and not after all of them
    for end in slow:
        end.settimeout(10)
        with suppress(ConnectionResetError):
            while end.recv(65536):
                pass
        end.close()


def test_a_body_that_nothing_reads_does_not_keep_its_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.patience.HEAD_S", 0.5)
    post = b"POST /api/v1/bulk HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", port), 5) as end:
        end.sendall(post)
        assert b" 401 " in end.recv(65536)
        end.sendall(b"}")
        with suppress(ConnectionResetError):
            while end.recv(65536):
                pass


def test_connections_without_a_request_make_room_for_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.patience.CONNECTIONS_MAX", 20)
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(60)]
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200
        # After its answer, each of them is idle again, and has sent a part of its next request.
        for end in idle[-15:]:
            end.sendall(HEAD + b"\r\n")
            end.recv(65536)
            end.sendall(b"G")
        assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200


def test_requests_that_do_not_end_make_room_for_others(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.http.patience.CONNECTIONS_MAX", 20)
    post = b"POST /api/v1/bulk HTTP/1.1\r\nHost: localhost\r\n" + TOKEN + b"Content-Length: 100\r\n\r\n{"
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)).sendall(post)
        for _ in range(5):
            assert httpx.get(f"http://127.0.0.1:{port}/livez").status_code == 200


def test_the_setting_of_the_environment_finds_the_api(
    console: Console, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POSTDATE_API", f"http://127.0.0.1:{port}")
    assert run_command(["list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    away: dict[str, Any] = {"redis": {"url": "redis://127.0.0.1:1/0", "connect_timeout": "200ms"}}
    Path("away.toml").write_text(toml(away))
    assert run_command(["list", "-o", "json", "--config", "away.toml"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    Path("empty.toml").write_text("")
    assert run_command(["pause", "--all", "--yes", "-o", "json", "--config", "empty.toml"]) == 0
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"paused"}
    assert run_command(["resume", "orders", "--config", "empty.toml"]) == 0
    assert run_command(["pause", "nothing", "--config", "empty.toml"]) == 2
    monkeypatch.setenv("POSTDATE_API_TOKEN", "wrong")
    assert run_command(["list", "--config", "empty.toml"]) == 5
    assert "Set POSTDATE_API_TOKEN" in capsys.readouterr().err


def test_commands_over_the_api_know_the_routes_of_the_api_and_not_those_of_local_settings(
    console: Console, tmp_path: Path
) -> None:
    routes = ", ".join(ROUTES)
    (tmp_path / "postdate.toml").write_text("")
    for state in ("parked", "history"):
        code, _, err = console("list", "--route", "orders", "--key", "nothing", "--state", state, api=True)
        assert (code, err) == (0, "")
    assert console("list", "--route", "nothing", api=True)[::2] == (
        2,
        f"Route 'nothing' is not configured. Configured routes: {routes}.\n",
    )
    code, _, err = console("show", "--key", "nothing", api=True)
    assert (code, err) == (2, f"--key needs --route. Configured routes: {routes}.\n")
    code, _, err = console("retry", "--all", "--route", "orders", "--yes", api=True)
    assert (code, err) == (3, "No message matches that `postdate retry` changes. Nothing was done.\n")


def test_doctor_over_the_api_prints_what_the_api_found_without_local_settings(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        CheckResult(Severity.OK, "redis", "answers in 1 ms"),
        CheckResult(Severity.WARN, "orders", "a queue is full", advice="Empty it"),
    ]
    monkeypatch.setattr("bridge.http.system.examine_all", lambda _: found)
    (tmp_path / "postdate.toml").write_text("")
    code, out, _ = console("doctor", "-o", "json", api=True)
    names = ("level", "subject", "text", "advice")
    rows = [("OK", "redis", "answers in 1 ms", ""), ("WARN", "orders", "a queue is full", "Empty it")]
    assert (code, json.loads(out)) == (1, [dict(zip(names, row, strict=True)) for row in rows])
    code, out, _ = console("doctor", "--probe", "-o", "json", api=True)
    assert (code, json.loads(out)[0]["level"]) == (2, "FAIL")


def test_serve_serves_until_it_is_told_to_end_and_refuses_a_public_address(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = HttpLine()
    store = {"url": given.redis.url.get_secret_value(), "durability": "none"}
    with Bridge(tmp_path, {"redis": store, **http.settings}, ("bridge.cli", "serve"), name="served") as bridge:
        bridge.start()
        http.wait("/readyz", 200)
        assert json.loads(http.get("/api/v1/me").text) == {"role": "admin", "name": "local"}
        assert bridge.terminate() == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSTDATE_HTTP__ENABLED", "false")
    monkeypatch.setenv("POSTDATE_HTTP__LISTEN", "0.0.0.0:0")
    assert run_command(["serve"]) == 2
