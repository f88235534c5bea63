"""The way of an exchange of the delayed-message plugin to postdate, step by step. Pure.

A producer keeps publishing to exchange ``orders``. Four exchanges take its place::

    orders ──(alternate)──▶ orders.delay ──(no delay)──▶ orders.target ──▶ consumers
                                 └─ x-delay ─▶ postdate ──────▲   ▲
                                orders.waiting (the plugin's) ────┘

``orders`` is declared again with its underlying type and no binding. So all of its messages go to the front of a
plain route, from the moment when it exists: no message can pass between its declaration and a binding. What waits in
the plugin moves to ``orders.waiting``, and the plugin delivers it from there. Until ``orders`` is replaced nothing
changes for anyone.

Rejected: the route's front itself under the old name. A message that arrives between its declaration and its binding
would be delivered at once. Also rejected: bindings under the old name that lead waiting messages on. The plugin of
3.10 sends the positive ``x-delay`` (tried), so postdate would delay them again. And a message that becomes due between
deletion and binding is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from adapters.rabbitmq.declarations import Binding
from adapters.rabbitmq.nodes import PLUGIN_TYPE
from bridge.desk.migration import Means, Migration, MigrationStep, Progress

_UNDERLYING = "x-delayed-type"
ALTERNATE = "alternate-exchange"
#: The plugin's exchange for what waits: it sends everything to the target, which routes by the key.
WAITING_ARGUMENTS = {_UNDERLYING: "fanout"}
_WAITING = ".waiting"


class Stage(StrEnum):
    """What the exchange of the old name is now."""

    PLUGIN = "plugin"
    MISSING = "missing"
    REPLACED = "replaced"


class Names(NamedTuple):
    """The exchanges of a migration."""

    old: str
    front: str
    target: str
    waiting: str


def names_of(old: str) -> Names:
    return Names(old, f"{old}.delay", f"{old}.target", f"{old}{_WAITING}")


@dataclass(frozen=True, slots=True)
class ExchangeFacts:
    """An exchange as the management API describes it."""

    name: str
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    waiting: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What the broker has. ``publishers``: by exchange, what publishes to it inside the broker. ``consumed``: queues
    with a consumer. ``nodes`` is None where the user may not ask."""

    exchanges: Mapping[str, ExchangeFacts]
    bindings: tuple[Binding, ...] = ()
    exclusive: frozenset[str] = frozenset()
    publishers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    consumed: frozenset[str] = frozenset()
    nodes: int | None = 1

    def of(self, exchange: str) -> list[Binding]:
        """Return the bindings of an exchange."""
        return [binding for binding in self.bindings if binding.exchange == exchange]


@dataclass(frozen=True, slots=True)
class PluginMove:
    """One exchange that moves. ``type`` and ``arguments`` are those of the target; ``bindings`` it still lacks."""

    names: Names
    stage: Stage
    type: str
    arguments: Mapping[str, Any]
    bindings: tuple[Binding, ...] = ()
    waiting: int | None = None

    @property
    def ends(self) -> ExchangeFacts:
        """What the old name is at the end."""
        return ExchangeFacts(self.names.old, self.type, {ALTERNATE: self.names.front})


def moves(facts: BrokerFacts) -> list[PluginMove]:
    """Return every exchange that has the plugin's type, or whose waiting messages are still in the plugin."""
    plugins = sorted(name for name, exchange in facts.exchanges.items() if exchange.type == PLUGIN_TYPE)
    olds = (name.removesuffix(_WAITING) if _is_waiting(facts, name) else name for name in plugins)
    return [_move(facts, old) for old in dict.fromkeys(olds)]


def _is_waiting(facts: BrokerFacts, name: str) -> bool:
    """Whether an exchange of the plugin's is one that a migration made."""
    same = facts.exchanges[name].arguments == WAITING_ARGUMENTS
    return same and name.endswith(_WAITING) and f"{name.removesuffix(_WAITING)}.target" in facts.exchanges


def _move(facts: BrokerFacts, old: str) -> PluginMove:
    names = names_of(old)
    found, target = facts.exchanges.get(old), facts.exchanges.get(names.target)
    parked = facts.exchanges.get(names.waiting)
    waiting = parked.waiting if parked else 0
    if found is not None and found.type == PLUGIN_TYPE:
        arguments = {name: value for name, value in found.arguments.items() if name != _UNDERLYING}
        there = facts.of(names.target)
        wanted = (replace(binding, exchange=names.target) for binding in facts.of(old))
        lacks = tuple(binding for binding in wanted if binding not in there)
        known = None if found.waiting is None or waiting is None else found.waiting + waiting
        return PluginMove(names, Stage.PLUGIN, str(found.arguments.get(_UNDERLYING)), arguments, lacks, known)
    assert target is not None  # ``_is_waiting`` has seen it
    stage = Stage.MISSING if found is None else Stage.REPLACED
    return PluginMove(names, stage, target.type, target.arguments, (), waiting)


def obstacles(move: PluginMove, facts: BrokerFacts) -> Iterator[str]:
    """Yield each reason for which the move cannot even be prepared."""
    found = facts.exchanges.get(move.names.old)
    if move.stage is Stage.PLUGIN and found is not None:
        if found.auto_delete or found.internal or not found.durable:
            yield "it is auto-delete, internal or not durable. Let its application declare a durable one, and move that"
        for binding in move.bindings:
            if binding.queue in facts.exclusive and not binding.to_exchange:
                yield (
                    f"queue '{binding.queue}' is exclusive to its consumer's connection. Let that consumer bind "
                    f"it to '{move.names.target}' itself, and stop binding it to '{move.names.old}'"
                )
    yield from _taken(move, facts)
    if move.stage is Stage.REPLACED and found is not None and found.arguments.get(ALTERNATE) != move.names.front:
        yield (
            f"'{move.names.old}' exists without alternate-exchange '{move.names.front}', so delayed messages are not "
            "delayed. Delete it and run this command again"
        )


def _taken(move: PluginMove, facts: BrokerFacts) -> Iterator[str]:
    names = move.names
    for name, type_, arguments in (
        (names.target, move.type, move.arguments),
        (names.waiting, PLUGIN_TYPE, WAITING_ARGUMENTS),
        (names.front, "headers", {ALTERNATE: names.target}),
    ):
        found = facts.exchanges.get(name)
        if found is not None and (found.type, dict(found.arguments), found.durable) != (type_, dict(arguments), True):
            yield f"exchange '{name}' exists with other properties, and the move needs that name. Delete or rename it"


def is_ready(move: PluginMove, facts: BrokerFacts) -> bool:
    """Return whether the route's front exists and postdate consumes behind it."""
    return move.names.front in facts.exchanges and bool(_intakes(move, facts) & facts.consumed)


def _intakes(move: PluginMove, facts: BrokerFacts) -> set[str]:
    return {binding.queue for binding in facts.of(move.names.front) if not binding.to_exchange}


def replace_obstacles(move: PluginMove, facts: BrokerFacts, means: Means) -> Iterator[str]:
    """Yield each reason for which the exchange cannot be replaced with these means."""
    if move.stage is not Stage.PLUGIN or (means.paused and means.tool):
        return
    inside = facts.publishers.get(move.names.old, ())
    if inside and not means.paused:
        yield (
            f"{', '.join(inside)}: such messages would be lost in the milliseconds in which the exchange does not "
            "exist. Pause what feeds them, and give --paused"
        )
    if means.tool:
        return
    if not means.paused:
        yield (
            "a message that becomes due in the milliseconds in which the exchange does not exist would be lost. Give "
            "--rabbitmqctl, with which the plugin is held meanwhile. Without access to it: pause all producers, wait "
            "until no message waits, and give --paused"
        )
    elif facts.nodes != 1:
        yield "the management API counts the messages that wait on one node only. Give --rabbitmqctl"
    elif move.waiting != 0:
        yield f"messages wait in the plugin: {_count(move.waiting)}. Wait until it is 0, or give --rabbitmqctl"


def _count(waiting: int | None) -> str:
    return "unknown" if waiting is None else str(waiting)


def route_name(old: str) -> str:
    """Return a name that settings allow for a route."""
    name = re.sub(r"[^a-z0-9_]+", "_", old.lower()).strip("_")
    return name if name[:1].isalpha() else f"x_{name}".rstrip("_")


def toml(names: Names) -> str:
    quoted = [re.sub(r'(["\\])', r"\\\1", part) for part in (names.front, names.target)]
    return (
        f'[routes.{route_name(names.old)}]\nbroker = "rabbitmq"\n'
        f'intercept = "{quoted[0]}"\ndeliver_to = "{quoted[1]}"\n'
    )


def describe(move: PluginMove, facts: BrokerFacts, means: Means) -> Migration:
    """Return the steps of a move, with the progress of each."""
    reasons = list(obstacles(move, facts))
    steps = [MigrationStep(Progress.REFUSED, reason) for reason in reasons] or list(_steps(move, facts, means))
    return Migration(move.names.old, move.type, move.waiting, tuple(steps), toml(move.names))


def _steps(move: PluginMove, facts: BrokerFacts, means: Means) -> Iterator[MigrationStep]:
    old, front, target, waiting = move.names
    replaced, prepared = move.stage is Stage.REPLACED, target in facts.exchanges and not move.bindings
    yield _step(
        prepared,
        f"declare '{target}' ({move.type}) with the bindings of '{old}'. To undo: delete it. Consumers that "
        f"declare exchange and bindings themselves must use '{target}' from now on",
    )
    if is_ready(move, facts):
        yield MigrationStep(Progress.DONE, f"route '{front}' to '{target}' through postdate, which runs")
    else:
        yield MigrationStep(Progress.YOURS, f"{_route_step(move, facts)}. To undo: remove the route, delete '{front}'")
    parked = waiting in facts.exchanges
    yield _step(parked, f"declare '{waiting}' for what waits in the plugin. To undo: delete it when it is empty")
    hindered = [] if replaced else list(replace_obstacles(move, facts, means))
    yield from (MigrationStep(Progress.REFUSED, reason) for reason in hindered)
    yield _step(
        replaced,
        f"move what waits to '{waiting}', and replace '{old}' by an exchange of type {move.type} with "
        f"alternate-exchange '{front}'. This is the last step",
    )
    if replaced:
        text = f"delete '{waiting}' when it is empty. Messages that wait in it: {_count(move.waiting)}"
        yield MigrationStep(Progress.DRAINING, text)


def _route_step(move: PluginMove, facts: BrokerFacts) -> str:
    start = "start postdate. If it runs, reload it (SIGHUP); its log says if the route needs a restart"
    if queues := sorted(_intakes(move, facts)):
        return (
            f"no postdate takes messages from queue '{queues[0]}' of the route. With the route in its settings, {start}"
        )
    return f"add the route that is printed below, run `postdate setup`, then {start}"


def _step(done: bool, text: str) -> MigrationStep:
    return MigrationStep(Progress.DONE if done else Progress.PLANNED, text)
