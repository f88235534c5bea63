"""Report what only RabbitMQ's management API tells, at start and every minute; every 5 s while it tells a trouble."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import Callable, Mapping

import structlog

from bridge.core.errors import BrokerUnavailable
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

#: The pause between two looks, and while there is a trouble. How long it counts if no later look finds it gone.
_LOOK_S, _AGAIN_S, _COUNTS_S = 60.0, 5.0, 300.0


class ManagementWatch:
    """Reports the troubles that a look at the management API finds, until a later look finds them gone."""

    def __init__(self, what: str, look: Callable[[], Mapping[Subject, str]], health: Health) -> None:
        """``look`` blocks, and returns subject and sentence of each trouble. ``what`` names them in the log."""
        self._what = what
        self._look = look
        self._health = health
        self._reported: frozenset[Subject] = frozenset()
        self._unknown = ""

    async def run(self) -> None:
        while True:
            await self.once()
            await sleep(_AGAIN_S if self._reported else _LOOK_S)

    async def once(self) -> None:
        """Look once. A management API that does not answer is logged, and no trouble: postdate can do without."""
        try:
            troubles = await asyncio.to_thread(self._look)
        except BrokerUnavailable as error:
            if str(error) != self._unknown:
                self._unknown = str(error)
                log.info(f"{self._what} are not watched", because=self._unknown)
            return
        self._unknown = ""
        for subject, sentence in troubles.items():
            self._health.say(subject, sentence, _COUNTS_S)
        for subject in self._reported - troubles.keys():
            self._health.say(subject, "")
        self._reported = frozenset(troubles)
