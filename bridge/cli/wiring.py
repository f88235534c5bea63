"""Where the command line meets the adapters: settings in, plain values out. Imported by commands when they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from bridge.desk import Desk
from bridge.message import HeaderValue
from bridge.send import Message
from bridge.settings import Settings, load, require_routes

T = TypeVar("T")

_NONE: Mapping[str, object] = MappingProxyType({})


def settings_from(config: Path | None, overrides: Mapping[str, object] = _NONE) -> Settings:
    """The settings. Raises ``SettingsError``."""
    return load(config, os.environ, overrides)


def settings_with_routes(config: Path | None, overrides: Mapping[str, object] = _NONE) -> Settings:
    """The settings, of which at least one is a route. Raises ``SettingsError``."""
    settings = settings_from(config, overrides)
    require_routes(settings)
    return settings


def planned_topology(settings: Settings) -> list[dict[str, Any]]:
    """What ``setup`` declares, a row each."""
    from adapters.rabbitmq.topology import plan

    return [_row(one.route, declaration, "planned") for one in plan(settings) for declaration in one.declarations()]


def declare_topology(settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Declare it; a row each with ``state`` made or there, and warnings. Blocking.

    Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``.
    """
    from adapters.rabbitmq.setup import declare

    made, warnings = declare(settings)
    return [_row(one.route, one.declaration, "made" if one.new else "there") for one in made], warnings


def verify_topology(settings: Settings) -> list[dict[str, str]]:
    """How each exchange and queue stands: state same, missing, different or forbidden, and a sentence. Blocking.

    Raises ``BrokerUnavailable``.
    """
    from adapters.rabbitmq.setup import label, verify

    return [
        {
            "route": one.route,
            "what": label(one.declaration),
            "state": one.state.value,
            "text": one.text,
            "ours": "" if getattr(one.declaration, "ours", True) is False else "yes",
        }
        for one in verify(settings)
    ]


def inspect_store(settings: Settings) -> tuple[list[str], int]:
    """Warnings about the store, and how many instances are running. Raises ``StoreUnavailable``, ``StoreUnfit``."""
    from adapters.redis.inspect import inspect

    return asyncio.run(inspect(settings.redis))


def at_desk(settings: Settings, work: Callable[[Desk], Awaitable[T]]) -> T:
    """Do ``work`` at the store's desk. Raises ``StoreUnavailable``, ``StoreUnfit``, and what ``work`` raises."""
    from adapters.redis.connect import connect
    from adapters.redis.desk import RedisDesk
    from adapters.redis.store import RedisStore
    from bridge.clock import StoreClock

    async def visit() -> T:
        redis = settings.redis
        client = connect(redis)
        store = RedisStore(client, redis.key_prefix, redis.shards, "desk", StoreClock())
        desk = RedisDesk(client, redis.key_prefix, redis.shards, store)
        try:
            await desk.open()
            return await work(desk)
        finally:
            await store.close()

    return asyncio.run(visit())


def park_message(settings: Settings, make: Callable[[int], Message]) -> tuple[bytes, Message]:
    """Park the message that ``make`` makes when it is told the store's clock (Unix ms); its id, and the message.

    Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``.
    """
    from bridge.app import instance_name, new_token, open_store
    from bridge.clock import StoreClock
    from bridge.identity import Ids
    from bridge.send import send

    async def park() -> tuple[bytes, Message]:
        redis, clock, token = settings.redis, StoreClock(), new_token()
        store = open_store(settings, clock, instance_name(settings, token))
        try:
            await store.open(redis.durability, redis.replicas, redis.timeout)
            message = make(clock.now_ms())
            return await send(store, Ids(token), message), message
        finally:
            await store.close()

    return asyncio.run(park())


def pack_payload(
    routing_key: str, headers: Mapping[str, HeaderValue], body: bytes, content_type: str | None, message_id: str | None
) -> bytes:
    """What the store keeps of a message made here. Raises ``ValueError`` for what AMQP cannot carry."""
    from adapters.rabbitmq.builder import build
    from adapters.rabbitmq.payload import pack

    key = os.fsencode(routing_key)
    if len(key) > 255:
        raise ValueError(f"the routing key has at most 255 bytes, this one has {len(key)}")
    properties = build(headers or None, content_type=content_type, message_id=message_id)
    return pack(key, properties, body)


class Opened(NamedTuple):
    """A payload for a person: ``properties`` by name, the body as far as it was read."""

    routing_key: bytes
    properties: Mapping[str, object]
    body: bytes
    body_size: int


def open_payload(data: bytes, size: int) -> Opened:
    """Open the first bytes of a payload that has ``size``. Raises ``ValueError`` where they are too few."""
    from adapters.rabbitmq.describe import describe
    from adapters.rabbitmq.payload import unpack

    routing_key, properties, body = unpack(data)
    return Opened(routing_key, describe(properties), body, size - len(data) + len(body))


def routing_key_of(data: bytes) -> bytes:
    """The routing key in the first bytes of a payload."""
    from adapters.rabbitmq.payload import routing_key

    return routing_key(data)


def _row(route: str, declaration: Any, state: str) -> dict[str, Any]:
    kind = type(declaration).__name__.lower()
    name = f"{declaration.exchange} -> {declaration.queue}" if kind == "binding" else declaration.name
    arguments = dict(declaration.arguments)
    if kind == "exchange":
        arguments = {"type": declaration.type, **arguments}
    return {"kind": kind, "name": name, "route": route, "state": state, "arguments": arguments}
