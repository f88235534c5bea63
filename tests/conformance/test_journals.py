"""The journals keep the promises of a journal: in memory, and on SQLite."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import event

from adapters.memory.memory_journal import MemoryJournal
from adapters.sql.engine import address_of, place_of
from adapters.sql.journal import SqlJournal
from adapters.sql.tables import VERSION, statements
from bridge.core.errors import StoreUnfit
from bridge.core.journal import START, JournalFilter, JournalMissing, JournalUnavailable, Written
from tests.conformance.journal_suite import DUE_MS, WAITING, JournalSuite, entry, move, waiting
from tests.devstack.databases import MariaDB, PostgreSQL
from tests.devstack.service import Service


def on_sqlite(folder: Path, prefix: str = "postdate", shards: int = 8) -> SqlJournal:
    return SqlJournal(f"sqlite:///{folder}/journal.db", "", "rabbitmq", prefix, shards)


class TestMemoryJournal(JournalSuite):
    @pytest.fixture
    def journal(self) -> MemoryJournal:
        return MemoryJournal()


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty journal: to create one takes half of a test's time."""
    folder = tmp_path_factory.mktemp("created")

    async def create() -> None:
        journal = on_sqlite(folder)
        await journal.create()
        await journal.close()

    asyncio.run(create())
    return folder / "journal.db"


class TestSqliteJournal(JournalSuite):
    @pytest.fixture
    async def journal(self, tmp_path: Path, created: Path) -> AsyncIterator[SqlJournal]:
        shutil.copy(created, tmp_path)
        journal = on_sqlite(tmp_path)
        await journal.open()
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
    await asyncio.to_thread(make_app, database)
    journal = SqlJournal(as_app(database.url), "secret", "rabbitmq", "postdate")
    with pytest.raises(JournalUnavailable, match=r"permission denied|denied to user"):
        await journal.write([entry()])
    await asyncio.to_thread(grant_least_rights, database)
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


def make_app(database: Any) -> None:
    """A user who may connect, and nothing else."""
    if database.url.startswith("postgresql"):
        database.execute("DO $$ BEGIN CREATE USER app PASSWORD 'secret'; EXCEPTION WHEN duplicate_object THEN END $$")
        database.execute("GRANT USAGE ON SCHEMA public TO app")
        return
    database.execute("CREATE OR REPLACE USER app@'127.0.0.1' IDENTIFIED BY 'secret'")
    database.execute("GRANT CREATE TEMPORARY TABLES ON postdate.* TO app@'127.0.0.1'")


def grant_least_rights(database: Any) -> None:
    """What deploy/journal.md grants."""
    tables = ("postdate_message", "postdate_flow")
    if database.url.startswith("postgresql"):
        database.execute("GRANT SELECT ON postdate_meta TO app")
        database.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(tables)} TO app")
        return
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
    with pytest.raises(JournalUnavailable, match=rf"^the journal at 127.0.0.1:{urlsplit(database.url).port}/"):
        await journal.write([entry()])
    with pytest.raises(JournalUnavailable, match=rf"^the journal at 127.0.0.1:{urlsplit(database.url).port}/"):
        await journal.write([entry()])
    await asyncio.to_thread(database.start)
    again = entry()
    for _ in range(2):  # a pool may still have a dead connection
        with suppress(JournalUnavailable):
            await journal.write([again])
    assert set(await waiting(journal)) >= {first.id, again.id}
    await journal.close()


@asynccontextmanager
async def locked(database: Service) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Nobody else writes to the table of messages. Yields what cuts the connection that waits for it."""
    if database.url.startswith("postgresql"):
        connection: Any = await asyncpg.connect(database.url)
        await connection.execute("BEGIN; LOCK TABLE postdate_message IN EXCLUSIVE MODE")
        query = "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        yield partial(_until, partial(connection.fetch, query))
        await connection.close()
        return
    assert isinstance(database, MariaDB)
    connection = await asyncmy.connect(host="127.0.0.1", port=database.port, user="root", db=database.database)
    async with connection.cursor() as cursor:
        await cursor.execute("LOCK TABLES postdate_message WRITE")

        async def cut() -> int:
            found: int = await cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE state LIKE 'Waiting for table%'"
            )
            for (number,) in await cursor.fetchall():
                await cursor.execute(f"KILL {number}")
            return found

        yield partial(_until, cut)
    connection.close()


async def _until(cuts: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(10):
        while True:
            if await cuts():
                return
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_connection_that_is_lost_in_a_batch_leaves_none_of_it_and_the_batch_is_written_again(
    database: Service,
) -> None:
    await asyncio.to_thread(database.wipe)
    journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
    await journal.create()
    batch = [entry() for _ in range(500)]
    async with locked(database) as cut:
        writing = asyncio.create_task(journal.write(batch))
        await cut()
        with pytest.raises(JournalUnavailable, match=r"^the journal"):
            await writing
    assert await waiting(journal) == []
    await journal.write(batch)
    assert sorted(await waiting(journal)) == sorted(written.id for written in batch)
    await journal.close()


async def test_a_file_that_cannot_be_opened_is_named_before_a_thread_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of aiosqlite outlives the loop of a short command, and writes a traceback: "Event loop is closed"."""
    (tmp_path / "journal.db").mkdir()
    journal = on_sqlite(tmp_path)
    monkeypatch.setattr("aiosqlite.core.Thread", None)
    for called in (journal.open, journal.is_new, journal.missing, journal.create):
        with pytest.raises(JournalUnavailable, match=rf"^the journal at {tmp_path}/journal.db: unable to open"):
            await called()
    await journal.close()
    elsewhere = on_sqlite(tmp_path / "no folder")
    with pytest.raises(JournalUnavailable, match=rf"^the journal at {tmp_path}/no folder/journal.db: No such file"):
        await elsewhere.create()
    await elsewhere.close()


@pytest.mark.parametrize("deleted", [False, True], ids=["moved", "deleted"])
async def test_a_file_that_is_moved_away_takes_no_more_rows_until_it_is_back(tmp_path: Path, deleted: bool) -> None:
    """What went into it meanwhile would be lost at the next start, and no other process would find it."""
    journal, file = on_sqlite(tmp_path), tmp_path / "journal.db"
    await journal.create()
    await journal.write([first := entry()])
    os.link(file, tmp_path / "elsewhere")
    file.unlink() if deleted else file.rename(tmp_path / "moved")
    for called in (lambda: journal.write([entry()]), lambda: waiting(journal), lambda: journal.count(WAITING)):
        with pytest.raises(JournalMissing, match=rf"^the journal's file {file} is missing\. If it was moved, move"):
            await called()
    assert not file.exists(), "an empty file would pass for the journal"
    (tmp_path / "elsewhere").rename(file)
    await journal.write([second := entry()])
    assert set(await waiting(journal)) == {first.id, second.id}
    await journal.close()


async def test_another_file_in_the_place_of_the_journal_is_used_after_a_restart_alone(tmp_path: Path) -> None:
    journal, other, file = on_sqlite(tmp_path), on_sqlite(tmp_path), tmp_path / "journal.db"
    await journal.create()
    for suffix in ("", "-wal", "-shm"):
        (tmp_path / f"journal.db{suffix}").rename(tmp_path / f"moved{suffix}")
    await other.create()
    with pytest.raises(JournalMissing, match=rf"^the journal's file {file} is not the file that postdate has opened\."):
        await journal.write([entry()])
    assert await waiting(other) == []
    await journal.open()  # as a start does
    await journal.write([written := entry()])
    assert await waiting(other) == [written.id]
    await journal.close()
    await other.close()


async def test_a_missing_file_is_made_by_setup_alone_and_not_where_the_last_rows_of_one_are(tmp_path: Path) -> None:
    journal, file, rows = on_sqlite(tmp_path), tmp_path / "journal.db", tmp_path / "journal.db-wal"
    assert await journal.is_new()
    assert len(await journal.missing()) > 3
    for called in (journal.open, lambda: waiting(journal)):
        with pytest.raises(JournalMissing, match=r"is missing\. If it was moved"):
            await called()
    assert not file.exists()
    rows.write_bytes(b"rows")
    with pytest.raises(JournalMissing, match=rf"^the journal's file {file} is missing, and {rows} has its last rows"):
        await journal.create()
    assert (file.exists(), rows.read_bytes()) == (False, b"rows")
    rows.unlink()
    await journal.create()
    assert await waiting(journal) == []
    await journal.close()


async def test_a_full_disk_is_named_and_what_was_written_stays(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    await journal.create()
    await journal.write([kept := entry()])

    @event.listens_for(journal._engine.sync_engine, "begin")
    def limit(connection: Any) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    pages = 20
    batch = [entry(payload=bytes(10_000)) for _ in range(100)]
    with pytest.raises(JournalUnavailable, match=r"^the journal at .*/journal.db: database or disk is full$"):
        await journal.write(batch)
    assert await waiting(journal) == [kept.id]
    pages = 100_000  # someone has made room
    await journal.write(batch)
    assert len(await waiting(journal)) == 101
    await journal.close()


async def test_on_sqlite_no_reader_waits_for_a_writer_and_no_writer_for_a_reader(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    await journal.create()
    await journal.write([written := entry()])
    with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await waiting(journal) == [written.id]
        assert list(await journal.look([written.id])) == [written.id]
        assert await journal.count(WAITING) == 1
        await journal.open()
        other.execute("ROLLBACK")
    await journal.close()


async def test_rows_by_id_a_page_counts_and_the_newest_are_found_without_a_look_at_all_others(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    await journal.create()
    written = [entry() for _ in range(300)]
    await journal.write(written)
    asked: list[tuple[str, Any]] = []

    @event.listens_for(journal._engine.sync_engine, "before_cursor_execute")
    def remember(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        asked.append((statement, values))

    assert len(await journal.look([row.id for row in written])) == 300
    assert [row.id for row in await journal.newest(2)] == [written[-1].id, written[-2].id]
    assert len(await journal.page(JournalFilter(), START, 100)) == 100
    assert await journal.cold_counts(DUE_MS) == {}
    await journal.close()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as file:
        selects = [(statement, values) for statement, values in asked if statement.startswith("SELECT")]
        plans = [file.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall() for statement, values in selects]
    assert len(plans) == 4
    assert ["sqlite_autoindex_postdate_message_1" in str(plan) for plan in plans] == [True, True, False, False]
    assert "COVERING INDEX postdate_message_cold_route" in str(plans[3])
    assert "TEMP B-TREE FOR ORDER BY" not in str(plans[2])


@pytest.mark.slow
async def test_a_page_of_a_large_journal_is_read_in_the_order_of_the_index(database: Service) -> None:
    await asyncio.to_thread(database.wipe)
    journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
    await journal.create()
    await journal.write([entry(DUE_MS + number) for number in range(5000)])
    engine, asked = journal._engine, list[tuple[str, Any]]()

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def remember(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        asked.append((statement, values))

    analyze = "ANALYZE postdate_message" if isinstance(database, PostgreSQL) else "ANALYZE TABLE postdate_message"
    async with engine.begin() as connection:
        await connection.exec_driver_sql(analyze)
    assert len(await journal.page(JournalFilter(), (DUE_MS + 1000, b""), 100)) == 100
    statement, values = asked[-1]
    async with engine.connect() as connection:
        plan = str((await connection.exec_driver_sql(f"EXPLAIN {statement}", values)).all())
    assert "postdate_message_waits" in plan
    assert not re.search(r"(?<!Incremental )Sort  \(|filesort", plan), plan
    await journal.close()


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["key", "route"])
async def test_cold_messages_of_a_key_and_of_a_route_are_found_without_a_look_at_all_others(
    database: Service, wanted: str
) -> None:
    await asyncio.to_thread(database.wipe)
    journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
    await journal.create()
    rows = [entry(DUE_MS + number, key=b"%d" % number) for number in range(5000)]
    rows.append(entry(DUE_MS + 9999, route="rare", key=b"rare"))
    await journal.write(rows)
    assert len(await journal.shift([row.id for row in rows], Written.WAITING, Written.COLD)) == 5001
    engine, asked = journal._engine, list[tuple[str, Any]]()

    @event.listens_for(engine.sync_engine, "before_cursor_execute")
    def remember(_connection: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        asked.append((statement, values))

    is_postgresql = isinstance(database, PostgreSQL)
    async with engine.begin() as connection:
        await connection.exec_driver_sql(
            "ANALYZE postdate_message" if is_postgresql else "ANALYZE TABLE postdate_message"
        )
    if wanted == "key":
        found = await journal.named([("orders", b"2500")], 2)
    else:
        found = await journal.page(JournalFilter((Written.COLD,), route="rare"), START, 2, 1)
    assert [row.id for row in found] == [rows[2500 if wanted == "key" else -1].id]
    statement, values = asked[-1]
    explain = "EXPLAIN (ANALYZE, BUFFERS)" if is_postgresql else "ANALYZE"
    async with engine.connect() as connection:
        plan = str((await connection.exec_driver_sql(f"{explain} {statement}", values)).all())
    assert f"postdate_message_cold_{wanted}" in plan, plan
    if is_postgresql:
        buffers = [int(number) for number in re.findall(r"shared hit=(\d+)", plan)]
        assert 0 < buffers[0] < 10, plan
    await journal.close()


async def test_setup_creates_the_tables_once_and_says_what_it_runs(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    (tmp_path / "journal.db").touch()
    with pytest.raises(JournalMissing, match=rf"^the journal at {tmp_path}/journal.db has no tables\. If they are"):
        await journal.open()
    wanted = await journal.missing()
    assert "CREATE TABLE IF NOT EXISTS postdate_message" in "\n".join(wanted)
    assert await journal.create() == wanted
    await journal.write([written := entry()])
    assert await journal.create() == []
    assert await waiting(journal) == [written.id]
    await journal.close()


@pytest.mark.parametrize(
    ("store", "text"),
    [
        (("other", 8), r'redis\.key_prefix "postdate", and this one has "other"'),
        (("postdate", 4), r'redis\.shards "8", and this one has "4"'),
    ],
)
async def test_another_store_with_the_same_tables_is_refused(tmp_path: Path, store: tuple[str, int], text: str) -> None:
    first, second = on_sqlite(tmp_path), on_sqlite(tmp_path, *store)
    await first.create()
    for refused in (second.open, second.create):
        with pytest.raises(StoreUnfit, match=text):
            await refused()
    await first.close()
    await second.close()


async def test_a_setup_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    """MySQL keeps what a transaction has created."""
    journal = on_sqlite(tmp_path)
    await journal.create()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as file, file:
        file.execute("DELETE FROM postdate_meta")
        file.execute("DROP INDEX postdate_message_cold_key")
    assert await journal.is_new()
    assert [statement for statement in await journal.create() if "INDEX" in statement] == [
        next(statement for statement in statements(journal._engine.dialect, 0) if "cold_key" in statement)
    ]
    await journal.open()
    await journal.close()


@pytest.mark.slow
async def test_a_message_that_is_too_large_for_a_statement_of_mysql_stops_no_other(database: Service) -> None:
    if not isinstance(database, MariaDB):
        return
    await asyncio.to_thread(database.wipe)
    await asyncio.to_thread(database.execute, "SET GLOBAL max_allowed_packet = 2097152")
    try:
        journal = SqlJournal(database.url, "", "rabbitmq", "postdate", body_max=512 * 1024)
        await journal.create()
        largest, larger = entry(payload=bytes(512 * 1024)), entry(payload=bytes(1024 * 1024), dead="too_large")
        await journal.write([larger, largest])
        await journal.record([move(Written.DEAD, larger)])
        assert await waiting(journal) == [largest.id]
        assert (await journal.look([larger.id]))[larger.id].state is Written.DEAD
        await journal.close()
        other = SqlJournal(database.url, "", "rabbitmq", "postdate", body_max=512 * 1024 + 1)
        with pytest.raises(StoreUnfit, match=r"takes statements of 2097152 bytes .* limits\.max_body needs 2097154"):
            await other.open()
        await other.close()
    finally:
        await asyncio.to_thread(database.execute, "SET GLOBAL max_allowed_packet = 67108864")


async def test_tables_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    await journal.create()
    await journal.set_meta("version", str(VERSION + 1))
    with pytest.raises(StoreUnfit, match="Upgrade postdate"):
        await journal.open()
    await journal.close()


async def test_what_the_database_refuses_is_named_without_the_statement(tmp_path: Path) -> None:
    journal = on_sqlite(tmp_path)
    (tmp_path / "journal.db").touch()
    with pytest.raises(JournalUnavailable, match=r"^the journal at .*/journal.db: no such table: postdate_message$"):
        await journal.write([entry()])
    await journal.close()


@pytest.mark.slow
async def test_instances_that_deliver_each_others_new_messages_do_not_stop_each_other(database: Service) -> None:
    """Each writes the rows of what it parked, and the ends of what it delivered. The order of the ends is another."""
    await asyncio.to_thread(database.wipe)
    journals = [SqlJournal(database.url, "", "rabbitmq", "postdate") for _ in range(2)]
    await journals[0].create()
    ids: list[bytes] = []
    for _ in range(8):
        parked = [[entry() for _ in range(300)] for _ in journals]
        both = sorted([*parked[0], *parked[1]], key=lambda written: written.id[::-1])
        ends = [[move(Written.DELIVERED, *both[at : at + 10]) for at in range(n, 600, 20)] for n in (0, 10)]
        await asyncio.gather(*(journals[n].write(parked[n], ends[n]) for n in range(2)))
        ids += [written.id for written in both]
    found = await journals[0].look(ids)
    assert {found[message_id].state for message_id in ids} == {Written.DELIVERED}
    for journal in journals:
        await journal.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://ann:pw@db:5433/pd?ssl=require", "db:5433/pd"),
        ("mysql://ann@[::1]/pd", "[::1]/pd"),
        ("postgresql://ann@/pd?host=/run/postgresql", "/run/postgresql/pd"),
        ("sqlite:////var/lib/journal.db", "/var/lib/journal.db"),
    ],
)
def test_a_database_is_named_without_user_and_password(url: str, place: str) -> None:
    assert place_of(address_of(url, "secret")) == place


@pytest.mark.slow
async def test_plans_for_an_empty_table_do_not_stay_when_the_table_grows(database: Service) -> None:
    """PostgreSQL keeps the plan of a statement that was carried out five times."""
    if not isinstance(database, PostgreSQL):
        return
    await asyncio.to_thread(database.wipe)
    scans = []
    for number in range(2):
        journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
        await journal.create()
        for at in range(0, 1000 * number, 100):
            parked = [entry(origin=(b"log", offset)) for offset in range(at, at + 100)]
            await journal.write(parked)
            await journal.record([move(Written.DELIVERED, *parked)])
        await journal.close()  # a server counts what its connections did when they end
        connection: Any = await asyncpg.connect(database.url)
        query = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'postdate_message'"
        scans.append(await connection.fetchval(query))
        await connection.close()
    assert scans[0] == scans[1]


@pytest.mark.slow
async def test_rows_whose_ends_came_first_and_new_ones_are_written_together(database: Service) -> None:
    """PostgreSQL refuses to copy them."""
    await asyncio.to_thread(database.wipe)
    journal = SqlJournal(database.url, "", "rabbitmq", "postdate")
    await journal.create()
    ended, fresh, later = (entry() for _ in range(3))
    await journal.record([move(Written.DELIVERED, ended)])
    await journal.write([ended, fresh])
    await journal.write([later])
    found = await journal.look([ended.id, fresh.id, later.id])
    assert {row.state for row in found.values() if row.size} == {Written.DELIVERED, Written.WAITING}
    assert await waiting(journal) == sorted([fresh.id, later.id])
    await journal.close()
