"""The two lock files: everything for work on postdate, and what an installation needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_INSTALLED = (_ROOT / "deploy/requirements.lock").read_text()
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def _pins(text: str) -> dict[str, str]:
    return dict(_PIN.findall(text))


def _names(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9-]+", one)[0] for one in requirements}  # type: ignore[index]


def test_an_installation_gets_the_versions_that_the_tests_ran_with() -> None:
    assert _pins(_INSTALLED).items() <= _pins((_ROOT / "requirements.lock").read_text()).items()


def test_an_installation_gets_every_dependency_and_what_builds_the_package_and_no_test_tool() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    needed = _names(project["project"]["dependencies"]) | _names(project["build-system"]["requires"])
    tools = _names(project["project"]["optional-dependencies"]["dev"]) - needed - {"async-timeout"}
    assert needed <= set(_pins(_INSTALLED))
    assert not tools & set(_pins(_INSTALLED))


def test_every_pin_of_an_installation_has_a_hash_and_no_address_is_named() -> None:
    blocks = re.split(r"^(?=[a-z0-9-]+==)", _INSTALLED, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(_pins(_INSTALLED))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in _INSTALLED
