"""Announce this instance to the others once a second, and drain its part of the shards (``bridge.process.sharing``)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from bridge.core.errors import StoreUnavailable
from bridge.core.ports import Store
from bridge.pipeline.claim import Dispatcher
from bridge.process.sharing import Sharing
from bridge.telemetry.health import Health

BEAT_S = 1.0
#: Between two beats an instance checks so often whether it must meet the others now.
_LOOKS = 10


class Members:
    """Meets the others once a second."""

    def __init__(
        self,
        store: Store,
        dispatcher: Dispatcher,
        ttl_ms: int,
        able: Callable[[], bool],
        report: Callable[[], dict[str, object]],
        health: Health,
        sharing: Sharing,
    ) -> None:
        """``able``: whether this instance could deliver anything; while it cannot, others take its shards.
        ``report``: how it is, for ``postdate stats``."""
        self._store = store
        self._dispatcher = dispatcher
        self._ttl_ms = ttl_ms
        self._able = able
        self._report = report
        self._health = health
        self._sharing = sharing
        self._left = False
        self._said_able = False
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
            await self._until_next_beat()

    async def _until_next_beat(self) -> None:
        """Wait for a beat; less when this instance became able or unable, or has missed a route."""
        for _ in range(_LOOKS):
            await asyncio.sleep(BEAT_S / _LOOKS)
            if self._able() != self._said_able or self._sharing.asks():
                return

    async def meet(self) -> None:
        """One beat: report, learn who is there, renew leases, recover what nobody holds any more."""
        async with self._meeting:
            if self._left:
                return
            report = {**self._report(), **self._sharing.report(self._dispatcher.taken())}
            self._said_able = self._able()
            try:
                names = await self._store.meet(self._ttl_ms, self._said_able, json.dumps(report))
                mine = await self._sharing.mine(names)
                if mine != self._dispatcher.shards():
                    self._dispatcher.take_over(mine)
            finally:  # on a Cluster the instances are on one node, and its absence must not cost the others' leases
                await self._dispatcher.renew()
                if self._dispatcher.shards():
                    await self._store.recover(sorted(self._dispatcher.shards()))

    async def leave(self) -> None:
        """Say goodbye and give back what is claimed. After the beat that is under way: one that came after the goodbye
        would list an instance that is gone."""
        self._left = True
        async with self._meeting:
            await self._dispatcher.leave(self._dispatcher.held())
            await self._store.meet(0, False, "{}")
