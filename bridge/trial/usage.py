"""What a process and its children take of the machine. Read from /proc, so on Linux only; None elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

_CHILDREN = "task/{pid}/children"


def rss_bytes(pid: int) -> int | None:
    """Resident memory, the children's included."""
    found = [_pages(one) for one in _family(pid)]
    return sum(found) * os.sysconf("SC_PAGE_SIZE") if found else None


def cpu_s(pid: int) -> float | None:
    """Processor time since the start, the living children's included, in seconds."""
    found = [_ticks(one) for one in _family(pid)]
    return sum(found) / os.sysconf("SC_CLK_TCK") if found else None


def _family(pid: int) -> list[Path]:
    folder = Path("/proc") / str(pid)
    try:
        children = (folder / _CHILDREN.format(pid=pid)).read_text().split()
    except OSError:
        return []
    return [folder, *(member for child in children for member in _family(int(child)))]


def _pages(folder: Path) -> int:
    return int((folder / "statm").read_text().split()[1])


def _ticks(folder: Path) -> int:
    # The name in parentheses may hold spaces; utime and stime are the 12th and 13th field behind it.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
