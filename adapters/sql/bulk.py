"""Writes of many rows, for which SQLAlchemy compiles the statement once and does nothing for each row.

SQLite, MySQL and MariaDB get the rows as tuples. PostgreSQL gets an array for each column: so it carries out one
statement, and not one for each row. New rows go by COPY, and ends of rows that are there by an UPDATE. Both cost less
than an INSERT, which writes the other rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from sqlalchemy import Dialect, Table, any_, bindparam, case, func, literal_column, select, update
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ColumnElement

#: Rows of one call of the driver.
ROWS = 250
MYSQL = ("mysql", "mariadb")
_OTHER_PLANS = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan", "enable_bitmapscan")
_INDEXES_ONLY = select(*(func.set_config(name, "off", literal_column("true")) for name in _OTHER_PLANS))
#: What becomes of a row whose id is there: a part of the statement, by (statement, dialect).
Conflict = Callable[[Any, Dialect], Any]


class BulkInsert:
    """One statement."""

    def __init__(self, dialect: Dialect, table: Table, names: Sequence[str], conflict: Conflict) -> None:
        """``names``: the columns of the rows, in the order of the table."""
        self._arrays = dialect.name == "postgresql"
        statement: Any = {"sqlite": sqlite, "postgresql": postgresql}.get(dialect.name, mysql).insert(table)
        if self._arrays:
            statement = statement.from_select(names, select(*_rows_of_arrays(table, names).c))
        self._key = itemgetter(*map(names.index, table.primary_key.columns.keys()))
        keys = None if self._arrays else names
        self._text = str(conflict(statement, dialect).compile(dialect=dialect, column_keys=keys))

    async def run(self, connection: AsyncConnection, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert the rows, piece by piece, so that other tasks run in between. Of rows with one key in a piece only the
        last is inserted: PostgreSQL refuses others."""
        left = iter(rows)
        while piece := {self._key(row): row for row in islice(left, ROWS)}:
            values: Any = list(piece.values())
            if self._arrays:
                values = tuple(map(list, zip(*values, strict=True)))
            await connection.exec_driver_sql(self._text, values)


class BulkUpdate:
    """One statement of PostgreSQL, which changes rows whose ``changed`` is lower than the new one."""

    def __init__(self, dialect: Dialect, table: Table, names: Sequence[str], **constants: str) -> None:
        """``names``: the columns of the rows: the id, and those that change. ``constants``: other values, as SQL."""
        rows, old = _rows_of_arrays(table, names), table.c
        values = {name: rows.c[name] for name in names[1:]}
        values |= {name: literal_column(value) for name, value in constants.items()}
        statement = update(table).where(old.id == rows.c.id, old.changed < rows.c.changed).values(values)
        self._text = str(statement.compile(dialect=dialect))

    async def run(self, connection: AsyncConnection, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Change rows, which come by id. Return the pieces in which rows are missing or did not change."""
        await search_indexes(connection)
        left: list[tuple[Any, ...]] = []
        for at in range(0, len(rows), ROWS):
            piece = rows[at : at + ROWS]
            arrays = tuple(map(list, zip(*piece, strict=True)))
            changed = await connection.exec_driver_sql(self._text, arrays)
            left += piece if changed.rowcount < len(piece) else ()
        return left


async def search_indexes(connection: AsyncConnection) -> None:
    """Let PostgreSQL use only indexes in this transaction. It keeps plans, and would keep the one for an empty table.
    With an index it also locks rows in the order of their ids."""
    await connection.execute(_INDEXES_ONLY)


async def copy_new(connection: AsyncConnection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert rows in one COPY of PostgreSQL. It inserts none where one of them is there."""
    driver: Any = (await connection.get_raw_connection()).driver_connection
    await driver.copy_records_to_table(table.name, columns=table.c.keys(), records=_with_pauses(rows))


async def _with_pauses(rows: Iterable[tuple[Any, ...]]) -> AsyncIterator[tuple[Any, ...]]:
    """Iterate over rows, and let other tasks run in between."""
    for place, row in enumerate(rows, 1):
        yield row
        if place % ROWS == 0:
            await asyncio.sleep(0)


def _rows_of_arrays(table: Table, names: Sequence[str]) -> Any:
    arrays = [bindparam(name, type_=postgresql.ARRAY(table.c[name].type)) for name in names]
    return func.unnest(*arrays).table_valued(*names).render_derived("new")


def among(dialect: Dialect, column: ColumnElement[bytes], values: Sequence[bytes]) -> ColumnElement[bool]:
    """Whether a column has a value of these: for PostgreSQL as an array, which costs a quarter of a list."""
    if dialect.name != "postgresql":
        return column.in_(values)
    return column == any_(bindparam(None, values, postgresql.ARRAY(column.type)))


def left_alone(statement: Any, dialect: Dialect) -> Any:
    """A row that is there stays as it is. MySQL's INSERT IGNORE would also cut what is too long."""
    if dialect.name in MYSQL:
        first = next(iter(statement.table.primary_key))
        return statement.on_duplicate_key_update({first.name: first})
    return statement.on_conflict_do_nothing()


def completed(statement: Any, dialect: Dialect) -> Any:
    """A message that is there keeps its state, unless the new row has a later one: its end may have come first."""
    old, new = statement.table.c, _new(statement, dialect)
    values = [(name, new[name]) for name in ("route", "key", "arrived_ms", "envelope")]
    values.append(("origin", func.coalesce(new.origin, old.origin)))  # the store does not tell it
    values.append(("due_ms", case((old.due_ms == literal_column("0"), new.due_ms), else_=old.due_ms)))
    return _changed(statement, dialect, [*values, *_later(old, new)])


def moved(statement: Any, dialect: Dialect) -> Any:
    """A message that is there changes its state, unless a later move made something else of it."""
    return _changed(statement, dialect, _later(statement.table.c, _new(statement, dialect)))


def _later(old: Any, new: Any) -> list[tuple[str, Any]]:
    """Return what the later of two moves made. MySQL sets columns in this order, and reads what it has set."""
    names = ("state", "reason", "ended_ms", "changed")
    return [(name, case((old.changed < new.changed, new[name]), else_=old[name])) for name in names]


def _changed(statement: Any, dialect: Dialect, values: list[tuple[str, Any]]) -> Any:
    if dialect.name in MYSQL:
        return statement.on_duplicate_key_update(values)
    return statement.on_conflict_do_update(index_elements=["id"], set_=dict(values))


def _new(statement: Any, dialect: Dialect) -> Any:
    return statement.inserted if dialect.name in MYSQL else statement.excluded
