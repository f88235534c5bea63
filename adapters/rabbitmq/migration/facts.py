"""Reads what a migration must know of RabbitMQ: from the management API, and consumers by AMQP. Blocking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from adapters.rabbitmq.declarations import Binding
from adapters.rabbitmq.management import reach
from adapters.rabbitmq.migration.move_plan import ALTERNATE, BrokerFacts, ExchangeFacts, moves
from adapters.rabbitmq.topology.declaring import open_session
from bridge.core.errors import SettingsError
from bridge.settings import Settings

_COLUMNS = "name,exclusive,arguments,effective_policy_definition"


def read_facts(settings: Settings) -> BrokerFacts:
    """Return what the virtual host has. Raises ``BrokerUnavailable``, and ``SettingsError`` without management API."""
    if settings.rabbitmq.management_url == "off":
        raise SettingsError('The migration needs the management API, and rabbitmq.management_url is "off".')
    with reach(settings.rabbitmq) as api:
        found = [exchange_facts(entry) for entry in api.listed("exchanges") if entry.get("name")]
        bindings = tuple(binding_facts(entry) for entry in api.listed("bindings") if entry.get("source"))
        queues = api.listed("queues", f"?columns={_COLUMNS}")
        running = api.nodes()
    nodes = None if running is None else len(running)
    exchanges = {exchange.name: exchange for exchange in found}
    exclusive = frozenset(str(queue["name"]) for queue in queues if queue.get("exclusive"))
    publishers = inner_publishers(exchanges.values(), bindings, queues)
    facts = BrokerFacts(exchanges, bindings, exclusive, publishers, nodes=nodes)
    fronts = {move.names.front for move in moves(facts)}
    intakes = {binding.queue for binding in bindings if binding.exchange in fronts and not binding.to_exchange}
    with open_session(settings) as session:
        consumed = frozenset(queue for queue in intakes if session.consumers(queue))
    return replace(facts, consumed=consumed)


def exchange_facts(found: Mapping[str, Any]) -> ExchangeFacts:
    """Return an exchange of the API's answer. Pure."""
    waiting = found.get("messages_delayed")
    return ExchangeFacts(
        str(found["name"]),
        str(found.get("type")),
        found.get("arguments") or {},
        bool(found.get("durable")),
        bool(found.get("auto_delete")),
        bool(found.get("internal")),
        waiting if isinstance(waiting, int) else None,
    )


def binding_facts(found: Mapping[str, Any]) -> Binding:
    """Return a binding of the API's answer. Pure."""
    to_exchange, key = found.get("destination_type") == "exchange", str(found.get("routing_key", ""))
    return Binding(str(found["source"]), str(found["destination"]), found.get("arguments") or {}, to_exchange, key=key)


def inner_publishers(
    exchanges: Iterable[ExchangeFacts], bindings: Iterable[Binding], queues: Iterable[Mapping[str, Any]]
) -> dict[str, tuple[str, ...]]:
    """Return, by exchange, what publishes to it inside the broker. Pure."""
    found: dict[str, list[str]] = {}
    for binding in bindings:
        if binding.to_exchange:
            found.setdefault(binding.queue, []).append(f"exchange '{binding.exchange}' is bound to it")
    for exchange in exchanges:
        if isinstance(to := exchange.arguments.get(ALTERNATE), str):
            found.setdefault(to, []).append(f"it is the alternate exchange of '{exchange.name}'")
    for queue in queues:
        rules = queue.get("effective_policy_definition") or {}
        own = queue.get("arguments") or {}
        to = own.get("x-dead-letter-exchange") or (isinstance(rules, Mapping) and rules.get("dead-letter-exchange"))
        if isinstance(to, str):
            found.setdefault(to, []).append(f"queue '{queue.get('name')}' dead-letters to it")
    return {name: tuple(texts) for name, texts in found.items()}
