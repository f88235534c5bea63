"""Commands over the API: what is asked of it, and how often. The rest is in ``tests/conformance/operator_suite.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from bridge.cli import run_command
from bridge.cli.listing import Looking, gathered
from bridge.core.errors import UNREACHABLE, WRONG, SettingsError
from bridge.core.orders import RouteState
from bridge.core.state import State
from bridge.operate.find import Criteria
from bridge.operate.remote import ApiAddress, HttpOperator, client_of
from tests.api import ADMIN, Api, api

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow


@asynccontextmanager
async def remote(client: Api) -> AsyncIterator[HttpOperator]:
    """The operator of a command over this app."""
    yield HttpOperator(client_of(ApiAddress("http://localhost:8480", ADMIN), client.client._transport))


async def test_the_audit_log_is_read_over_the_api_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.operate.remote._PAGE", 2)
    async with api() as client, remote(client) as operator:
        ids = [await client.schedule() for _ in range(5)]
        entries = (await operator.audit(4)).audit
        assert [entry.what for entry in entries] == ids[:0:-1]
        assert (entries[0].verb, entries[0].who, entries[0].via) == ("send", "admin", "api")
        assert len((await operator.audit(50)).audit) == 5


async def test_a_key_that_is_not_utf_8_is_a_mistake_over_the_api() -> None:
    async with api() as client, remote(client) as operator:
        with pytest.raises(SettingsError, match=r"'k\\udcff' is not UTF-8 text, and the API takes nothing else"):
            await operator.ids_of_key(b"k\xff", "orders")


async def test_an_order_over_the_api_names_its_operator_and_the_way_in() -> None:
    async with api() as client, remote(client) as operator:
        (order,) = await operator.order(["orders"], RouteState.PAUSED, "the bank is down")
        assert (order.who, order.via, order.by, order.reason) == ("admin", "api", "admin (api)", "the bank is down")


async def test_a_header_filter_is_judged_by_the_api_and_not_message_by_message() -> None:
    async with api() as client, remote(client) as operator:
        meant = await client.schedule(headers={"tenant": "a"})
        for _ in range(5):
            await client.schedule(headers={"tenant": "b"})
        asked: list[str] = []
        ask = operator.ask

        async def counted(method: str, path: str, *rest: object, **params: object) -> httpx.Response:
            asked.append(path)
            return await ask(method, path, *rest, **params)  # type: ignore[arg-type]

        operator.ask = counted  # type: ignore[method-assign]
        found, _ = await gathered(operator.messages(State.PARKED, Criteria(header=("tenant", "a"))), 50)
        assert [row["id"] for row in found] == [meant]
        assert asked == ["/messages"]


async def test_a_long_look_through_headers_tells_a_person_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bridge.cli.listing._SAY_S", -1.0)
    async with api() as client, remote(client) as operator:
        await client.schedule()
        for terminal in (False, True):
            monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
            wanted = Criteria(header=("tenant", ""))
            assert [message async for message in operator.messages(State.PARKED, wanted, Looking())] == []
            assert ("Looked at 1 messages." in capsys.readouterr().err) == terminal


async def test_silent_instances_are_known_over_the_api() -> None:
    async with api() as client, remote(client) as operator:
        await client.stores.store.meet(4_000, True, "{}")
        client.stores.memory.clock.advance(9_000)  # type: ignore[attr-defined]
        stats = await operator.stats()
        assert (stats.instances, list(stats.silent)) == ([], ["memory"])


def test_a_restore_over_the_api_asks_it_and_reads_no_kafka(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ("--api", "http://127.0.0.1:1")
    for ways in (["--dry-run"], ["--yes", "--route", "orders", "--cancelled"]):
        assert run_command(["restore", *ways, *where]) == UNREACHABLE
        assert "the API at http://127.0.0.1:1 does not answer" in capsys.readouterr().err
    assert run_command(["restore", "--complete", *where]) == WRONG
    assert "A restore without a filter ends the alarm" in capsys.readouterr().err
    assert run_command(["restore", "orders", "--from-intake", *where]) == WRONG
    assert "Leave out --api" in capsys.readouterr().err


def test_over_the_api_a_broken_file_that_no_flag_names_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The API has settings of its own. Without it, and for a file that --config names, the mistake ends the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POSTDATE_CONFIG", raising=False)
    broken = tmp_path / "postdate.toml"
    broken.write_text("[redis\n")
    assert run_command(["stats"]) == WRONG
    monkeypatch.setenv("POSTDATE_API", "http://127.0.0.1:1")
    assert run_command(["stats", "--config", str(broken)]) == WRONG
    capsys.readouterr()
    for command in ("stats", "list", "audit"):
        assert run_command([command]) == UNREACHABLE
        said = capsys.readouterr().err
        assert said.startswith("Warning: the API is asked, and the settings here are ignored. postdate.toml")
        assert "the API at http://127.0.0.1:1 does not answer" in said
