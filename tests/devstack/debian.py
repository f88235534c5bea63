"""Installing a server from Debian, when we may."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.devstack.service import Unavailable, machine_lock

# Debian's maintainer scripts ask this program before they start a service; 101 forbids it (see invoke-rc.d(8)).
POLICY = Path("/usr/sbin/policy-rc.d")
NO_SERVICES = "#!/bin/sh\nexit 101\n"

_updated = False

#: Called with the packages before a slow installation; callers replace it to show progress.
announce: Callable[[tuple[str, ...]], object] = len


def why_not_here() -> str | None:
    """The reason why nothing can be installed on this machine, or None."""
    if shutil.which("apt-get") is None or not Path("/etc/debian_version").exists():
        return "this is not Debian"
    if os.geteuid() != 0:
        return "only root may install packages"
    return None


def install(*packages: str) -> None:
    if reason := why_not_here():
        raise Unavailable(f"cannot install {' '.join(packages)}: {reason}")
    announce(packages)
    with machine_lock("apt"), no_services_started(POLICY):
        _update_once()
        _apt_get("install", "-y", "--no-install-recommends", *packages)


def _update_once() -> None:
    global _updated
    if not _updated:
        _apt_get("update")
        _updated = True


def _apt_get(*words: str) -> None:
    # Somebody else's apt-get may hold the lock: wait for it instead of failing.
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300", *words]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)} failed: {done.stdout.decode(errors='replace')[-1_500:]}")


@contextmanager
def no_services_started(policy: Path) -> Iterator[None]:
    """A package that starts its server on port 5672 would surprise the machine's owner."""
    if policy.exists():
        yield
        return
    policy.write_text(NO_SERVICES)
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)
