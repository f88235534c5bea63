"""Verbs over a filter, at the store and over the API: counted, confirmed, followed, stopped; and the exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import typer
from structlog.testing import capture_logs

from bridge.cli import acting, acts, export, listing, operation, orders, run_command, show
from bridge.core.errors import FAILED, FINE, INTERRUPTED, NOT_FOUND, WRONG, StoreUnavailable
from bridge.core.state import State
from bridge.desk.payload import Draft
from bridge.http.app import create_app
from bridge.http.line import Processes
from bridge.operate import bulk
from bridge.operate.find import Criteria
from bridge.operate.local import LocalOperator
from bridge.operate.remote import client_of
from bridge.operate.verbs import VERBS, Verb
from tests.api import ADMIN, HOUR_MS, MemoryStores, settings

#: Over the API, each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow

UNKNOWN_REASON = "No reason starts with 'nothing'. Known reasons: bad_header, "


class Shell:
    """Runs commands over one memory store. ``err`` keeps what the last one wrote to standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.stores = MemoryStores()
        self.err = ""
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str]:
        self._capsys.readouterr()
        code = run_command(words)
        out, self.err = self._capsys.readouterr()
        return code, out

    def park(self, tenant: str, due_in_ms: int = HOUR_MS, reason: str = "") -> str:
        """Park a message; with a reason, make a dead letter of it. Return its id."""

        async def work() -> str:
            operator = LocalOperator(self.stores, settings(), acting.user())
            draft = Draft(b"{}", {"tenant": tenant}, "new")
            message_id = (await operator.send("orders", draft, "", (0 if reason else due_in_ms, True)))[0].id
            if reason:
                self.stores.memory.clock.advance(10)  # type: ignore[attr-defined]
                for answer in (await self.stores.store.claim(range(8), 10, 10**6, 60_000, 0)).values():
                    await self.stores.store.bury([(claim, reason) for claim in answer.claims])  # type: ignore[union-attr]
            return message_id

        return asyncio.run(work())

    def ids(self, state: State = State.PARKED) -> set[str]:
        async def work() -> set[str]:
            operator = LocalOperator(self.stores, settings(), acting.user())
            return {message.id async for message in operator.messages(state, Criteria())}

        return asyncio.run(work())


@pytest.fixture(params=["at the store", "over the API"])
def shell(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    made = Shell(capsys)
    for module in (acts, listing, orders, show):
        monkeypatch.setattr(module, "settings_for", lambda _: settings())
    monkeypatch.setattr(export, "settings_from", lambda _: settings())
    monkeypatch.setattr(acting, "KeptStores", lambda *_: made.stores)
    monkeypatch.delenv("POSTDATE_API", raising=False)
    if request.param == "over the API":
        transport = httpx.ASGITransport(create_app(settings(), made.stores, Processes()))
        monkeypatch.setenv("POSTDATE_API", "http://localhost:8480")
        monkeypatch.setenv("POSTDATE_API_TOKEN", ADMIN)
        monkeypatch.setattr(acting, "client_of", lambda address: client_of(address, transport))
    with capture_logs():  # of the app, which has its own process and standard output elsewhere
        yield made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[str]]:
    """Make the test a terminal whose person gives this answer. Returns the questions."""

    def make(answer: bool) -> list[str]:
        asked: list[str] = []

        def confirm(text: str, err: bool) -> bool:
            asked.append(text)
            return answer

        for stream in ("stdin", "stderr"):
            monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
        monkeypatch.setattr(typer, "confirm", confirm)
        return asked

    return make


def entries_of(shell: Shell) -> list[Any]:
    return list(asyncio.run(shell.stores.kept.audit(10)))


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_a_verb_over_a_filter_changes_what_matches_and_the_audit_log_says_why(shell: Shell, verb: Verb) -> None:
    reason = "" if State.PARKED in verb.states else "unroutable: no queue"
    meant, other = {shell.park("a", reason=reason) for _ in range(2)}, shell.park("b", reason=reason)
    due = ("--in", "5h") if verb.takes_due else ()
    words = (verb.name, "--route", "orders", "--header", "tenant=a", *due, "--yes", "--note", "a mistake")
    code, out = shell(*words, "-o", "json")
    found = json.loads(out)
    assert (code, found["state"], found["done"], found["verb"], found["reason"]) == (
        FINE, "done", 2, verb.name, "a mistake",
    )  # fmt: skip
    assert not meant & shell.ids(State.DEAD)
    assert shell.ids(verb.states[0]) - meant == {other}
    ended, begun = entries_of(shell)[:2]
    assert (begun.verb, ended.verb, ended.messages) == (f"bulk {verb.name}", f"bulk {verb.name}", 2)
    assert (begun.reason, ended.reason) == ("a mistake", "a mistake")
    assert '"header": "tenant=a"' in begun.what


def test_without_a_terminal_and_without_yes_nothing_is_done_and_the_count_is_said(shell: Shell) -> None:
    waits = {shell.park("a") for _ in range(3)}
    assert shell("cancel", "--route", "orders") == (WRONG, "")
    assert shell.err == "Messages to cancel: 3. Confirm with --yes, because there is no terminal to ask on.\n"
    assert shell.ids() == waits
    assert {entry.verb for entry in entries_of(shell)} == {"send"}


def test_a_dry_run_counts_shows_five_and_changes_nothing(shell: Shell) -> None:
    waits = {shell.park("a") for _ in range(6)}
    code, out = shell("cancel", "--route", "orders", "--dry-run")
    assert (code, out) == (FINE, "messages  6\n")
    assert len(waits & set(shell.err.split())) == 5
    assert shell.err.endswith("Nothing was changed, because of --dry-run.\n")
    code, out = shell("cancel", "--route", "orders", "--dry-run", "-o", "json")
    assert (code, json.loads(out)["count"]) == (FINE, 6)
    assert shell("cancel", "--key", "never", "--route", "orders", "--dry-run")[0] == WRONG
    assert shell("cancel", "--header", "tenant=b", "--dry-run")[0] == NOT_FOUND
    assert shell.ids() == waits
    assert {entry.verb for entry in entries_of(shell)} == {"send"}


def test_a_count_goes_on_where_it_was_cut_until_its_end(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_COUNT_S", 0.0)  # under load, a look ends by its time
    waits = {shell.park("a"), *(shell.park("b") for _ in range(4)), shell.park("a")}
    assert shell("cancel", "--header", "tenant=a", "--dry-run") == (FINE, "messages  2\n")
    assert shell("cancel", "--header", "tenant=z", "--dry-run")[0] == NOT_FOUND
    assert shell("cancel", "--header", "tenant=a") == (WRONG, "")
    assert shell.err.startswith("Messages to cancel: 2. Confirm with --yes")
    assert shell.ids() == waits
    assert shell("cancel", "--header", "tenant=a", "--yes") == (FINE, "cancelled  2\n")


def test_on_a_terminal_the_answer_decides_after_the_count_and_a_sample(
    shell: Shell, terminal: Callable[[bool], list[str]]
) -> None:
    waits = {shell.park("a") for _ in range(7)}
    asked = terminal(False)
    assert shell("cancel", "--due-after", "30m") == (FAILED, "")
    assert asked == ["Cancel these messages (7)?"]
    assert len(waits & set(shell.err.split())) == 5
    assert "... and 2 more" in shell.err
    assert "Nothing was done." in shell.err
    assert shell.ids() == waits
    terminal(True)
    assert shell("cancel", "--due-after", "30m") == (FINE, "cancelled  7\n")
    assert shell.ids() == set()


def test_a_reason_alone_or_a_state_means_dead_letters(shell: Shell) -> None:
    waits, first = shell.park("a"), shell.park("a", reason="bad_header: x-delay")
    second = shell.park("a", reason="unroutable: no queue")
    assert shell("cancel", "--reason", "bad_header", "--yes")[0] == FINE
    assert (shell.ids(), shell.ids(State.DEAD)) == ({waits}, {second})
    assert shell("cancel", "--state", "dead", "--yes")[0] == FINE
    assert (shell.ids(), shell.ids(State.DEAD)) == ({waits}, set())
    assert first not in shell.ids()


@pytest.mark.parametrize("words", [["retry", "--yes"], ["list"], ["list", "--state", "parked"]], ids=" ".join)
def test_a_wrong_reason_is_a_mistake_also_while_the_store_does_not_answer(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("Redis does not answer")

    monkeypatch.setattr(acting, "LocalOperator", away)
    monkeypatch.setattr(acting, "HttpOperator", away)
    assert shell(*words, "--reason", "nothing") == (WRONG, "")
    assert shell.err.startswith(UNKNOWN_REASON)


def test_a_header_that_is_given_twice_is_not_sent(shell: Shell) -> None:
    words = ("send", "orders", "x", "--in", "1h", "--routing-key", "a", "--header", "n=1", "--header", "n=2")
    assert shell(*words) == (WRONG, "")
    assert "--header names 'n' twice" in shell.err


def test_a_list_that_the_limit_cuts_says_so_for_any_number(shell: Shell) -> None:
    for _ in range(2):
        shell.park("a")
    assert shell("list", "--limit", "1")[0] == FINE
    assert shell.err == "More messages match than --limit 1. Use a higher limit, --all, or a filter.\n"


def test_ctrl_c_stops_the_operation_and_what_was_done_stays(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "_REPORT_S", 0.0)
    for _ in range(30):
        shell.park("a")

    presses = [signal.SIGINT]

    class Pressed(listing.Looking):
        def __call__(self, looked_at: int, total: int | None = None) -> None:
            if looked_at and presses:
                os.kill(os.getpid(), presses.pop())

    monkeypatch.setattr(operation, "Looking", Pressed)
    assert shell("deliver", "--all", "--yes", "--max-rate", "10") == (INTERRUPTED, "")
    assert re.match(r"Stopped by .*\. What was done stays done\. Messages done: [12]0\.\nInterrupted\.\n", shell.err)
    (ended,) = [entry for entry in entries_of(shell) if "stopped" in entry.what]
    assert 0 < ended.messages < 30


def test_a_filter_and_ids_together_are_a_mistake(shell: Shell) -> None:
    message_id = shell.park("a")
    for words in (("--all",), ("--header", "tenant"), ("--reason", "customer called"), ("--state", "parked")):
        assert shell("cancel", message_id, *words, "--yes") == (WRONG, "")
        assert shell.err == "Give ids or filters, not both. To say why, use --note.\n"
    for verb in ("cancel", "deliver", "retry"):
        assert shell(verb, "--yes") == (WRONG, "")
        assert "filters as `postdate list` has, or --all" in shell.err
    assert shell.ids() == {message_id}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["retry", "--reason", "nothing", "--yes"], WRONG, UNKNOWN_REASON),
        (["cancel", "--reason", "nothing", "--yes"], WRONG, UNKNOWN_REASON),
        (["list", "--reason", "nothing"], WRONG, UNKNOWN_REASON),
        (["retry", "--reason", "unroutable", "--yes"], NOT_FOUND, "No message matches that `postdate retry` changes."),
        (["retry", "--all", "--yes"], NOT_FOUND, "No message matches that `postdate retry` changes."),
        (["cancel", "--header", "tenant=z", "--yes"], NOT_FOUND, "No message matches that `postdate cancel` changes."),
        (["list", "--reason", "unroutable: no queue"], FINE, ""),
        (["cancel", "--key", "order-1", "--route", "orders"], NOT_FOUND, "No message has key 'order-1' on route"),
        *(
            ([*words, "ordres"], WRONG, "Route 'ordres' is not configured. Did you mean 'orders'?")
            for words in (
                ["list", "--route"],
                ["cancel", "--yes", "--route"],
                ["deliver", "--yes", "--route"],
                ["reschedule", "--in", "1h", "--yes", "--route"],
                ["retry", "--yes", "--route"],
                ["cancel", "--key", "order-1", "--route"],
                ["show", "--key", "order-1", "--route"],
                ["pause"],
                ["pause", "orders"],
                ["drain"],
                ["resume"],
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_exit_code_says_whether_nothing_was_found_or_a_name_is_wrong(
    shell: Shell, words: list[str], code: int, said: str
) -> None:
    waits = shell.park("a")
    assert shell(*words)[0] == code
    assert said in shell.err
    assert shell.ids() == {waits}
    assert asyncio.run(shell.stores.kept.orders()) == {}


def test_show_prints_what_it_finds_and_complains_of_the_rest(shell: Shell) -> None:
    known, unknown = shell.park("a"), "1gd4r5kq2000ab3c9d00"
    code, out = shell("show", known, unknown, "-o", "json")
    assert (code, json.loads(out)["id"]) == (NOT_FOUND, known)
    assert f"No message has id {unknown}: " in shell.err
    assert shell("show", known, unknown, "--raw") == (NOT_FOUND, "")


def test_a_message_whose_bytes_cannot_be_read_is_shown_as_it_is_and_passed_over_by_a_header_filter(
    shell: Shell,
) -> None:
    broken = asyncio.run(shell.stores.store_one("orders", payload=b"no\xffsuch")).decode()
    other = shell.park("a")
    code, out = shell("show", broken)
    assert (code, shell.err) == (FINE, "")
    assert "not a RabbitMQ message: it is cut short" in out
    assert b"no\xffsuch".hex(" ") in out
    code, out = shell("list", "--header", "tenant", "-o", "json")
    assert (code, [row["id"] for row in json.loads(out)]) == (FINE, [other])
