"""Carries a move out, step by step. Every step may be repeated, so a killed command is simply run again. Blocking."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pika
from pika import frame, spec
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq.connection import addresses, connected
from adapters.rabbitmq.declarations import Binding, Exchange
from adapters.rabbitmq.migration.facts import read_facts
from adapters.rabbitmq.migration.hold import HoldAnswer, hold
from adapters.rabbitmq.migration.move_plan import (
    WAITING_ARGUMENTS,
    BrokerFacts,
    ExchangeFacts,
    PluginMove,
    Stage,
    describe,
    is_ready,
    moves,
    obstacles,
    replace_obstacles,
)
from adapters.rabbitmq.nodes import PLUGIN_TYPE
from adapters.rabbitmq.refusals import ACCESS_REFUSED
from adapters.rabbitmq.topology.declaring import Session
from adapters.rabbitmq.trouble import sentence
from bridge.core.errors import Refused
from bridge.desk.migration import Means, Migration
from bridge.settings import Settings

#: Exclusive to a connection: two commands at once would disturb each other.
_LOCK = "postdate.migration"
_LOCKED, _PRECONDITION_FAILED = 405, 406
_TIMEOUT_S = 10

Say = Callable[[str], None]


def survey(settings: Settings, means: Means) -> list[Migration]:
    """Return the steps of every exchange that can move. Raises ``BrokerUnavailable``."""
    facts = read_facts(settings)
    return [describe(move, facts, means) for move in moves(facts)]


def advance(settings: Settings, exchange: str, means: Means, say: Say) -> None:
    """Move one exchange as far as it can go, and ``say`` what was done.

    Raises ``Refused`` and ``BrokerUnavailable``. What was done until then stays, and the next call goes on.
    """
    facts = read_facts(settings)
    move = next((candidate for candidate in moves(facts) if candidate.names.old == exchange), None)
    if move is None:
        return
    if reasons := list(obstacles(move, facts)):
        raise Refused(f"exchange '{exchange}' was not touched: {'. '.join(reasons)}")
    with _open(settings) as broker:
        broker.lock()
        if move.stage is not Stage.PLUGIN:
            _finish(broker, move, facts, means, say)
            return
        _prepare(broker, move, say)
        if not is_ready(move, facts):
            return
        broker.declare(ExchangeFacts(move.names.waiting, PLUGIN_TYPE, WAITING_ARGUMENTS))
        broker.bind(Binding(move.names.waiting, move.names.target, to_exchange=True))
        if reasons := list(replace_obstacles(move, facts, means)):
            raise Refused(f"exchange '{exchange}' was prepared but not replaced: {'. '.join(reasons)}")
        broker.check_rights(move)
        with broker.hold(means.tool, move) if means.tool else nullcontext(HoldAnswer(0, 0)) as held:
            took_ms = broker.replace(move)
        say(f"Moved to '{move.names.waiting}': {held.moved}. Replaced '{exchange}' in {took_ms:.0f} ms.")


def _prepare(broker: MigratingBroker, move: PluginMove, say: Say) -> None:
    broker.declare(ExchangeFacts(move.names.target, move.type, move.arguments))
    for binding in move.bindings:
        broker.bind(binding)
    if move.bindings:
        say(f"Bound to '{move.names.target}': {len(move.bindings)}.")


def _finish(broker: MigratingBroker, move: PluginMove, facts: BrokerFacts, means: Means, say: Say) -> None:
    """Declare what a killed command left missing, and delete the exchange for what waits once it is empty.

    The management API counts on one node, the plugin's tables on all.
    """
    broker.declare(move.ends)
    waiting = move.waiting if facts.nodes == 1 else None
    if means.tool:
        with broker.hold(means.tool, move) as held:
            waiting = held.waiting
        if held.moved:
            say(f"Moved to '{move.names.waiting}': {held.moved}.")
    if waiting == 0:
        broker.delete(Exchange(move.names.waiting))
        say(f"Deleted '{move.names.waiting}': no message of '{move.names.old}' waits in the plugin.")


class MigratingBroker(Session):
    """A session that can also replace an exchange."""

    def __init__(self, connection: pika.BlockingConnection, vhost: str) -> None:
        super().__init__(connection)
        self._vhost = vhost

    def hold(self, tool: str, move: PluginMove) -> AbstractContextManager[HoldAnswer]:
        """Move what waits, and hold the plugin, as ``hold.hold`` does."""
        proof = self._connection.channel().queue_declare("", exclusive=True).method.queue  # ends with the connection
        return hold(tool, self._vhost, move.names.old, move.names.waiting, proof)

    def lock(self) -> None:
        """Make sure that this is the only migration. The lock ends with the connection. Raises ``Refused``."""
        closed = self._try(lambda channel: channel.queue_declare(_LOCK, exclusive=True, auto_delete=True))
        if closed is not None and closed.reply_code == _LOCKED:
            raise Refused("another `postdate migrate plugin --apply` is running on this virtual host")
        if closed is not None:
            raise Refused(sentence(closed))

    def declare(self, exchange: ExchangeFacts) -> None:
        """Declare an exchange, or do nothing where it exists with the same properties. Raises ``Refused``."""
        self._do(lambda channel: _declare(channel, exchange))

    def bind(self, binding: Binding) -> None:
        """Bind, or do nothing where the binding exists. Raises ``Refused``."""
        self._do(binding.bind)

    def check_rights(self, move: PluginMove) -> None:
        """Raise ``Refused`` where the user may not declare the exchange after having deleted it. Nothing changes.

        RabbitMQ checks the right before it finds that the exchange has another type, and the rights to bind before it
        finds that there is no such binding. An alternate exchange needs the same rights as a binding to it.
        """
        closed = self._try(lambda channel: _declare(channel, move.ends))
        if closed is None or closed.reply_code != _PRECONDITION_FAILED:
            why = sentence(closed) if closed else "it is not of the plugin's type any more"
            raise Refused(f"exchange '{move.names.old}' cannot be replaced: {why}")
        old, front = move.names.old, move.names.front
        self._do(lambda channel: channel.exchange_unbind(front, old, "postdate asks for the right to bind"))

    def replace(self, move: PluginMove) -> float:
        """Delete the plugin's exchange and declare its successor in one write. Return how long (ms) that took.

        The broker receives both at once: a command that is killed leaves both done or, if it is killed in the instant
        of the write, the exchange missing. The next run declares it.
        """
        channel = self._connection.channel()
        ends, number = move.ends, channel.channel_number
        methods = (
            spec.Exchange.Delete(exchange=ends.name, nowait=True),
            spec.Exchange.Declare(
                exchange=ends.name, type=ends.type, durable=True, nowait=True, arguments=dict(ends.arguments)
            ),
        )
        began = time.perf_counter()
        both = b"".join(frame.Method(number, method).marshal() for method in methods)
        self._connection._impl._output_marshaled_frames([both])
        try:
            channel.exchange_declare(ends.name, passive=True)
        except ChannelClosedByBroker as closed:
            self.declare(ends)
            raise Refused(f"RabbitMQ refused a part of the replacement: {sentence(closed)}. Run it again") from closed
        return (time.perf_counter() - began) * 1000

    def _do(self, call: Callable[[BlockingChannel], Any]) -> None:
        closed = self._try(call)
        if closed is not None:
            advice = ". Give the user of rabbitmq.url that right" if closed.reply_code == ACCESS_REFUSED else ""
            raise Refused(f"{sentence(closed)}{advice}")


def _declare(channel: BlockingChannel, exchange: ExchangeFacts) -> None:
    channel.exchange_declare(exchange.name, exchange.type, durable=True, arguments=dict(exchange.arguments))


@contextmanager
def _open(settings: Settings) -> Iterator[MigratingBroker]:
    """Connect, without heartbeats: the connection rests while rabbitmqctl runs."""
    name = f"{settings.bridge.name} migrate"
    with connected(settings.rabbitmq, name, _TIMEOUT_S, heartbeats=False) as connection:
        yield MigratingBroker(connection, addresses(settings.rabbitmq)[0].virtual_host)
