"""The machine of a measurement, and the processor time and memory of processes. Usage needs /proc, so Linux."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

#: Options of Python's configure script (docs.python.org/3/using/configure.html, performance options).
_OPTIMIZATIONS = {"--enable-optimizations": "PGO", "--with-lto": "LTO"}
#: The state of a listening socket in /proc/net.
_LISTENS = "0A"


def machine() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cpu_model() -> str:
    """The processor's name from the kernel, or from Python outside Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def own_versions() -> dict[str, str]:
    """The versions of postdate and Python. That of Python names its build: an optimized one is a fifth faster."""
    built = ", ".join((platform.python_build()[1], platform.python_compiler(), *optimizations()))
    return {"postdate": version("postdate"), "python": f"{platform.python_version()} ({built})"}


def optimizations() -> list[str]:
    """The optimizations that this Python names of its build. Debian's interpreter has both and names none."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS"))
    return [kind for option, kind in _OPTIMIZATIONS.items() if option in options]


class Usage(NamedTuple):
    """Processor time in seconds and memory in bytes that a process has used; None if unknown."""

    cpu_s: float | None
    bytes: int | None


def usage_of(pid: int) -> Usage:
    family = list(_family(pid))
    if not family:
        return Usage(None, None)
    pages = sum(int((folder / "statm").read_text().split()[1]) for folder in family)
    # The name in parentheses may contain spaces; utime and stime are the 12th and 13th field after it.
    fields = [(folder / "stat").read_text().rpartition(")")[2].split() for folder in family]
    ticks = sum(int(field[11]) + int(field[12]) for field in fields)
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def _family(pid: int) -> Iterator[Path]:
    folder = Path("/proc") / str(pid)
    try:
        children = (folder / f"task/{pid}/children").read_text().split()
    except OSError:
        return
    yield folder
    for child in children:
        yield from _family(int(child))


def listening_pid(port: int) -> int | None:
    """The process of this machine that listens on a TCP port; None if that is not visible."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for link in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        try:
            if os.readlink(link) in sockets:
                return int(link.parts[2])
        except OSError:  # ended meanwhile, or owned by another user
            continue
    return None


def command_of(pid: int) -> str:
    """The name of a process's program; "" if there is no such process."""
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
