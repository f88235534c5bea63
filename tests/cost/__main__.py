"""`make cost`: prints what each script costs for a message beside the last table, and writes the table anew."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from pathlib import Path

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
        counts = asyncio.run(measure(server, Path(folder)))
    sys.stdout.write(table(counts, before))
    if not keep:
        TABLE.write_text(json.dumps({"server": version_of(server), "counts": counts}, indent=2) + "\n")
    return 0


def table(counts: Counts, before: Counts) -> str:
    """Return the counts as text, each with the change in percent where it was counted before."""
    lines = ["Redis, thousand instructions a message, at batches of".ljust(56) + "".join(f"{n:>16}" for n in SIZES)]
    for row, by_size in {**counts, "all, rabbitmq": _sum(counts)}.items():
        old = before.get(row) or (_sum(before) if before and row.startswith("all") else {})
        cells = []
        for size in map(str, SIZES):
            count = by_size[size]
            change = f" ({(count / old[size] - 1) * 100:+.0f} %)" if size in old else ""
            cells.append(f"{count:.1f}{change}".rjust(16))
        lines.append(row.ljust(56) + "".join(cells))
    return "\n".join(lines) + "\n"


def _sum(counts: Counts) -> dict[str, float]:
    rows = [counts[row] for row in ("park, rabbitmq", "claim", "settle")]
    return {size: round(sum(row[size] for row in rows), 1) for size in rows[0]}


if __name__ == "__main__":
    sys.exit(main())
