"""Restore as operators order it: what a request or a command means, what it would bring back, and the operation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from os import fsdecode
from typing import Any

from bridge.core.errors import Refused, StoreUnavailable
from bridge.core.journal import UNDONE, JournalFilter
from bridge.operate.bulk import RunningOperation, too_many
from bridge.operate.documents import RestoreCounts, RestorePreview
from bridge.operate.moments import read_border_ms
from bridge.operate.operator import Progress
from bridge.operate.select import read_ids
from bridge.operate.stores import Stores
from bridge.operate.verbs import RESTORE
from bridge.pipeline.putback import RATE, Fate, Overdue
from bridge.pipeline.restore import Restored, RestoreOrder


def read_order(
    now_ms: int,
    word: Callable[[str], str],
    *,
    route: str | None,
    key: bytes | None,
    ids: Sequence[str] | None,
    due_after: str | None,
    due_before: str | None,
    cancelled: bool,
    overdue: Overdue,
    max_rate: int | None,
) -> RestoreOrder:
    """Read an order. ``word`` is how errors call its parts. Raises ``SettingsError``."""
    plain = JournalFilter()
    wanted = JournalFilter(
        (*plain.states, *UNDONE) if cancelled else plain.states,
        route or None,
        key or None,
        tuple(read_ids(ids)) if ids else None,
        read_border_ms(word("due_after"), due_after or None, now_ms),
        read_border_ms(word("due_before"), due_before or None, now_ms),
    )
    return RestoreOrder(wanted, overdue, max_rate or RATE)


def given(order: RestoreOrder) -> dict[str, Any]:
    """Return an order as the API takes it, without what is not given. Pure."""
    wanted = order.wanted
    members = {
        "route": wanted.route,
        "key": None if wanted.key is None else fsdecode(wanted.key),
        "ids": [message_id.decode() for message_id in wanted.ids or ()],
        "due_after": None if wanted.due_from_ms is None else str(wanted.due_from_ms),
        "due_before": None if wanted.due_before_ms is None else str(wanted.due_before_ms),
        "cancelled": UNDONE[0] in wanted.states,
    }
    return {name: value for name, value in members.items() if value} | {
        "overdue": order.overdue.value,
        "max_rate": order.max_rate,
    }


def counts_of(restored: Restored) -> RestoreCounts:
    """Return what became of the rows. Pure."""
    return RestoreCounts(**{fate.value: restored.total(fate) for fate in Fate}, overdue=restored.overdue)


class _Enough(Exception):
    """The time for counting is over."""


async def preview(stores: Stores, order: RestoreOrder, limit_s: float | None, progress: Progress) -> RestorePreview:
    """Return what a restore would do. A count that takes longer than ``limit_s`` is cut."""
    until_s, complete = None if limit_s is None else time.monotonic() + limit_s, True
    restored, now_ms = Restored(), await (await stores.desk()).now_ms()

    async def look(found: Restored) -> None:
        progress(found.looked_at)
        if until_s is not None and time.monotonic() > until_s:
            raise _Enough

    async with stores.restorers(order.wanted.route) as restorers:
        try:
            for restorer in restorers:
                await restorer.run(replace(order, dry_run=True), restored, look)
        except _Enough:
            complete = False
    counts = counts_of(restored)
    return RestorePreview(count=counts.parked + counts.dead, complete=complete, counts=counts, now_ms=now_ms)


class RestoreWork:
    """A restore from the journal of each store. Every page is safe to repeat."""

    verb = RESTORE

    def __init__(self, stores: Stores, order: RestoreOrder, most: int | None) -> None:
        """``most``: how many cancelled or replaced messages may match; None does not restrict."""
        self._stores = stores
        self._order = order
        self._most = most
        content = {name: value for name, value in given(order).items() if name != "max_rate"}
        if order.wanted.ids:
            content["ids"] = len(order.wanted.ids)
        self.what = json.dumps(content)

    async def check(self) -> None:
        """Raise what keeps it from beginning: ``Refused``, ``StoreUnavailable`` or ``StoreUnfit``."""
        async with self._stores.restorers(self._order.wanted.route) as restorers:
            undone = tuple(state for state in self._order.wanted.states if state in UNDONE)
            if self._most is not None and undone:
                wanted = replace(self._order.wanted, states=undone)
                if sum([await restorer.count(wanted) for restorer in restorers]) > self._most:
                    raise Refused(f"nothing was done: cancelled or replaced, {too_many(self._most)}")

    async def run(self, run: RunningOperation) -> None:
        """Restore page by page, with the counts after each."""
        restored = Restored()

        async def page_done(found: Restored) -> None:
            counts = counts_of(found)
            done = counts.parked + counts.dead
            run.set(text="", done=done, skipped=found.looked_at - done, counts=counts)
            await run.report_in_time()

        async with self._stores.restorers(self._order.wanted.route) as restorers:
            with suppress(StoreUnavailable):  # a large journal may take too long to count, and pages do not
                run.set(total=sum([await restorer.count(self._order.wanted) for restorer in restorers]))
            for restorer in restorers:
                await run.patiently(partial(restorer.run, self._order, restored, page_done))
        run.set(counts=counts_of(restored))
