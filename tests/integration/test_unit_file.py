"""The systemd unit: its settings, as systemd itself judges them. No systemd runs here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.bridge_process import ROOT

UNIT = ROOT / "deploy/postdate.service"
#: 0 is no exposure at all, 10 a service without any protection.
EXPOSURE_MAX = 3.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"),
]


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is there: to name none is a mistake to systemd."""
    text = UNIT.read_text()
    assert text.count("/opt/postdate/bin/postdate ") == 2
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/postdate/bin/postdate ", "/bin/true "))
    return copy


@pytest.mark.parametrize("secrets", [False, True], ids=["as it is", "with its secrets"])
def test_systemd_understands_every_line(unit: Path, secrets: bool) -> None:
    if secrets:
        text = re.sub(r"^#(LoadCredential|Environment)", r"\1", unit.read_text(), flags=re.MULTILINE)
        assert text.count("\nLoadCredential=") == 2
        assert text.count("\nEnvironment=") == 2
        unit.write_text(text)
    judged = analyze("verify", str(unit))
    assert (judged.returncode, judged.stderr) == (0, "")


def test_the_service_is_hardly_exposed(unit: Path) -> None:
    judged = analyze("--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", "security", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", judged.stdout)
    assert found, judged.stderr
    assert float(found[1]) <= EXPOSURE_MAX
    assert judged.returncode == 0


def test_a_reload_reads_the_file_that_a_person_edits() -> None:
    """systemd copies credentials at a start only: settings in a credential would never change."""
    text = UNIT.read_text()
    assert "\nExecReload=/bin/kill -HUP $MAINPID\n" in text
    assert text.count(" --config /etc/postdate/postdate.toml\n") == 2
