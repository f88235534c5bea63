"""Which state `postdate list` shows where --reason is given."""

from __future__ import annotations

import asyncio
import json

import pytest

from bridge.cli import acting, listing, run_command
from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Release
from tests.api import HOUR_MS, MemoryStores, settings

REASON = "unroutable: no queue is bound"


async def _refuse(stores: MemoryStores) -> tuple[str, str]:
    """Park a message that waits for another try, and a dead letter, both with the same reason. Return their ids."""
    ids = [await stores.store_one("orders", 0) for _ in range(2)]
    stores.memory.clock.advance(10)  # type: ignore[attr-defined]
    claims = []
    for claimed in (await stores.store.claim(range(len(stores.memory.shards)), 10, 10**6, 60_000, 0)).values():
        assert not isinstance(claimed, StoreUnavailable)
        claims += claimed.claims
    waiting, dead = sorted(claims, key=lambda claim: ids.index(claim.id))
    await stores.store.release([Release(waiting, HOUR_MS, 3, REASON)])
    await stores.store.bury([(dead, REASON)])
    return ids[0].decode(), ids[1].decode()


def test_a_reason_selects_dead_letters_and_with_state_parked_those_that_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = MemoryStores()
    monkeypatch.setattr(acting, "KeptStores", lambda *_: stores)
    monkeypatch.setattr(listing, "settings_for", lambda _: settings())
    waiting, dead = asyncio.run(_refuse(stores))

    def listed(*options: str) -> list[str]:
        assert run_command(["list", "-o", "json", *options]) == 0
        return [row["id"] for row in json.loads(capsys.readouterr().out)]

    assert listed() == [waiting]
    assert listed("--reason", "unroutable") == [dead]
    assert listed("--state", "parked", "--reason", "unroutable") == [waiting]
    assert listed("--state", "parked", "--reason", "nacked") == []
