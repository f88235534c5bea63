"""What a release consists of: the same bytes at each build, and an SBOM that names what is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


def test_two_builds_are_equal_and_the_sbom_names_every_locked_package(tmp_path: Path) -> None:
    folder = tmp_path / "release"
    # It builds twice, and fails if a byte differs. The SBOM is validated against CycloneDX's schema.
    subprocess.run([ROOT / ".ci" / "release", sys.executable, folder], check=True, capture_output=True, timeout=110)
    sbom = json.loads((folder / "postdate.cdx.json").read_text())
    locked = re.findall(r"^([a-z0-9.-]+)==([^ ]+)", (ROOT / "deploy" / "requirements.lock").read_text(), re.MULTILINE)
    assert sorted((part["name"], part["version"]) for part in sbom["components"]) == sorted(locked)
    assert sbom["metadata"]["component"]["name"] == "postdate"
    assert "file://" not in json.dumps(sbom)
    listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
