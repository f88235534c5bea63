"""`make prove`: run the fault matrix on real servers, row by row, and write the table of deploy/proof/README.md.

A row with a result of this commit is not run again, so an interrupted proof goes on where it was. Exit code 1: a row
failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.proof.record import FILE
from tests.proof.rows import ROWS, Row

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "deploy" / "proof" / "README.md"
BEGIN, END = "<!-- table: make prove -->", "<!-- /table -->"
#: Verdicts add up, except these: of them the largest counts.
_LARGEST = ("recovery_s",)
#: pytest's exit code where no test was selected.
_NONE = 5


def main() -> int:
    """Run the rows that are asked for. Return the exit code."""
    options = _options()
    commit = _git("rev-parse", "--short", "HEAD")
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{commit}{'-quick' if options.quick else ''}.json"
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for row in ROWS:
        name = f"{row.server}: {row.fault}"
        if options.only.lower() not in name.lower() or results.get(name, {}).get("failed") == 0:
            continue
        print(f"{name} ...", end=" ", flush=True)
        if found := _prove(row, options.quick, folder):
            results[name] = found
            kept.write_text(json.dumps(results, indent=1))
        print(_said(found))
    if options.page:
        _write(results, commit)
    return int(any(found["failed"] for found in results.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="the rows whose name has these words")
    parser.add_argument("--quick", action="store_true", help="without the long tests: about a quarter of an hour")
    parser.add_argument("--page", action="store_true", help=f"write the table of {PAGE.relative_to(ROOT)}")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "proof", help="where results are kept")
    return parser.parse_args()


def _prove(row: Row, quick: bool, folder: Path) -> dict[str, Any] | None:
    """Run the tests of a row. Return its figures; None where --quick has no test of it."""
    figures, report = folder / "figures.jsonl", folder / "report.xml"
    for path in (figures, report):
        path.unlink(missing_ok=True)
    parts = [test.partition("::") for test in row.tests]
    names = " or ".join(name or Path(file).stem for file, _, name in parts)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *sorted({f"tests/{file}" for file, _, _ in parts}),
        f"--junitxml={report}",
    ]
    command += ["-m", "not long" if quick else "long or not long", "-k", names]
    began = time.monotonic()
    with open(folder / "output.txt", "a", encoding="utf-8") as output:
        ended = subprocess.run(
            command, cwd=ROOT, env={**os.environ, FILE: str(figures)}, stdout=output, stderr=output, check=False
        )
    if ended.returncode == _NONE:
        return None
    counted = _counted(report)
    verdicts = [json.loads(line) for line in figures.read_text().splitlines()] if figures.exists() else []
    failed = counted["failed"] or int(ended.returncode != 0)
    return {**counted, "failed": failed, "seconds": round(time.monotonic() - began), **_summed(verdicts)}


def _counted(report: Path) -> dict[str, int]:
    suites = ElementTree.parse(report).getroot().iter("testsuite") if report.exists() else ()
    counts = {"tests": 0, "failed": 0, "skipped": 0}
    for suite in suites:
        counts["tests"] += int(suite.get("tests", 0))
        counts["failed"] += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        counts["skipped"] += int(suite.get("skipped", 0))
    return counts


def _summed(verdicts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    summed: dict[str, float] = {}
    for verdict in verdicts:
        for name, figure in verdict.items():
            before = summed.get(name, 0)
            summed[name] = max(before, figure) if name in _LARGEST else before + figure
    return summed


def _said(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "long, not run"
    words = [f"tests {found['tests']}", *(f"{name} {found[name]}" for name in ("failed", "skipped") if found[name])]
    words += [f"{name} {found[name]}" for name in ("messages", "lost", "early", "copies") if name in found]
    return ", ".join([*words, f"{found['seconds']} s"])


def _write(results: Mapping[str, Mapping[str, Any]], commit: str) -> None:
    """Replace the table of the page. Rows without a new result keep the line that they have."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    before, after = rest.split(END)
    PAGE.write_text(f"{head}{BEGIN}\n{table(results, commit, before)}\n{END}{after}")


def table(results: Mapping[str, Mapping[str, Any]], commit: str, before: str = "") -> str:
    """Return the table of the page. ``before`` is the table that it replaces."""
    lines = [
        "| server | fault | tests | messages | lost | early | copies | recovery | commit | result |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in ROWS:
        begin, found = f"| {row.server} | {row.fault} |", results.get(f"{row.server}: {row.fault}")
        if found is None:
            kept = [line for line in before.splitlines() if line.startswith(begin)]
            lines.append(kept[0] if kept else f"{begin} | | | | | | | not run |")
            continue
        figures = [found.get(name, "–") for name in ("messages", "lost", "early", "copies")]
        recovery = f"{found['recovery_s']:.1f} s" if "recovery_s" in found else "–"
        ran = found["tests"] - found["skipped"]
        result = "**failed**" if found["failed"] else "kept" if ran else "skipped"
        lines.append(f"{begin} {ran} | {' | '.join(map(str, figures))} | {recovery} | {commit} | {result} |")
    return "\n".join(lines)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
