"""What commands do at the stores: open the desk of all that hold messages, judge them, park a message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from bridge.admin.desk import Desk, Desks, Row
from bridge.admin.payload import Opened
from bridge.admin.send import Message
from bridge.admin.send import send as park
from bridge.app.brokers import RedisDesk, RedisStore, broker_of, close, connect, count_remains, inspect, open_store
from bridge.app.build import instance_name, new_token
from bridge.core.clock import StoreClock
from bridge.core.errors import Refused, StoreUnavailable, StoreUnfit
from bridge.parking.history import HistoryLimits
from bridge.parking.identity import Ids
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import TITLES
from bridge.settings.plan import store_of, unused_stores, used_stores
from bridge.telemetry.printable import complain

T = TypeVar("T")


def no_store(settings: Settings, route: str | None = None) -> str:
    """Return the sentence that this route, or every route, has no store; "" where one has. Pure."""
    named = [one for one in settings.routes if route in (None, one)]
    modes = {settings.routes[one].mode for one in named}
    if not named or "redis" in modes:
        return ""
    what = f"route {named[0]} has no store" if len(named) == 1 else "no route has a store"
    return (
        f"{what} (mode {' and '.join(sorted(modes))}). Messages wait in the broker, where none can be shown, cancelled "
        "or rescheduled. `postdate levels stats` counts them"
    )


def refuse_without_store(settings: Settings, route: str) -> None:
    """Raise ``Refused`` if this route has no store."""
    if text := no_store(settings, route):
        raise Refused(text)


def at_desk(settings: Settings, work: Callable[[Desk], Awaitable[T]], route: str | None = None) -> T:
    """Do ``work`` at the desk of all stores, or of the store of ``route``.

    Raises ``Refused`` where no route has a store and no store holds leftovers, ``StoreUnavailable``, ``StoreUnfit``,
    and what ``work`` raises.
    """
    return asyncio.run(_visit(settings, work, route))


async def _visit(settings: Settings, work: Callable[[Desk], Awaitable[T]], route: str | None) -> T:
    client = connect(settings.redis)
    try:
        desks = [await _open(client, one) for one in await _stores(client, settings, route)]
        return await work(desks[0] if len(desks) == 1 else Desks(desks))
    finally:
        await close(client)


async def _open(client: Any, one: ProcessPlan) -> Desk:
    prefix, shards = one.settings.redis.key_prefix, one.settings.redis.shards
    limits = HistoryLimits(one.settings.history.keep, one.settings.history.max)
    store = RedisStore(client, prefix, shards, "desk", StoreClock(), limits)
    desk = RedisDesk(client, prefix, shards, store, one.broker, limits)
    await desk.open()
    return desk


async def _stores(client: Any, settings: Settings, route: str | None) -> Sequence[ProcessPlan]:
    """Those to look into. Raises as ``at_desk``."""
    refusal = no_store(settings, route)
    used = used_stores(settings)
    try:
        left = await _with_something_left(client, unused_stores(settings), bool(used))
    except StoreUnavailable as error:
        if not refusal:
            raise
        hint = f". Whether Redis still holds messages of previous settings is not known: {error}"
        hint = hint if settings.is_set("redis.url") else ""
        raise Refused(f"{refusal}{hint}") from error
    found = [*used, *left]
    if refusal and not any(route is None or one.broker == settings.routes[route].broker for one in found):
        raise Refused(refusal)
    return found or [store_of(settings, "rabbitmq")]


async def _with_something_left(client: Any, stores: Sequence[ProcessPlan], beside: bool) -> list[ProcessPlan]:
    """Of the stores that no route uses any more, those that hold messages or dead letters. One that cannot be read is
    no reason not to look into those ``beside`` it."""
    found = []
    for one in stores:
        try:
            if any(await count_remains(client, one.settings.redis)):
                found.append(one)
        except StoreUnfit as error:
            if not beside:
                raise
            complain(f"Warning: cannot read the {TITLES[one.broker]} messages that remain in Redis: {error}.")
    return found


def open_payload(row: Row) -> Opened:
    """Open what was read of a payload. Raises ``ValueError`` where that is too little."""
    if not row.broker:
        return Opened({}, {}, {}, row.payload, row.size)
    return broker_of(row.broker).open_payload(row)


def inspect_store(settings: Settings) -> tuple[list[str], int]:
    """Return warnings about the stores, and how many instances are running. Raises ``StoreUnavailable``,
    ``StoreUnfit``."""
    judged = [asyncio.run(inspect(one.settings.redis)) for one in used_stores(settings)]
    words = [word for some, _ in judged for word in some]
    return list(dict.fromkeys(words)), sum(instances for _, instances in judged)


def park_message(settings: Settings, make: Callable[[int], Message]) -> tuple[bytes, Message]:
    """Park the message that ``make`` makes of the store's clock (Unix ms); return its id, and the message.

    Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``.
    """

    async def parked() -> tuple[bytes, Message]:
        redis, clock, token = settings.redis, StoreClock(), new_token()
        store = open_store(settings, clock, instance_name(settings, token))
        try:
            await store.open(redis.durability, redis.replicas, redis.timeout)
            message = make(clock.now_ms())
            return await park(store, Ids(token), message), message
        finally:
            await store.close()

    return asyncio.run(parked())
