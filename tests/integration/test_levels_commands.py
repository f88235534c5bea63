"""``postdate levels``, other commands on routes without a store, and a changed list of levels."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.rabbitmq.levels.waits import STEP_HEADERS, plan_waits
from adapters.rabbitmq.native_guard import delays_natively
from bridge.cli import run_command
from tests.bridge_line import merged
from tests.bridge_process import Tables, toml
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.level_line import ALONE, LevelLine
from tests.unit.raw_properties import Entry, Props

pytestmark = pytest.mark.rabbitmq

OLD = ["2s", "1500ms", "8s"]
NEW = ["700ms", "1500ms"]
CHANGED: Tables = {"headers": {"levels": NEW}}


class Shell:
    """Runs commands with a line's settings, and with previous ones."""

    def __init__(self, line: Line, output: pytest.CaptureFixture[str]) -> None:
        self.line = line
        self._output = output
        self.said = ""

    def file(self, settings: Tables, name: str) -> str:
        path = self.line.folder / f"{self.line.name}.{name}.toml"
        path.write_text(toml(merged(self.line.settings, settings)))
        path.chmod(0o600)
        return str(path)

    def __call__(self, *words: str, settings: Tables | None = None, code: int | None = 0) -> str:
        """Run a command; return its output. Its exit code must be ``code``, unless that is None."""
        ended = run_command([*words, "--config", self.file(settings or {}, "shell")])
        out, self.said = self._output.readouterr()
        assert code in (ended, None), f"{words} ended with {ended}, wrote {out} and said {self.said}"
        return out

    def rows(self, *words: str, settings: Tables | None = None, code: int = 0) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self(*words, "-o", "json", settings=settings, code=code))
        return found


@pytest.fixture
def line(rabbitmq: RabbitMQ, tmp_path: Path) -> Iterator[LevelLine]:
    with LevelLine(rabbitmq.url, tmp_path, merged(ALONE, {"headers": {"levels": OLD}})) as line:
        yield line


@pytest.fixture
def shell(line: LevelLine, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(line, capsys)


def number(value: int) -> Entry:
    return (b"x-delay-level", "I", struct.pack(">i", value))


def states(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the state of each queue, by its level."""
    return {_level(row["name"].split(".")[2:]): row["state"] for row in rows}


def _level(parts: list[str]) -> str:
    return ".".join(parts[1:-1]) if parts[0] in ("level", "step") else parts[0]


def put(line: LevelLine, body: bytes, *headers: Entry) -> None:
    line.publish(Props(list(headers), {"delivery_mode": b"\2"}), body)


def test_a_changed_list_of_levels_loses_nothing_and_its_stale_queues_are_removed_once_empty(
    line: LevelLine, shell: Shell
) -> None:
    """No postdate runs: RabbitMQ alone keeps the promises, before and after."""
    changed = CHANGED
    assert any(row["state"] == "outdated" for row in shell.rows("levels", "verify", settings=changed, code=1))
    assert any("another list of levels" in row["text"] for row in shell.rows("check", settings=changed))
    for body, level in ((b"old 1", 1), (b"old 3", 3)):  # the commands that look at "old 3" have 8 s from here
        put(line, body, number(level))
    line.setup(changed)
    put(line, b"new 1", number(1))
    before = shell.file({}, "before")
    told = [row["text"] for row in shell.rows("check", "--before", before, settings=changed)]
    assert any("(queue '" in text and ".level.8s." in text and "delivers them when" in text for text in told)
    old = [row for row in shell.rows("levels", "stats", "--before", before, settings=changed) if row["state"] == "old"]
    assert [row["name"].split(".")[3] for row in old] == ["2s", "8s"]
    assert old[1]["messages"] == 1
    doomed = ("levels", "remove", "--before", before)
    assert states(shell.rows(*doomed, "--dry-run", settings=changed, code=5))["8s"] == "kept"
    assert states(shell.rows(*doomed, settings=changed, code=5))["8s"] == "kept"
    assert "it holds messages: 1. " in shell.said
    got = {message.body: message for message in line.receive(3)}
    assert got.keys() == {b"old 1", b"old 3", b"new 1"}
    assert got[b"new 1"].at < got[b"old 3"].at
    left = states(shell.rows(*doomed, "--dry-run", settings=changed))
    assert left == dict.fromkeys(left, "removable")
    assert states(shell.rows(*doomed, settings=changed)) == dict.fromkeys(left, "removed")
    assert "8s" in left
    assert shell.rows(*doomed, settings=changed) == []
    assert "Nothing to remove" in shell.said
    assert shell.rows("levels", "verify", "--before", before, settings=changed)


def test_setup_is_idempotent_and_remove_deletes_everything_but_queues_with_messages(
    line: LevelLine, shell: Shell
) -> None:
    assert {row["state"] for row in shell.rows("levels", "setup")} == {"there"}
    assert {row["state"] for row in shell.rows("levels", "verify")} == {"same"}
    put(line, b"waits", number(3))
    found = states(shell.rows("levels", "remove", "--all", code=5))
    assert found == {"2s": "removed", "1.5s": "removed", "8s": "kept", "due": "kept", "dead": "kept"}
    assert "it holds messages: 1. " in shell.said
    assert ".8s." in next(said for said in shell.said.splitlines() if "go through it" in said)
    put(line, b"what a level that is gone would get waits in the intake", number(1))
    assert line.receive()[0].body == b"waits"
    assert states(shell.rows("levels", "remove", "--all", code=5)) == {"8s": "removed", "due": "kept", "dead": "kept"}
    assert "may hold messages that RabbitMQ does not count" in shell.said
    assert states(shell.rows("levels", "remove", "--all", "--force")) == {"due": "removed", "dead": "removed"}
    (intake, *levels) = shell.rows("levels", "stats")
    assert (intake["name"], intake["messages"], intake["state"]) == (line.intake, 1, "intake, no consumer")
    assert {row["state"] for row in levels} == {"missing"}
    wait_for(lambda: line.depth(line.intake) == 1, "it waits in the intake")
    line.setup()
    put(line, b"again", number(1))
    assert line.receive()[0].body == b"again"


def test_commands_that_need_a_store_report_that_there_is_none(shell: Shell) -> None:
    words = [
        ("list",),
        ("stats",),
        ("show", "1gd4r5kq2000ab3c9d00"),
        ("cancel", "--key", "k", "--route", "orders"),
        ("reschedule", "--key", "k", "--route", "orders", "--in", "1h"),
        ("deliver", "--key", "k", "--route", "orders"),
        ("retry", "--all"),
        ("send", "orders", "body", "--in", "1h"),
    ]
    for command in words:
        assert shell(*command, code=5) == ""
        assert "route orders has no store (mode levels)" in shell.said
        assert "postdate levels stats" in shell.said


def test_check_needs_no_store_and_finds_that_all_exists(shell: Shell, rabbitmq: RabbitMQ) -> None:
    del shell.line.settings["redis"]["url"]  # else one is expected, which is not there
    found = shell.rows("check")
    (store,) = [row for row in found if row["subject"] == "store"]
    assert (store["level"], store["text"].startswith("no store needed by orders")) == ("OK", True)
    (route, instances) = [row for row in found if row["subject"] == "route orders"]
    guarded = delays_natively(rabbitmq.version)  # by a queue and an exchange more
    assert (route["level"], route["text"]) == ("OK", f"exists: queues ({6 + guarded}), exchanges ({12 + guarded})")
    assert (instances["level"], instances["text"].partition(":")[0]) == (
        "WARN",
        f"queue '{shell.line.intake}' has no consumer. Messages there",
    )


def test_messages_that_pile_up_in_an_intake_without_a_consumer_are_counted(line: LevelLine, shell: Shell) -> None:
    for body in (b"one", b"two"):
        put(line, body, delay(1000))
    wait_for(lambda: line.depth(line.intake) == 2, "both are counted")
    (told,) = [
        row["text"] for row in shell.rows("check") if row["level"] == "WARN" and row["subject"] == "route orders"
    ]
    assert told == (f"queue '{line.intake}' has no consumer. Messages there: 2. Start `postdate run` with this route")
    (intake, *_) = shell.rows("levels", "stats")
    assert (intake["name"], intake["messages"], intake["state"]) == (line.intake, 2, "intake, no consumer")
    line.run()
    line.receive(2)
    assert {row["level"] for row in shell.rows("check") if row["subject"] == "route orders"} == {"OK"}
    (intake, *_) = shell.rows("levels", "stats")
    assert (intake["messages"], intake["state"]) == (0, "intake")


def test_a_route_with_many_parts_takes_one_line_and_each_problem_its_own(line: LevelLine, shell: Shell) -> None:
    assert len(shell("setup").splitlines()) == 2, "a line of headings, and one for the route"
    line.delete_queue(line.places().dead)
    (problem, _) = [row["text"] for row in shell.rows("check") if row["level"] == "WARN" and "route" in row["subject"]]
    assert problem.startswith(f"missing: queue '{line.places().dead}'. `postdate run`")
    made = shell.rows("setup")
    assert {(row["kind"], row["name"]) for row in made if row["state"] == "made"} == {
        ("queue", line.places().dead),
        ("binding", f"{line.places().dead} -> {line.places().dead}"),
    }
    other: Tables = {"routes": {"orders": {"intercept": f"{line.front}.2", "queue": f"{line.intake}.2"}}}
    assert {row["state"] for row in shell.rows("setup", settings=other)} == {"made"}
    line.setup(other)


def test_a_route_without_a_store_cannot_become_one_with_a_store_in_place(line: LevelLine, shell: Shell) -> None:
    shell("setup", settings={"routes": {"orders": {"mode": "redis"}}}, code=5)
    assert f"exchange '{line.front}' of route orders exists with alternate-exchange" in shell.said
    assert "Nothing was changed" in shell.said


def test_a_changed_queue_type_is_refused_with_one_hint_at_the_setting_of_the_level_queues(
    shell: Shell,
) -> None:
    classic: Tables = {"routes": {"orders": {"queue_type": "classic"}}}
    shell("setup", settings=classic, code=5)
    assert shell.said.count(" to keep it, or delete it") == 1
    assert f"queue '{shell.line.intake}.dead' of route orders exists with x-queue-type 'quorum'" in shell.said
    assert 'levels.queue_type = "classic" sets the type of the level queues alone' in shell.said
    assert "Nothing was changed" in shell.said
    for looks in (["check"], ["levels", "verify"], ["setup", "--dry-run"]):
        out = shell(*looks, settings=classic, code=None)
        assert 'levels.queue_type = "classic"' in out + shell.said
        assert "Nothing was changed" not in out + shell.said


def test_the_levels_of_a_route_that_has_a_store_now_are_reported_delivered_and_removed(
    line: LevelLine, shell: Shell
) -> None:
    """Its front may still lead to the exchanges of its levels: they stay, and undelayed messages pass."""
    stored: Tables = {"routes": {"orders": {"mode": "redis"}}}
    put(line, b"in a level", number(3))
    old = shell.rows("levels", "stats", settings=stored)
    assert {row["state"] for row in old} == {"old"}
    assert [row["messages"] for row in old if ".8s." in row["name"]] == [1]
    assert {row["state"] for row in shell.rows("levels", "verify", settings=stored)} == {"old"}
    found = [row["text"] for row in shell.rows("check", settings=stored, code=4)]
    assert any(text.startswith("stale levels still hold messages: 1 (") for text in found)
    found_states = states(shell.rows("levels", "remove", settings=stored, code=5))
    assert found_states == {"2s": "removed", "1.5s": "removed", "8s": "kept", "due": "kept", "dead": "kept"}
    assert "it holds messages: 1. " in shell.said
    assert line.receive()[0].body == b"in a level"
    shell("levels", "remove", settings=stored, code=5)
    unknown = "may hold messages that RabbitMQ"
    assert unknown in shell.said
    (told,) = [row for row in shell.rows("check", settings=stored, code=4) if "stale levels" in row["text"]]
    assert (told["level"], unknown in told["text"]) == ("WARN", True)
    (due,) = [row for row in shell.rows("levels", "verify", settings=stored) if ".due." in row["what"]]
    assert due["text"].startswith(unknown)
    assert states(shell.rows("levels", "remove", "--force", settings=stored)) == {"due": "removed", "dead": "removed"}
    assert shell.rows("levels", "stats", settings=stored) == []
    assert "there are no stale queues or topics" in shell.said
    put(line, b"not delayed")
    assert line.receive()[0].body == b"not delayed"
    line.setup()
    moved = merged(stored, {"routes": {"orders": {"intercept": f"{line.front}.anew"}}})
    shell("setup", settings=moved)
    assert len(shell.rows("levels", "remove", "--force", settings=moved)) == 5
    put(line, b"by the front of before")
    assert line.receive()[0].body == b"by the front of before"


def test_the_queues_of_a_removed_route_are_found_by_previous_settings_and_its_front_stays(
    line: LevelLine, shell: Shell
) -> None:
    before = shell.file({}, "before")
    put(line, b"in a level", number(3))
    bills = {"intercept": f"{line.front}.bills", "queue": f"{line.intake}.bills"}
    line.settings = {**line.settings, "routes": {"bills": {**line.settings["routes"]["orders"], **bills}}}
    line.setup()
    assert {row["route"] for row in shell.rows("levels", "stats")} == {"bills"}
    found = [row for row in shell.rows("levels", "stats", "--before", before) if row["route"] == "orders"]
    assert {row["state"] for row in found} == {"old"}
    assert [row["messages"] for row in found if ".8s." in row["name"]] == [1]
    (told,) = [row for row in shell.rows("check", "--before", before) if row["subject"] == "route orders"]
    assert told["level"] == "WARN"
    assert told["text"].startswith("stale levels still hold messages: 1 (")
    assert "old" in {row["state"] for row in shell.rows("levels", "verify", "--before", before)}
    doomed = ("levels", "remove", "--before", before)
    found_states = states(shell.rows(*doomed, code=5))
    assert found_states == {"2s": "removed", "1.5s": "removed", "8s": "kept", "due": "kept", "dead": "kept"}
    assert "it holds messages: 1. " in shell.said
    assert f"removed route orders: front exchange '{line.front}', intake queue '{line.intake}'" in shell.said
    assert line.receive()[0].body == b"in a level"
    assert states(shell.rows(*doomed, "--force")) == dict.fromkeys(("8s", "due", "dead"), "removed")
    assert {row["state"] for row in shell.rows("levels", "verify")} == {"same"}
    put(line, b"with a level that is gone", number(1))
    put(line, b"not delayed")
    assert line.receive()[0].body == b"not delayed"
    wait_for(lambda: line.depth(line.intake) == 1, "it waits in the intake")


def test_a_renamed_route_keeps_the_queues_that_it_needs(line: LevelLine, shell: Shell) -> None:
    before = shell.file({}, "before")
    line.settings = {**line.settings, "routes": {"bills": line.settings["routes"]["orders"]}}
    put(line, b"in a level", number(2))
    assert {row["route"] for row in shell.rows("levels", "stats", "--before", before)} == {"bills"}
    assert shell.rows("levels", "remove", "--before", before, "--force") == []
    assert "removed route" not in shell.said
    assert line.receive()[0].body == b"in a level"
    put(line, b"in a level again", number(2))
    assert line.receive()[0].body == b"in a level again"


@pytest.mark.parametrize("another", [False, True], ids=["the only route", "beside one with a store"])
def test_what_is_parked_when_a_route_leaves_its_store_is_delivered(
    line: LevelLine, shell: Shell, redis_url: str, key_prefix: str, another: bool
) -> None:
    store: Tables = {"redis": {"url": redis_url, "key_prefix": key_prefix.removesuffix(":"), "durability": "none"}}
    if another:
        target = line.settings["routes"]["orders"]["deliver_to"]
        bills = {"intercept": f"{line.front}.bills", "deliver_to": target, "queue": f"{line.intake}.bills"}
        store = {**store, "routes": {"bills": bills}}
    sent = time.time()
    stored = merged(store, {"routes": {"orders": {"mode": "redis"}}})
    shell("send", "orders", "parked", "--routing-key", "key", "--in", "3s", settings=stored)
    words = "Redis still holds messages of RabbitMQ routes that had mode redis before (orders): 1 parked"
    warned = [row["text"] for row in shell.rows("check", settings=store) if row["level"] == "WARN"]
    assert any(text.startswith(words) for text in warned) is not another
    with line.run(store) as bridge:
        got = line.receive()[0]
        assert (got.body, got.routing_key) == (b"parked", b"key")
        assert time.time() - sent >= 3.0
        assert (words in bridge.log()) is not another
        assert bridge.terminate() == 0


def test_a_dry_run_compares_and_exits_as_setup_would(line: LevelLine, shell: Shell) -> None:
    assert {row["state"] for row in shell.rows("levels", "setup", "--dry-run")} == {"there"}
    changed = {row["name"]: row["state"] for row in shell.rows("setup", "--dry-run", settings=CHANGED)}
    assert changed[line.front] == "there"
    assert {state for name, state in changed.items() if "700ms" in name} == {"planned"}
    assert changed[f"{line.intake}.levels"] == "outdated"
    stored: Tables = {"routes": {"orders": {"mode": "redis"}}}
    assert "different" in {row["state"] for row in shell.rows("setup", "--dry-run", settings=stored, code=5)}
    assert f"exchange '{line.front}' of route orders exists with alternate-exchange" in shell.said


def test_levels_become_a_ladder_and_messages_in_them_are_delivered(line: LevelLine, shell: Shell) -> None:
    ladder: Tables = {"routes": {"orders": {"mode": "ladder"}}}
    put(line, b"on its level", number(1))
    shell("setup", settings=ladder)
    assert line.receive()[0].body == b"on its level"
    old = [row for row in shell.rows("levels", "stats", settings={**ladder}) if row["state"] == "old"]
    assert len(old) == 3
    shell("setup")
    put(line, b"on its level again", number(1))
    assert line.receive()[0].body == b"on its level again"  # and no bridge has run


@pytest.mark.long
def test_a_ladder_is_removed_from_the_top_while_messages_descend_and_none_is_lost_or_early(
    rabbitmq: RabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Repeated removals meet messages that RabbitMQ is moving between two steps."""
    with LevelLine(rabbitmq.url, tmp_path, ALONE, mode="ladder") as line:
        shell, levels = Shell(line, capsys), {"routes": {"orders": {"mode": "levels"}}}
        top = line.places().ladder[2]
        steps = [(STEP_HEADERS[step], "V", b"") for step in (2, 1, 0)]
        line.setup(levels)
        sent, bodies = {}, [b"%d" % number for number in range(12)]
        for body in bodies:
            line.publish(Props(steps, {"delivery_mode": b"\2"}), body, exchange=top)
            sent[body] = time.time()
            time.sleep(0.1)  # so that they do not all move at one moment
        rounds: list[dict[str, str]] = []
        while not rounds or "kept" in rounds[-1].values():
            found = json.loads(shell("levels", "remove", "-o", "json", settings=levels, code=None))
            rounds.append(states(found))
        assert "kept" in rounds[0].values()
        assert {"00", "27"} <= {name for states in rounds for name in states}
        got = {message.body: message.at for message in line.receive(len(bodies))}
        assert got.keys() == set(bodies)
        assert all(got[body] >= sent[body] + 7 for body in bodies), (got, sent)


def test_a_classic_queue_of_previous_settings_is_removed_only_when_rabbitmq_finds_it_empty(
    line: LevelLine, shell: Shell
) -> None:
    classic: Tables = {"levels": {"queue_type": "classic"}}
    line.setup(classic)
    before = plan_waits(line.loaded(classic), "orders")
    names = {before.due, *before.levels.values()}
    line.publish(Props([], {"delivery_mode": b"\2"}), b"in a classic queue", exchange=before.levels[2000])
    line.setup({})

    def removed() -> dict[str, str]:
        rows = json.loads(shell("levels", "remove", "-o", "json", code=None))
        return {row["name"]: row["state"] for row in rows if row["name"] in names}

    empty = names - {before.due, before.levels[2000]}
    assert removed() == {before.due: "kept", before.levels[2000]: "kept", **dict.fromkeys(empty, "removed")}
    assert line.receive()[0].body == b"in a classic queue"
    assert removed() == {before.due: "removed", before.levels[2000]: "removed"}
    put(line, b"in a quorum queue", number(1))
    assert line.receive()[0].body == b"in a quorum queue"
