"""Loads the Lua scripts, with their includes, and describes one call of a script.

``--- @include include/now`` inserts ``lua/include/now.lua`` once, before the code that needs it. An indented one
inserts it in its block: Lua makes a function each time that it comes to one, so what is rare stands where it is needed.
A fragment never reads KEYS or ARGV, so it does not depend on its caller's order of keys (a test checks this).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Any, NamedTuple

from bridge.core.errors import StoreUnavailable

LUA = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r"^--- @include (\S+)\n", re.MULTILINE)
_INCLUDE_IN_BLOCK = re.compile(r"^ +--- @include (\S+)\n", re.MULTILINE)
#: Where a script names its keys, once, at the top.
_NAMES = re.compile(r"^local ([A-Z, ]+) = KEYS\[\d+\]", re.MULTILINE)


class Script(NamedTuple):
    """One script, ready to send. Redis runs it by its ``sha`` (EVALSHA). ``keys``: the names of its KEYS, in order."""

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]


class BrokenInclude(Exception):
    """An include is missing, or includes itself."""


def flatten(name: str, root: Path = LUA) -> str:
    """Return the script ``name`` with each of its includes once, dependencies first."""
    body = (root / f"{name}.lua").read_text("utf-8")
    shebang, _, rest = body.partition("\n") if body.startswith("#!") else ("", "", body)
    taken: list[str] = []
    parts: list[str] = []
    _collect(root, rest, [name], taken, parts)
    rest = _INCLUDE_IN_BLOCK.sub(lambda found: _for_block(root, found[1], [name], taken), _INCLUDE.sub("", rest))
    return "".join((f"{shebang}\n" if shebang else "", *parts, rest))


def _for_block(root: Path, include: str, path: list[str], taken: list[str]) -> str:
    """Return what a block needs for an include, besides what the whole script has taken."""
    parts: list[str] = []
    _collect(root, f"--- @include {include}\n", path, list(taken), parts)
    return "".join(parts)


def _collect(root: Path, body: str, path: list[str], taken: list[str], parts: list[str]) -> None:
    for include in _INCLUDE.findall(body):
        if include in path:
            raise BrokenInclude(" includes ".join([*path, include]))
        if include in taken:
            continue
        file = root / f"{include}.lua"
        if not file.exists():
            raise BrokenInclude(f"{path[-1]} includes {include}, which does not exist")
        text = file.read_text("utf-8")
        _collect(root, text, [*path, include], taken, parts)
        taken.append(include)
        parts.append(_INCLUDE.sub("", text))


@cache
def scripts() -> dict[str, Script]:
    """Return all scripts by name: moves, agreements about shards, and what the admin desk reads."""
    found = {}
    for file in sorted(LUA.glob("*/*.lua")):
        if file.parent.name == "include":
            continue
        text = flatten(f"{file.parent.name}/{file.stem}")
        names = ", ".join(_NAMES.findall(text)).lower().split(", ")
        found[file.stem] = Script(file.stem, text, sha1(text.encode(), usedforsecurity=False).hexdigest(), tuple(names))
    return found


class Call(NamedTuple):
    """One script with its keys, all of one shard, and its arguments."""

    script: Script
    keys: tuple[str, ...]
    args: Sequence[Any]


class Wait(NamedTuple):
    """A command that waits for the writes before it on the same connection (WAIT, WAITAOF).

    When fewer than ``needed`` servers answer, the calls fail with ``fact`` and ``advice``.
    """

    command: tuple[Any, ...]
    needed: int
    fact: str
    advice: str = ""


def commands(calls: Iterable[Call]) -> list[tuple[Any, ...]]:
    """Return the commands that run these calls."""
    return [("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args) for call in calls]


def checked(replies: list[Any], answered: Any, wait: Wait) -> list[Any]:
    """Return the replies. When the wait failed, its error takes the place of each reply that is not an error."""
    error: Exception | None = None
    if isinstance(answered, Exception):
        error = answered
    else:
        count = answered[0] if isinstance(answered, list) else answered  # WAITAOF answers [this server, replicas]
        if count < wait.needed:
            advice = f". {wait.advice}" if wait.advice else ""
            error = StoreUnavailable(f"{wait.fact}: {count} of {wait.needed} answered{advice}")
    return [reply if error is None or isinstance(reply, Exception) else error for reply in replies]
