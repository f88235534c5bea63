"""Stores that no route of a broker uses any more: what is said of them, and how a process delivers what is in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import structlog

from adapters.redis.remains import remains
from bridge.admin.strays import Remains
from bridge.app.build import build, open_store
from bridge.core.clock import StoreClock
from bridge.process.emptying import Emptying
from bridge.process.service import Service
from bridge.settings import Settings
from bridge.settings.model import TITLES
from bridge.telemetry.health import Health
from bridge.telemetry.plural import counted

log = structlog.get_logger("postdate")


def sentence(house: Settings, found: Remains) -> str:
    """Pure: what is in the store of a house of which no route uses it; "" for nothing. Without its stop. The store does
    not count by route, so whose it was is not known: another installation may share it."""
    letters = counted(found.dead, "dead letter")
    where = (
        f"in the Redis of the settings, which no route of {TITLES[house.broker]} uses "
        f"({', '.join(house.with_left.routes)} may have, with mode redis)"
    )
    if found.waiting:
        what = f"{counted(found.waiting, 'message')} {'is' if found.waiting == 1 else 'are'} parked"
        also = f", and {letters} beside" if found.dead else ""
        return (
            f"{what} {where}{also}: `postdate run` delivers what is due, as long as redis.url and redis.key_prefix stay"
        )
    if found.dead:
        return (
            f"{letters} {'is' if found.dead == 1 else 'are'} {where}: `postdate list --state dead` shows them, `retry` "
            "delivers them and `cancel` drops them, as long as redis.url and redis.key_prefix stay"
        )
    return ""


def emptying(settings: Settings, instance: str, token: str) -> Emptying | None:
    """What delivers, beside a house without a store, what is parked from when it had one; None where there is none."""
    house = settings.emptied
    if house is None:
        return None
    look, words = partial(remains, house.redis), partial(sentence, house)
    return Emptying(look, words, partial(_service, house, instance, token), settings.names_redis)


@asynccontextmanager
async def _service(house: Settings, instance: str, token: str) -> AsyncIterator[Service]:
    """Raises ``StoreUnavailable``, ``StoreUnfit``."""
    clock, redis = StoreClock(), house.redis
    store = open_store(house, clock, instance)
    try:
        for text in await store.open(redis.durability, redis.replicas, redis.timeout):
            log.warning("store", what=text)
        yield build(house, store, clock, instance, token, Health())
    finally:
        await store.close()
