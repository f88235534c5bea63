"""Collects what previous settings left behind, over all brokers and stores: ``bridge.desk.leftovers`` judges it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog

from bridge.app.brokers import broker_of, brokers_of, named_brokers, open_journal, open_store, remains
from bridge.app.build import begin_logs, build
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, StoreUnfit
from bridge.desk import leftovers
from bridge.process.drains import StoreDrain
from bridge.process.service import Service
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import TITLES, BrokerKind
from bridge.settings.process_plan import is_canary, unused_stores, used_stores
from bridge.telemetry.health import Health

log = structlog.get_logger("postdate")


class Surveyed(NamedTuple):
    """The queues and topics of routes without a store, stale ones included; and a sentence for each broker that no
    route uses and that does not answer."""

    places: list[leftovers.Place]
    unknown: list[str]


# -- in the brokers; blocking -----------------------------------------------------------------------------------------


def survey_levels(
    settings: Settings, before: Sequence[Settings] = (), without: Collection[BrokerKind] = ()
) -> Surveyed:
    """Count the messages in the levels of all routes, and in stale ones; not of the brokers in ``without``. Raises
    ``BrokerUnavailable``, ``Refused`` for a broker that a route uses."""
    places, unknown = [], []
    for kind, broker in named_brokers(settings, before):
        if kind in without:
            continue
        for asked in broker.levels.levels_at(settings, before):
            try:
                places += broker.levels.count_levels(asked, before)
            except PostdateError as error:
                if asked.routes:
                    raise
                text = f"no route uses {TITLES[kind]}, and whether stale messages wait there is not known: {error}"
                unknown.append(text + broker.levels.unknown_hint(settings))
    return Surveyed(places, unknown)


def remove_levels(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[leftovers.Place]:
    """Delete stale, empty levels; return every candidate with the reason it was kept. Raises ``BrokerUnavailable``,
    ``Refused``."""
    found: list[leftovers.Place] = []
    for _, broker in named_brokers(settings, before):
        found += broker.levels.remove_levels(settings, before, everything, force, dry_run)
    return found


def never_removed(settings: Settings, before: Sequence[Settings]) -> list[str]:
    """Return a sentence for each removed route whose front ``remove_levels`` leaves. Pure."""
    brokers = named_brokers(settings, before)
    return [text for _, broker in brokers for text in broker.levels.remaining_exchanges(settings, before).values()]


def left_at_start(settings: Settings, kind: BrokerKind) -> tuple[list[leftovers.Leftover], list[str]]:
    """Return what stale levels hold, as far as a starting process looks for them: in one broker, and in those that no
    route uses. Raises as ``survey_levels``."""
    asked = broker_of(kind).levels.looks_at_start(settings.only(settings.routes_of(kind)))
    others = [other for other in TITLES if other != kind and settings.routes_of(other)]
    places, unknown = survey_levels(settings.only(asked), without=others)
    return list(leftovers.left_over(places)), unknown


def count_intakes(settings: Settings) -> list[leftovers.Intake]:
    """Count the intakes of routes without a store. Raises ``BrokerUnavailable``, ``Refused``."""
    waiting = settings.only(name for name, route in settings.routes.items() if route.mode != "redis")
    return [intake for broker, own in brokers_of(waiting) for intake in broker.levels.count_intakes(own)]


def count_drained(settings: Settings, drained: Collection[str]) -> dict[str, int]:
    """Return how many messages wait at the intakes of these routes. Raises ``BrokerUnavailable``, ``Refused``."""
    waiting: dict[str, int] = {}
    for broker, own in brokers_of(settings.only(name for name in settings.routes if name in drained)):
        for intake in broker.levels.count_intakes(own):
            waiting[intake.route] = waiting.get(intake.route, 0) + intake.messages
    return waiting


def without_consumer(settings: Settings, drained: Collection[str] = ()) -> list[leftovers.Leftover]:
    """Return the intakes that no consumer reads, or whose consumer has stopped; not of the ``drained`` routes. Raises
    as ``count_intakes``."""
    intakes = count_intakes(settings)
    taken = settings.only(name for name in settings.routes if name not in drained)
    still = [intake for broker, own in brokers_of(taken) for intake in broker.levels.stalled_intakes(own)]
    alone = [name for broker, own in brokers_of(settings) for name in broker.levels.works_alone(own)]
    stored = [name for name, route in settings.routes.items() if route.mode == "redis"]
    return [*leftovers.unread(intakes, alone), *leftovers.stalled(still, stored)]


# -- in the stores ----------------------------------------------------------------------------------------------------


async def strays_of(settings: Settings) -> list[leftovers.Leftover]:
    """Return parked messages of routes that the settings do not have. A store that does not answer is skipped: those
    who need it say so."""
    found: list[leftovers.Leftover] = []
    for store in (*used_stores(settings), *unused_stores(settings)):
        try:
            parked = (await remains(store.settings.redis)).routes
        except StoreUnfit:
            continue
        except PostdateError:
            break
        found += [stray for stray in leftovers.strays(parked, store.delivering.routes) if not is_canary(stray.route)]
    return found


def stored_before(store: ProcessPlan) -> str:
    """Return what the store of one of the ``emptied_stores`` still holds; "" for nothing. Blocking. Raises
    ``StoreUnavailable``, ``StoreUnfit``."""
    return _sentence(store, asyncio.run(remains(store.settings.redis)))


def _sentence(store: ProcessPlan, found: leftovers.Remains) -> str:
    return leftovers.left_in_store(TITLES[store.broker], store.delivering.routes, found)


def emptying(process: ProcessPlan, instance: str, token: str) -> StoreDrain | None:
    """Return what delivers, beside routes without a store, what they parked when they had one; None where no process
    has to."""
    store = process.emptied
    if store is None:
        return None
    look, words = partial(remains, store.settings.redis), partial(_sentence, store)
    return StoreDrain(look, words, partial(_service, store, instance, token), process.settings.is_set("redis.url"))


@asynccontextmanager
async def _service(process: ProcessPlan, instance: str, token: str) -> AsyncIterator[Service]:
    """Raises ``StoreUnavailable``, ``StoreUnfit``."""
    clock, redis = StoreClock(), process.settings.redis
    store, journal = open_store(process.settings, clock, instance), open_journal(process)
    try:
        for text in await store.open(redis.durability, redis.replicas, redis.timeout):
            log.warning("store", what=text)
        if journal is not None:
            await journal.open()
        await begin_logs(process.settings, store, journal)
        yield build(process, store, await store.orders(), clock, instance, token, Health(), journal)
    finally:
        await store.close()
        if journal is not None:
            await journal.close()
