"""The tables of the journal, and the numbered steps that make them.

A released step never changes. A new one is added at the end, and ``postdate setup`` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    literal_column,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement
from sqlalchemy.types import TypeEngine

metadata = MetaData()
#: MySQL and MariaDB would take what their server is set to: there, emoji may be refused, and names that differ in case
#: may be equal.
_TEXTS: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def _bytes(length: int) -> TypeEngine[bytes]:
    """Return bytes that may be a key: MySQL indexes no BLOB."""
    return LargeBinary(length).with_variant(mysql.VARBINARY(length), "mysql", "mariadb")


META = Table(
    "postdate_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
    **_TEXTS,
)
#: The end of a cold row: it stands apart in the index of what waits, and is never pruned.
COLD_MS = 2**62
#: ``changed`` is the place of the last move in the log of the shard, 0 without one.
MESSAGE = Table(
    "postdate_message",
    metadata,
    Column("id", _bytes(20), primary_key=True),
    Column("broker", String(16), nullable=False),
    Column("route", String(255), nullable=False),
    Column("shard", Integer, nullable=False),
    Column("key", _bytes(255), nullable=False, quote=True),
    Column("due_ms", BigInteger, nullable=False),
    Column("arrived_ms", BigInteger, nullable=False),
    Column("envelope", LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb"), nullable=False),
    Column("origin", _bytes(16)),
    Column("state", SmallInteger, nullable=False),
    Column("reason", String(255), nullable=False),
    Column("changed", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    **_TEXTS,
)
FLOW = Table(
    "postdate_flow",
    metadata,
    Column("id", _bytes(20), primary_key=True),
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("move", String(32), primary_key=True),
    Column("by", String(255), nullable=False, quote=True),
    Column("reason", String(255), nullable=False),
    Column("due_ms", BigInteger),
    **_TEXTS,
)
#: A literal, because a database compares it with the condition of an index.
IS_COLD = MESSAGE.c.ended_ms == literal_column(str(COLD_MS))


def _cold_index(name: str, *columns: Column[Any]) -> Index:
    """Return an index of cold rows. ``ended_ms`` comes last: PostgreSQL does not search for what the condition says, so
    with that column in between it reads the whole index."""
    return Index(name, MESSAGE.c.broker, *columns, MESSAGE.c.ended_ms, sqlite_where=IS_COLD, postgresql_where=IS_COLD)


STEPS: tuple[tuple[ExecutableDDLElement, ...], ...] = (
    (
        CreateTable(META, if_not_exists=True),
        CreateTable(MESSAGE, if_not_exists=True),
        CreateTable(FLOW, if_not_exists=True),
        CreateIndex(Index("postdate_message_waits", MESSAGE.c.broker, MESSAGE.c.ended_ms, MESSAGE.c.due_ms)),
        CreateIndex(
            Index(
                "postdate_message_origin",
                MESSAGE.c.origin,
                sqlite_where=MESSAGE.c.origin.is_not(None),
                postgresql_where=MESSAGE.c.origin.is_not(None),
            )
        ),
    ),
    (
        CreateIndex(_cold_index("postdate_message_cold_key", MESSAGE.c.key)),
        CreateIndex(_cold_index("postdate_message_cold_route", MESSAGE.c.route, MESSAGE.c.due_ms, MESSAGE.c.shard)),
    ),
)
VERSION = len(STEPS)


def statements(dialect: Dialect, version: int) -> Sequence[str]:
    """Return the SQL that brings tables of ``version`` (0: none) to this one. Pure."""
    return [str(part.compile(dialect=dialect)).strip() for step in STEPS[version:] for part in step]
