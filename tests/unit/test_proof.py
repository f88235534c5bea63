"""The rows of `make prove` name tests that exist, and every promise that the pages make has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.proof.__main__ import BEGIN, END, PAGE, table
from tests.proof.rows import ROWS, Row

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / "deploy" / name).read_text() for name in ("promises.md", "high-availability.md")]
README = (ROOT / "README.md").read_text()
#: A loss of power cannot be caused here, and durability "none" promises nothing.
NOT_HERE = ("| Redis, machine loses power |", "| `none` |")


def flat(text: str) -> str:
    return " ".join(text.split())


def sections(page: str) -> dict[str, str]:
    """Return the sections of a page by title."""
    return {title: text for title, _, text in (part.partition("\n") for part in page.split("\n## ")[1:])}


def named_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds) and node.name.startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.server}: {row.fault}")
def test_a_row_names_tests_and_a_promise_that_exist(row: Row) -> None:
    for test in row.tests:
        file, _, name = test.partition("::")
        assert any(name in found for found in named_in(file)), test
    assert any(row.promise in flat(page) for page in PAGES), row.promise


def test_no_two_rows_have_the_same_name() -> None:
    names = [(row.server, row.fault) for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("line", re.findall(r"^\| (?!what |`redis|-).+ \|$", "\n".join(PAGES), re.MULTILINE))
def test_what_a_page_says_of_a_death_a_freeze_or_a_step_has_a_row(line: str) -> None:
    if not line.startswith(NOT_HERE):
        first = line.split(" | ")[0]
        assert any(first.startswith(row.promise.removesuffix(" |")) or row.promise in line for row in ROWS), line


@pytest.mark.parametrize("title", [title for page in PAGES for title in sections(page)])
def test_each_promise_and_each_server_that_may_die_has_a_row(title: str) -> None:
    section = flat(next(sections(page)[title] for page in PAGES if title in sections(page)))
    assert any(row.promise in section for row in ROWS)


@pytest.mark.parametrize(
    "promise", re.findall(r"^\| \*\*(.+?)\*\*", README.split("## What is promised")[1], re.MULTILINE)
)
def test_each_promise_of_the_readme_has_its_section(promise: str) -> None:
    assert any(promise.replace("`", "") in title for title in sections(PAGES[0]))


def test_the_table_has_a_line_for_each_row_and_says_what_did_not_run() -> None:
    found = {"tests": 3, "skipped": 1, "failed": 0, "messages": 90, "lost": 0, "early": 0, "copies": 2}
    lines = table({"Redis: away": found}, "abc").splitlines()
    assert "| Redis | away | 2 | 90 | 0 | 0 | 2 | – | abc | kept |" in lines
    assert sum(line.endswith("| not run |") for line in lines) == len(ROWS) - 1


def test_a_row_that_did_not_run_keeps_the_result_of_an_older_commit() -> None:
    older = "| Redis | away | 2 | 90 | 0 | 0 | 2 | – | abc | kept |"
    assert older in table({}, "def", f"something\n{older}\n").splitlines()


def test_the_page_has_a_place_for_the_table() -> None:
    text = PAGE.read_text()
    assert 0 < text.index(BEGIN) < text.index(END)
