"""The Lua scripts match their header comments and the table of moves."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from adapters.redis.scripts import LUA, flatten
from bridge.core.state import MOVES, State

MOVE_FILES = sorted(LUA.glob("moves/*.lua"))
SCRIPT_FILES = sorted(file for file in LUA.glob("*/*.lua") if file.parent.name != "include")
FRAGMENTS = sorted(LUA.glob("include/*.lua"))
LINES_MAX = 140
#: From an indented include to the end of its block, whose lines are indented as much or more.
BLOCK = re.compile(r"^( +)--- @include .*\n(?:(?:\1.*)?\n)*", re.MULTILINE)

#: Names that Redis or Lua defines.
KNOWN = """
redis KEYS ARGV cjson cmsgpack struct bit string table math tonumber tostring type ipairs pairs next select unpack error
assert pcall
"""
WORDS = """
and break do else elseif end false for function if in local nil not or repeat return then true until while
"""
in_scripts = pytest.mark.parametrize("file", SCRIPT_FILES, ids=lambda file: file.stem)
in_fragments = pytest.mark.parametrize("file", FRAGMENTS, ids=lambda file: file.stem)
in_all = pytest.mark.parametrize("file", [*SCRIPT_FILES, *FRAGMENTS], ids=lambda file: file.stem)


def header(file: Path) -> str:
    """Return the comment at the top of a file, without the shebang and the dashes."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#!")]
    taken = []
    for line in lines:
        if not line.startswith("--") or line.startswith("---"):
            break
        taken.append(line[2:].strip())
    return "\n".join(taken)


def part(text: str, name: str) -> str:
    """Return the part of a header under KEYS, ARGV or Returns."""
    found = re.search(rf"^{name}\b(.*?)(?=^(?:KEYS|ARGV|Returns)\b|\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


def code(text: str) -> str:
    """Return a script without comments and without the contents of quotes."""
    text = re.sub(r"^#!.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"", "''", text)
    return re.sub(r"--[^\n]*", "", text)


def used(text: str, name: str) -> set[int]:
    """Return the literal indexes of KEYS or ARGV in a script."""
    return {int(number) for number in re.findall(rf"\b{name}\[(\d+)\]", code(text))}


def undeclared(text: str) -> set[str]:
    """Return names used without `local`, a parameter or a loop. A scan and no parser: it ignores scopes."""
    body = re.sub(r"[.:]\s*[A-Za-z_]\w*", "", code(text))  # fields and methods
    body = re.sub(r"\{[^{}]*\}", lambda table: re.sub(r"\b\w+\s*=(?!=)", "", table[0]), body)  # names of fields
    declared: set[str] = set()
    for names in re.findall(r"\blocal\s+(?!function)([\w\s,]+?)(?:=|\n|$)", body):
        declared.update(re.findall(r"\w+", names))
    for names in re.findall(r"\bfor\s+([\w\s,]+?)\s*(?:=|\bin\b)", body):
        declared.update(re.findall(r"\w+", names))
    for name, parameters in re.findall(r"\bfunction\s+(\w+)\s*\(([^)]*)\)", body):
        declared.update([name, *re.findall(r"\w+", parameters)])
    return set(re.findall(r"\b[A-Za-z_]\w*\b", body)) - declared - {*KNOWN.split(), *WORDS.split()}


def test_the_move_scripts_are_the_moves_of_the_table() -> None:
    assert {file.stem for file in MOVE_FILES} == {move.name for move in MOVES}


def test_the_table_reaches_every_state_and_leaves_gone_messages_alone() -> None:
    assert len({(move.name, move.before) for move in MOVES}) == len(MOVES)
    assert all(move.after is not State.NEW for move in MOVES)
    assert all(move.before is not State.GONE for move in MOVES)
    assert {move.after for move in MOVES} | {State.NEW} == set(State)


@pytest.mark.parametrize("file", MOVE_FILES, ids=lambda file: file.stem)
def test_the_first_line_of_a_move_names_its_states(file: Path) -> None:
    first = header(file).split("\n")[0]
    for move in MOVES:
        if move.name == file.stem:
            assert f"{move.before.value} -> {move.after.value}" in first


@in_scripts
def test_a_header_documents_keys_arguments_and_reply(file: Path) -> None:
    text = header(file)
    assert len(text.split("\n")[0]) > 10
    assert part(text, "KEYS").strip()
    assert part(text, "Returns").strip()
    if "ARGV" in code(file.read_text()):
        assert part(text, "ARGV").strip()


@in_scripts
def test_the_keys_that_a_script_uses_are_those_of_its_header(file: Path) -> None:
    documented = {int(number) for number in re.findall(r"(?:^|\s)(\d+) [a-z]", part(header(file), "KEYS"))}
    assert used(file.read_text(), "KEYS") == documented == set(range(1, len(documented) + 1))


@in_scripts
def test_a_script_names_its_keys_once_at_the_top(file: Path) -> None:
    lines = [line for line in code(file.read_text()).splitlines() if line.strip()]
    naming = [line for line in lines if "KEYS[" in line]
    assert naming == lines[: len(naming)]
    found: list[str] = []
    for line in naming:
        declared = re.fullmatch(r"local ([A-Z, ]+) = (KEYS\[\d+\](?:, KEYS\[\d+\])*)", line)
        assert declared, line
        assert declared[1].count(",") == declared[2].count(",")
        found += re.findall(r"\d+", declared[2])
    assert found == [str(number) for number in range(1, len(found) + 1)]


@in_scripts
def test_a_script_uses_only_arguments_of_its_header(file: Path) -> None:
    documented = [int(number) for number in re.findall(r"(?:^|\s)(\d+) ", part(header(file), "ARGV"))]
    assert max(used(file.read_text(), "ARGV"), default=0) <= max(documented, default=0)


@in_scripts
def test_a_script_begins_with_its_flags(file: Path) -> None:
    assert re.match(r"#!lua( flags=[a-z-]+)?\n--", file.read_text())


def test_only_what_adds_messages_is_refused_when_memory_is_full() -> None:
    refused = {file.stem for file in SCRIPT_FILES if "flags=" not in file.read_text().partition("\n")[0]}
    assert refused == {"park", "reject", "record"}


@in_scripts
def test_a_script_has_no_global_variables(file: Path) -> None:
    assert undeclared(flatten(f"{file.parent.name}/{file.stem}")) == set()


@in_scripts
def test_what_a_block_includes_is_used_in_this_block_only(file: Path, tmp_path: Path) -> None:
    shutil.copytree(LUA / "include", tmp_path / "include")
    (tmp_path / "a.lua").write_text(BLOCK.sub("", file.read_text()))
    assert undeclared(flatten("a", tmp_path)) == set()


@in_fragments
def test_a_fragment_does_not_read_keys_or_arguments(file: Path) -> None:
    assert not re.search(r"\b(KEYS|ARGV)\b", code(file.read_text()))


@in_fragments
def test_a_fragment_is_used(file: Path) -> None:
    line = f"--- @include include/{file.stem}\n"
    assert any(line in other.read_text() for other in (*SCRIPT_FILES, *FRAGMENTS))


@in_all
def test_a_file_is_short_and_opens_with_a_comment(file: Path) -> None:
    lines = file.read_text().splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= 120
    assert header(file)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("local a, b = 1, 2\nreturn a + b", set()),
        ("a = 1", {"a"}),
        ("local function f(x) return x, y end", {"y"}),
        ("for n = 1, 2 do m = n end", {"m"}),
        ("for _, v in ipairs(t) do local w = v end", {"t"}),
        ("redis.call('SET', KEYS[1], 'word') -- a comment", set()),
        ("local t = {a = 1, b = c}", {"c"}),
    ],
)
def test_the_scan_for_globals_finds_them(text: str, names: set[str]) -> None:
    assert undeclared(text) == names
