"""What each process runs. Pure: settings in, plans out.

One process runs for each broker that has routes with a store, and one for each that has routes without. Each broker
has its own key prefix in Redis, so that a broker that is down delays no message of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bridge.settings.model import TITLES, BrokerKind, Route, Settings

#: The routes of the canaries: messages of postdate's own that show that it delivers.
CANARY = "postdate_canary"


def canary_name(broker: BrokerKind) -> str:
    return f"{CANARY}_{broker}"


def is_canary(route: str) -> bool:
    """Whether a route is a canary's. Settings cannot have such a route."""
    return route.startswith(CANARY)


def canary_settings(settings: Settings, broker: BrokerKind) -> Settings:
    """The settings with the canary's route of this broker as the only one.

    Its names begin with the installation's own, so that no other installation delivers its messages.
    """
    own = settings.redis.key_prefix if broker == "rabbitmq" else settings.kafka.group
    target = f"{own}.canary"
    queue = f"{target}.intake" if broker == "rabbitmq" else ""
    route = Route(broker=broker, intercept=f"{target}.delay", deliver_to=target, queue=queue, order="none")
    return settings.model_copy(update={"routes": {canary_name(broker): route}})


def canary_brokers(settings: Settings) -> list[BrokerKind]:
    """The brokers that get a canary: those with a route whose messages wait in the store."""
    stored = {route.broker for route in settings.routes.values() if route.stored}
    return [kind for kind in TITLES if kind in stored] if settings.canary.enabled else []


@dataclass(frozen=True)
class ProcessPlan:
    """What one process runs, or what a process would run that empties a store."""

    broker: BrokerKind
    #: Whether the messages of its routes wait in the store.
    stored: bool
    #: The settings with the routes of this process only, and with the key prefix of its broker.
    settings: Settings
    #: Routes of this broker that no longer use the store. It may still hold their messages.
    former: Mapping[str, Route] = field(default_factory=dict)
    #: For a process without a store: the store that its routes may have used before, if no route uses it any more.
    emptied: ProcessPlan | None = None

    def with_canary(self) -> ProcessPlan:
        """The same process, which also takes and delivers the messages of its broker's canary."""
        canary = canary_settings(self.settings, self.broker).routes
        routes = {**self.settings.routes, **canary}
        return replace(self, settings=self.settings.model_copy(update={"routes": routes}))

    @property
    def delivering(self) -> Settings:
        """The settings with the former routes, too: whose messages this process delivers."""
        return self.settings.model_copy(update={"routes": {**self.settings.routes, **self.former}})


def plan(settings: Settings) -> tuple[ProcessPlan, ...]:
    """The processes that deliver the routes of ``settings``."""
    emptied = {store.broker: store for store in emptied_stores(settings)}
    plans = [
        *used_stores(settings),
        *(ProcessPlan(kind, False, _own(settings, kind, False), emptied=emptied.get(kind)) for kind in TITLES),
    ]
    return tuple(process for process in plans if process.settings.routes)


def replanned(process: ProcessPlan, settings: Settings) -> ProcessPlan:
    """The same process with ``settings``, after a reload."""
    again = next(other for other in plan(settings) if (other.broker, other.stored) == (process.broker, process.stored))
    return again.with_canary() if any(map(is_canary, process.settings.routes)) else again


def used_stores(settings: Settings) -> list[ProcessPlan]:
    """The stores of brokers that have a route with a store."""
    return [store for store in _stores(settings) if store.settings.routes]


def unused_stores(settings: Settings) -> list[ProcessPlan]:
    """The stores of all other brokers. Previous settings may have left messages there."""
    return [store for store in _stores(settings) if not store.settings.routes]


def emptied_stores(settings: Settings) -> list[ProcessPlan]:
    """The unused stores of brokers that have routes: those may have used the store before."""
    return [store for store in unused_stores(settings) if store.former]


def store_of(settings: Settings, broker: BrokerKind) -> ProcessPlan:
    """A broker's store, with the routes that use it."""
    former = {name: route for name, route in settings.routes.items() if route.broker == broker and not route.stored}
    return ProcessPlan(broker, True, _own(settings, broker, stored=True), former)


def _stores(settings: Settings) -> list[ProcessPlan]:
    return [store_of(settings, kind) for kind in TITLES]


def _own(settings: Settings, broker: BrokerKind, stored: bool) -> Settings:
    own = settings.only(name for name in settings.routes_of(broker) if settings.routes[name].stored is stored)
    if broker == "rabbitmq":
        return own
    redis = settings.redis.model_copy(update={"key_prefix": f"{settings.redis.key_prefix}.{broker}"})
    return own.model_copy(update={"redis": redis})
