"""Notice that the store lost what the journal says waits. Name the command that restores it, or restore it. And notice
that the journal is away or another one, also while nothing is written."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from bridge.core.errors import StoreUnavailable
from bridge.core.journal import JournalUnavailable
from bridge.core.orders import Actor
from bridge.desk.past import AuditEntry
from bridge.desk.protocol import Desk
from bridge.pipeline.putback import Fate
from bridge.pipeline.restore import RestoreOrder, Restorer
from bridge.telemetry.health import RESTORE, RESTORES_ITSELF, Health, lacks_messages
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

JOURNAL = Subject("journal")
JOURNAL_RESTORE = Subject("journal", "restore")
#: The messages that are due next, and those that arrived last, of which each look asks the store.
_EVERY_S, _SAMPLE = 5.0, 100
#: While the journal is away, looks come this often, so that its trouble ends soon.
_AWAY_EVERY_S = 1.0
#: How long the instance that restores keeps the others from it.
_LEASE_MS = 60_000


class JournalWatch:
    """Compares samples of the journal with the store."""

    def __init__(self, restorer: Restorer, desk: Desk, instance: str, auto: bool, health: Health) -> None:
        """``auto``: restore what is missing."""
        self._restorer = restorer
        self._desk = desk
        self._instance = instance
        self._auto = auto
        self._health = health

    async def run(self) -> None:
        while True:
            with suppress(StoreUnavailable):  # the loops that use the store report it
                await self.once()
            await asyncio.sleep(_AWAY_EVERY_S if JOURNAL in self._health.troubles() else _EVERY_S)

    async def once(self) -> None:
        """Look, and restore if asked. Raises ``StoreUnavailable``."""
        try:
            lost = await self._restorer.lost(_SAMPLE)
        except StoreUnavailable as error:  # the journal is asked first
            self._health.say(JOURNAL, str(error) if isinstance(error, JournalUnavailable) else "")
            raise
        self._health.say(JOURNAL, "")
        # Without the number: it is that of a sample, and each instance would give its own.
        text = lacks_messages(RESTORES_ITSELF if self._auto else RESTORE)
        self._health.say(JOURNAL_RESTORE, text if lost else "", cause="lost")
        if lost and self._auto and await self._desk.lead("restore", self._instance, _LEASE_MS):
            await self._restore()

    async def _restore(self) -> None:
        by = Actor("postdate", "journal.restore")
        restoring = asyncio.ensure_future(self._restorer.run(RestoreOrder(by=str(by))))
        try:
            while not (await asyncio.wait([restoring], timeout=_LEASE_MS / 3000))[0]:
                await self._desk.lead("restore", self._instance, _LEASE_MS)
            restored = await restoring
        finally:
            restoring.cancel()
        put = restored.total(Fate.PARKED) + restored.total(Fate.DEAD)
        log.warning("restored from the journal", messages=put, overdue=restored.overdue)
        await self._desk.note(AuditEntry(by, "restore", "everything that waits, from the journal", put))
        self._health.say(JOURNAL_RESTORE, "")
