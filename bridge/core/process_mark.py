"""Tell whether a process of this machine has ended, by the mark in its report.

The mark names the place (this boot of this machine, and its process ids: a container has its own), the process id, and
when the process started. Nothing is known of processes of other places, and of none without Linux's /proc.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path


def mark_of(pid: int) -> str:
    """Return the mark of a process; "" where nothing is known of it."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{_place()} {pid} {'ended' if state in 'ZX' else fields[18]}"


def has_ended(mark: object) -> bool:
    """Return whether a process of this place has ended."""
    place, _, process = str(mark).partition(" ")
    if not place or place != _place():
        return False
    pid = int(process.partition(" ")[0])
    with suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
    return mark_of(pid) not in ("", mark)


@cache
def _place() -> str:
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return blake2b(boot + os.readlink("/proc/self/ns/pid").encode(), digest_size=6).hexdigest()
    return ""
