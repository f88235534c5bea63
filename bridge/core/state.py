"""The states of a message and every legal move between them. No message moves in any other way.

A message is in one state at a time. PARKED: in the due set. HELD: in the due set behind everything that is parked,
with its order, because its route is paused or at its rate (``bridge.core.orders``), or no instance has it; operators
see it as parked, and held. CLAIMED: in a claim, under a lease that only the claimer's token can settle, release, hold,
bury or renew.
DEAD: in the dead set, with a reason. GONE: not in the store.
Each move is one Lua script of the same name, which Redis carries out as a whole or not at all.

The table is executed: the memory store asks ``follow`` for every move. A test compares the Lua scripts with it.
The diagram in the docs is printed from it: ``python -m bridge.core.state``.

Three moves can make copies. ``recover`` takes back an expired lease, although its holder may have published the
message. ``release`` after an unknown outcome does the same. A source whose acknowledgement was lost delivers again,
and ``park`` makes a copy, unless the record has an origin (``bridge.core.message.Origin``).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(Enum):
    NEW = "new"
    PARKED = "parked"
    HELD = "held"
    CLAIMED = "claimed"
    DEAD = "dead"
    GONE = "gone"


class Guard(Enum):
    """What the store checks, besides the state, before it makes a move."""

    UNSEEN = "the store has not seen its origin, the call's token, or the id of one put back"
    DUE = "its due moment has come, or will within the look-ahead"
    LEASED = "the caller's token holds the lease"
    LAPSED = "the lease has expired, or the reply to its claim was lost"
    ASKED = "nothing else"
    FENCED = "no message changed its tier in the shard since the caller looked into the journal"
    UNTOUCHED = "it was neither tried nor loaded, and is due at the moment that the caller saw"
    DRAINED = "no other instance drains its shard, and the caller names its route"


class Move(NamedTuple):
    """One move, what the store checks, and why a message makes it."""

    name: str
    before: State
    after: State
    guard: Guard
    why: str


MOVES = (
    Move("park", State.NEW, State.PARKED, Guard.UNSEEN, "the source delivered it with a readable delay"),
    Move(
        "reject",
        State.NEW,
        State.DEAD,
        Guard.UNSEEN,
        "its delay is unreadable, it is too large or not allowed, or its key is taken",
    ),
    Move("load", State.NEW, State.PARKED, Guard.FENCED, "it is cold, and due soon or wanted"),
    Move("unload", State.PARKED, State.GONE, Guard.UNTOUCHED, "the journal has it, and it is due much later"),
    Move("claim", State.PARKED, State.CLAIMED, Guard.DUE, "it is due"),
    Move("renew", State.CLAIMED, State.CLAIMED, Guard.LEASED, "the broker has not answered yet"),
    Move("settle", State.CLAIMED, State.GONE, Guard.LEASED, "the broker confirmed it"),
    Move("release", State.CLAIMED, State.PARKED, Guard.LEASED, "refused for now, or no answer"),
    Move("hold", State.CLAIMED, State.HELD, Guard.LEASED, "its route is paused, at its rate or missing"),
    Move("let_go", State.HELD, State.PARKED, Guard.DRAINED, "its route was resumed, has room in its rate or is back"),
    Move("bury", State.CLAIMED, State.DEAD, Guard.LEASED, "refused for good, or damaged"),
    Move("recover", State.CLAIMED, State.PARKED, Guard.LAPSED, "its instance died or lost the store"),
    Move("retry", State.DEAD, State.PARKED, Guard.ASKED, "an operator fixed the cause"),
    Move("cancel", State.PARKED, State.GONE, Guard.ASKED, "its producer cancelled or replaced it, or an operator did"),
    Move("cancel", State.HELD, State.GONE, Guard.ASKED, "the same, while it is held"),
    Move("cancel", State.DEAD, State.GONE, Guard.ASKED, "an operator cancelled it"),
    Move("reschedule", State.PARKED, State.PARKED, Guard.ASKED, "an operator gave it another moment"),
    Move("reschedule", State.HELD, State.HELD, Guard.ASKED, "the same, while it is held"),
)

_LEGAL = {(move.name, move.before): move for move in MOVES}


class IllegalMove(Exception):
    """A move that the table does not have: a mistake in postdate."""


def follow(name: str, before: State, checked: Guard) -> State:
    """Return the state after a move. ``checked`` is the guard that the caller has checked.

    Raises ``IllegalMove`` if the table has no such move from this state, or asks for another guard.
    """
    move = _LEGAL.get((name, before))
    if move is None:
        raise IllegalMove(f"no move {name} from {before.value}")
    if move.guard is not checked:
        raise IllegalMove(f"{name} from {before.value} requires {move.guard.name}, and {checked.name} was checked")
    return move.after


def diagram() -> str:
    """Return the table as Markdown: a Mermaid state diagram, then one row a move."""
    edges = [f"    {_node(move.before)} --> {_node(move.after)}: {move.name}" for move in MOVES]
    rows = [f"| {m.name} | {m.before.value} | {m.after.value} | {m.guard.value} | {m.why} |" for m in MOVES]
    return "\n".join(
        (
            "```mermaid",
            "stateDiagram-v2",
            *edges,
            "```",
            "",
            "| move | from | to | the store checks | because |",
            "|---|---|---|---|---|",
            *rows,
        )
    )


def _node(state: State) -> str:
    return "[*]" if state in (State.NEW, State.GONE) else state.name


if __name__ == "__main__":
    print(diagram())
