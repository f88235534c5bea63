"""The instances: says that this one is there, and divides the shards among those that are.

There is no leader: everyone reads the same list and deals the shards out in the same way. While two do not agree for a
moment, the drain key of each shard lets only one of them claim.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from bridge.dispatch import Dispatcher
from bridge.errors import StoreUnavailable
from bridge.health import Health
from bridge.ports import Store
from bridge.shard import share

BEAT_S = 1.0


class Members:
    """Meets the others once a second."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        instance: str,
        ttl_ms: int,
        able: Callable[[], bool],
        report: Callable[[], dict[str, object]],
        health: Health,
    ) -> None:
        """``able``: whether this instance could deliver anything; while it cannot, others take its shards.
        ``report``: how it is, for ``postdate stats``."""
        self._store = store
        self._dispatcher = dispatcher
        self._instance = instance
        self._ttl_ms = ttl_ms
        self._able = able
        self._report = report
        self._health = health
        self._left = False
        self._meeting = asyncio.Lock()

    async def run(self) -> None:
        """Meet until cancelled."""
        while True:
            try:
                await self.meet()
            except StoreUnavailable as error:
                self._health.say("store", f"the store cannot be reached: {error}")
            else:
                self._health.say("store", "")
            await asyncio.sleep(BEAT_S)

    async def meet(self) -> None:
        """One beat: report, learn who is there, renew leases, recover what nobody holds any more."""
        async with self._meeting:
            if self._left:
                return
            names = await self._store.meet(self._ttl_ms, self._able(), json.dumps(self._report()))
            mine = share(names, self._instance, self._store.shards)
            if mine != self._dispatcher.shards():
                self._dispatcher.take_over(mine)
            await self._dispatcher.renew()
            if mine:
                await self._store.recover(sorted(mine))

    async def leave(self) -> None:
        """Say goodbye and give back what is claimed. After the beat that is under way: one that came after the goodbye
        would list an instance that is gone."""
        self._left = True
        async with self._meeting:
            await self._dispatcher.leave(self._dispatcher.held())
            await self._store.meet(0, False, "{}")
