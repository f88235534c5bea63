"""The command line on a real Redis: output, exit codes, and that no message controls the terminal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from adapters.rabbitmq.raw.payload import pack
from adapters.redis.connect import connect
from adapters.redis.store import RedisStore
from bridge.cli import run_command
from bridge.core.clock import StoreClock
from bridge.core.ports import Release
from bridge.operate.send import Message, send
from bridge.parking.identity import Ids
from bridge.settings import Redis as RedisSettings
from tests.devstack.service import free_ports
from tests.raw_amqp import persistent

pytestmark = pytest.mark.redis

HOUR_MS = 3_600_000
KEY = ("--routing-key", "new")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\n\u202e"


class Shell:
    """Runs commands in this process, with settings for the test's own key prefix."""

    def __init__(self, url: str, prefix: str, output: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self.prefix = prefix
        self.output = output
        self.said = ""

    def __call__(self, *words: str) -> str:
        """Run a command that must succeed; return its standard output."""
        code, out = self.ended(*words)
        assert code == 0, f"{words} ended with {code} and said {self.said}"
        return out

    def ended(self, *words: str) -> tuple[int, str]:
        """Run a command; return its exit code and output. ``said`` keeps its standard error."""
        code = run_command(words)
        out, self.said = self.output.readouterr()
        assert "Traceback" not in self.said
        return code, out

    def refused(self, *words: str) -> str:
        """Run a command that must exit with 2; return its error."""
        code, out = self.ended(*words)
        assert (code, out) == (2, "")
        return self.said

    def send(self, *more: str) -> str:
        """Park a message; return its id."""
        found: dict[str, str] = json.loads(self("send", "orders", "body", *KEY, "--in", "1h", "-o", "json", *more))
        return found["id"]

    def rows(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self(*words, "-o", "json"))
        return found

    def states(self) -> dict[str, str]:
        return {
            row["id"]: state
            for state in ("parked", "claimed", "dead")
            for row in self.rows("list", "--state", state, "--all")
        }

    def with_store(self, work: Callable[[RedisStore], Awaitable[Any]]) -> Any:
        async def visit() -> Any:
            settings = RedisSettings.model_validate({"url": self.url})
            store = RedisStore(connect(settings), self.prefix, 8, "tester", StoreClock())
            await store.open("none", 1, 5000)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(visit())

    def park(self, payload: bytes, key: bytes = b"", due_in_ms: int = HOUR_MS) -> str:
        """Park a payload that no command would make."""

        async def work(store: RedisStore) -> bytes:
            due_ms = store.clock.now_ms() + due_in_ms
            return await send(store, Ids("tester"), Message("orders", "key", "replace", b"k", payload, due_ms, key))

        message_id: bytes = self.with_store(work)
        return message_id.decode()

    def claim(self, reason: str = "") -> None:
        """Claim everything that is due, and bury it if there is a reason."""

        async def work(store: RedisStore) -> None:
            claims: list[Any] = []
            while not claims:
                answers = await store.claim(range(8), 1000, 2**30, 60_000, 60_000)
                claims = [claim for answer in answers.values() for claim in answer.claims]  # type: ignore[union-attr]
            if reason:
                await store.bury((claim, reason) for claim in claims)

        self.with_store(work)

    def release(self, wait_ms: int, reason: str) -> None:
        """Claim everything that is due, and release it for another try."""

        async def work(store: RedisStore) -> None:
            claims: list[Any] = []
            while not claims:
                answers = await store.claim(range(8), 1000, 2**30, 60_000, 60_000)
                claims = [claim for answer in answers.values() for claim in answer.claims]  # type: ignore[union-attr]
            await store.release(Release(claim, wait_ms, 1, reason) for claim in claims)

        self.with_store(work)

    def dead(self, reason: str, route_key: bytes = b"") -> str:
        message_id = self.park(pack(b"k", persistent(), b"dead body"), route_key, due_in_ms=0)
        self.claim(reason)
        return message_id


@pytest.fixture
def shell(
    redis_url: str,
    key_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Shell:
    for name in [name for name in os.environ if name.startswith("POSTDATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "postdate.toml").write_text(
        f'[redis]\nurl = "{redis_url}"\nkey_prefix = "{key_prefix}"\ndurability = "none"\n'
        f'[rabbitmq]\nurl = "amqp://guest:sesame@127.0.0.1:{free_ports(1)[0]}/%2F"\n'
        '[routes.orders]\nintercept = "orders.delay"\ndeliver_to = "orders"\n'
    )
    (tmp_path / "postdate.toml").chmod(0o600)
    return Shell(redis_url, key_prefix, capsys)


class TestOrders:
    """pause, resume and drain."""

    def test_a_route_is_paused_drained_and_resumed_and_stats_say_so(self, shell: Shell) -> None:
        shell.send()
        (row,) = shell.rows("pause", "orders", "--note", "the bank is down")
        assert (row["route"], row["state"], row["reason"]) == ("orders", "paused", "the bank is down")
        assert (row["parked"], row["held"]) == (1, 0)
        (route,) = json.loads(shell("stats", "-o", "json"))["routes"]
        assert (route["name"], route["state"], route["by"], route["parked"]) == ("orders", "paused", row["by"], 1)
        assert "paused since" in shell("stats")
        assert "the bank is down" in shell("stats")
        (row,) = shell.rows("drain", "orders")
        assert (row["state"], row["reason"]) == ("draining", None)
        (row,) = shell.rows("resume", "orders")
        assert (row["state"], row["since"], row["by"]) == ("running", None, None)
        assert re.search(r"^route orders +parked 1$", shell("stats"), re.MULTILINE)

    def test_all_routes_with_a_store_are_paused_after_a_confirmation(self, shell: Shell) -> None:
        self.with_levels()
        assert "Confirm with --yes" in shell.refused("pause", "--all")
        assert [row["route"] for row in shell.rows("pause", "--all", "--yes")] == ["orders"]
        assert [row["state"] for row in shell.rows("resume", "--all", "--yes")] == ["running"]

    def test_unknown_routes_and_routes_without_a_store_are_refused(self, shell: Shell) -> None:
        self.with_levels()
        assert "Did you mean 'orders'?" in shell.refused("pause", "order")
        assert "Name routes, or give --all." in shell.refused("drain")
        assert "Name routes, or give --all." in shell.refused("drain", "orders", "--all")
        for verb in ("pause", "drain"):
            code, _ = shell.ended(verb, "bills")
            assert (code, "route bills has no store" in shell.said) == (5, True)
        assert shell.rows("resume", "orders")[0]["state"] == "running"

    def test_an_order_for_a_route_that_left_the_settings_can_be_ended(self, shell: Shell) -> None:
        shell("pause", "orders")
        settings = Path("postdate.toml")
        settings.write_text(settings.read_text().replace("[routes.orders]", "[routes.renamed]"))
        assert [route["state"] for route in json.loads(shell("stats", "-o", "json"))["routes"]] == ["paused"]
        shell("resume", "orders")
        assert json.loads(shell("stats", "-o", "json"))["routes"] == []

    def test_a_message_that_is_delivered_on_a_paused_route_waits_and_the_command_says_so(self, shell: Shell) -> None:
        message_id = shell.send()
        shell("pause", "orders")
        (row,) = shell.rows("deliver", message_id)
        assert (row["state"], row["code"]) == ("parked", 0)
        assert "route orders is paused, so it waits until `postdate resume orders`" in row["text"]
        assert row["text"] in shell.said
        shell("resume", "orders")
        assert shell.rows("deliver", message_id)[0]["text"] == ""

    def with_levels(self) -> None:
        """Add a route without a store."""
        with Path("postdate.toml").open("a") as file:
            file.write('[routes.bills]\nintercept = "bills.delay"\ndeliver_to = "bills"\nmode = "levels"\n')


class TestFine:
    def test_a_message_that_is_sent_is_listed_and_shown_with_what_it_was_given(self, shell: Shell) -> None:
        message_id = shell.send(
            "--routing-key", "new", "--key", "order-1", "--header", "a=b", "--content-type", "text/plain"
        )
        (row,) = shell.rows("list")
        assert (row["id"], row["routing_key"], row["key"], row["route"]) == (message_id, "new", "order-1", "orders")
        shown = json.loads(shell("show", message_id, "-o", "json"))
        assert shown["body"] == "body"
        assert shown["properties"] == {"content_type": "text/plain", "headers": {"a": "b"}, "delivery_mode": 2}
        assert shown["due"] == row["due"]

    def test_commands_take_a_key_and_print_the_new_state(self, shell: Shell) -> None:
        message_id = shell.send("--key", "order-1")
        before = shell.rows("list")[0]["due"]
        (moved,) = shell.rows("reschedule", "--key", "order-1", "--in", "2h")
        assert (moved["id"], moved["state"]) == (message_id, "parked")
        assert moved["due"] > before
        assert shell.rows("list")[0]["due"] == moved["due"]
        (due,) = shell.rows("deliver", "--key", "order-1", "--route", "orders")
        assert due["due"] < before
        (gone,) = shell.rows("cancel", "--key", "order-1")
        assert (gone["id"], gone["state"]) == (message_id, "cancelled")
        assert shell.states() == {}

    def test_commands_take_several_ids(self, shell: Shell) -> None:
        ids = [shell.send("--routing-key", str(n)) for n in range(3)]
        assert {row["state"] for row in shell.rows("cancel", *ids)} == {"cancelled"}

    def test_a_moment_is_kept_to_the_millisecond(self, shell: Shell) -> None:
        shell.send("--key", "k")
        (moved,) = shell.rows("reschedule", "--key", "k", "--at", "2027-01-31T09:30:00.123+02:00")
        assert moved["due"] == "2027-01-31T07:30:00.123Z"

    def test_piped_output_has_one_line_per_message_with_tabs(self, shell: Shell) -> None:
        message_id = shell.send("--routing-key", "new")
        head, line = (line.split("\t") for line in shell("list").splitlines())
        columns = ["id", "due", "wait", "route", "routing_key", "key", "size", "tries", "reason", "next_try"]
        assert head == columns
        found = dict(zip(head, line, strict=True))
        assert (found["id"], found["routing_key"], found["next_try"]) == (message_id, "new", "")
        assert len(shell("list", "-o", "jsonl").splitlines()) == 1

    def test_an_empty_piped_list_has_a_header_line(self, shell: Shell) -> None:
        assert shell("list", "--state", "dead").split() == [
            *("id", "died", "route", "routing_key", "key", "size", "tries", "reason")
        ]

    def test_a_message_between_two_tries_shows_the_next_one(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message_id = shell.park(pack(b"k", persistent(), b"body"), due_in_ms=0)
        shell.release(90_000, "unroutable: nobody")
        (row,) = shell.rows("list")
        assert (row["id"], row["tries"], row["reason"]) == (message_id, 1, "unroutable: nobody")
        head, line = (line.split("\t") for line in shell("list").splitlines())
        assert dict(zip(head, line, strict=True))["next_try"] == row["next_try"] > row["due"]
        assert ["next", "try", row["next_try"]] in [line.split() for line in shell("show", message_id).splitlines()]
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "160")
        head_line, text = shell("list").splitlines()
        assert "next try" in head_line
        assert re.search(r"in 1m 2\ds", text)

    def test_a_damaged_message_is_listed_shown_and_cancelled_like_any_dead_letter(self, shell: Shell) -> None:
        message_id = shell.dead("damaged: its bytes are no envelope")
        with redis.Redis.from_url(shell.url) as client:
            for n in range(8):
                client.hset(f"{{{shell.prefix}:{n}}}:msg", message_id, b"\xff no envelope")
        (row,) = shell.rows("list", "--state", "dead", "--reason", "damaged")
        assert (row["id"], row["route"]) == (message_id, "")
        assert message_id in shell("list", "--state", "dead")
        assert json.loads(shell("show", message_id, "-o", "json"))["body_base64"] == "/yBubyBlbnZlbG9wZQ=="
        assert "reason" in shell("show", message_id)
        shell("cancel", "--reason", "damaged", "--yes")
        assert shell.rows("list", "--state", "dead") == []

    def test_a_limit_that_hides_messages_is_reported(self, shell: Shell) -> None:
        for n in range(3):
            shell.send("--routing-key", str(n))
        assert len(shell.rows("list", "--limit", "2")) == 2
        assert "More messages match than --limit 2" in shell.said
        assert len(shell.rows("list", "--all")) == 3

    def test_a_body_comes_out_byte_for_byte(self, shell: Shell) -> None:
        body = bytes(range(256)) * 40
        message_id = shell.park(pack(b"k", persistent(), body))
        command = [sys.executable, "-m", "bridge.cli", "show", message_id, "--raw"]
        assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == body

    def test_a_long_body_is_cut_without_full(self, shell: Shell) -> None:
        message_id = shell.park(pack(b"k", persistent(), b"x" * 5000))
        cut, full = (json.loads(shell("show", message_id, "-o", "json", *more)) for more in ([], ["--full"]))
        assert (len(cut["body"]), cut["body_truncated"], cut["body_size"]) == (4096, True, 5000)
        assert (len(full["body"]), full["body_truncated"]) == (5000, False)
        assert "--full" in shell("show", message_id)

    def test_headers_larger_than_a_frame_are_shown(self, shell: Shell) -> None:
        message_id = shell.park(pack(b"k", persistent({"large": "x" * 300_000}), b"body"))
        assert json.loads(shell("show", message_id, "-o", "json"))["body"] == "body"

    def test_a_body_on_standard_input_is_taken_byte_for_byte(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\x00\n")))
        message_id = json.loads(shell("send", "orders", "-", *KEY, "--in", "1h", "-o", "json"))["id"]
        assert json.loads(shell("show", message_id, "-o", "json"))["body_base64"] == "/wAK"

    def test_a_kafka_that_no_route_uses_is_mentioned_where_rabbitmq_is_unreachable(self, shell: Shell) -> None:
        with Path("postdate.toml").open("a") as file:
            file.write('[kafka]\nbootstrap_servers = "127.0.0.1:9092"\n')
        words = '[kafka] is set, but no route uses Kafka. Set broker = "kafka" in [routes.orders]'
        assert any(words in row["text"] for row in json.loads(shell.ended("check", "-o", "json")[1]))
        assert shell.ended("setup")[0] == 4
        assert words in shell.said

    def test_check_warns_of_a_password_that_every_user_can_read(self, shell: Shell) -> None:
        Path("postdate.toml").chmod(0o644)
        found = json.loads(shell.ended("check", "-o", "json")[1])
        warned = [row["text"] for row in found if (row["level"], row["subject"]) == ("WARN", "settings")]
        assert warned == [
            "every user of this machine can read the secrets in postdate.toml. Run: chmod o-r postdate.toml"
        ]
        Path("postdate.toml").chmod(0o640)
        assert "every user" not in shell.ended("check")[1]

    def test_stats_name_the_routes_without_a_store(self, shell: Shell) -> None:
        with Path("postdate.toml").open("a") as file:
            file.write('[routes.bills]\nintercept = "bills.delay"\ndeliver_to = "bills"\nmode = "levels"\n')
        assert json.loads(shell("stats", "-o", "json"))["without_store"] == ["bills"]
        assert "bills. `postdate levels stats` counts their messages." in shell("stats")

    def test_stats_count_what_waits(self, shell: Shell) -> None:
        shell.send()
        shell.dead("unroutable: nobody")
        stats = json.loads(shell("stats", "-o", "json"))
        assert (stats["parked"], stats["dead"], stats["claimed"], stats["overdue"]) == (1, 1, 0, 0)
        assert stats["instances"] == []
        assert "parked" in shell("stats")

    @pytest.mark.parametrize("words", [["--help"], ["--version"], [], ["send", "--help"]])
    def test_help_needs_no_settings(self, shell: Shell, words: list[str]) -> None:
        Path("postdate.toml").unlink()
        assert "postdate" in shell(*words)

    @pytest.mark.parametrize(
        "command",
        ["run", "check", "setup", "send", "list", "show", "cancel", "reschedule", "deliver", "retry", "stats"],
    )
    def test_every_command_has_an_example(self, shell: Shell, command: str) -> None:
        assert f"Example:\n    postdate {command}" in shell(command, "--help")

    def test_setup_has_a_dry_run_without_a_broker(self, shell: Shell) -> None:
        code, out = shell.ended("setup", "--dry-run", "-o", "json")
        assert [row["kind"] for row in json.loads(out)] == ["queue", "exchange", "binding"]
        assert code == shell.ended("setup")[0] == 4

    def test_a_routing_key_may_be_empty_and_not_forgotten(self, shell: Shell) -> None:
        """Without the right one the message would be a dead letter a minute after it was due."""
        assert "--routing-key is missing" in shell.refused("send", "orders", "body", "--in", "1h")
        assert shell.states() == {}
        message_id = shell.send("--routing-key", "")
        assert shell.states() == {message_id: "parked"}

    def test_text_output_calls_a_cancelled_message_cancelled(self, shell: Shell) -> None:
        assert "\tcancelled\t" in shell("cancel", shell.send())

    def test_a_route_that_is_not_configured_and_has_no_messages_is_a_mistake(self, shell: Shell) -> None:
        for words in (["list"], ["retry", "--all", "--yes"], ["cancel", "--state", "dead", "--yes"]):
            code, out = shell.ended(*words, "--route", "ordres")
            assert (code, out if words == ["list"] else "") == (2, "")  # no header line before the error
            assert "Route 'ordres' is not configured. Did you mean 'orders'?" in shell.said
        assert shell.ended("list", "--route", "ordres", "-o", "json") == (2, "[]\n")
        for words in (["cancel", "--key", "k"], ["show", "--key", "k"], ["export"]):
            assert shell.ended(*words, "--route", "ordres")[0] == 2
            assert "Did you mean 'orders'?" in shell.said

    def test_a_table_on_a_terminal_has_one_line_per_message_with_the_whole_id(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message_id = shell.send("--routing-key", "r" * 100, "--key", "k" * 100)
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        head, line = shell("list").splitlines()
        assert "reason" not in head
        assert re.match(f"{message_id}  in 59m 5[0-9]s  orders  ", line)
        assert "routing key" in head
        assert "delay key" in head

    def test_on_a_terminal_each_column_has_a_name_and_a_long_reason_leaves_room_for_the_others(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message_id = shell.dead("unroutable: " + "nobody takes it " * 9)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "80")
        head, line = shell("list", "--state", "dead").splitlines()
        assert "died at" not in head
        assert line.startswith(f"{message_id}  ")
        assert "unroutable: nob" in line
        monkeypatch.setenv("COLUMNS", "240")
        head, _ = shell("list", "--state", "dead").splitlines()
        assert "died at" in head

    def test_setup_has_the_same_columns_in_a_dry_run(self, shell: Shell) -> None:
        head, *lines = shell.ended("setup", "--dry-run")[1].splitlines()
        assert head.split("\t") == ["kind", "name", "route", "state", "with"]
        assert lines
        assert all(line.split("\t")[3] == "planned" for line in lines)


class TestDeadLetters:
    def test_one_is_retried_by_its_id(self, shell: Shell) -> None:
        message_id = shell.dead("unroutable: nobody")
        (row,) = shell.rows("list", "--state", "dead", "--reason", "unroutable")
        assert row["reason"] == "unroutable: nobody"
        assert shell.rows("retry", message_id)[0]["state"] == "parked"
        assert shell.states() == {message_id: "parked"}

    def test_many_are_retried_by_a_filter_and_others_stay(self, shell: Shell) -> None:
        first, second = shell.dead("unroutable: a"), shell.dead("unroutable: b")
        bad = shell.dead("bad_header: c")
        assert json.loads(shell("retry", "--reason", "unroutable", "--yes", "-o", "json"))["done"] == 2
        assert shell.states() == {first: "parked", second: "parked", bad: "dead"}

    def test_many_are_cancelled_and_what_is_parked_stays(self, shell: Shell) -> None:
        shell.dead("bad_header: a")
        kept = shell.send()
        assert shell("cancel", "--state", "dead", "--yes") == "cancelled  1\n"
        assert shell.states() == {kept: "parked"}

    def test_without_a_terminal_many_dead_letters_are_untouched_without_yes(self, shell: Shell) -> None:
        message_id = shell.dead("bad_header: a")
        assert "Messages to retry: 1. Confirm with --yes" in shell.refused("retry", "--all")
        assert "--yes" in shell.refused("cancel", "--state", "dead")
        assert shell.states() == {message_id: "dead"}


class TestWrong:
    """Exit code 2: one sentence says what to write, and nothing is changed."""

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["lsit"], "Did you mean 'list'?"),
            (["list", "--sate", "dead"], "--state"),
            (["list", "--state", "gone"], "'parked', 'claimed', 'dead'"),
            (["list", "--due-before", "tomorrow"], "is not a moment"),
            (["send", "orders", "x"], "--in"),
            (["send", "orders", "x", "--in", "5m", "--at", "2027-01-01T00:00:00Z"], "one of --in"),
            (["send", "orders", "x", "--in", "5"], "5s or 5ms"),
            (["send", "orders", "x", "--in", "-5m"], "negative"),
            (["send", "orders", "x", "--at", "2027-01-01T00:00:00"], "has no offset from UTC"),
            (["send", "orders", "x", *KEY, "--in", "4000d"], "limits.max_delay"),
            (["send", "orders", "x", "--in", "1m"], "--routing-key is missing"),
            (["send", "orders", "--in", "1m"], "BODY"),
            (["send", "orders", "x", "--in", "1m", "--header", "x-delay=5"], "--in or --at"),
            (["send", "orders", "x", "--in", "1m", "--header", "x-delay-key=5"], "--key"),
            (["send", "orders", "x", "--at", "1790000000"], "looks like Unix seconds"),
            (["list", "--due-after", "1790000000"], "looks like Unix seconds"),
            (["send", "orders", "x", "--in", "1m", "--header", "novalue"], "NAME=TEXT"),
            (["send", "ordres", "x", "--in", "1m"], "Route 'ordres' is not configured"),
            (["send", "orders", "x", *KEY, "--in", "1m", "--key", "k" * 256], "255"),
            (["send", "orders", "x", "--in", "1m", "--routing-key", "k" * 256], "255"),
            (["list", "--limit", "0"], "'--limit': must be greater than or equal to 1"),
            (["show"], "--key"),
            (["show", "x"], "is not a message id"),
            (["cancel", "x", "--key", "k"], "Give ids, or --key"),
            (["cancel", "--reason", "x"], "Known reasons: bad_header,"),
            (["cancel", "1gd4r5kq2000ab3c9d00", "--reason", "x"], "use --note"),
            (["list", "--reason", "unrouteable"], "No reason starts with 'unrouteable'. Known reasons:"),
            (["retry"], "--all"),
            (["run", "--workers", "0"], "1 to 64"),
            (["run", "--log-level", "loud"], "log.level"),
            (["stats", "--config", "nowhere.toml"], "nowhere.toml"),
        ],
    )
    def test_usage(self, shell: Shell, words: list[str], said: str) -> None:
        assert said in shell.refused(*words)
        assert len(shell.said.splitlines()) == 1

    def test_all_mistakes_in_the_settings_are_reported_with_their_places(self, shell: Shell) -> None:
        with Path("postdate.toml").open("a") as file:
            file.write('[limits]\nmax_dely = "1d"\nbatch_max = 0\n')
        said = shell.refused("list")
        assert 'unknown setting "limits.max_dely" in postdate.toml. Did you mean "max_delay"?' in said
        assert "limits.batch_max" in said

    @pytest.mark.parametrize("command", ["run", "check", "setup"])
    def test_what_needs_a_route_is_refused_without_one(self, shell: Shell, command: str) -> None:
        Path("postdate.toml").write_text("")
        assert "No route is set in postdate.toml." in shell.refused(command)
        Path("postdate.toml").unlink()
        assert "there is no ./postdate.toml. Name your settings file with --config FILE" in shell.refused(command)


class TestWhatLeftTheStore:
    def test_a_cancelled_message_is_shown_and_listed_with_its_moments(self, shell: Shell) -> None:
        message_id = shell.send("--key", "order-1")
        shell("cancel", message_id)
        for words in ((message_id,), ("--key", "order-1")):
            found = json.loads(shell("show", *words, "-o", "json"))
            assert (found["id"], found["state"], found["key"]) == (message_id, "cancelled", "order-1")
            assert found["reason"] == "by an operator"
            assert [moment["what"] for moment in found["life"]] == ["received", "cancelled", "due"]
        assert "cancelled" in shell("show", message_id)
        assert [row["id"] for row in shell.rows("list", "--state", "history")] == [message_id]
        assert [row["id"] for row in shell.rows("list", "--state", "history", "--ending", "cancelled")] == [message_id]
        assert shell.rows("list", "--state", "history", "--ending", "delivered") == []
        assert shell.rows("list", "--state", "history", "--since", "1h", "--key", "order-1")[0]["id"] == message_id
        assert shell.ended("show", message_id, "--raw")[0] == 3
        assert "The body of message" in shell.said

    def test_a_list_filters_by_header_size_and_tries(self, shell: Shell) -> None:
        first, two = shell.send("--header", "tenant=a"), shell.send("--header", "tenant=b")
        assert [row["id"] for row in shell.rows("list", "--header", "tenant=a")] == [first]
        assert {row["id"] for row in shell.rows("list", "--header", "tenant")} == {first, two}
        assert shell.rows("list", "--header", "tenant=c") == []
        assert shell.rows("list", "--min-size", "100000") == shell.rows("list", "--min-tries", "1") == []
        assert "--header" in shell.refused("list", "--state", "history", "--header", "tenant=a")

    @pytest.mark.parametrize("words", [("list",), ("export",), ("restore", "--yes")])
    def test_a_filter_that_is_empty_or_given_twice_is_refused(self, shell: Shell, words: tuple[str, ...]) -> None:
        assert "--key is empty" in shell.refused(*words, "--key", "")
        assert "--route is given more than once" in shell.refused(*words, "--route", "a", "--route", "b")

    def test_what_an_operator_did_is_in_the_audit_log(self, shell: Shell) -> None:
        parked, dead = shell.send(), shell.dead("unroutable: nobody")
        shell("reschedule", parked, "--in", "2h")
        shell("cancel", parked, "--note", "customer called")
        shell("retry", "--all", "--yes", "--note", "queue is back")
        entries = shell.rows("audit", "--limit", "5")
        assert [entry["verb"] for entry in entries] == ["bulk retry", "bulk retry", "cancel", "reschedule", "send"]
        assert [entry["messages"] for entry in entries] == [1, 0, 1, 1, 1]
        assert (entries[2]["via"], entries[2]["what"]) == ("cli", parked)
        reasons = [entry["reason"] for entry in entries[:4]]
        assert reasons == ["queue is back", "queue is back", "customer called", None]
        assert entries[1]["what"].endswith('{"state": "dead"}')
        assert entries[0]["who"]
        assert shell.states() == {dead: "parked"}


class TestHowItEnds:
    def test_1_where_the_store_was_made_with_other_settings(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell.send()
        monkeypatch.setenv("POSTDATE_REDIS__SHARDS", "4")
        assert shell.ended("list")[0] == 1
        assert "redis.shards = 8" in shell.said

    @pytest.mark.parametrize("command", ["show", "cancel", "deliver", "retry"])
    def test_3_where_there_is_no_such_message(self, shell: Shell, command: str) -> None:
        never = f"{shell.send()[:9]}{'0' * 11}"
        assert shell.ended(command, never)[0] == 3
        assert never in shell.said
        assert "not seen in the last 24 h" in shell.said
        assert shell.ended(command, "--key", "never-heard-of")[0] == 3
        assert "never-heard-of" in shell.said

    @pytest.mark.parametrize("words", [["cancel"], ["deliver"], ["reschedule", "--in", "1h"], ["retry"]])
    def test_5_where_the_message_has_left_the_store(self, shell: Shell, words: list[str]) -> None:
        gone = shell.send("--key", "k")
        shell("cancel", gone)
        code, out = shell.ended(*words, gone, "-o", "json")
        assert (code, json.loads(out)[0]["state"]) == (5, "cancelled")
        assert f"{gone}: it was cancelled at 20" in shell.said
        assert shell.ended(*words, "--key", "k")[0] == 3
        assert "it was cancelled at 20" in shell.said

    def test_3_where_the_history_is_switched_off(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POSTDATE_HISTORY__MAX", "0")
        gone = shell.send()
        shell("cancel", gone)
        assert shell.ended("show", gone)[0] == 3
        assert "the history is switched off" in shell.said
        assert shell.ended("list", "--state", "history")[0] == 2

    @pytest.mark.parametrize("words", [["list"], ["stats"], ["send", "orders", "x", *KEY, "--in", "1m"]])
    def test_4_where_the_store_cannot_be_reached(
        self, shell: Shell, monkeypatch: pytest.MonkeyPatch, words: list[str]
    ) -> None:
        monkeypatch.setenv("POSTDATE_REDIS__URL", f"redis://127.0.0.1:{free_ports(1)[0]}/0")
        assert shell.ended(*words) == (4, "")
        assert "Redis does not answer" in shell.said

    def test_4_where_the_broker_cannot_be_reached(self, shell: Shell) -> None:
        assert shell.ended("setup")[0] == 4
        code, out = shell.ended("check", "-o", "json")
        assert code == 4
        levels = [(row["subject"], row["level"]) for row in json.loads(out)]
        assert levels[:2] == [("settings", "OK"), ("store", "OK")]
        assert ("broker", "FAIL") in levels
        assert "sesame" not in out

    @pytest.mark.parametrize("words", [["cancel"], ["deliver"], ["reschedule", "--in", "1h"], ["retry"]])
    def test_5_where_the_message_is_being_sent(self, shell: Shell, words: list[str]) -> None:
        message_id = shell.park(pack(b"k", persistent(), b""), due_in_ms=0)
        shell.claim()
        code, out = shell.ended(*words, message_id, "-o", "json")
        assert code == 5
        assert json.loads(out)[0]["state"] == "claimed"
        assert f"{message_id}: it is being sent now" in shell.said
        assert shell.states() == {message_id: "claimed"}

    def test_5_where_a_dead_letter_should_be_moved_with_the_right_command(self, shell: Shell) -> None:
        message_id = shell.dead("unroutable: nobody")
        assert shell.ended("deliver", message_id)[0] == 5
        assert "postdate retry" in shell.said

    def test_5_where_a_refused_cancellation_would_be_delivered_by_a_retry(self, shell: Shell) -> None:
        reason = "not_allowed: header x-delay-cancel cancels nothing here, the route's cancel is false"
        first, other = shell.dead(reason), shell.dead("unroutable: nobody")
        assert shell.ended("retry", first)[0] == 5
        assert "is never delivered" in shell.said
        assert json.loads(shell("retry", "--all", "--yes", "-o", "json"))["done"] == 1
        assert shell.states() == {first: "dead", other: "parked"}

    def test_5_where_a_key_may_not_be_taken(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        message_id = shell.send("--key", "k")
        monkeypatch.setenv("POSTDATE_HEADERS__ON_SAME_KEY", "keep")
        assert shell.ended("send", "orders", "x", *KEY, "--in", "1m", "--key", "k")[0] == 5
        assert shell.states() == {message_id: "parked"}

    def test_of_several_messages_those_that_can_be_are_done_and_the_worst_code_counts(self, shell: Shell) -> None:
        claimed = shell.park(pack(b"k", persistent(), b""), due_in_ms=0)
        shell.claim()
        parked, gone = shell.send(), shell.send("--key", "k")
        shell("cancel", gone)
        code, out = shell.ended("cancel", parked, gone, claimed, "-o", "json")
        assert code == 5
        assert [row["state"] for row in json.loads(out)] == ["cancelled", "cancelled", "claimed"]
        assert shell.states() == {claimed: "claimed"}

    def test_130_where_it_was_interrupted(self, shell: Shell) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            environ = {**os.environ, "POSTDATE_REDIS__URL": f"redis://127.0.0.1:{server.getsockname()[1]}/0"}
            command = [sys.executable, "-m", "bridge.cli", "list"]
            with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE) as process:
                server.settimeout(60)
                connection, _ = server.accept()  # the command now waits for an answer that never comes
                process.send_signal(signal.SIGINT)
                _, said = process.communicate(timeout=60)
                connection.close()
        assert process.returncode == 130
        assert b"Traceback" not in said

    def test_an_interrupt_while_a_connection_is_made_causes_no_traceback(self) -> None:
        """A transport of asyncio that an exception leaves half built complains when it is collected."""
        interrupted = (
            "import os, signal, sys\n"
            "from asyncio.selector_events import _SelectorTransport as Transport\n"
            "from bridge.cli import main\n"
            "Transport.set_protocol = lambda self, protocol: os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.argv = ['postdate', 'list']\n"
            "main()\n"
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            environ = {**os.environ, "POSTDATE_REDIS__URL": f"redis://127.0.0.1:{server.getsockname()[1]}/0"}
            command = [sys.executable, "-c", interrupted]
            ended = subprocess.run(command, env=environ, stderr=subprocess.PIPE, timeout=60, check=False)
        assert (ended.returncode, ended.stderr) == (130, b"Interrupted.\n")

    def test_a_reader_that_closes_the_pipe_causes_no_traceback(self, shell: Shell) -> None:
        for n in range(5):
            shell.send("--routing-key", str(n))
        command = [sys.executable, "-m", "bridge.cli", "list", "-o", "jsonl"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
        assert said == b""


class TestHostileMessages:
    """Producers choose keys, headers, bodies and reasons: none of them controls the terminal or breaks a line."""

    @pytest.fixture
    def message_id(self, shell: Shell) -> str:
        properties = persistent({f"h{HOSTILE}": HOSTILE, "n": 5}, message_id=HOSTILE, content_type=HOSTILE)
        payload = pack(HOSTILE.encode(), properties, HOSTILE.encode())
        parked = shell.park(payload, f"k{HOSTILE}".encode(), due_in_ms=0)
        shell.claim(f"bad_header: {HOSTILE}")
        return parked

    @pytest.mark.parametrize("output", ["text", "json", "jsonl"])
    @pytest.mark.parametrize("command", ["list", "show"])
    def test_nothing_is_printed_that_a_terminal_obeys(
        self, shell: Shell, message_id: str, command: str, output: str
    ) -> None:
        words = ["list", "--state", "dead"] if command == "list" else ["show", message_id]
        text = shell(*words, "-o", output)
        assert all(letter.isprintable() or letter in "\n\t" for letter in text)
        if command == "list" and output != "json":
            assert len(text.splitlines()) == (2 if output == "text" else 1)

    def test_json_returns_it_unchanged(self, shell: Shell, message_id: str) -> None:
        shown = json.loads(shell("show", message_id, "-o", "json"))
        assert shown["body"] == shown["routing_key"] == shown["properties"]["message_id"] == HOSTILE
        assert shown["properties"]["headers"] == {f"h{HOSTILE}": HOSTILE, "n": 5}
        assert shown["key"] == f"k{HOSTILE}"

    def test_a_hostile_key_finds_its_message(self, shell: Shell, message_id: str) -> None:
        assert shell.rows("cancel", "--key", f"k{HOSTILE}") == [
            {"id": message_id, "state": "cancelled", "due": None, "due_ms": None, "text": "", "code": 0}
        ]

    def test_an_error_about_it_is_harmless_too(self, shell: Shell, message_id: str) -> None:
        code, _ = shell.ended("show", "--key", f"other{HOSTILE}")
        assert code == 3
        assert all(letter.isprintable() or letter == "\n" for letter in shell.said)
