"""What a process and its children take of the machine. Read from /proc, so on Linux only; None elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_CHILDREN = "task/{pid}/children"
#: The state of a socket that listens, as the kernel writes it.
_LISTENS = "0A"


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


def listening_pid(port: int) -> int | None:
    """Which process of this machine listens on a TCP port; None where that cannot be seen."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        try:
            if os.readlink(link) in sockets:
                return int(link.parts[2])
        except OSError:  # it has ended meanwhile, or belongs to somebody else
            continue
    return None


def command_of(pid: int) -> str:
    """The name of a process's program, "" for none."""
    try:
        return (Path("/proc") / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def _listening_inodes(port: int) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, rows):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
