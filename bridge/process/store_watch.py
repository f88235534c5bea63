"""Asks the store once a second what is wrong with it: emptied, nearly full, full of dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from bridge.core.errors import StoreUnavailable
from bridge.telemetry.health import Health

_EVERY_S = 1.0


class StoreWatch:
    """Says in the health what the store says of itself."""

    def __init__(self, look: Callable[[], Awaitable[Mapping[str, str]]], health: Health) -> None:
        """``look`` returns a sentence for each subject, "" for one that is well."""
        self._look = look
        self._health = health

    async def run(self) -> None:
        """Look until cancelled. Raises ``StoreUnfit`` when the store has become one that must not be used."""
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """One look. A store that is away is the business of those who use it."""
        try:
            found = await self._look()
        except StoreUnavailable:
            return
        for subject, sentence in found.items():
            self._health.say(subject, sentence)
