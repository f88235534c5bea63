"""The table of moves is executed by the memory store and shown in the docs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from adapters.memory.shard import Shard
from bridge.core.orders import HELD_MS
from bridge.core.state import MOVES, Guard, IllegalMove, State, diagram, follow
from bridge.parking.envelope import seal
from bridge.parking.identity import Ids

ROOT = Path(__file__).parents[2]
#: What stands around the copy of the diagram in a document.
BEGIN, END = "<!-- states: python -m bridge.core.state -->\n", "\n<!-- /states -->"
ID = Ids("aaaaaa").next(1, 0)
MEMBER = ID + b"12345678"
LEGAL = {(move.name, move.before): move for move in MOVES}


def shard_with_one(state: State) -> Shard:
    """A shard with one message in this state; none for NEW and GONE."""
    shard = Shard(lambda: 1, lambda _: None)
    if state in (State.NEW, State.GONE):
        return shard
    shard.messages[ID] = seal(1, 1, b"orders", b"", b"", b"body")
    match state:
        case State.PARKED:
            shard.due.put(ID, 1)
        case State.HELD:
            shard.due.put(ID, HELD_MS + 1)
        case State.CLAIMED:
            shard.claimed[MEMBER] = 1
        case State.DEAD:
            shard.dead[ID] = 1
    return shard


def state_of(shard: Shard) -> State:
    return shard._state(ID, MEMBER)


@pytest.mark.parametrize("state", [State.NEW, State.PARKED, State.HELD, State.CLAIMED, State.DEAD])
@pytest.mark.parametrize("name", sorted({move.name for move in MOVES}))
def test_the_memory_store_makes_a_move_if_and_only_if_the_table_has_it(name: str, state: State) -> None:
    shard, move = shard_with_one(state), LEGAL.get((name, state))
    guard = next(move.guard for move in MOVES if move.name == name)
    if move is None:
        with pytest.raises(IllegalMove, match=name):
            shard._move(name, ID, guard, 2, MEMBER)
        assert state_of(shard) is state
    else:
        shard._move(name, ID, guard, 2 + HELD_MS * (move.after is State.HELD), MEMBER)
        after = (
            State.NEW if move.after is State.GONE else move.after
        )  # the store keeps nothing of a message that is gone
        if name in ("park", "reject"):
            shard.messages[ID] = b""
        assert state_of(shard) is after


def test_a_move_requires_the_guard_of_the_table() -> None:
    for move, guard in product(MOVES, Guard):
        if guard is move.guard:
            assert follow(move.name, move.before, guard) is move.after
        else:
            with pytest.raises(IllegalMove, match=move.guard.name):
                follow(move.name, move.before, guard)


def test_the_diagram_shows_every_move() -> None:
    text = diagram()
    assert all(f": {move.name}\n" in text for move in MOVES)
    assert all(f"| {move.name} | {move.before.value} | {move.after.value} |" in text for move in MOVES)


def test_the_copies_in_the_docs_are_what_the_table_prints() -> None:
    documents = [ROOT / "README.md", *(ROOT / "bridge").glob("*.md"), *(ROOT / "deploy").rglob("*.md")]
    copies = {file: file.read_text() for file in documents if BEGIN.strip() in file.read_text()}
    for file, text in copies.items():
        assert text.partition(BEGIN)[2].partition(END)[0] == diagram(), file
