"""A million messages wait in the journal, and Redis is empty: a restore that dies twice brings each back once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.sql.journal import SqlJournal
from bridge.app.brokers import open_store
from bridge.core.clock import StoreClock
from bridge.core.journal import JournalEntry
from bridge.core.orders import Actor
from bridge.operate.documents import OperationFacts
from bridge.operate.local import LocalOperator
from bridge.operate.stores import KeptStores
from bridge.parking.envelope import seal
from bridge.parking.identity import Ids
from bridge.settings import Settings, load
from tests.bridge_process import toml
from tests.devstack.fixtures import StartRedis
from tests.preloaded import Started, run_postdate, start

pytestmark = [pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(1800)]

COUNT, SHARDS, BATCH = 1_000_000, 8, 2000
HOUR_MS = 3_600_000
RESTORE = ("restore", "--yes", "--max-rate", "100000", "-o", "json", "--config")


@pytest.fixture
def file(journal_url: str, start_redis: StartRedis, tmp_path: Path) -> Path:
    """Settings with an empty Redis and a new journal."""
    return written(tmp_path, start_redis().url, journal_url)


def written(folder: Path, redis_url: str, journal_url: str) -> Path:
    file = folder / "postdate.toml"
    route = {"intercept": "orders.delay", "deliver_to": "orders"}
    redis = {"url": redis_url, "shards": SHARDS}
    file.write_text(toml({"redis": redis, "journal": {"url": journal_url}, "routes": {"orders": route}}))
    return file


def entries(count: int) -> Iterator[JournalEntry]:
    """Messages that arrived a minute ago. The first ones are overdue, the others due within an hour."""
    ids, now_ms = Ids("filler"), int(time.time() * 1000)
    for number in range(count):
        due_ms = now_ms - 10_000 + number * HOUR_MS // count
        envelope = seal(due_ms, now_ms - 60_000, b"orders", b"order-%d" % number, b"", b"payload-%d" % number * 20)
        yield JournalEntry(ids.next(now_ms - 60_000, number % SHARDS), due_ms, envelope)


async def fill(settings: Settings) -> list[JournalEntry]:
    journal = SqlJournal(settings.journal.url.get_secret_value(), "", "rabbitmq", settings.redis.key_prefix)
    await journal.create()
    messages = list(entries(COUNT))
    for at in range(0, COUNT, BATCH):
        await journal.write(messages[at : at + BATCH])
    await journal.close()
    return messages


async def assert_all_there(settings: Settings, messages: list[JournalEntry]) -> None:
    """Each is in Redis byte for byte, at its own due moment."""
    store = open_store(settings, StoreClock(), "ledger")
    for at in range(0, COUNT, BATCH):
        wanted = messages[at : at + BATCH]
        found = {entry.id: entry for entry in await store.moves.envelopes([entry.id for entry in wanted])}
        assert [found.get(entry.id) for entry in wanted] == wanted
    await store.close()


def begun(folder: Path, file: Path) -> Started:
    return start("bridge.cli", [*RESTORE, str(file)], folder, os.environ, folder / "restore.log")


async def progress_over(settings: Settings, done: int) -> OperationFacts:
    """The operation that runs, as anybody sees it, when it has done this much."""
    operator = LocalOperator(KeptStores(settings), settings, Actor("reader", "cli"))
    try:
        while True:
            for found in await operator.operations():
                if found.state == "running" and found.done + found.skipped > done:
                    return found
            await asyncio.sleep(0.2)
    finally:
        await operator.close()


def test_a_million_come_back_though_the_restore_is_killed_and_interrupted(file: Path, tmp_path: Path) -> None:
    settings = load(file, {})
    messages = asyncio.run(fill(settings))
    began = time.monotonic()
    killed = begun(tmp_path, file)
    seen = asyncio.run(progress_over(settings, COUNT // 4))
    assert (seen.total, seen.verb) == (COUNT, "restore")
    killed.send_signal(signal.SIGKILL)
    killed.wait(10)
    print(f"killed after {time.monotonic() - began:.0f} s at {seen.done}")
    interrupted = begun(tmp_path, file)
    seen = asyncio.run(progress_over(settings, COUNT // 2))
    interrupted.send_signal(signal.SIGINT)
    assert interrupted.wait(30) == 130
    print(f"interrupted after {time.monotonic() - began:.0f} s at {seen.done} and {seen.skipped} that were there")
    ended = run_postdate([*RESTORE, str(file)], tmp_path, timeout_s=900)
    took_s = time.monotonic() - began
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    print(f"restored in {took_s:.0f} s, {COUNT / took_s:.0f} a second: {found}")
    assert found["parked"] + found["there"] == COUNT
    assert found["there"] >= COUNT // 2
    asyncio.run(assert_all_there(settings, messages))
    again = json.loads(run_postdate([*RESTORE, str(file)], tmp_path, timeout_s=900).stdout)
    assert (again["parked"], again["there"]) == (0, COUNT)
