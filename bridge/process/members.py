"""Meet the other instances once a second, and agree which shards each drains.

Shards are dealt by load where all instances have the same routes. Where routes differ, instances take turns. There is
no leader: the deal is in the store, each instance may replace it by a better one, and all follow it. If two instances
disagree for a moment, the drain key of each shard lets only one of them claim.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Mapping, Set
from math import exp
from typing import Any, NamedTuple

from bridge.core.errors import StoreUnavailable
from bridge.core.ports import InstanceStore
from bridge.pipeline.full import Fullness
from bridge.pipeline.leases import Leases, RoutesElsewhere
from bridge.pipeline.ordered import Ordered
from bridge.pipeline.recover import Recovery
from bridge.process.deal import WINDOW_S, deal
from bridge.telemetry.health import Health
from bridge.telemetry.subject import STORE

BEAT_S = 1.0
#: Between two beats an instance checks this often whether it must meet the others now.
_LOOKS = 10
#: A deal that cannot be even stays for this time, then a shard changes sides.
TURN_S = 10.0
#: Where instances had the same routes, and differ for less than this, a reload is on its way. It moves no shard.
DIFFER_S = 3.0


class PeerReport(NamedTuple):
    """What an instance announces: its routes, and the messages a second that it claims from each shard."""

    routes: frozenset[str]
    loads: Mapping[int, float]


def read_peer(report: str) -> PeerReport:
    """Return what a report announces. One that cannot be read announces nothing, so its instance gets no shard."""
    try:
        data: dict[str, Any] = json.loads(report)
        return PeerReport(frozenset(data["routes"]), {int(shard): float(load) for shard, load in data["loads"].items()})
    except (ValueError, KeyError, TypeError, AttributeError):
        return PeerReport(frozenset(), {})


def candidates(peers: Mapping[str, PeerReport]) -> list[str]:
    """Return the instances that have every route which any of them has. Pure."""
    every = frozenset().union(*(peer.routes for peer in peers.values()))
    return [name for name, peer in peers.items() if peer.routes == every]


def read_deal(text: str, shards: int) -> list[str]:
    """Return the instance that drains each shard; "" for none, also if the text is not a deal of ``shards``. Pure."""
    try:
        names = json.loads(text)
    except ValueError:
        names = []
    fits = isinstance(names, list) and len(names) == shards and all(isinstance(name, str) for name in names)
    return names if fits else [""] * shards


class Loads:
    """Messages a second that were claimed from each shard, averaged over ``WINDOW_S``.

    When a shard moves, the average of the old holder falls as that of the new one rises. Their sum is the load.
    """

    def __init__(self) -> None:
        self._at = time.monotonic()
        self._per_s: dict[int, float] = {}

    def add(self, taken: Mapping[int, int]) -> None:
        """Add the number of messages that were claimed from each shard since the last call."""
        now_s = time.monotonic()
        passed_s, self._at = max(now_s - self._at, 0.001), now_s
        kept = exp(-passed_s / WINDOW_S)
        self._per_s = {
            shard: load
            for shard in self._per_s.keys() | taken.keys()
            if (load := self._per_s.get(shard, 0.0) * kept + taken.get(shard, 0) / passed_s * (1 - kept)) > 0.01
        }

    def as_json(self) -> dict[str, float]:
        return {str(shard): round(load, 2) for shard, load in sorted(self._per_s.items())}


class Sharing:
    """This instance's part of the agreement."""

    def __init__(
        self, store: InstanceStore, instance: str, routes: Collection[str], elsewhere: RoutesElsewhere
    ) -> None:
        self._store = store
        self._instance = instance
        self.follow(routes)
        self._elsewhere = elsewhere
        self._loads = Loads()
        self._last: frozenset[int] = frozenset()
        self._seen = ("", 0.0)
        self._same: tuple[frozenset[str], float] = (frozenset(), 0.0)

    def follow(self, routes: Collection[str]) -> None:
        """Announce from now on that this instance can deliver these ``routes``."""
        self._routes = sorted(routes)

    def report(self, taken: Mapping[int, int]) -> dict[str, object]:
        """Return what this instance announces. ``taken``: messages claimed from each shard since the last report."""
        self._loads.add(taken)
        return {"routes": self._routes, "loads": self._loads.as_json()}

    def asks(self) -> bool:
        """Return whether the next beat should come at once."""
        return self._elsewhere.asks

    async def mine(self, able: Collection[str]) -> frozenset[int]:
        """Return the shards that this instance drains. ``able`` are the instances that can deliver."""
        everything = frozenset(range(self._store.shards))
        if self._instance not in able or len(able) == 1:
            self._elsewhere.learn(())
            self._last = everything if self._instance in able else frozenset()
            return self._last
        dealt = await self._store.deal("", "")
        peers = {name: read_peer(report) for name, report in dealt.reports.items() if name in able}
        self._elsewhere.learn(route for name, peer in peers.items() if name != self._instance for route in peer.routes)
        having_all = self._with_reload(candidates(peers), peers.keys())
        if not having_all:
            self._last = everything  # by turns: see Leases.give_way
            return everything
        return self._settled(await self._agree(dealt.deal, peers, having_all))

    def _with_reload(self, having_all: list[str], names: Set[str]) -> list[str]:
        """Return the candidates: all who were until a moment ago, while a reload changes their routes one by one."""
        known, same_s = self._same
        if len(having_all) == len(names):
            self._same = frozenset(names), time.monotonic()
        elif names <= known and time.monotonic() - same_s < DIFFER_S:
            return list(names)
        return having_all

    async def _agree(self, text: str, peers: Mapping[str, PeerReport], able: Collection[str]) -> list[str]:
        shards = self._store.shards
        held = read_deal(text, shards)
        loads = [sum(peer.loads.get(shard, 0.0) for peer in peers.values()) for shard in range(shards)]
        wanted = deal(held, loads, able, turn=self._stood_s(text) >= TURN_S)
        if wanted == held:
            return held
        return read_deal((await self._store.deal(text, json.dumps(wanted))).deal, shards)

    def _stood_s(self, text: str) -> float:
        """Return for how many seconds this instance has seen this deal."""
        now_s = time.monotonic()
        if text != self._seen[0]:
            self._seen = (text, now_s)
        return now_s - self._seen[1]

    def _settled(self, names: list[str]) -> frozenset[int]:
        """Return the shards dealt to this instance, and for one more beat those it had before.

        By then their next holder knows of the deal.
        """
        mine = frozenset(shard for shard, name in enumerate(names) if name == self._instance)
        both, self._last = mine | self._last, mine
        return both


class Members:
    """Announces this instance once a second, and drains its part of the shards."""

    def __init__(
        self,
        store: InstanceStore,
        leases: Leases,
        recovery: Recovery,
        ttl_ms: int,
        able: Callable[[], bool],
        report: Callable[[], dict[str, object]],
        health: Health,
        sharing: Sharing,
        ordered: Ordered,
        fullness: Fullness,
    ) -> None:
        """``able``: whether this instance can deliver anything. While it cannot, others take its shards.

        ``report``: its state, for ``postdate stats``.
        """
        self._store = store
        self._leases = leases
        self._recovery = recovery
        self._ttl_ms = ttl_ms
        self._able = able
        self._report = report
        self._health = health
        self._sharing = sharing
        self._ordered = ordered
        self._fullness = fullness
        self._left = False
        self._said_able = False
        #: Whether its last report says that it has no shards, or no store, and it has.
        self._unsaid = False
        self._meeting = asyncio.Lock()

    async def run(self) -> None:
        while True:
            try:
                await self.once()
            except StoreUnavailable as error:
                self._health.say(STORE, f"the store cannot be reached: {error}")
            else:
                self._unsaid |= STORE in self._health.troubles()
                self._health.say(STORE, "")
                self._health.answered(STORE)
            await self._until_next_beat()

    async def _until_next_beat(self) -> None:
        """Wait for the next beat; less if the others should know something at once, or a message lacks its route."""
        for _ in range(_LOOKS):
            await asyncio.sleep(BEAT_S / _LOOKS)
            if self._able() != self._said_able or self._unsaid or self._sharing.asks():
                return

    async def once(self) -> None:
        """One pass: report, learn which instances run and what was ordered, renew leases, and recover expired ones."""
        async with self._meeting:
            if self._left:
                return
            shared = self._sharing.report(self._leases.taken())
            report = {**self._report(), **shared, "takeover_ms": self._ttl_ms}
            self._said_able, self._unsaid, had = self._able(), False, self._leases.shards()
            try:
                met = await self._store.meet(self._ttl_ms, self._said_able, json.dumps(report))
                if met.stepped_s:
                    self._recovery.clock_stepped(forward=met.stepped_s > 0)
                self._ordered.learn(met.orders)
                await self._fullness.look()
                mine = await self._sharing.mine(met.able)
                if mine != had:
                    self._leases.take_over(mine)
                self._unsaid = bool(mine and not had)
            finally:  # a Cluster keeps the list on one node. Leases on other nodes must survive its absence.
                await self._recovery.once()

    async def leave(self, orphaned: bool = False) -> None:
        """Give back every claim and shard, and remove this instance from the list.

        One whose parent died stays listed: no operator stopped it, so it counts as lost when its time is over. This
        waits for a beat that is under way, which would list the instance again.
        """
        self._left = True
        async with self._meeting:
            await self._leases.leave()
            if not orphaned:
                await self._store.meet(0, False, "{}")
