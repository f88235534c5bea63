"""The journal of one store in an SQL database."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any

import structlog
from sqlalchemy import (
    Connection,
    and_,
    delete,
    func,
    insert,
    inspect,
    not_,
    or_,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql import ColumnElement, Executable, Select

from adapters.sql.bulk import (
    MYSQL,
    ROWS,
    BulkInsert,
    BulkUpdate,
    among,
    completed,
    copy_new,
    left_alone,
    moved,
    search_indexes,
)
from adapters.sql.engine import DatabaseFile, address_of, engine_of, place_of, reading, transaction
from adapters.sql.tables import COLD_MS, FLOW, IS_COLD, MESSAGE, META, VERSION, statements
from bridge.core.errors import StoreUnfit
from bridge.core.journal import (
    FlowRow,
    JournalEntry,
    JournalFilter,
    JournalMessage,
    JournalMissing,
    JournalUnavailable,
    Place,
    StoreMove,
    Written,
)
from bridge.core.message import Origin
from bridge.parking.envelope import UnopenedEnvelope, plain_key, unseal
from bridge.parking.identity import PRIORITY_MAX, arrival_of, ids_of_rank, shard_of

log = structlog.get_logger("postdate")

#: Values of one IN list.
_LIST_MAX = 500
_TEXT_MAX = 255
#: Rows among which ``newest`` looks.
_NEWEST_MAX = 1000
#: What a statement of MySQL may have besides the body of a message. Half of it is for the rest of the envelope.
_STATEMENT_BYTES = 1024 * 1024
_ORIGIN = MESSAGE.c.keys().index("origin")
#: PostgreSQL's error for a COPY of a row that is there. Where instances deliver each other's messages at once, ends
#: often come before rows: so postdate then copies no rows for this time.
_ROW_IS_THERE, _NO_COPY_S = "23505", 60.0
_FACTS = tuple(column for column in MESSAGE.c if column.name in JournalMessage._fields and column.name != "envelope")
_SIZE = func.length(MESSAGE.c.envelope).label("size")


class SqlJournal:
    """``bridge.core.journal.Journal`` in a database."""

    def __init__(
        self, url: str, password: str, broker: str, prefix: str, shards: int = 8, body_max: int = 1024 * 1024
    ) -> None:
        """``prefix`` and ``shards`` are those of the broker's store. The stores of several brokers share the tables."""
        address = address_of(url, password)
        self._place = place_of(address)
        self._file = DatabaseFile(self._place) if address.get_backend_name() == "sqlite" else None
        self._engine = engine_of(address) if self._file is None else self._file.engine(address)
        self._reads = reading(self._engine)
        self._broker = broker
        self._store = {"key_prefix": prefix, "shards": str(shards)}
        self._body_max = body_max
        #: What fits into a row, if the database has a limit.
        self._envelope_max: int | None = None
        dialect = self._engine.dialect
        self._in = partial(among, dialect)
        self._insert = BulkInsert(dialect, MESSAGE, MESSAGE.c.keys(), completed)
        self._is_postgresql = dialect.name == "postgresql"
        if self._is_postgresql:
            self._update_ends = BulkUpdate(
                dialect, MESSAGE, ("id", "changed", "ended_ms"), state=str(int(Written.DELIVERED)), reason="''"
            )
        #: When rows may be copied again, by the monotonic clock.
        self._copies_s = 0.0
        self._set_states = BulkInsert(dialect, MESSAGE, MESSAGE.c.keys(), moved)
        self._insert_ends = BulkInsert(dialect, MESSAGE, MESSAGE.c.keys(), left_alone)
        self._insert_flow = BulkInsert(dialect, FLOW, FLOW.c.keys(), left_alone)

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()

    # -- the tables ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Check the version, of which store the tables are, and how large a row may be."""
        version, store = await self._state()
        if not version:
            raise self._missing()
        if version != VERSION:
            advice = "Run: postdate setup" if version < VERSION else "Upgrade postdate"
            state = f"the journal at {self._place} has version {version}"
            raise StoreUnfit(f"{state}, and this postdate needs version {VERSION}. {advice}")
        for name, mine in self._store.items():
            if name not in store:
                raise StoreUnfit(f"the journal at {self._place} was not made for {self._broker}. Run: postdate setup")
            if store[name] != mine:
                raise StoreUnfit(
                    f'the journal at {self._place} belongs to the store with redis.{name} "{store[name]}", and this '
                    f'one has "{mine}". Give each its own database or schema'
                )
        if self._engine.dialect.name in MYSQL:
            await self._measure()

    async def _measure(self) -> None:
        """Find out the largest envelope that fits into a statement, in which a byte may take two."""
        ((packet,),) = await self._rows(text("SELECT @@max_allowed_packet"))
        needed = 2 * self._body_max + _STATEMENT_BYTES
        if packet < needed:
            raise StoreUnfit(
                f"the server of the journal at {self._place} takes statements of {packet} bytes (max_allowed_packet), "
                f"and limits.max_body needs {needed}. Raise it there, or lower limits.max_body"
            )
        self._envelope_max = (packet - _STATEMENT_BYTES // 2) // 2

    def _missing(self) -> JournalMissing:
        if self._file is not None and not self._is_there():
            return self._file.missing()
        return JournalMissing(
            f"the journal at {self._place} has no tables",
            "If they are elsewhere, correct journal.url. `postdate setup` creates an empty journal: messages that wait "
            "have no row in it",
        )

    def _is_there(self) -> bool:
        """Return whether there is a database to ask."""
        return self._file is None or self._file.exists()

    async def is_new(self) -> bool:
        """Return whether no setup was made for this store."""
        version, store = await self._state()
        return version == 0 or (version == VERSION and store.keys() < self._store.keys())

    async def missing(self) -> list[str]:
        """Return the SQL that creates or upgrades the tables; nothing where they are up to date.

        MySQL keeps what a setup made that was killed, so indexes that are there are left out."""
        version, _ = await self._state()
        wanted = statements(self._engine.dialect, version)
        there = await self._indexes() if wanted and self._is_there() else ()
        return [statement for statement in wanted if not any(f" INDEX {name} ON " in statement for name in there)]

    async def _indexes(self) -> list[str | None]:
        def names(sync: Connection) -> list[str | None]:
            found = inspect(sync)
            return [index["name"] for index in found.get_indexes(MESSAGE.name)] if found.has_table(MESSAGE.name) else []

        async with transaction(self._reads) as connection:
            return await connection.run_sync(names)

    async def create(self) -> list[str]:
        """Create or upgrade the tables. Return the SQL that was carried out. Raises ``StoreUnfit`` as ``open``."""
        missing = await self.missing()
        if self._file is not None:
            self._file.make()
        async with transaction(self._engine) as connection:
            for statement in missing:
                await connection.execute(text(statement))
        version, store = await self._state()
        if version < VERSION:
            await self.set_meta("version", str(VERSION))
        for name in self._store.keys() - store.keys():
            await self.set_meta(f"{self._broker} {name}", self._store[name])
        await self.open()
        return missing

    async def set_meta(self, name: str, value: str) -> None:
        """Write a fact about the tables."""
        async with transaction(self._engine) as connection:
            await connection.execute(delete(META).where(META.c.name == name))
            await connection.execute(insert(META).values(name=name, value=value))

    async def _state(self) -> tuple[int, dict[str, str]]:
        """Return the version of the tables, and of which store they are."""
        await self._engine.dispose()
        if not self._is_there():
            return 0, {}
        async with transaction(self._reads) as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table(META.name)):
                return 0, {}
            rows = dict(map(tuple, await connection.execute(select(META.c.name, META.c.value))))
        named = {name: rows.get(f"{self._broker} {name}") for name in self._store}
        return int(rows.get("version", 0)), {name: value for name, value in named.items() if value is not None}

    # -- writing ------------------------------------------------------------------------------------------------------

    async def write(self, entries: Sequence[JournalEntry], moves: Sequence[StoreMove] = ()) -> None:
        """Write messages, then moves, in a transaction each. A new message that was delivered is written once.

        Rows come by id: another instance may write the moves of these messages, and this one writes moves of others.
        Two transactions that lock the same rows in another order would wait for each other."""
        others = [move for move in moves if not _is_delivery(move)]
        ends: dict[bytes, tuple[int, int]] = {}
        for move in moves:
            if _is_delivery(move):
                ends.update(dict.fromkeys(move.ids, (move.at, move.at_ms)))
        new = {entry.id for entry in entries}.difference(*(move.ids for move in others)) if ends else set[bytes]()
        if entries:
            await self._write_rows(sorted(entries, key=itemgetter(0)), {key: ends[key] for key in new & ends.keys()})
        if others:
            async with transaction(self._engine) as connection:
                await self._record(connection, others)
        if left := sorted(ends.keys() - new):
            await self._write_ends([(message_id, *ends[message_id]) for message_id in left])

    async def _write_rows(self, entries: Sequence[JournalEntry], ends: Mapping[bytes, tuple[int, int]]) -> None:
        """Write rows, most of which are new."""
        if self._is_postgresql and time.monotonic() > self._copies_s:
            try:
                async with transaction(self._engine) as connection:
                    await self._replace(connection, entries)
                    await copy_new(connection, MESSAGE, (self._row(entry, ends.get(entry.id)) for entry in entries))
                    return
            except JournalUnavailable as error:
                if getattr(error.__cause__, "sqlstate", "") != _ROW_IS_THERE:
                    raise
                self._copies_s = time.monotonic() + _NO_COPY_S
        async with transaction(self._engine) as connection:
            await self._replace(connection, entries)
            await self._insert.run(connection, (self._row(entry, ends.get(entry.id)) for entry in entries))

    async def _replace(self, connection: AsyncConnection, entries: Sequence[JournalEntry]) -> None:
        """Delete other rows with the origins of these messages."""
        if self._is_postgresql:
            await search_indexes(connection)
        read = [(entry.id, entry.origin) for entry in entries if entry.origin is not None]
        for at in range(0, len(read), ROWS):
            ids, origins = zip(*read[at : at + ROWS], strict=True)
            same = self._in(MESSAGE.c.origin, [origin_digest(self._broker, origin) for origin in origins])
            await connection.execute(delete(MESSAGE).where(same, not_(self._in(MESSAGE.c.id, ids))))

    async def _write_ends(self, ends: Sequence[tuple[Any, ...]]) -> None:
        """Write ends of messages, most of which have a row."""
        if self._is_postgresql:
            async with transaction(self._engine) as connection:
                ends = await self._update_ends.run(connection, ends)
        if ends:
            async with transaction(self._engine) as connection:
                rows = (self._end(message_id, int(Written.DELIVERED), "", *end) for message_id, *end in ends)
                await self._set_states.run(connection, rows)

    async def propose(self, entries: Sequence[JournalEntry]) -> dict[bytes, bytes]:
        """Write messages in one transaction. Return other rows of their records."""
        rows = [self._row(entry, None) for entry in entries]
        by_origin = {row[_ORIGIN]: row[0] for row in rows if row[_ORIGIN] is not None}
        found: dict[bytes, bytes] = {}
        async with transaction(self._engine) as connection:
            for piece in _pieces([*by_origin]):
                query = select(MESSAGE.c.id, MESSAGE.c.origin).where(self._in(MESSAGE.c.origin, piece))
                others = (await connection.execute(query)).all()
                found.update((other, by_origin[origin]) for other, origin in others if other != by_origin[origin])
            await self._insert.run(connection, rows)
        return found

    def _row(self, entry: JournalEntry, end: tuple[int, int] | None) -> tuple[Any, ...]:
        """Return a message as a row of the table. ``end``: the place and the moment of its delivery."""
        message_id, due_ms, envelope, origin, dead = entry
        try:
            opened = unseal(envelope)
            route, key, arrived_ms = opened.route, plain_key(opened.key), opened.arrived_ms
            due_ms = due_ms or opened.due_ms
        except UnopenedEnvelope:
            route, key, arrived_ms = "", b"", 0
        if self._envelope_max is not None and len(envelope) > self._envelope_max:
            log.error("journal row without its message", id=message_id.decode(), bytes=len(envelope))
            envelope = b""
        digest = None if origin is None else origin_digest(self._broker, origin)
        facts = route, shard_of(message_id), key, due_ms, arrived_ms, envelope, digest
        if end is not None:
            return message_id, self._broker, *facts, int(Written.DELIVERED), "", *end
        state, reason = (0, "") if dead is None else (int(Written.DEAD), _text(dead))
        return message_id, self._broker, *facts, state, reason, 0, None

    def _end(
        self, message_id: bytes, state: int = 0, reason: str = "", changed: int = 0, ended_ms: int | None = None
    ) -> tuple[Any, ...]:
        """Return the row of a message whose end came before its beginning."""
        facts = "", shard_of(message_id), b"", 0, 0, b"", None
        return message_id, self._broker, *facts, state, reason, changed, ended_ms

    async def rivals(self, ids: Sequence[bytes]) -> list[tuple[bytes, JournalMessage]]:
        """Return rows with the origins of others."""
        found: list[tuple[bytes, JournalMessage]] = []
        mine = MESSAGE.alias()
        async with transaction(self._reads) as connection:
            for piece in _pieces(ids):
                same = and_(mine.c.origin == MESSAGE.c.origin, mine.c.id != MESSAGE.c.id)
                query = select(mine.c.id.label("mine"), *_FACTS).join(mine, same).where(self._in(mine.c.id, piece))
                for row in (await connection.execute(query)).mappings():
                    facts = dict(row)
                    found.append((facts.pop("mine"), _message(facts)))
        return found

    async def lacking(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return ids without a whole row."""
        known: set[bytes] = set()
        async with transaction(self._reads) as connection:
            for piece in _pieces(ids):
                whole = and_(self._in(MESSAGE.c.id, piece), func.length(MESSAGE.c.envelope) > 0)
                known.update((await connection.execute(select(MESSAGE.c.id).where(whole))).scalars())
        return [message_id for message_id in ids if message_id not in known]

    async def drop(self, ids: Sequence[bytes]) -> None:
        """Delete rows."""
        async with transaction(self._engine) as connection:
            for piece in _pieces(ids):
                await connection.execute(delete(MESSAGE).where(MESSAGE.c.id.in_(piece)))

    async def record(self, moves: Sequence[StoreMove]) -> None:
        """Write moves in one transaction."""
        await self.write((), moves)

    async def _record(self, connection: AsyncConnection, moves: Sequence[StoreMove]) -> None:
        """Write moves: one statement for moves in a row that set a state alone."""
        for states_alone, alike in groupby(moves, _sets_state_alone):
            if states_alone:
                await self._set_states.run(connection, self._ends(list(alike)))
            else:
                for move in alike:
                    await self._move(connection, move)
        rows = (
            (message_id, move.at_ms, move.name, _text(move.by), _text(move.reason), move.due_ms)
            for move in moves
            if move.state is not Written.DELIVERED  # its row says so
            for message_id in move.ids
        )
        await self._insert_flow.run(connection, rows)

    def _ends(self, moves: Iterable[StoreMove]) -> list[tuple[Any, ...]]:
        """Return the rows of moves by id, and by place those of one message."""
        rows = []
        for move in sorted(moves, key=attrgetter("at")):
            state = move.state or Written.WAITING
            values = int(state), _text(move.reason), move.at, move.at_ms if state.ended else None
            rows += [self._end(message_id, *values) for message_id in move.ids]
        return sorted(rows, key=itemgetter(0))

    async def _move(self, connection: AsyncConnection, move: StoreMove) -> None:
        await self._insert_ends.run(connection, [self._end(message_id) for message_id in move.ids])
        values: dict[str, Any] = {"changed": move.at} if move.at else {}
        if move.state is not None:
            ended_ms = move.at_ms if move.state.ended else None
            values |= {"state": move.state, "ended_ms": ended_ms, "reason": _text(move.reason)}
        if move.due_ms is not None:
            values["due_ms"] = move.due_ms
        older = [MESSAGE.c.changed < move.at] if move.at else []
        for piece in _pieces(move.ids) if values else ():
            await connection.execute(update(MESSAGE).where(MESSAGE.c.id.in_(piece), *older).values(values))

    async def prune(self, before_ms: int, limit: int) -> int:
        """Delete rows in one short transaction."""
        ended = and_(MESSAGE.c.broker == self._broker, MESSAGE.c.ended_ms < before_ms)
        async with transaction(self._engine) as connection:
            ids = list((await connection.execute(select(MESSAGE.c.id).where(ended).limit(limit))).scalars())
            for piece in _pieces(ids):
                await connection.execute(delete(FLOW).where(FLOW.c.id.in_(piece)))
                # A restore may just have brought a message back.
                await connection.execute(delete(MESSAGE).where(MESSAGE.c.id.in_(piece), ended))
        return len(ids)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def page(self, wanted: JournalFilter, after: Place, limit: int, head: int = 0) -> list[JournalMessage]:
        """Return the next rows. PostgreSQL follows the index only where the order names the column that is NULL, too;
        MariaDB only where it does not."""
        due_ms, last = after
        beyond = or_(MESSAGE.c.due_ms > due_ms, and_(MESSAGE.c.due_ms == due_ms, MESSAGE.c.id > last))
        envelope = func.substr(MESSAGE.c.envelope, 1, head).label("envelope") if head else MESSAGE.c.envelope
        query = select(*_FACTS, envelope, _SIZE)
        query = query.where(*self._matching(wanted), MESSAGE.c.due_ms >= due_ms, beyond)
        one_group = self._engine.dialect.name == "postgresql" and not any(state.ended for state in wanted.states)
        order = (MESSAGE.c.ended_ms,) if one_group else ()
        return await self._read(query.order_by(*order, MESSAGE.c.due_ms, MESSAGE.c.id).limit(limit))

    async def newest(self, limit: int) -> list[JournalMessage]:
        """Return the last ids: those of each rank sort by arrival. Look at few, or a database would sort all that
        wait."""
        found = await self._read(union_all(*(self._last(rank, limit) for rank in range(PRIORITY_MAX + 1))))
        return sorted(found, key=lambda row: arrival_of(row.id), reverse=True)[:limit]

    def _last(self, rank: int, limit: int) -> Select[Any]:
        first, end = ids_of_rank(rank)
        facts = select(*_FACTS, MESSAGE.c.broker, _SIZE).where(MESSAGE.c.id >= first, MESSAGE.c.id < end)
        last = facts.order_by(MESSAGE.c.id.desc()).limit(_NEWEST_MAX).subquery()
        waits = (last.c.broker == self._broker, last.c.ended_ms.is_(None), last.c.size > 0)
        query = select(*(last.c[fact.name] for fact in _FACTS)).where(*waits)
        return select(query.order_by(last.c.id.desc()).limit(limit).subquery())

    async def ended(self, wanted: JournalFilter, limit: int, head: int) -> list[JournalMessage]:
        """Return the last rows by the index of ends, in which cold rows come last of all."""
        envelope = func.substr(MESSAGE.c.envelope, 1, head).label("envelope")
        query = select(*_FACTS, envelope, _SIZE).where(*self._matching(wanted), MESSAGE.c.ended_ms < COLD_MS)
        return await self._read(query.order_by(MESSAGE.c.ended_ms.desc(), MESSAGE.c.id.desc()).limit(limit))

    async def look(self, ids: Sequence[bytes]) -> dict[bytes, JournalMessage]:
        """Return rows by id. SQLite would use an index on the broker alone, which is why there is a concatenation."""
        found: dict[bytes, JournalMessage] = {}
        for piece in _pieces(ids):
            query = select(*_FACTS, _SIZE).where(MESSAGE.c.broker.concat("") == self._broker, MESSAGE.c.id.in_(piece))
            found.update((row.id, row) for row in await self._read(query))
        return found

    async def count(self, wanted: JournalFilter) -> int:
        """Count rows."""
        ((found,),) = await self._rows(select(func.count()).select_from(MESSAGE).where(*self._matching(wanted)))
        return int(found)

    # -- the cold tier ------------------------------------------------------------------------------------------------

    async def shift(self, ids: Sequence[bytes], before: Written, after: Written) -> list[bytes]:
        """Change states in one transaction."""
        values = {"state": after, "ended_ms": COLD_MS if after is Written.COLD else None}
        found: list[bytes] = []
        async with transaction(self._engine) as connection:
            for piece in _pieces(ids):
                known = MESSAGE.c.id.in_(piece)
                whole = MESSAGE.c.state == before, func.length(MESSAGE.c.envelope) > 0
                await connection.execute(update(MESSAGE).where(known, *whole).values(values))
                query = select(MESSAGE.c.id).where(known, MESSAGE.c.state == after)
                found += (await connection.execute(query)).scalars()
        return found

    async def named(self, pairs: Sequence[tuple[str, bytes]], limit: int) -> list[JournalMessage]:
        """Look each pair up in the index of keys of cold rows."""
        found: list[Any] = []
        async with transaction(self._reads) as connection:
            for route, key in pairs:
                wanted = MESSAGE.c.broker == self._broker, IS_COLD, MESSAGE.c.key == key, MESSAGE.c.route == route
                query = select(*_FACTS, _SIZE).where(*wanted).limit(limit)
                found += (await connection.execute(query)).mappings()
        return list(map(_message, found))

    async def cold_counts(self, due_from_ms: int = 0) -> dict[int, dict[str, int]]:
        """Count cold rows in their index alone. With a bare ``due_ms`` SQLite would use another one, and read every
        row."""
        columns = MESSAGE.c.shard, MESSAGE.c.route
        wanted = MESSAGE.c.broker == self._broker, IS_COLD, MESSAGE.c.due_ms + 0 >= due_from_ms
        query = select(*columns, func.count()).where(*wanted).group_by(*columns)
        found: dict[int, dict[str, int]] = {}
        for shard, route, number in await self._rows(query):
            found.setdefault(shard, {})[route] = number
        return found

    async def density(self, bounds_ms: Sequence[int]) -> list[int]:
        """Count in one statement."""
        counts = [
            select(func.count())
            .where(MESSAGE.c.broker == self._broker, IS_COLD, MESSAGE.c.due_ms >= first, MESSAGE.c.due_ms < end)
            .scalar_subquery()
            for first, end in pairwise(bounds_ms)
        ]
        return list((await self._rows(select(*counts)))[0]) if counts else []

    async def flow(self, message_id: bytes) -> list[FlowRow]:
        """Return the moves of a message."""
        columns = (FLOW.c.at_ms, FLOW.c.move, FLOW.c.by, FLOW.c.reason, FLOW.c.due_ms)
        query = select(*columns).where(FLOW.c.id == message_id).order_by(FLOW.c.at_ms)
        return [FlowRow(*row) for row in await self._rows(query)]

    async def _read(self, query: Executable) -> list[JournalMessage]:
        return [_message(row._mapping) for row in await self._rows(query)]

    async def _rows(self, query: Executable) -> Sequence[Any]:
        async with transaction(self._reads) as connection:
            return (await connection.execute(query)).all()

    def _matching(self, wanted: JournalFilter) -> Iterator[ColumnElement[bool]]:
        # With ids, SQLite would rather use an index on the broker.
        yield (MESSAGE.c.broker if wanted.ids is None else MESSAGE.c.broker.concat("")) == self._broker
        if wanted.ids is not None:
            yield MESSAGE.c.id.in_(wanted.ids)
        elif wanted.states == (Written.COLD,):
            yield IS_COLD
        elif not any(state.ended for state in wanted.states):
            yield MESSAGE.c.ended_ms.is_(None)
        yield MESSAGE.c.state.in_(wanted.states)
        yield func.length(MESSAGE.c.envelope) > 0
        if wanted.route is not None:
            yield MESSAGE.c.route == wanted.route
        if wanted.key is not None:
            yield MESSAGE.c.key == wanted.key
        if wanted.due_from_ms is not None:
            yield MESSAGE.c.due_ms >= wanted.due_from_ms
        if wanted.due_before_ms is not None:
            yield MESSAGE.c.due_ms < wanted.due_before_ms
        if wanted.arrived_until_ms is not None:
            yield MESSAGE.c.arrived_ms <= wanted.arrived_until_ms


def origin_digest(broker: str, origin: Origin) -> bytes:
    """Return an origin in 16 bytes. Pure."""
    log, offset = origin
    return blake2b(broker.encode() + b"\0" + log + b"\0%d" % offset, digest_size=16).digest()


def _text(text: str) -> str:
    """Return what people or brokers wrote as every database keeps it: PostgreSQL refuses a NUL, all refuse half of a
    surrogate pair. Pure."""
    if text.isascii() and "\0" not in text:
        return text[:_TEXT_MAX]
    return text[:_TEXT_MAX].replace("\0", "\ufffd").encode(errors="replace").decode()


def _message(row: Mapping[Any, Any]) -> JournalMessage:
    ended_ms = None if row["ended_ms"] == COLD_MS else row["ended_ms"]
    return JournalMessage(**{**row, "state": Written(row["state"]), "ended_ms": ended_ms})


def _pieces(values: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for at in range(0, len(values), _LIST_MAX):
        yield values[at : at + _LIST_MAX]


def _is_delivery(move: StoreMove) -> bool:
    return bool(move.at) and move.state is Written.DELIVERED and not move.reason


def _sets_state_alone(move: StoreMove) -> bool:
    return bool(move.at) and move.state is not None and move.due_ms is None
