"""Every link in the documentation leads to a file, and to its heading. The index of decisions is complete."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A part of another page.
TABLE = "deploy/compare/table.md"
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def _pages() -> list[str]:
    command = ["git", "-c", "safe.directory=*", "ls-files", "*.md"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@pytest.mark.parametrize("page", _pages())
def test_every_link_leads_somewhere(page: str) -> None:
    source = ROOT / page
    broken = []
    for link, picture in _LINK.findall(_CODE.sub("", source.read_text())):
        path, _, anchor = (link or picture).partition("#")
        if ":" in path:
            continue
        target = (source.parent / path).resolve() if path else source
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in _anchors(target)):
            broken.append(link or picture)
    assert not broken


@pytest.mark.parametrize("page", sorted({page for page in _pages() if page.startswith("deploy/")} - {TABLE}))
def test_every_manual_is_in_the_menu_of_the_site(page: str) -> None:
    assert f": {page}\n" in (ROOT / ".ci" / "mkdocs.yml").read_text()


def test_the_index_has_each_decision_once_by_its_title_and_the_numbers_are_consecutive() -> None:
    text = (ROOT / "bridge" / "README.md").read_text()
    titles = re.findall(r"^### (\d+\. .+)$", text, re.MULTILINE)
    assert [int(title.partition(".")[0]) for title in titles] == list(range(1, len(titles) + 1))
    index = text.partition("\n## Index\n")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^- \[(.+)\]\(#", index, re.MULTILINE)) == sorted(titles)


def test_the_readme_is_short_enough_for_two_minutes() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 190, "move detail to a page in deploy/"
