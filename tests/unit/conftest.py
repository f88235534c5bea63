"""Fixtures of several unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is asked again at once, and a restore does not pause."""
    monkeypatch.setattr("bridge.telemetry.reconnect.FIRST_S", 0.0)
    monkeypatch.setattr("bridge.pipeline.restore._SETTLE_S", 0.0)
    monkeypatch.setattr("bridge.pipeline.putback.Pace.passed", _at_once)


async def _at_once(pace: object, number: int) -> None:
    """No pause."""
