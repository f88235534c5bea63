"""`make cost`: prints what each script and stage costs for a message beside the last table, and writes the table."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cost import stages
from tests.cost.instructions import SIZES, Counts, measure, version_of
from tests.devstack import debian

TABLE = Path(__file__).with_name("table.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cost", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keep", action="store_true", help="leave the table as it is")
    keep = parser.parse_args().keep
    for program, package in (("redis-server", "redis-server"), ("valgrind", "valgrind")):
        if not shutil.which(program):
            debian.install(package)
    server = str(shutil.which("redis-server"))
    before: Counts = json.loads(TABLE.read_text())["counts"]
    with tempfile.TemporaryDirectory(prefix="postdate-cost-") as folder:
        counts = asyncio.run(measure(server, Path(folder))) | stages.measure(Path(folder))
    sys.stdout.write(table(counts, before))
    if not keep:
        TABLE.write_text(json.dumps({"server": version_of(server), "counts": counts}, indent=2) + "\n")
    return 0


def table(counts: Counts, before: Counts) -> str:
    """Return the counts as text, each with the change in percent where it was counted before."""
    lines = ["thousand instructions a message, at batches of".ljust(56) + "".join(f"{n:>16}" for n in SIZES)]
    for row, by_size in (counts | _sums(counts)).items():
        old = (before | _sums(before)).get(row, {})
        cells = []
        for size in map(str, SIZES):
            count = by_size[size]
            change = f" ({(count / old[size] - 1) * 100:+.0f} %)" if size in old else ""
            cells.append(f"{count:.1f}{change}".rjust(16))
        lines.append(row.ljust(56) + "".join(cells))
    return "\n".join(lines) + "\n"


def _sums(counts: Counts) -> Counts:
    """Return what a message costs Redis in all, and what it costs the process."""
    redis = ("park, rabbitmq", "claim", "settle")
    return {"Redis, all, rabbitmq": _sum(counts, redis), "process, all": _sum(counts, stages.ROWS)}


def _sum(counts: Counts, rows: Sequence[str]) -> dict[str, float]:
    found = [counts[row] for row in rows if row in counts]
    return {size: round(sum(row[size] for row in found), 1) for size in found[0]} if found else {}


if __name__ == "__main__":
    sys.exit(main())
