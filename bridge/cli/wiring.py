"""Where the command line meets the adapters: settings in, plain values out. Imported by commands when they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from bridge.desk import Desk, Row
from bridge.errors import Refused
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
    found = []
    if settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.topology import plan

        found += [_row(one.route, what, "planned") for one in plan(settings) for what in one.declarations()]
    if settings.routes_of("kafka"):
        from adapters.kafka.setup import plan as plan_topics

        found += [_topic_row(topic, "planned") for topic in plan_topics(settings)]
    return found


def declare_topology(settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Declare it; a row each with ``state`` made or there, and warnings. Blocking.

    Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``.
    """
    found, warnings = [], []
    if settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.setup import declare

        made, words = declare(settings)
        found += [_row(one.route, one.declaration, "made" if one.new else "there") for one in made]
        warnings += words
    if settings.routes_of("kafka"):
        from adapters.kafka.setup import declare as declare_topics

        topics, words = declare_topics(settings)
        found += [_topic_row(one.topic, "made" if one.new else "there") for one in topics]
        warnings += words
    return found, warnings


def verify_topology(settings: Settings) -> list[dict[str, str]]:
    """How each exchange, queue and topic stands: state same, missing, different, forbidden or none (for a rule that no
    topic matches yet), and a sentence. Blocking.

    Raises ``BrokerUnavailable``.
    """
    found = []
    if settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.setup import label, verify

        for one in verify(settings):
            ours = getattr(one.declaration, "ours", True)
            found.append(_standing(one.route, label(one.declaration), one.state.value, one.text, ours))
    if settings.routes_of("kafka"):
        from adapters.kafka.setup import verify as verify_topics

        for each in verify_topics(settings):
            topic = each.topic
            found.append(_standing(topic.route, f"topic '{topic.name}'", each.state, each.text, topic.ours))
    return found


def settings_of_file(file: Path) -> Settings:
    """What one file says, whatever the environment does. Raises ``SettingsError``."""
    return load(file, {})


def level_places(settings: Settings, before: Sequence[Settings]) -> list[dict[str, Any]]:
    """The queues and topics of routes without a store: how many messages, and whether they are in use, old or missing.
    Blocking.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    found = []
    for house in _houses_without_store(settings):
        if house.broker == "kafka":
            from adapters.kafka.level_desk import count as count_topics

            found += [_level_row("topic", one) for one in count_topics(house)]
        else:
            from adapters.rabbitmq.level_desk import count

            found += [_level_row("queue", one) for one in count(house, before)]
    return found


def remove_level_places(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[dict[str, Any]]:
    """Remove old ones, or all; a row each. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    found = []
    for house in _houses_without_store(settings):
        if house.broker == "kafka":
            from adapters.kafka.level_desk import remove as remove_topics

            found += [_level_row("topic", one) for one in remove_topics(house, everything, force, dry_run)]
        else:
            from adapters.rabbitmq.level_desk import remove

            found += [_level_row("queue", one) for one in remove(house, before, everything, force, dry_run)]
    return found


def _houses_without_store(settings: Settings) -> list[Settings]:
    return [house for house in settings.houses() if not house.stored]


def _level_row(kind: str, one: Any) -> dict[str, Any]:
    state = "old" if one.old else "missing" if one.messages is None else "in use"
    text = f"holds {one.messages} messages and drains" if one.messages else "is empty: `postdate levels remove`"
    return {
        "route": one.route,
        "kind": kind,
        "name": one.name,
        "messages": one.messages,
        "state": state,
        "text": text if one.old else "",
    }


def _standing(route: str, what: str, state: str, text: str, ours: bool) -> dict[str, str]:
    return {"route": route, "what": what, "state": state, "text": text, "ours": "yes" if ours else ""}


def inspect_store(settings: Settings) -> tuple[list[str], int]:
    """Warnings about the store, and how many instances are running. Raises ``StoreUnavailable``, ``StoreUnfit``."""
    from adapters.redis.inspect import inspect

    judged = [asyncio.run(inspect(house.redis)) for house in settings.store_houses()]
    words = [word for some, _ in judged for word in some]
    return list(dict.fromkeys(words)), sum(instances for _, instances in judged)


def refuse_without_store(settings: Settings, route: str | None = None) -> None:
    """Raise ``Refused`` if this route, or where none is named every route, has no store."""
    named = [one for one in settings.routes if route in (None, one)]
    modes = {settings.routes[one].mode for one in named}
    if named and "redis" not in modes:
        what = f"route {named[0]} has" if len(named) == 1 else "all routes have"
        raise Refused(
            f"{what} no store (mode {' and '.join(sorted(modes))}): messages wait in the broker itself, where nobody "
            "can look at one, cancel it or move it; `postdate levels stats` counts them"
        )


def at_desk(settings: Settings, work: Callable[[Desk], Awaitable[T]], route: str | None = None) -> T:
    """Do ``work`` at the store's desk; ``route`` is the only one that it is about, if it is about one.

    Raises ``Refused`` where there is no store, ``StoreUnavailable``, ``StoreUnfit``, and what ``work`` raises.
    """
    refuse_without_store(settings, route)
    from adapters.redis.connect import close, connect
    from adapters.redis.desk import RedisDesk
    from adapters.redis.store import RedisStore
    from bridge.clock import StoreClock
    from bridge.desks import Desks

    async def visit() -> T:
        client = connect(settings.redis)
        desks = []
        try:
            for house in settings.store_houses() or [settings.of_broker("rabbitmq")]:
                prefix, shards = house.redis.key_prefix, house.redis.shards
                store = RedisStore(client, prefix, shards, "desk", StoreClock())
                desks.append(RedisDesk(client, prefix, shards, store, house.broker if house.routes else "rabbitmq"))
                await desks[-1].open()
            return await work(desks[0] if len(desks) == 1 else Desks(desks))
        finally:
            await close(client)

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


def pack_message(
    routing_key: str, headers: Mapping[str, HeaderValue], body: bytes, content_type: str | None, message_id: str | None
) -> bytes:
    """What the store keeps of a RabbitMQ message made here. Raises ``ValueError`` for what AMQP cannot carry."""
    from adapters.rabbitmq.builder import build
    from adapters.rabbitmq.payload import pack

    key = os.fsencode(routing_key)
    if len(key) > 255:
        raise ValueError(f"the routing key has at most 255 bytes, this one has {len(key)}")
    properties = build(headers or None, content_type=content_type, message_id=message_id)
    return pack(key, properties, body)


def pack_record(topic: str, key: str | None, headers: Mapping[str, str], value: bytes) -> bytes:
    """What the store keeps of a Kafka record made here, as if it had come on ``topic``."""
    from adapters.kafka.record import pack

    named = [(os.fsencode(name), os.fsencode(text)) for name, text in headers.items()]
    return pack(-1, -1, None if key is None else os.fsencode(key), value, named, topic.encode())


class Opened(NamedTuple):
    """A payload for a person: ``properties`` by name, the body as far as it was read."""

    properties: Mapping[str, object]
    body: bytes
    body_size: int


def open_payload(row: Row) -> Opened:
    """Open what was read of a payload. Raises ``ValueError`` where that is too little."""
    if row.broker == "kafka":
        from adapters.kafka.describe import describe as describe_record
        from adapters.kafka.record import topic_of
        from adapters.kafka.record import unpack as unpack_record

        record = unpack_record(row.payload)
        return Opened(describe_record(record, topic_of(row.payload)), record.value or b"", len(record.value or b""))
    from adapters.rabbitmq.describe import describe
    from adapters.rabbitmq.payload import unpack

    _, properties, body = unpack(row.payload)
    return Opened(describe(properties), body, row.size - len(row.payload) + len(body))


def order_key_of(row: Row) -> bytes:
    """The routing key, or the record's key, in the first bytes of a payload."""
    if row.broker == "kafka":
        from adapters.kafka.describe import key_in

        return key_in(row.payload)
    from adapters.rabbitmq.payload import routing_key

    return routing_key(row.payload)


def _row(route: str, declaration: Any, state: str) -> dict[str, Any]:
    kind = type(declaration).__name__.lower()
    name = f"{declaration.exchange} -> {declaration.queue}" if kind == "binding" else declaration.name
    arguments = dict(declaration.arguments)
    if kind == "exchange":
        arguments = {"type": declaration.type, **arguments}
    return {"kind": kind, "name": name, "route": route, "state": state, "arguments": arguments}


def _topic_row(topic: Any, state: str) -> dict[str, Any]:
    arguments = {"partitions": topic.partitions, "replication": topic.replicas} if topic.partitions else {}
    return {"kind": "topic", "name": topic.name, "route": topic.route, "state": state, "arguments": arguments}
