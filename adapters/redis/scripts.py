"""Reads the Lua scripts and puts their includes in.

``--- @include include/now`` takes in ``lua/include/now.lua``, once, before what needs it. A fragment never reads KEYS
or ARGV, so it does not depend on the order of its caller's keys (a test holds it to that).
"""

from __future__ import annotations

import re
from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import NamedTuple

LUA = Path(__file__).parent / "lua"
_INCLUDE = re.compile(r"^--- @include (\S+)\n", re.MULTILINE)


class Script(NamedTuple):
    """One script, ready to send. ``sha`` is the name by which Redis runs it (EVALSHA)."""

    name: str
    text: str
    sha: str


class BrokenInclude(Exception):
    """An include that is missing or includes itself."""


def flatten(name: str, root: Path = LUA) -> str:
    """The script ``name`` with its includes, in the order in which they are needed, each once."""
    body = (root / f"{name}.lua").read_text()
    shebang, _, rest = body.partition("\n") if body.startswith("#!") else ("", "", body)
    taken: list[str] = []
    parts: list[str] = []
    _collect(root, rest, [name], taken, parts)
    return "".join((f"{shebang}\n" if shebang else "", *parts, _INCLUDE.sub("", rest)))


def _collect(root: Path, body: str, path: list[str], taken: list[str], parts: list[str]) -> None:
    for include in _INCLUDE.findall(body):
        if include in path:
            raise BrokenInclude(" includes ".join([*path, include]))
        if include in taken:
            continue
        file = root / f"{include}.lua"
        if not file.exists():
            raise BrokenInclude(f"{path[-1]} includes {include}, which does not exist")
        text = file.read_text()
        _collect(root, text, [*path, include], taken, parts)
        taken.append(include)
        parts.append(_INCLUDE.sub("", text))


@cache
def scripts() -> dict[str, Script]:
    """All scripts by name: the moves, what instances say to each other about shards, and what a desk reads."""
    found = {}
    for file in sorted(LUA.glob("*/*.lua")):
        if file.parent.name == "include":
            continue
        text = flatten(f"{file.parent.name}/{file.stem}")
        found[file.stem] = Script(file.stem, text, sha1(text.encode(), usedforsecurity=False).hexdigest())
    return found
