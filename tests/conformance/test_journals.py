"""The journals keep the promises of a journal: in memory, and on SQLite."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from adapters.memory.memory_journal import MemoryJournal
from adapters.sql.journal import SqlJournal
from adapters.sql.tables import VERSION
from bridge.core.errors import StoreUnfit
from bridge.core.journal import JournalUnavailable, Written
from tests.conformance.journal_suite import DUE_MS, JournalSuite, entry, move, waiting
from tests.devstack.service import Service


def on_sqlite(folder: Path, prefix: str = "postdate") -> SqlJournal:
    return SqlJournal(f"sqlite:///{folder}/journal.db", "", "rabbitmq", prefix)


class TestMemoryJournal(JournalSuite):
    @pytest.fixture
    def journal(self) -> MemoryJournal:
        return MemoryJournal()


class TestSqliteJournal(JournalSuite):
    @pytest.fixture
    async def journal(self, tmp_path: Path) -> AsyncIterator[SqlJournal]:
        journal = on_sqlite(tmp_path)
        await journal.create()
        yield journal
        await journal.close()


@pytest.mark.slow
class TestServerJournal(JournalSuite):
    @pytest.fixture
    async def journal(self, database: Service) -> AsyncIterator[SqlJournal]:
        await asyncio.to_thread(database.wipe)
        journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
        await journal.create()
        yield journal
        await journal.close()


@pytest.mark.slow
async def test_a_user_with_the_least_rights_writes_and_restores_and_creates_nothing(database: Service) -> None:
    await asyncio.to_thread(database.wipe)
    owner = SqlJournal(database.url, "", "rabbitmq", "postdate")
    await owner.create()
    await asyncio.to_thread(grant_least_rights, database)
    journal = SqlJournal(as_app(database.url), "secret", "rabbitmq", "postdate")
    await journal.open()
    await journal.write([written := entry()])
    await journal.record([move(Written.CANCELLED, written)])
    assert await journal.prune(DUE_MS + 1, 10) == 1
    with pytest.raises(JournalUnavailable, match=r"permission denied|command denied"):
        await journal.set_meta("version", "99")
    await journal.close()
    await owner.close()


def as_app(url: str) -> str:
    """The URL of the user that has the least rights."""
    return re.sub("//[a-z]+@", "//app@", url)


def grant_least_rights(database: Any) -> None:
    """What deploy/journal.md grants."""
    tables = ("postdate_message", "postdate_flow")
    if database.url.startswith("postgresql"):
        database.execute("DO $$ BEGIN CREATE USER app PASSWORD 'secret'; EXCEPTION WHEN duplicate_object THEN END $$")
        database.execute("GRANT USAGE ON SCHEMA public TO app; GRANT SELECT ON postdate_meta TO app")
        database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(tables)} TO app")
        return
    database.execute("CREATE OR REPLACE USER app@'127.0.0.1' IDENTIFIED BY 'secret'")
    database.execute("GRANT SELECT ON postdate.postdate_meta TO app@'127.0.0.1'")
    for table in tables:
        database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON postdate.{table} TO app@'127.0.0.1'")


@pytest.mark.slow
async def test_a_database_that_dies_and_comes_back_is_named_and_used_again(database: Service) -> None:
    await asyncio.to_thread(database.wipe)
    journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
    await journal.create()
    await journal.write([first := entry()])
    await asyncio.to_thread(database.kill)
    with pytest.raises(JournalUnavailable, match=r"^the journal"):
        await journal.write([entry()])
    with pytest.raises(JournalUnavailable, match=r"^the journal"):
        await journal.write([entry()])
    await asyncio.to_thread(database.start)
    again = entry()
    for _ in range(2):  # a pool may still have a dead connection
        with suppress(JournalUnavailable):
            await journal.write([again])
    assert set(await waiting(journal)) >= {first.id, again.id}
    await journal.close()


async def test_setup_creates_the_tables_once_and_says_what_it_runs(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    with pytest.raises(StoreUnfit, match=r"has no tables.*Run: postdate setup"):
        await journal.open()
    wanted = await journal.missing()
    assert "CREATE TABLE IF NOT EXISTS postdate_message" in "\n".join(wanted)
    assert await journal.create() == wanted
    await journal.write([written := entry()])
    assert await journal.create() == []
    assert await waiting(journal) == [written.id]
    await journal.close()


async def test_a_second_cluster_in_the_same_database_is_refused(tmp_path: Path) -> None:
    first, second = on_sqlite(tmp_path), on_sqlite(tmp_path, "other")
    await first.create()
    for refused in (second.open, second.create):
        with pytest.raises(StoreUnfit, match=r'redis\.key_prefix "postdate", and this one has "other"'):
            await refused()
    await first.close()
    await second.close()


async def test_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    await journal.create()
    await journal.set_meta("version", str(VERSION + 1))
    with pytest.raises(StoreUnfit, match="Upgrade postdate"):
        await journal.open()
    await journal.close()


async def test_what_the_database_refuses_is_named_without_the_statement(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    with pytest.raises(JournalUnavailable, match=r"^the journal: no such table: postdate_message$"):
        await journal.write([entry()])
    await journal.close()
