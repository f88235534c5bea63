"""The law: the states of a message and every legal move between them. Nothing moves in any other way.

A message is in one state at a time, and each move is one Lua script of the same name, carried out as a whole by the
store or not at all. PARKED: in the due set. CLAIMED: in the claimed set, under a lease that only its claimer's token
can settle, release, bury or renew. DEAD: in the dead set, with its reason. GONE: nowhere.

Where copies come from: ``recover`` gives back a lease that ran out, although its holder may have published; ``release``
after an unknown outcome does the same; a source that did not hear our acceptance delivers again (``park``), which
makes no copy where its records have an origin (``bridge.core.message.Origin``).
A test holds the scripts, the store's fake and this table against each other, so a move is added here first.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class State(Enum):
    NEW = "new"
    PARKED = "parked"
    CLAIMED = "claimed"
    DEAD = "dead"
    GONE = "gone"


class Move(NamedTuple):
    """One move, and who makes it."""

    name: str
    before: State
    after: State
    by: str


MOVES = (
    Move("park", State.NEW, State.PARKED, "the source delivered it with a readable delay"),
    Move("reject", State.NEW, State.DEAD, "its header is no moment, or its key is taken"),
    Move("claim", State.PARKED, State.CLAIMED, "it is due"),
    Move("renew", State.CLAIMED, State.CLAIMED, "the broker takes its time"),
    Move("settle", State.CLAIMED, State.GONE, "the broker confirmed it"),
    Move("release", State.CLAIMED, State.PARKED, "refused for now, or no answer"),
    Move("bury", State.CLAIMED, State.DEAD, "refused for good, or damaged"),
    Move("recover", State.CLAIMED, State.PARKED, "its lease ran out"),
    Move("retry", State.DEAD, State.PARKED, "someone mended the cause"),
    Move("cancel", State.PARKED, State.GONE, "nobody wants it any more"),
    Move("cancel", State.DEAD, State.GONE, "nobody wants it any more"),
    Move("reschedule", State.PARKED, State.PARKED, "another moment"),
)
