"""Recreate missing parts of the topology: one attempt every few seconds, until one works."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bridge.core.errors import PostdateError
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

_EVERY_S = 3.0


class Mend:
    """Call it whenever a queue or topic is missing."""

    def __init__(self, declare: Callable[[], object], health: Health) -> None:
        """``declare`` recreates the topology. It blocks."""
        self._declare = declare
        self._health = health
        self._task: asyncio.Task[None] | None = None
        self._began_at = -_EVERY_S

    def __call__(self) -> None:
        """Start an attempt, unless one is under way or was a moment ago."""
        busy = self._task is not None and not self._task.done()
        if not busy and time.monotonic() - self._began_at >= _EVERY_S:
            self._began_at = time.monotonic()
            self._task = asyncio.ensure_future(self._attempt())

    async def _attempt(self) -> None:
        while True:  # a part that another repaired is not missing again, so no later call would end the trouble
            try:
                await asyncio.to_thread(self._declare)
            except PostdateError as error:
                self._health.say(Subject("topology"), str(error))
                await asyncio.sleep(_EVERY_S)
            else:
                self._health.say(Subject("topology"), "")
                return
