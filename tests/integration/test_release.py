"""What a release consists of: the same bytes at each build, and an SBOM that names what is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_two_builds_are_equal_and_the_sbom_names_every_locked_package(tmp_path: Path) -> None:
    folder = tmp_path / "release"
    # It builds twice, and fails if a byte differs. The SBOM is validated against CycloneDX's schema.
    subprocess.run([ROOT / ".ci" / "release", sys.executable, folder], check=True, capture_output=True, timeout=280)
    for name, lock in {"postdate": "requirements", "postdate-extras": "extras"}.items():
        sbom = json.loads((folder / f"{name}.cdx.json").read_text())
        locked = re.findall(r"^([a-z0-9.-]+)==([^ ]+)", (ROOT / "deploy" / f"{lock}.lock").read_text(), re.MULTILINE)
        assert sorted((part["name"], part["version"]) for part in sbom["components"]) == sorted(locked)
        assert sbom["metadata"]["component"]["name"] == "postdate"
        assert "file://" not in json.dumps(sbom)
    (chart,) = folder.glob("*.tgz")
    with tarfile.open(chart) as archive:
        packed = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert packed["postdate/Chart.yaml"] == (ROOT / "deploy" / "helm" / "postdate" / "Chart.yaml").read_bytes()
    assert {"postdate/values.schema.json", "postdate/files/prometheus-alerts.yaml"} <= packed.keys()
    listed = {line.split()[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert listed == {file.name for file in folder.iterdir()} - {"SHA256SUMS"}
