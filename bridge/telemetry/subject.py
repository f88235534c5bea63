"""What a trouble is about, as a value. ``str`` renders it for the log, the status and the probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: The part of a broker that takes messages in. Without it the process is not ready, though it is connected.
INTAKE = "intake"


class Subject(NamedTuple):
    """``peer`` is a server, or a part of the process. ``part`` is what of it, and ``name`` which one, if there are
    several; "" for all of it."""

    peer: str
    part: str = ""
    name: str = ""

    def is_intake(self, broker: str) -> bool:
        return self.peer == broker and self.part == INTAKE

    def __str__(self) -> str:
        return " ".join(word for word in self if word)


def rendered(troubles: Mapping[Subject, str]) -> dict[str, str]:
    return {str(subject): sentence for subject, sentence in troubles.items()}


OVERDUE = Subject("overdue")
STORE = Subject("store")
STORE_CLAIM = Subject("store", "claim")
STORE_PARK = Subject("store", "park")
#: The store answers, and has no memory for anything new.
STORE_FULL = Subject("store", "full")
STORE_SETTLE = Subject("store", "settle")
STORE_CLOCK = Subject("store", "clock")
STORE_CONTENTS = Subject("store", "contents")
#: Health has these subjects while the store does not answer.
STORE_AWAY = frozenset({STORE, STORE_CLAIM, STORE_PARK, STORE_SETTLE})


def makes_late(subject: str) -> bool:
    """Return whether a trouble makes messages late: beside it, ``overdue`` is no trouble of its own."""
    match subject.split(" "):
        case ["store"] | ["store", "claim" | "park" | "settle"]:
            return True
        case ["instance" | "claim" | "confirms" | "refused"] | ["route", _] | ["journal", "cold"]:
            return True
        case [_, "intake" | "publish" | "alarm" | "leader" | "transactions", *_]:
            return True
    return False
