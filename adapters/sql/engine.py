"""The connections of the journal: one pool, with a time limit on every call."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from bridge.core.journal import JournalUnavailable

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+asyncpg",
    "mysql": "mysql+asyncmy",
    "mariadb": "mariadb+asyncmy",
}
#: How long a call, and how long a connection, may take.
_CALL_S, _CONNECT_S = 30.0, 5.0
_POOL = 4


def address_of(url: str, password: str) -> URL:
    """Return a URL of the settings with its driver. ``password`` is for a URL without one."""
    found = make_url(url)
    if password and found.password is None:
        found = found.set(password=password)
    return found.set(drivername=_DRIVERS[found.drivername])


def engine_of(url: URL) -> AsyncEngine:
    """Return the engine, not connected yet."""
    if url.get_backend_name() == "sqlite":
        engine = create_async_engine(url, connect_args={"timeout": _CONNECT_S})
        event.listen(engine.sync_engine, "connect", _open_file)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine
    limit = "timeout" if url.get_backend_name() == "postgresql" else "connect_timeout"
    return create_async_engine(url, pool_size=_POOL, pool_recycle=1800, connect_args={limit: _CONNECT_S})


def try_file(url: URL) -> None:
    """Open the file of SQLite, blocking. aiosqlite leaves a thread behind where it cannot, which fails when the loop
    has ended. Raises ``JournalUnavailable``."""
    if url.get_backend_name() == "sqlite" and url.database:
        try:
            sqlite3.connect(url.database).close()
        except sqlite3.Error as error:
            raise JournalUnavailable(f"the journal: {sentence_of(error)}") from error


def _open_file(connection: Any, _: Any) -> None:
    """Let readers and the writer work side by side, and write each transaction to the disk."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def reading(engine: AsyncEngine) -> AsyncEngine:
    """Return the same engine for transactions that only read: on SQLite they and a writer do not wait for each other.
    A search through a large journal may take longer than a writer has."""
    return engine.execution_options(reads=True)


def _begin(connection: Any) -> None:
    """Take the write lock at once: a transaction that reads first and writes later fails beside another one."""
    connection.exec_driver_sql("BEGIN" if connection.get_execution_options().get("reads") else "BEGIN IMMEDIATE")


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Run the block in a transaction. Raises ``JournalUnavailable`` for whatever the database refuses."""
    try:
        async with asyncio.timeout(_CALL_S), engine.begin() as connection:
            yield connection
    except TimeoutError as error:
        raise JournalUnavailable(f"the journal did not answer within {_CALL_S:g} s") from error
    except (SQLAlchemyError, OSError) as error:
        raise JournalUnavailable(f"the journal: {sentence_of(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith(("asyncpg", "pymysql", "asyncmy", "sqlite3")):
            raise
        raise JournalUnavailable(f"the journal: {sentence_of(error)}") from error


def sentence_of(error: BaseException) -> str:
    """Return what a database said, in one line, without the statement and its values."""
    found: Any = getattr(error, "orig", None) or error
    if getattr(found, "args", None) and len(found.args) == 2 and isinstance(found.args[0], int):
        found = found.args[1]  # MySQL: a number, then the text
    line = str(found).strip().partition("\n")[0].rstrip(".")
    return line.rpartition(">: ")[2] or type(error).__name__
