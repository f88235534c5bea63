"""What commands do at the stores: open the desk of all that hold messages, judge them, park a message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from bridge.admin.desk import Desk, Desks
from bridge.admin.select import no_store
from bridge.admin.send import Message, new_id
from bridge.admin.send import send as park
from bridge.app.brokers import RedisDesk, RedisStore, close, connect, count_remains, inspect, open_store
from bridge.app.build import instance_name, new_token
from bridge.app.remote import ApiAddress, RemoteDesk, api_address
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, Refused, StoreUnavailable, StoreUnfit
from bridge.parking.history import HistoryLimits
from bridge.parking.identity import Ids
from bridge.settings import ProcessPlan, Settings
from bridge.settings.model import TITLES, BrokerKind
from bridge.settings.plan import store_of, unused_stores, used_stores
from bridge.telemetry.printable import complain

T = TypeVar("T")
#: Takes the id that a message would get; returns the one that it gets.
Reserve = Callable[[bytes], Awaitable[bytes]]


def at_desk(settings: Settings, work: Callable[[Desk], Awaitable[T]], route: str | None = None) -> T:
    """Do ``work`` at the desk of all stores, or of the store of ``route``.

    Raises ``Refused`` where no route has a store and no store holds leftovers, ``StoreUnavailable``, ``StoreUnfit``,
    and what ``work`` raises.
    """
    address = api_address()
    if address is None:
        return asyncio.run(_visit(settings, work, route))
    return asyncio.run(at_api(address, work))


async def at_api(address: ApiAddress, work: Callable[[RemoteDesk], Awaitable[T]]) -> T:
    """Do ``work`` at the desk behind the API."""
    desk = RemoteDesk(address)
    try:
        await desk.open()
        return await work(desk)
    finally:
        await desk.close()


async def _visit(settings: Settings, work: Callable[[Desk], Awaitable[T]], route: str | None) -> T:
    client = connect(settings.redis)
    try:
        return await work(await _open_all(client, settings, route))
    finally:
        await close(client)


async def _open_all(client: Any, settings: Settings, route: str | None) -> Desk:
    desks = [await _open(client, one) for one in await _stores(client, settings, route)]
    return desks[0] if len(desks) == 1 else Desks(desks)


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
        parking = _Parking(settings)
        try:
            return await parking.park(make)
        finally:
            await parking.close()

    return asyncio.run(parked())


class _Parking:
    """A store that is open for parking messages without a broker."""

    def __init__(self, settings: Settings) -> None:
        """``settings`` have the key prefix of the store."""
        self._redis = settings.redis
        self._clock, token = StoreClock(), new_token()
        self._store = open_store(settings, self._clock, instance_name(settings, token))
        self._ids = Ids(token)
        self._opened = False

    async def park(self, make: Callable[[int], Message], reserve: Reserve | None = None) -> tuple[bytes, Message]:
        """Park the message that ``make`` makes of the store's clock (Unix ms); return its id, and the message.

        ``reserve`` may replace the id that the message would get.
        """
        if not self._opened:
            await self._store.open(self._redis.durability, self._redis.replicas, self._redis.timeout)
            self._opened = True
        await self._store.look_at_clock()
        message = make(self._clock.now_ms())
        one = new_id(self._store, self._ids, message)
        return await park(self._store, self._ids, message, await reserve(one) if reserve else one), message

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()


class KeptStores:
    """The desk of all stores, and the stores to park in: each is opened when it is first needed, and then kept."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: Any = None
        self._desk: Desk | None = None
        self._parkings: dict[BrokerKind, _Parking] = {}
        self._lock = asyncio.Lock()

    async def desk(self) -> Desk:
        """Return the desk of all stores. Raises as ``at_desk``; a later call tries again."""
        if self._desk is not None:
            return self._desk
        async with self._lock:
            if self._desk is None:
                client = connect(self._settings.redis)
                try:
                    self._desk = await _open_all(client, self._settings, None)
                except PostdateError:
                    await close(client)
                    raise
                self._client = client
            return self._desk

    async def park(
        self, broker: BrokerKind, make: Callable[[int], Message], reserve: Reserve | None = None
    ) -> tuple[bytes, Message]:
        """Park a message in the store of a broker. Raises as ``park_message``, and what ``reserve`` raises."""
        async with self._lock:  # a store takes one call at a time
            if broker not in self._parkings:
                self._parkings[broker] = _Parking(store_of(self._settings, broker).settings)
            return await self._parkings[broker].park(make, reserve)

    async def close(self) -> None:
        """Close all connections."""
        for parking in self._parkings.values():
            await parking.close()
        if self._client is not None:
            await close(self._client)
