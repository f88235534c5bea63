"""Chromium for the tests of the page, and axe, which judges accessibility. Neither is shipped."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

from tests.devstack import debian
from tests.devstack.service import Unavailable, devstack_folder, machine_lock

_NAMES = ("chromium", "chromium-browser", "google-chrome")
#: MPL-2.0: used from the cache, never committed.
_AXE = "axe-core@4.14.1"
_AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"


def installed_chromium() -> Path | None:
    """The Chromium of this machine, if any."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    return Path(found) if found else None


def find_chromium() -> Path:
    """Chromium, from Debian if need be. Raises ``Unavailable``."""
    if found := installed_chromium():
        return found
    debian.install("chromium", "fonts-dejavu-core")
    if found := installed_chromium():
        return found
    raise Unavailable("Debian's package chromium has no program chromium")


def find_axe() -> str:
    """The source of axe, packed once by npm into the devstack folder. Raises ``Unavailable``."""
    file = devstack_folder() / "axe.min.js"
    with machine_lock("axe"):
        if not file.exists():
            _fetch_axe(file)
    source = file.read_bytes()
    if sha256(source).hexdigest() != _AXE_SHA256:
        raise Unavailable(f"{file} is not {_AXE}. Delete it")
    return source.decode()


def _fetch_axe(file: Path) -> None:
    if shutil.which("npm") is None:
        raise Unavailable("axe comes from npm, which is not installed")
    command = ["npm", "pack", "--silent", _AXE]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {done.stderr[-500:]}")
    archive = file.parent / done.stdout.split()[-1]
    with tarfile.open(archive) as packed:
        member = packed.extractfile("package/axe.min.js")
        assert member is not None
        file.write_bytes(member.read())
    archive.unlink()
