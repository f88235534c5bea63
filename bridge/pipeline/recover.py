"""Keep the leases of claims that the broker has not answered yet, and recover expired ones: their messages are parked.

The holder of an expired lease died, or lost the store. It may have published the message: a named window for copies.
"""

from __future__ import annotations

import time

from bridge.core.errors import ShardsUnavailable
from bridge.core.ports import DeliveringStore
from bridge.pipeline.leases import Leases
from bridge.telemetry.metrics import Metrics

#: A lease with less than this part of its time left is renewed.
_RENEW_BELOW = 0.7
#: After a step of the store's clock all instances renew their leases within this time: they meet once a second.
_RENEWED_S = 3.0
#: The least time between two waits for that, so that a clock that steps all the time never prevents recovery.
_STEPS_APART_S = 60.0


class Recovery:
    """Renews the leases of this instance, and recovers expired ones in its shards."""

    def __init__(self, store: DeliveringStore, leases: Leases, lease_ms: int, drain_ms: int, metrics: Metrics) -> None:
        self._store = store
        self._leases = leases
        self._lease_ms = lease_ms
        self._drain_ms = drain_ms
        self._metrics = metrics
        self._renews_all = False
        self._recovers_from = -_STEPS_APART_S

    async def once(self) -> None:
        """One pass: renew, then recover. Raises ``StoreUnavailable``."""
        await self.renew()
        await self.recover()

    async def renew(self) -> None:
        """Extend the leases of claims that the broker has not answered yet, and go on draining their shards: another
        instance would overtake them. Without room for claims, nothing else does that."""
        if shards := self._leases.shards_held():
            await self._store.claim(shards, 0, 0, self._lease_ms, self._drain_ms)
        soon = time.monotonic() + self._lease_ms / 1000 * _RENEW_BELOW
        claims = [claim for claim in self._leases.held() if self._renews_all or claim.lease_ends < soon]
        if not claims:
            return
        started = time.monotonic()
        try:
            held = await self._store.renew(claims, self._lease_ms)
            self._renews_all = False
        except ShardsUnavailable as error:  # the claim loop reports it
            held = error.worked
            claims = [claim for claim in claims if claim.shard not in error.shards]
        lost = held < len(claims)
        for claim in claims:
            if not lost or claim.lease_ends > started:  # another instance may have those that ended
                claim.lease_ends = started + self._lease_ms / 1000

    async def recover(self) -> None:
        """Park again what expired leases hold in the shards of this instance."""
        shards = self._leases.shards()
        if shards and time.monotonic() >= self._recovers_from:
            self._metrics.recovered += await self._store.recover(sorted(shards), self._lease_ms)

    def clock_stepped(self, forward: bool) -> None:
        """Learn that the store's clock stepped, so leases end sooner or later than this process counts with.

        After a step forward the leases of living instances look expired. They are not recovered until those instances
        have renewed them.
        """
        self._renews_all = True
        if forward and time.monotonic() > self._recovers_from + _STEPS_APART_S:
            self._recovers_from = time.monotonic() + _RENEWED_S
