"""The table of verbs: every reader of it agrees with it, and a refused verb says why after one look at the history."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest

from adapters.memory.memory_desk import MemoryDesk
from bridge.cli.commands import COMMANDS
from bridge.core.state import State
from bridge.desk.past import PastCursor, PastFilter
from bridge.http.page import read_files
from bridge.http.schemas import Bulk
from bridge.operate.verbs import RESTORE, VERBS, VerbName
from bridge.parking.history import HistoryRow
from tests.api import api

GONE = "1gd4r5kq2000ab3c9d00"


def test_the_api_the_commands_and_the_table_name_the_same_verbs() -> None:
    names = [verb.name for verb in VERBS]
    assert sorted(names) == sorted(get_args(VerbName))
    assert sorted(names) == sorted(Bulk.model_json_schema()["properties"]["verb"]["enum"])
    assert set(names) <= COMMANDS.keys()


def test_the_page_says_of_each_verb_what_the_table_says() -> None:
    script = " ".join(read_files()["verbs.js"].content.decode().split())
    table = script.partition("export const VERBS = {")[2].partition(" };")[0]
    rows = re.findall(r'(\w+): \{ name: ".*?", key: "\w", states: \[(.*?)\], text: ".*?", done: "(.*?)"', table)
    states = {verb.name: ", ".join(f'"{state.value}"' for state in verb.states) for verb in VERBS}
    assert rows == [(verb.name, states[verb.name], verb.done) for verb in VERBS]


def test_the_api_and_the_commands_call_a_restore_the_same() -> None:
    assert RESTORE in COMMANDS


async def test_the_commands_shown_with_a_message_are_the_verbs_that_change_it() -> None:
    async with api() as client:
        ids = {State.PARKED: await client.schedule(), State.DEAD: await client.bury()}
        for state, message_id in ids.items():
            commands = (await client.get(f"/messages/{message_id}"))["commands"]
            assert set(commands) == {"show", *(verb.name for verb in VERBS if state in verb.states)}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
@pytest.mark.parametrize("known", [True, False])
async def test_a_verb_refused_for_a_message_that_left_says_so_after_one_look_at_the_history(
    verb: Any, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[bytes | None] = []
    read = MemoryDesk.history

    def counted(desk: MemoryDesk, wanted: PastFilter, after: PastCursor | None = None) -> AsyncIterator[HistoryRow]:
        looks.append(wanted.id)
        return read(desk, wanted, after)

    async with api() as client:
        message_id = GONE
        if known:
            message_id = await client.schedule()
            await client.call("DELETE", f"/messages/{message_id}?reason=wrong")
        monkeypatch.setattr(MemoryDesk, "history", counted)
        path = f"/messages/{message_id}"
        method, path, body = {
            "cancel": ("DELETE", path, None),
            "reschedule": ("PATCH", path, {"in": "5m"}),
            "deliver": ("POST", f"{path}/deliver", None),
            "retry": ("POST", f"{path}/retry", None),
        }[verb.name]
        problem = await client.call(method, path, 409 if known else 404, body)
        assert looks == [message_id.encode()]
        assert problem["state"] == ("cancelled" if known else "none")
        assert ("was cancelled at" in problem["detail"]) is known
        assert ("at_ms" in problem) is known
