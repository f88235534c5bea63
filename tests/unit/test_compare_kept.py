"""`.ci/compare-report`: what it keeps of a comparison, and what it does to deploy/levels.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "compare-report"
PAGE = "before\n<!-- compare: begin. A word. -->\n<!-- compare: end -->\nbehind\n"
#: Writes what `compare --out FOLDER` writes, in part, and ends with the given code.
STUB = """#!/bin/sh
[ "$1 $2" = "compare --out" ] || exit 2
printf 'A verdict.\\n\\n| way |\\n' > "$3/table.md"
touch "$3/report.html" "$3/compare.json" "$3/lateness.png" "$3/lateness-dark.png" "$3/burst.png"
exit {code}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "deploy" / "compare").mkdir(parents=True)
    (tmp_path / "deploy" / "levels.md").write_text(PAGE)
    return tmp_path


def keep(project: Path, code: int = 0) -> int:
    stub = project / "postdate"
    stub.write_text(STUB.format(code=code))
    stub.chmod(0o755)
    return subprocess.run(("sh", SCRIPT, stub), cwd=project, check=False, capture_output=True).returncode


@pytest.mark.slow
def test_verdict_picture_and_table_are_put_between_the_marks_and_a_second_run_replaces_them(project: Path) -> None:
    assert keep(project) == 0
    once = (project / "deploy" / "levels.md").read_text()
    assert once.startswith("before\n<!-- compare: begin. A word. -->\nA verdict.\n\n<picture>")
    assert once.index("</picture>") < once.index("| way |")
    assert "\n| way |\n" in once
    assert once.endswith("\n<!-- compare: end -->\nbehind\n")
    for picture in ("lateness.png", "lateness-dark.png"):
        assert f'"compare/{picture}"' in once
        assert (project / "deploy" / "compare" / picture).exists()
    assert keep(project) == 0
    assert (project / "deploy" / "levels.md").read_text() == once


@pytest.mark.slow
def test_only_the_table_and_one_picture_are_kept(project: Path) -> None:
    keep(project)
    kept = {file.name for file in (project / "deploy" / "compare").iterdir()}
    assert kept == {"table.md", "lateness.png", "lateness-dark.png"}


@pytest.mark.slow
def test_a_failed_comparison_leaves_the_page_unchanged(project: Path) -> None:
    assert keep(project, code=1) == 1
    assert (project / "deploy" / "levels.md").read_text() == PAGE


def test_the_pages_claims_on_rabbitmqs_work_match_the_kept_figures() -> None:
    root = SCRIPT.parents[1]
    page = " ".join((root / "deploy" / "levels.md").read_text(encoding="utf-8").split())
    table = (root / "deploy" / "compare" / "table.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    place = rows[2].index("of it RabbitMQ")
    work = {row[0]: float(row[place].replace(",", "")) for row in rows[4:] if len(row) > place}
    for name, least, most, sentence in (
        ("levels, alone", 0.8, 1.3, "works at most about a quarter more than with Redis"),
        ("levels", 1.7, 2.3, "three queues, and RabbitMQ works about twice as much"),
        ("ladder", 1.8, 3.6, "works two to three and a half times as much as with Redis"),
    ):
        assert sentence in page
        assert least <= work[name] / work["redis"] <= most


def test_the_page_of_this_project_has_the_marks() -> None:
    lines = (SCRIPT.parents[1] / "deploy" / "levels.md").read_text(encoding="utf-8").splitlines()
    assert [line.split(".")[0] for line in lines if line.startswith("<!-- compare")] == [
        "<!-- compare: begin",
        "<!-- compare: end -->",
    ]
