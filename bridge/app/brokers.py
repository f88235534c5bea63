"""The brokers and the store: the only file of ``bridge/`` that imports ``adapters``.

A third broker costs a folder with the five parts of ``Broker``, a line here, and what the map in
``bridge/__init__.py`` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, Protocol, cast

from adapters.redis.connect import close, connect
from adapters.redis.desk import RedisDesk
from adapters.redis.diagnosis import examine
from adapters.redis.lab import TrialStore
from adapters.redis.store import RedisStore
from adapters.redis.survey import count as count_remains
from adapters.redis.survey import inspect, remains
from bridge.core.clock import StoreClock
from bridge.core.errors import SettingsError
from bridge.core.journal import Journal, Tables
from bridge.core.message import Failure
from bridge.desk.leftovers import Intake, Place
from bridge.desk.payload import Draft, Opened, Packed
from bridge.desk.rows import Row
from bridge.desk.severity import CheckResult
from bridge.desk.topology import Finding, Part
from bridge.parking.history import HistoryLimits
from bridge.pipeline.ends import Drains, Ends, LogReplay, RelayEnds
from bridge.pipeline.tiers import Loader
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import BrokerKind
from bridge.telemetry.health import Health

#: Of the adapters, for others.
__all__ = ["RedisStore", "TrialStore", "close", "connect", "count_remains", "examine", "inspect", "remains"]

_FOLDERS: dict[BrokerKind, str] = {"rabbitmq": "adapters.rabbitmq", "kafka": "adapters.kafka"}


class BrokerEnds(Protocol):
    """Where messages come from and where they go."""

    def address(self, settings: Settings) -> str:
        """Return where the broker is, without secrets."""

    def open_ends(
        self,
        process: ProcessPlan,
        clock: StoreClock,
        health: Health,
        mend: Callable[[], None],
        secret: Callable[[], bytes],
    ) -> Ends:
        """Make source and sink of a process with a store, not connected yet. ``mend()`` asks for what is missing to be
        declared again. ``secret()`` signs retry states."""

    def open_relays(
        self, settings: Settings, clock: StoreClock, health: Health, mend: Callable[[], None]
    ) -> list[RelayEnds]:
        """Make the ends of the relays of routes without a store."""

    def open_replay(self, settings: Settings, route: str, secret: Callable[[], bytes]) -> LogReplay:
        """Return what the intake of a route still has, not connected yet. Raises ``Refused`` where a broker keeps
        nothing that was taken in."""

    def open_drains(self, settings: Settings, clock: StoreClock, health: Health) -> Drains | None:
        """Return how to empty the levels of routes that have a store now; None where the broker does it by itself."""


class BrokerTopology(Protocol):
    """What the routes need of the broker. Blocking unless a method says otherwise."""

    def plan(self, settings: Settings, found: Sequence[Finding] = ()) -> list[Part]:
        """Return what `setup` declares, in the order in which it does. Pure. ``found``: by ``verify``."""

    def verify(self, settings: Settings) -> list[Finding]:
        """Compare everything the routes need with the broker's, and change nothing. Blocking."""

    def declare(self, settings: Settings) -> tuple[list[Finding], list[str]]:
        """Declare what is missing; return each part as made, there or waits, and warnings. Blocking. Raises
        ``TopologyMismatch`` before anything is changed where a difference would lose messages."""

    def redeclare(self, settings: Settings) -> None:
        """Declare again what someone deleted while postdate runs. Blocking. Raises as ``declare``."""

    def judge_policies(self, settings: Settings) -> list[tuple[str, str]]:
        """Compare the broker's policies with postdate's queues. Blocking."""

    def judge_consumers(self, settings: Settings, change: bool = False) -> list[Finding]:
        """Return whether what the consumers of retry routes reject reaches postdate. ``change``: see to it, where
        possible. Blocking; a broker that does not tell is a finding."""

    def judge_interception(self, settings: Settings) -> list[CheckResult]:
        """Return what keeps published messages from postdate: intakes that take none in, bindings of others. Blocking;
        what cannot be asked is a result."""

    def replay_reach(self, settings: Settings) -> list[tuple[str, str]]:
        """Return a route and a sentence about how far back `restore --from-intake` reaches. Blocking."""

    def diagnose(self, settings: Settings) -> list[CheckResult]:
        """Return what else the broker tells of itself: version, alarms, leftovers of other tools. Blocking; a broker
        that does not answer is a result."""

    def open_fronts(self, settings: Settings, findings: Sequence[Finding]) -> list[tuple[str, str]]:
        """Return a route and a sentence wherever delayed messages pass undelayed, by what ``verify`` found. Pure."""


class BrokerLevels(Protocol):
    """Messages that wait in the broker."""

    def levels_at(self, settings: Settings, before: Sequence[Settings]) -> list[Settings]:
        """Return each installation of the broker to ask for levels, as settings with the routes to ask about. Pure.
        ``settings`` and the previous ones in ``before`` may have routes of all brokers."""

    def unknown_hint(self, settings: Settings) -> str:
        """Return the advice for an installation that no route uses and that does not answer; "" for none. Pure."""

    def looks_at_start(self, settings: Settings) -> list[str]:
        """Return the routes whose stale levels a starting process looks for. Pure."""

    def count_levels(self, settings: Settings, before: Sequence[Settings]) -> list[Place]:
        """Count messages in the levels of one installation, stale ones included. Blocking."""

    def remove_levels(
        self, settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
    ) -> list[Place]:
        """Delete stale, empty levels; return every candidate with the reason it was kept. Blocking."""

    def remaining_exchanges(self, settings: Settings, before: Sequence[Settings]) -> dict[str, str]:
        """Return, by removed route, a sentence about what ``remove_levels`` never deletes. Pure."""

    def works_alone(self, settings: Settings) -> list[str]:
        """Return the routes on which a message with x-delay-level needs no postdate. Pure."""

    def count_intakes(self, settings: Settings) -> list[Intake]:
        """Count the messages and the consumers of each intake that exists. Blocking."""

    def stalled_intakes(self, settings: Settings) -> list[Intake]:
        """Return the intakes in which messages wait and none is taken. Blocking, some seconds."""


class BrokerPayloads(Protocol):
    """A message as the store keeps it."""

    @property
    def KEY_NAME(self) -> str:
        """What the broker calls the key that orders its messages."""

    def trace_headers(self, payload: bytes) -> dict[str, str]:
        """Return the W3C trace headers of a whole payload by name. Raises ``ValueError``."""

    def with_traceparent(self, payload: bytes, traceparent: str) -> bytes:
        """Return the payload with this ``traceparent``; the producer's becomes x-delay-traceparent. Raises
        ``ValueError``."""

    def pack(self, settings: Settings, route: str, draft: Draft) -> Packed:
        """Pack a message that `postdate send` makes. Raises ``SettingsError`` and ``Refused``."""

    def open_payload(self, row: Row) -> Opened:
        """Open a payload for a person. Raises ``ValueError`` where too little of it was read."""

    def headers_of(self, payload: bytes) -> Iterable[tuple[str, object]]:
        """Iterate over the headers in the first bytes of a payload, as ``open_payload`` names them. Raises
        ``ValueError`` where the headers were not all read."""

    def failure_of(self, settings: Settings, route: str, payload: bytes) -> Failure:
        """Return how the consumers of a retry route failed. Raises ``ValueError`` where too little of the payload was
        read."""

    def body_of(self, payload: bytes) -> bytes:
        """Return the body of a whole payload."""

    def origin_of(self, row: Row) -> dict[str, object]:
        """Return where a message was published, as far as the first bytes of its payload tell."""


class BrokerCanary(Protocol):
    """A message of postdate's own."""

    def declare_canary(self, settings: Settings) -> None:
        """Declare the canary's route, the only one in ``settings``, and what it delivers to. Blocking. Raises as
        ``declare``."""

    def round_trip(self, settings: Settings, delay_ms: int, wait_s: float, sent: Callable[[], None]) -> float | None:
        """Send a canary, and call ``sent`` when the broker has it. Return how late (s) it came back; None if it did not
        within ``wait_s`` of its due moment. Blocking. Raises ``Refused`` where the canary's route does not exist."""


class Broker(NamedTuple):
    """What postdate needs of a broker, in five parts. Each is a module ``broker_<part>.py`` of the broker's folder.

    ``settings`` hold routes of this broker alone unless a method says otherwise. What is called blocking talks to the
    broker: call it in a thread. It raises ``BrokerUnavailable`` where the broker does not answer and ``Refused`` where
    it does not allow the call.
    """

    ends: BrokerEnds
    topology: BrokerTopology
    levels: BrokerLevels
    payloads: BrokerPayloads
    canary: BrokerCanary


@cache
def broker_of(kind: BrokerKind | str) -> Broker:
    """Return a broker. Its client library is imported with it, and only then."""
    folder = _FOLDERS[cast(BrokerKind, kind)]
    parts: list[Any] = [import_module(f"{folder}.broker_{part}") for part in Broker._fields]
    return Broker(*parts)


def lab_of(kind: BrokerKind) -> Any:
    """Return a broker's part of `demo`, `bench` and `compare`: a ``bridge.lab.ports.BrokerLab``. Imported only then."""
    return import_module(f"{_FOLDERS[kind]}.lab").LAB


def migration_of(kind: BrokerKind) -> ModuleType:
    """Return how a broker's users move to postdate: a module with ``survey(settings, means)``, which returns a
    ``bridge.desk.migration.Migration`` for each exchange, and ``advance(settings, exchange, means, say)``."""
    return import_module(f"{_FOLDERS[kind]}.migration.apply")


def brokers_of(settings: Settings) -> list[tuple[Broker, Settings]]:
    """Return each broker that has a route, with the settings of its routes alone."""
    found = []
    for kind in _FOLDERS:
        if names := settings.routes_of(kind):
            found.append((broker_of(kind), settings.only(names)))
    return found


def named_brokers(settings: Settings, before: Sequence[Settings] = ()) -> list[tuple[BrokerKind, Broker]]:
    """Return each broker that the settings or the previous ones name, whether a route uses it or not. The client
    libraries of the others stay unloaded."""
    every = (settings, *before)
    return [(kind, broker_of(kind)) for kind in _FOLDERS if any(known.names_broker(kind) for known in every)]


def open_store(settings: Settings, clock: StoreClock, instance: str, client: Any = None) -> RedisStore:
    """Return the store, not connected yet; or on an open client."""
    redis, client = settings.redis, client or connect(settings.redis)
    limits = HistoryLimits(settings.history.keep, settings.history.max)
    return RedisStore(client, redis.key_prefix, redis.shards, instance, clock, limits)


def open_journal(plan: ProcessPlan) -> Tables | None:
    """Return the journal of a store, not connected yet; None where there is none. SQLAlchemy is imported only then.

    Raises ``SettingsError`` where the packages are missing."""
    settings, url = plan.settings, plan.settings.journal.url.get_secret_value()
    if not url:
        return None
    try:
        module = import_module("adapters.sql.journal")
        password, redis = settings.journal.password.get_secret_value(), settings.redis
        store = plan.broker, redis.key_prefix, redis.shards, settings.limits.max_body
        return cast(Tables, module.SqlJournal(url, password, *store))
    except ImportError as error:
        raise SettingsError(
            f"journal.url needs a package: {error}. Install the extra sql: deploy/README.md, Install"
        ) from error


def desk_of(store: RedisStore, plan: ProcessPlan) -> RedisDesk:
    redis, history = plan.settings.redis, plan.settings.history
    limits = HistoryLimits(history.keep, history.max)
    return RedisDesk(store.client, redis.key_prefix, redis.shards, store, plan.broker, limits)


def loader_of(store: RedisStore, journal: Journal) -> Loader:
    """Return what loads cold messages into a store."""
    return Loader(journal, store.moves, store.tiers, store.shards)


def open_trial_store(settings: Settings, clock: StoreClock) -> TrialStore:
    """Return the store's keys of one run of `demo`, `bench` or `compare`."""
    return TrialStore(settings.redis, clock)
