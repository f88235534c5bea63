"""The lock files: everything for work on postdate, what an installation needs, and the same with the extras."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_INSTALLED, _EXTRAS = ((_ROOT / f"deploy/{name}.lock").read_text() for name in ("requirements", "extras"))
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def _pins(text: str) -> dict[str, str]:
    return dict(_PIN.findall(text))


def _names(requirements: list[str]) -> set[str]:
    return {re.match(r"[A-Za-z0-9-]+", requirement)[0] for requirement in requirements}  # type: ignore[index]


def test_an_installation_gets_the_versions_that_the_tests_ran_with() -> None:
    assert _pins(_INSTALLED).items() <= _pins((_ROOT / "requirements.lock").read_text()).items()


def test_an_installation_gets_every_dependency_and_what_builds_the_package_and_no_test_tool() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    needed = _names(project["project"]["dependencies"]) | _names(project["build-system"]["requires"])
    tools = _names(project["project"]["optional-dependencies"]["dev"]) - needed - {"async-timeout"}
    assert needed <= set(_pins(_INSTALLED))
    assert not tools & set(_pins(_INSTALLED))


def test_the_extras_add_their_packages_to_an_installation_in_the_versions_of_the_tests() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    needed = _names([*extras["aws"], *extras["otel"], *extras["sql"]])
    assert (
        _pins(_INSTALLED).items() <= _pins(_EXTRAS).items() <= _pins((_ROOT / "requirements.lock").read_text()).items()
    )
    assert needed <= set(_pins(_EXTRAS))


@pytest.mark.parametrize("text", [_INSTALLED, _EXTRAS], ids=["plain", "extras"])
def test_every_pin_of_an_installation_has_a_hash_and_no_address_is_named(text: str) -> None:
    blocks = re.split(r"^(?=[a-z0-9-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(_pins(text))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text
