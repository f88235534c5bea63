"""The connections of the journal: one pool, with a time limit on every call, and the file of SQLite."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from bridge.core.journal import JournalMissing, JournalUnavailable

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


def place_of(url: URL) -> str:
    """Return where a database is, without user and password: a file, or host, port and name."""
    if url.get_backend_name() == "sqlite":
        return os.path.abspath(url.database or "")
    named = url.query.get("host", "localhost")
    host = url.host or (named if isinstance(named, str) else ",".join(named))
    host = f"[{host}]" if ":" in host else host
    return f"{host}{f':{url.port}' if url.port else ''}/{url.database or ''}"


def engine_of(url: URL) -> AsyncEngine:
    """Return the engine, not connected yet; that of a file comes with its ``DatabaseFile``."""
    limit = "timeout" if url.get_backend_name() == "postgresql" else "connect_timeout"
    return create_async_engine(url, pool_size=_POOL, pool_recycle=1800, connect_args={limit: _CONNECT_S})


class DatabaseFile:
    """The file of SQLite. A process goes on writing into a file that was moved away or deleted, and no other process
    would find these rows. So each transaction compares device and inode with those of its first one."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._known: tuple[int, int] | None = None

    def engine(self, url: URL) -> AsyncEngine:
        """Return the engine, not connected yet."""
        engine = create_async_engine(url, connect_args={"timeout": _CONNECT_S})
        for name in ("do_connect", "begin"):  # a connection would make an empty file
            event.listen(engine.sync_engine, name, self._compare)
        event.listen(engine.sync_engine, "connect", _open_file)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine

    def exists(self) -> bool:
        """Return whether the file exists, and forget which one was open: no connection may be. Blocking. Where
        aiosqlite cannot open the file, it leaves a thread behind, which fails when the loop has ended. Raises
        ``JournalUnavailable``."""
        self._known = None
        if not self._path.exists():
            return False
        try:
            sqlite3.connect(f"{self._path.as_uri()}?mode=rw", uri=True).close()
        except sqlite3.Error as error:
            raise JournalUnavailable(f"the journal at {self._path}: {sentence_of(error)}") from error
        return True

    def make(self) -> None:
        """Make it, if it is missing. Raises ``JournalMissing`` where it was moved away: the file beside it, which has
        its last rows, would be deleted. Raises ``JournalUnavailable``."""
        rows = self._path.with_name(f"{self._path.name}-wal")
        if not self._path.exists() and rows.exists():
            raise JournalMissing(
                f"the journal's file {self._path} is missing, and {rows} has its last rows",
                f"Stop postdate, and move the file back. If it is lost, delete {rows.name} before `postdate setup`",
            )
        try:
            self._path.touch()
        except OSError as error:
            raise JournalUnavailable(f"the journal at {self._path}: {error.strerror}") from error

    def missing(self) -> JournalMissing:
        return JournalMissing(
            f"the journal's file {self._path} is missing",
            "If it was moved, move it back, with its -wal and -shm files. `postdate setup` creates an empty journal: "
            "messages that wait have no row in it",
        )

    def _compare(self, *_: object) -> None:
        try:
            found = self._path.stat()
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self.missing() from error
        if self._known is None:
            self._known = found.st_dev, found.st_ino
        if self._known != (found.st_dev, found.st_ino):
            raise JournalMissing(
                f"the journal's file {self._path} is not the file that postdate has opened",
                "Move that one back. Or restart postdate to use the new one: messages that wait may have no row in it",
            )


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
    where = f"the journal at {place_of(engine.url)}"
    try:
        async with asyncio.timeout(_CALL_S), engine.begin() as connection:
            yield connection
    except TimeoutError as error:
        raise JournalUnavailable(f"{where} did not answer within {_CALL_S:g} s") from error
    except (SQLAlchemyError, OSError) as error:
        raise JournalUnavailable(f"{where}: {sentence_of(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith(("asyncpg", "pymysql", "asyncmy", "sqlite3")):
            raise
        raise JournalUnavailable(f"{where}: {sentence_of(error)}") from error


def sentence_of(error: BaseException) -> str:
    """Return what a database said, in one line, without the statement and its values."""
    found: Any = getattr(error, "orig", None) or error
    if getattr(found, "args", None) and len(found.args) == 2 and isinstance(found.args[0], int):
        found = found.args[1]  # MySQL: a number, then the text
    line = str(found).strip().partition("\n")[0].rstrip(".")
    return line.rpartition(">: ")[2] or type(error).__name__
