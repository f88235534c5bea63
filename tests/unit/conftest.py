"""Fixtures of several unit tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for a thousand tests: to make and remove one for each took a twentieth of the fast tier."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture
def empty_directory(shared_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory: no test may see a postdate.toml of the directory it was started in."""
    monkeypatch.chdir(shared_directory)
    yield shared_directory
    for file in shared_directory.iterdir():
        file.unlink()


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the loggers of the standard library get. ``caplog`` costs each test, so the fast tier runs without it."""
    records: list[logging.LogRecord] = []
    handler, root = logging.Handler(), logging.getLogger()
    vars(handler)["emit"], level = records.append, root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield records
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.fixture
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is asked again at once, and a restore does not pause."""
    monkeypatch.setattr("bridge.telemetry.reconnect.FIRST_S", 0.0)
    monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.0)
    monkeypatch.setattr("bridge.pipeline.putback.Pace.passed", _at_once)


async def _at_once(pace: object, number: int) -> None:
    """No pause."""
