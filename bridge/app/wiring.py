"""Where the command line meets the adapters: settings in, plain values out. Imported by commands when they run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bridge.admin.desk import Row
from bridge.admin.send import Message
from bridge.core.errors import FAILED, FINE, REFUSED, UNREACHABLE, BrokerUnavailable
from bridge.core.message import HeaderValue
from bridge.settings import Settings, forgotten_broker, load, require_routes
from bridge.settings.model import BrokerKind

_NONE: Mapping[str, object] = MappingProxyType({})


def settings_from(config: Path | None, overrides: Mapping[str, object] = _NONE) -> Settings:
    """The settings. Raises ``SettingsError``."""
    return load(config, os.environ, overrides)


def settings_with_routes(config: Path | None, overrides: Mapping[str, object] = _NONE) -> Settings:
    """The settings, of which at least one is a route. Raises ``SettingsError``."""
    settings = settings_from(config, overrides)
    require_routes(settings)
    return settings


def planned_topology(settings: Settings) -> tuple[list[dict[str, Any]], list[str], int]:
    """What ``setup`` would make, a row each: ``state`` planned, there, or what stands in its way; warnings; and the
    exit code that ``setup`` would end with, as far as it can be told by looking. Where a broker cannot be asked, all of
    it is planned. Blocking."""
    found: list[dict[str, Any]] = []
    warnings: list[str] = []
    codes = []
    if settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.topology.plan import plan

        stands, words, unreachable = _standings(settings, "rabbitmq")
        parts = [(one.route, what) for one in plan(settings) for what in one.declarations()]
        rows = [_row(route, what, _planned(what, stands)) for route, what in parts]
        found, warnings, codes = rows, words, [unreachable or _end(rows)]
    if settings.routes_of("kafka"):
        from adapters.kafka.topology.setup import plan as plan_topics

        stands, words, unreachable = _standings(settings, "kafka")
        rows = [_topic_row(one, stands.get(f"topic '{one.name}'", "planned")) for one in plan_topics(settings)]
        found, warnings, codes = found + rows, warnings + words, [*codes, unreachable or _end(rows)]
    return found, warnings, next((code for code in codes if code), FINE)


def _end(rows: Sequence[Mapping[str, Any]]) -> int:
    """The exit code of ``setup`` on one broker where this is planned."""
    states = {row["state"] for row in rows}
    if states & {"different", "forbidden", "unseen"}:
        return REFUSED
    return FAILED if "waits" in states else FINE


def _standings(settings: Settings, broker: BrokerKind) -> tuple[dict[str, str], list[str], int]:
    """How what is postdate's own stands on a broker, by its label; what there is to say about it; and the exit code
    where the broker cannot be asked, else 0."""
    try:
        rows = verify_topology(settings.only(settings.routes_of(broker)))
    except BrokerUnavailable as error:
        return {}, [f"what is there already is not known: {error}"], UNREACHABLE
    words = [row["text"] for row in rows if row["state"] not in ("same", "missing") or not row["ours"]]
    said = {"same": "there", "missing": "planned"}
    ours = {
        row["what"]: said.get(row["state"], row["state"])
        for row in rows
        if row["ours"] and row["state"] not in ("few", "unlike")
    }
    return ours, [text for text in words if text], FINE


def _planned(declaration: Any, stands: Mapping[str, str]) -> str:
    """A binding, which AMQP cannot be asked about, is taken to be there where both ends are; it is made in any case."""
    from adapters.rabbitmq.topology.declarations import Binding
    from adapters.rabbitmq.topology.findings import label

    if not isinstance(declaration, Binding):
        return stands.get(label(declaration), "planned")
    kind = "exchange" if declaration.to_exchange else "queue"
    ends = (f"exchange '{declaration.exchange}'", f"{kind} '{declaration.queue}'")
    return "planned" if any(stands.get(end, "planned") == "planned" for end in ends) else "there"


def declare_topology(settings: Settings) -> tuple[list[dict[str, Any]], list[str]]:
    """Declare it; a row each with ``state`` made, there or waits (for a topic of the consumers'), and warnings.
    Blocking.

    Raises ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``.
    """
    found: list[dict[str, Any]] = []
    forgotten = forgotten_broker(settings)
    warnings = [forgotten] if forgotten else []
    if settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.topology.setup import declare

        try:
            made, words = declare(settings)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(f"{error}; {forgotten}") if forgotten else error from error
        found += [_row(one.route, one.declaration, "made" if one.new else "there") for one in made]
        warnings += words
    if settings.routes_of("kafka"):
        from adapters.kafka.topology.setup import declare as declare_topics

        topics, words = declare_topics(settings)
        for one in topics:
            found.append(_topic_row(one.topic, "waits" if one.waits else "made" if one.new else "there"))
        warnings += words
    return found, warnings


def verify_topology(settings: Settings) -> list[dict[str, str]]:
    """How each exchange, queue and topic stands, as ``state`` and a sentence. Blocking.

    RabbitMQ: the values of ``findings.State``. Kafka: the states of ``topics.Finding``.

    Raises ``BrokerUnavailable``.
    """
    found = []
    if settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.topology.findings import label
        from adapters.rabbitmq.topology.setup import verify

        for one in verify(settings):
            ours = getattr(one.declaration, "ours", True)
            found.append(_standing(one.route, label(one.declaration), one.state.value, one.text, ours))
    if settings.routes_of("kafka"):
        from adapters.kafka.topology.setup import verify as verify_topics

        for each in verify_topics(settings):
            topic = each.topic
            found.append(_standing(topic.route, f"topic '{topic.name}'", each.state, each.text, topic.ours))
    return found


def judged_policies(settings: Settings) -> list[tuple[str, str]]:
    """What policies do to the queues of RabbitMQ routes: a route and a sentence each. Blocking. Raises
    ``BrokerUnavailable`` where RabbitMQ's management API does not answer."""
    from adapters.rabbitmq.topology.policies import judge_policies

    found = judge_policies(settings.only(settings.routes_of("rabbitmq")))
    return [(one.route, one.text) for one in found]


def settings_of_file(file: Path) -> Settings:
    """What one file says, whatever the environment does. Raises ``SettingsError``."""
    return load(file, {})


def _standing(route: str, what: str, state: str, text: str, ours: bool) -> dict[str, str]:
    return {"route": route, "what": what, "state": state, "text": text, "ours": "yes" if ours else ""}


def inspect_store(settings: Settings) -> tuple[list[str], int]:
    """Warnings about the store, and how many instances are running. Raises ``StoreUnavailable``, ``StoreUnfit``."""
    from adapters.redis.inspect import inspect

    judged = [asyncio.run(inspect(house.redis)) for house in settings.store_houses()]
    words = [word for some, _ in judged for word in some]
    return list(dict.fromkeys(words)), sum(instances for _, instances in judged)


def left_in_store(house: Settings) -> str:
    """What is left in the store of one of the ``emptied_houses``: a sentence, without its stop, or "". Blocking. Raises
    ``StoreUnavailable``, ``StoreUnfit``."""
    from adapters.redis.remains import remains
    from bridge.app.emptied import sentence

    return sentence(house, asyncio.run(remains(house.redis)))


def park_message(settings: Settings, make: Callable[[int], Message]) -> tuple[bytes, Message]:
    """Park the message that ``make`` makes when it is told the store's clock (Unix ms); its id, and the message.

    Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``.
    """
    from bridge.admin.send import send
    from bridge.app.build import instance_name, new_token, open_store
    from bridge.core.clock import StoreClock
    from bridge.parking.identity import Ids

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
    from adapters.rabbitmq.raw.payload import pack
    from adapters.rabbitmq.raw.values import build

    key = os.fsencode(routing_key)
    if len(key) > 255:
        raise ValueError(f"the routing key has at most 255 bytes, this one has {len(key)}")
    properties = build(headers or None, content_type=content_type, message_id=message_id)
    return pack(key, properties, body)


def pack_record(topic: str, key: str | None, headers: Mapping[str, str], value: bytes) -> bytes:
    """What the store keeps of a Kafka record made here, as if it had come on ``topic``."""
    from adapters.kafka.raw.record import pack

    named = [(os.fsencode(name), os.fsencode(text)) for name, text in headers.items()]
    return pack(-1, -1, None if key is None else os.fsencode(key), value, named, topic.encode())


class Opened(NamedTuple):
    """A payload for a person: ``properties`` by name, the body as far as it was read."""

    properties: Mapping[str, object]
    body: bytes
    body_size: int


def open_payload(row: Row) -> Opened:
    """Open what was read of a payload. Raises ``ValueError`` where that is too little."""
    if not row.broker:
        return Opened({}, row.payload, row.size)
    if row.broker == "kafka":
        from adapters.kafka.raw.describe import describe as describe_record
        from adapters.kafka.raw.record import topic_of
        from adapters.kafka.raw.record import unpack as unpack_record

        record = unpack_record(row.payload)
        return Opened(describe_record(record, topic_of(row.payload)), record.value or b"", len(record.value or b""))
    from adapters.rabbitmq.raw.payload import unpack
    from adapters.rabbitmq.raw.values import describe

    _, properties, body = unpack(row.payload)
    return Opened(describe(properties), body, row.size - len(row.payload) + len(body))


def place_of(row: Row) -> dict[str, Any]:
    """What its broker calls the place of a message, as far as the first bytes of its payload tell: the routing key, or
    topic, partition and record key. Nothing where it cannot be opened."""
    if row.broker == "kafka":
        from adapters.kafka.raw.record import head_of

        try:
            topic, partition, key = head_of(row.payload)
        except ValueError:
            return {"topic": None, "partition": None, "record_key": None}
        return {
            "topic": text_of(topic) or None,
            "partition": partition,
            "record_key": None if key is None else text_of(key),
        }
    if row.broker:
        from adapters.rabbitmq.raw.payload import routing_key

        return {"routing_key": text_of(routing_key(row.payload))}
    return {}


def text_of(raw: bytes) -> str:
    """Bytes that should be text; others as ``\\xNN``."""
    return raw.decode("utf-8", "backslashreplace")


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
