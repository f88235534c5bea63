"""The part of the store's suite about a store whose rows are written behind, on a real database: SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from adapters.sql.journal import SqlJournal
from bridge.core.errors import StoreUnavailable
from bridge.core.journal import MoveLog, Written
from bridge.core.message import Origin
from bridge.core.ports import Batch, DeadBatch, Parked, Store
from bridge.pipeline.journaled import Journaling, journaling
from bridge.telemetry.health import Health
from tests.conformance.rig import HOUR_MS, SHARDS, Message, Rig

RECORD = [(b"orders.delay-0", 100)]


async def accepted(parts: Journaling, message: Message, origins: Sequence[Origin], dead: bool) -> None:
    """Park or reject with a call of its own. Raises ``StoreUnavailable``."""
    token = parts.store.new_token()
    if dead:
        await parts.store.reject(0, DeadBatch(token, [(message[0], message[2], "bad_header: soon")], origins))
        return
    reply = (await parts.store.park({0: Batch(token, [message], origins=list(origins))}))[0]
    if not isinstance(reply, Parked):
        raise reply


class Journaled:
    """What is accepted has a row as soon as the writer has written."""

    @pytest.fixture
    async def journal(self, tmp_path: Path) -> AsyncIterator[SqlJournal]:
        journal = SqlJournal(f"sqlite:///{tmp_path}/journal.db", "", "rabbitmq", "postdate", SHARDS)
        await journal.create()
        yield journal
        await journal.close()

    @pytest.mark.parametrize(
        ("origins", "dead"),
        [(RECORD, False), (RECORD, True), ((), True)],
        ids=["a record", "a rejected record", "a rejected message of a queue"],
    )
    async def test_what_a_call_without_a_reply_handled_has_a_row_once_it_is_accepted(
        self, rig: Rig, journal: SqlJournal, origins: Sequence[Origin], dead: bool
    ) -> None:
        store: Store = await rig.open()
        log = cast("MoveLog", getattr(store, "moves", store))
        parts = journaling(store, journal, log, False, HOUR_MS, Health(), lambda _: False)
        for parks in (False, True):
            await log.read([0], 1, parks=parks)
        first, again = (rig.message(due_ms) for due_ms in [await rig.now_ms() + HOUR_MS] * 2)
        rig.lose_reply(store)
        with pytest.raises(StoreUnavailable):
            await accepted(parts, first, origins, dead)
        await parts.flush()
        assert await journal.lacking([first[0]]) == [first[0]]
        await accepted(parts, again if origins else first, origins, dead)
        await parts.flush()
        assert await journal.lacking([first[0]]) == []
        await parts.tail.catch_up([0])
        row = (await journal.look([first[0], again[0]])).pop(first[0])
        assert row.state is (Written.DEAD if dead else Written.WAITING)
