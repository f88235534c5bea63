"""The store in numbers: of each shard, each route, and all. Pure."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from bridge.core.clock import CLOCK_OFF_S
from bridge.core.orders import RouteOrder, RouteOrders, RouteState, latest, routes_that
from bridge.delay.duration import write_moment
from bridge.desk.clock_step import ClockStep, last_of
from bridge.settings.process_plan import is_canary

#: For how long a lost instance is shown, as its alert is (deploy/prometheus-alerts.yaml), and how many at most.
_LOST_SHOWN_MS, _LOST_SHOWN = 3_600_000, 3
#: The stores of one server note one loss within this time.
SAME_LOSS_MS = 60_000
#: For less a message is not called overdue, so nothing has to explain it.
_UNSERVED_MS = 1_000
#: RabbitMQ drops a frozen instance 10 to 15 s after the freeze, with the default heartbeat. It is lost after about 4 s.
_HOLDS_MS = 15_000


@dataclass(frozen=True, slots=True)
class ServerMemory:
    """Memory of one server of the store in bytes; ``most`` is 0 without a limit."""

    server: str
    used: int
    most: int


@dataclass(frozen=True, slots=True)
class RouteStats:
    """The messages of one route in numbers.

    ``parked`` (with the claimed ones), ``held``, ``dead`` and ``refused`` are exact, as long as no message is deleted
    by hand. The others come from a look at the first messages of each shard. They are exact while all overdue messages
    of a shard are among these. Beyond that ``overdue`` is an estimate by the shares that the look saw.
    ``oldest_overdue_ms`` (an age) of a route that the look did not see is an upper bound then. ``next_due_ms`` is None
    if the look did not see the route. ``refused`` messages wait for another try, or are in one. They are overdue since
    their due moment. ``parked`` counts the ``cold`` ones, too, which only the journal has. ``oldest_held_ms`` is the
    age of the oldest held message. It is an upper bound after an operator cancelled or rescheduled that message, until
    an instance has gone through the held messages of the shard.
    """

    parked: int = 0
    held: int = 0
    dead: int = 0
    overdue: int = 0
    oldest_overdue_ms: int = 0
    next_due_ms: int | None = None
    refused: int = 0
    cold: int = 0
    oldest_held_ms: int = 0


class ShardLook(NamedTuple):
    """What is known of the routes of one shard.

    ``counts`` has the messages by state and route. ``overdue`` counts the messages whose next try is overdue. The look
    saw ``heads``: for each route its first due moment, and how many overdue messages without the refused ones. It saw
    ``seen`` overdue messages in all, and ended at the moment ``end_ms``; None if it saw the whole shard. ``refused``
    has for each route the number of refused messages, and the due moment of the oldest. ``held`` has a moment
    for each route with held messages: none of them was due before.
    """

    now_ms: int
    counts: Mapping[tuple[str, str], int]
    overdue: int
    heads: Mapping[str, tuple[int, int]]
    end_ms: int | None
    seen: int
    refused: Mapping[str, tuple[int, int]]
    held: Mapping[str, int] = MappingProxyType({})

    def overdue_of(self, seen: int) -> int:
        """Estimate how many overdue messages of a kind there are from the number that the look saw."""
        if self.end_ms is None or self.end_ms >= self.now_ms:
            return seen
        return round(self.overdue * seen / self.seen) if self.seen else 0


def by_route(looks: Iterable[ShardLook], orders: RouteOrders = MappingProxyType({})) -> dict[str, RouteStats]:
    """Return the numbers of each route that has messages. Pure."""
    return _sums({route: _of_route(route, look, orders.get(route)) for route in _routes_in(look)} for look in looks)


def _routes_in(look: ShardLook) -> set[str]:
    """Return the routes of a shard. A head without a route is that of a damaged message."""
    return {route for _, route in look.counts} | (look.heads.keys() | look.refused.keys()) - {""}


def _of_route(route: str, look: ShardLook, order: RouteOrder | None) -> RouteStats:
    parked, held, dead, cold = (look.counts.get((state, route), 0) for state in ("parked", "held", "dead", "cold"))
    first_ms, seen = look.heads.get(route, (None, 0))
    refused, refused_ms = look.refused.get(route, (0, look.now_ms))
    oldest_ms = min(refused_ms, look.now_ms if first_ms is None else first_ms)
    if first_ms is None and parked > held + refused and look.end_ms is not None:
        oldest_ms = min(oldest_ms, look.end_ms)
    overdue = min(look.overdue_of(seen), max(0, parked - held - refused))
    held_ms = max(0, look.now_ms - look.held.get(route, look.now_ms))
    if order is not None and order.state is RouteState.PAUSED:  # no claim has found these yet, or they were refused
        return RouteStats(parked + cold, held + overdue, dead, 0, 0, first_ms, refused, cold, held_ms)
    age_ms = max(0, look.now_ms - oldest_ms) if order is None else order.overdue_ms(oldest_ms, look.now_ms)
    return RouteStats(parked + cold, held, dead, overdue + refused, age_ms, first_ms, refused, cold, held_ms)


def overdue_in(looks: Sequence[ShardLook], orders: RouteOrders = MappingProxyType({})) -> int:
    """Return the number of overdue messages, each counted once, refused ones included. Pure."""
    paused = routes_that(orders, RouteState.PAUSED)
    total = -sum(look.overdue_of(look.heads.get(route, (0, 0))[1]) for look in looks for route in paused)
    total -= sum(look.refused.get(route, (0, 0))[0] for look in looks for route in paused)
    for look in looks:
        twice = look.seen - sum(number for _, number in look.heads.values())
        total += look.overdue - look.overdue_of(twice) + sum(number for number, _ in look.refused.values())
    return total


def _sums(parts: Iterable[Mapping[str, RouteStats]]) -> dict[str, RouteStats]:
    """Add up the numbers of each route."""
    found: dict[str, RouteStats] = {}
    for part in parts:
        for route, more in part.items():
            known = found.get(route, RouteStats())
            found[route] = RouteStats(
                **_added(("parked", "held", "dead", "overdue", "refused", "cold"), (known, more)),
                oldest_overdue_ms=max(known.oldest_overdue_ms, more.oldest_overdue_ms),
                next_due_ms=_first((known.next_due_ms, more.next_due_ms)),
                oldest_held_ms=max(known.oldest_held_ms, more.oldest_held_ms),
            )
    return found


def _added(names: Iterable[str], parts: Iterable[RouteStats | Stats]) -> dict[str, Any]:
    """Return the sums of these counts."""
    counted = list(parts)
    return {name: sum(getattr(part, name) for part in counted) for name in names}


def _first(moments_ms: Iterable[int | None]) -> int | None:
    return min((ms for ms in moments_ms if ms is not None), default=None)


@dataclass(frozen=True, slots=True)
class Stats:
    """The store in numbers. Moments are Unix milliseconds by its clock.

    ``overdue`` goes by the due moment, so ``refused`` messages count in it, too. ``held`` are due messages that a pause
    or ``max_rate`` holds; they are not overdue, and the time in a pause is no part of how long others are. ``ever`` has
    totals since the store was first used, ``instances`` the report of each running instance by name. ``bytes_each`` is
    an estimate, None if there is none. ``warnings`` have no full stops. ``by_route`` has every route with a message.
    ``silent`` has the instances that ran, did not stop, and no longer report: for how long (ms) they have been silent.
    ``instances_lost`` counts those of them that another instance has removed, since the store was first used.
    ``parked`` counts the ``cold`` messages, too, which only the journal has.
    Where the store ``refuses_writes``, instances cannot report, so none may be listed though some run.
    ``lost_ms``: when the store last came back without messages that it had; 0 if it did not, or all were restored.
    ``loss`` says so while it is a trouble, "" if not. ``still_lost``: about how many are not back. ``restored_ms``:
    when a restore last brought back everything; 0 if none did. ``blank``: no instance has used the store, or it was
    emptied a moment ago. ``shrunk``: it counts less than a moment ago, and no instance has noted a loss yet.
    ``restoring``: a restore is under way. ``step``: the last step of the store's clock.
    ``reported`` is what the webhook has reported, as ``note_reported`` kept it; empty if nothing was.
    ``lost`` has the instances that were lost, as ``lost_instances`` returns them. ``orders`` are those of the routes.
    """

    now_ms: int
    parked: int
    claimed: int
    dead: int
    overdue: int
    next_due_ms: int | None
    ever: Mapping[str, int]
    instances: Mapping[str, Mapping[str, object]]
    memory: Sequence[ServerMemory]
    bytes_each: int | None = None
    refused: int = 0
    warnings: Sequence[str] = ()
    by_route: Mapping[str, RouteStats] = field(default_factory=dict)
    held: int = 0
    silent: Mapping[str, int] = field(default_factory=dict)
    instances_lost: int = 0
    refuses_writes: bool = False
    lost_ms: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    orders: RouteOrders = field(default_factory=dict)
    cold: int = 0
    reported: Mapping[str, int] = field(default_factory=dict)
    loss: str = ""
    restored_ms: int = 0
    still_lost: int = 0
    blank: bool = False
    step: ClockStep | None = None
    shrunk: bool = False
    restoring: bool = False

    @property
    def restored_ago_ms(self) -> float:
        """Return how long ago a restore ended the last loss; infinity while there is a loss, or where none was."""
        over = self.restored_ms >= max(1, self.lost_ms) and not self.loss
        return self.now_ms - self.restored_ms if over else math.inf

    @property
    def all_warnings(self) -> list[str]:
        """Return the warnings: first those of lost instances, of routes without one and of wrong clocks, last a step of
        the store's clock."""
        lost, step = self.lost_warning if self.lost else "", str(self.step or "")
        return [*filter(None, (lost, *self.unserved.values(), self.clock_warning, *self.warnings, step))]

    @property
    def unserved(self) -> dict[str, str]:
        """Return the warning about each route whose due messages wait because no running instance has it. A silent
        instance may have it: then this is not known."""
        found: dict[str, str] = {}
        served = {
            route for report in self.instances.values() for route in cast("Sequence[str]", report.get("routes", ()))
        }
        for route, counts in sorted(self.by_route.items()) if served and not self.silent else ():
            for_ms = max(counts.oldest_overdue_ms, counts.oldest_held_ms)
            if route in served or is_canary(route) or for_ms < _UNSERVED_MS:
                continue
            waits = max(counts.held, counts.overdue)  # held ones were refused, and so are overdue
            cure = f"Restore [routes.{route}], or list them: `postdate list --route {route}`"
            found[route] = f"route {route}: no running instance has it. Due messages that wait: {waits:,}. {cure}"
        return found

    @property
    def clock_warning(self) -> str:
        """Return the warning that names the instances whose machine has another time than the store; "" for none."""
        offsets = ((name, report.get("clock_offset_s")) for name, report in sorted(self.instances.items()))
        far = [(name, abs(off)) for name, off in offsets if isinstance(off, int | float) and abs(off) > CLOCK_OFF_S]
        if not far:
            return ""
        (first, by_s), *others = far
        more = "".join(f", of {name} by {seconds:.0f} s" for name, seconds in others)
        return (
            f"the clock of {first} differs from Redis's by {by_s:.0f} s{more}. Deliveries go by Redis's clock. "
            "Where the machine's clock is the wrong one, so are its log lines and the timestamps of "
            "the Kafka records that it writes. Synchronize both clocks (chrony, systemd-timesyncd)"
        )

    @property
    def lost_warning(self) -> str:
        """Return the warning that names the lost instances."""
        names = ", ".join(f"{name} at {write_moment(at_ms)}" for name, at_ms in self.lost.items())
        holds = (
            ". On RabbitMQ a frozen instance may hold an intake alone until RabbitMQ drops it, by default 10 to 15 s "
            "after the freeze. Messages may wait there until then"
        )
        return (
            f"lost instances: {names}. Each stopped reporting and did not leave: it died, or it is frozen. Others "
            f"deliver what it had parked{holds if self.holds_intakes else ''}"
        )

    @property
    def holds_intakes(self) -> bool:
        """Return whether a lost instance may still hold its intakes."""
        lost = self.lost.items()
        return any(name.endswith("(rabbitmq)") and self.now_ms - at_ms < _HOLDS_MS for name, at_ms in lost)

    @property
    def delivering(self) -> list[RouteStats]:
        """Return the numbers of the routes that are not paused, without those of canaries."""
        paused = routes_that(self.orders, RouteState.PAUSED)
        return [counts for name, counts in self.by_route.items() if name not in paused and not is_canary(name)]

    @property
    def next_is_known(self) -> bool:
        """Return whether the look saw a message of each of these routes."""
        return all(counts.parked <= counts.held or counts.next_due_ms is not None for counts in self.delivering)

    @property
    def next_ms(self) -> int | None:
        """Return when their next message is due, or that of all where this is not known; None if none is."""
        if not self.by_route or not self.next_is_known:
            return self.next_due_ms
        return _first(counts.next_due_ms for counts in self.delivering)

    @property
    def waiting(self) -> int:
        """Return how many messages wait, held and claimed ones included, as the counts of the routes do. Canaries do
        not count: postdate sends them itself."""
        canaries = sum(route.parked for name, route in self.by_route.items() if is_canary(name))
        return max(0, self.parked + self.claimed - canaries)

    @property
    def late(self) -> int:
        """Return how many messages are overdue, with those that the broker has not confirmed in time.

        The reports are a beat behind: what was given back meanwhile is no longer claimed, and counts once.
        """
        return self.overdue + min(self._held, int(sum(self._reported("unconfirmed"))))

    @property
    def oldest_overdue_ms(self) -> int:
        """Return for how long the oldest message of ``late`` has been due; 0 for none."""
        stored_ms = max((route.oldest_overdue_ms for route in self.by_route.values()), default=0)
        return max(stored_ms, int(self.unconfirmed_s * 1000))

    @property
    def unconfirmed_s(self) -> float:
        """Return for how long the oldest published message has waited for a broker's answer; 0 below a second."""
        return max(self._reported("unconfirmed_s"), default=0.0) if self._held else 0.0

    @property
    def _held(self) -> int:
        """Return how many claims the instances hold at most: they keep those that the store has lost."""
        return sys.maxsize if self.loss or self.shrunk else self.claimed

    def serving(self, route: str) -> dict[str, Mapping[str, object]]:
        """Return the reports of the running instances that serve a route, by instance."""
        routes = {name: report.get("routes", (route,)) for name, report in self.instances.items()}
        return {name: self.instances[name] for name in routes if route in cast("Sequence[str]", routes[name])}

    def held_of(self, route: str) -> int:
        """Return how many due messages of a route a pause or ``max_rate`` holds."""
        return self.by_route[route].held if route in self.by_route else 0

    def _reported(self, name: str) -> list[float]:
        numbers = (report.get(name) for report in self.instances.values())
        return [number for number in numbers if isinstance(number, int | float)]


def lost_instances(losses: Mapping[str, int], broker: str, now_ms: int) -> dict[str, int]:
    """Return the last instances that were lost within an hour, with their broker, and when that was (Unix ms). Pure.

    ``losses``: by name, when another instance removed it.
    """
    latest = sorted(((at_ms, name) for name, at_ms in losses.items() if now_ms - at_ms < _LOST_SHOWN_MS), reverse=True)
    return {f"{name} ({broker})": at_ms for at_ms, name in latest[:_LOST_SHOWN]}


def together(stats: Sequence[Stats]) -> Stats:
    """Return the sums. The memory is that of the one server that holds all stores. Pure."""
    stats, lost_ms = _lost_at_once(stats)
    messages = [store.waiting + store.dead - store.cold for store in stats]
    sizes = [
        (store.bytes_each, count) for store, count in zip(stats, messages, strict=True) if store.bytes_each is not None
    ]
    count = sum(count for _, count in sizes)
    ever: Counter[str] = Counter()
    for store in stats:
        ever.update(store.ever)
    counts = ("parked", "claimed", "dead", "overdue", "refused", "held", "instances_lost", "cold")
    return Stats(
        now_ms=max(store.now_ms for store in stats),
        **_added(counts, stats),
        next_due_ms=_first(store.next_due_ms for store in stats),
        ever=dict(ever),
        instances={name: report for store in stats for name, report in store.instances.items()},
        memory=stats[0].memory,
        bytes_each=sum(size * count for size, count in sizes) // count if count else None,
        warnings=_distinct(warning for store in stats for warning in store.warnings),
        by_route=_sums(store.by_route for store in stats),
        silent={name: ms for store in stats for name, ms in store.silent.items()},
        refuses_writes=any(store.refuses_writes for store in stats),
        lost_ms=lost_ms,
        lost={name: at_ms for store in stats for name, at_ms in store.lost.items()},
        orders=latest(store.orders for store in stats),
        reported=stats[0].reported,
        loss=_losses([store for store in stats if store.loss]),
        restored_ms=max(store.restored_ms for store in stats),
        still_lost=sum(store.still_lost for store in stats if store.loss),
        blank=all(store.blank for store in stats),
        shrunk=any(store.shrunk for store in stats),
        restoring=any(store.restoring for store in stats),
        step=last_of(store.step for store in stats),
    )


def _distinct(warnings: Iterable[str]) -> list[str]:
    """Return each warning once, in its newest words: the stores ask their server one after the other how full it is."""
    return list({re.sub(r"\b\d+%", "%", warning): warning for warning in warnings}.values())


def _lost_at_once(stats: Sequence[Stats]) -> tuple[list[Stats], int]:
    """Give the last loss the moment of the store that noticed it first. Return that moment, too."""
    last_ms = max(store.lost_ms for store in stats)
    first_ms = min(store.lost_ms for store in stats if last_ms - store.lost_ms < SAME_LOSS_MS)

    def at_first(store: Stats) -> Stats:
        if not first_ms < store.lost_ms:
            return store
        own, first = write_moment(store.lost_ms), write_moment(first_ms)
        warnings = [warning.replace(own, first) for warning in store.warnings]
        return replace(store, loss=store.loss.replace(own, first), warnings=warnings)

    return list(map(at_first, stats)), first_ms


def _losses(stats: Sequence[Stats]) -> str:
    """Return the sentences about the losses of stores, after the sum where there are several."""
    found = ". ".join(store.loss for store in stats)
    return f"Messages lost in all: about {sum(store.still_lost for store in stats)}. {found}" if stats[1:] else found
