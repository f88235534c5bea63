"""Compares the topology with the broker's and declares what is missing. Blocking: call it in a thread.

Everything is compared before anything is declared, so a mismatch in the last declaration leaves nothing half done.
AMQP cannot ask for the arguments of what exists. Declaring it again with equal arguments changes nothing, and RabbitMQ
refuses other arguments: that is the comparison, made only where a passive declaration has found something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from adapters.rabbitmq.connection import connected
from adapters.rabbitmq.declarations import Binding, Declaration, Exchange, Queue
from adapters.rabbitmq.native_guard import delays_natively
from adapters.rabbitmq.refusals import ACCESS_REFUSED, NOT_FOUND, is_away, is_gone
from adapters.rabbitmq.topology.findings import (
    Comparison,
    crashes_lazy_queues,
    difference_in,
    levels_replaced,
    not_done,
    not_permitted,
    summary,
)
from adapters.rabbitmq.topology.route_topology import RouteTopology, plan
from bridge.core.errors import Refused, TopologyMismatch
from bridge.desk.topology import Standing
from bridge.settings import Settings

_PRECONDITION_FAILED = 406
_TIMEOUT_S = 5


#: Route, declaration, and whether it is new. AMQP cannot ask for a binding, so ``declare`` always makes it: a binding
#: counts as new where one of its ends is new.
Declared = tuple[str, Declaration, bool]


def verify(settings: Settings) -> list[Comparison]:
    """Compare each exchange and queue of the routes with the broker's; change nothing. Raises ``BrokerUnavailable``."""
    with open_session(settings) as session:
        return [found for topology in plan(settings, session.native) for found in _compare(session, topology)]


def declare(settings: Settings) -> tuple[list[Declared], list[str]]:
    """Declare what is missing. Return every declaration, and warnings.

    Raises ``TopologyMismatch`` before anything is changed, ``Refused`` for a lack of rights, ``BrokerUnavailable``.
    """
    with open_session(settings) as session:
        topologies = plan(settings, session.native)
        findings = [found for topology in topologies for found in _compare(session, topology)]
        _refuse(findings)
        outdated = [found.declaration for found in findings if found.state is Standing.OUTDATED]
        absent = [*outdated, *(found.declaration for found in findings if found.state is Standing.MISSING)]
        created: list[Declared] = []
        away = {found.declaration.name for found in findings if found.state is Standing.AWAY}
        for topology in topologies:
            for declaration in topology.declarations():
                if _of(declaration) in away:
                    continue  # RabbitMQ refuses it as not found; it keeps the queue and its bindings
                if isinstance(declaration, Exchange) and declaration in outdated:
                    session.delete(declaration)
                if session.make(declaration):
                    created.append((topology.route, declaration, _is_new(declaration, absent)))
            for binding in topology.unbound:
                session.unbind(binding)
    warnings = [found.text for found in findings if found.state is Standing.MISSING and not found.declaration.ours]
    warnings += [found.text for found in findings if found.state is Standing.AWAY]
    warnings += [levels_replaced(found.route) for found in findings if found.state is Standing.OUTDATED]
    return created, warnings


def _of(declaration: Declaration) -> str:
    """Return the name of the queue that is declared or bound; "" for what is of exchanges."""
    if isinstance(declaration, Binding):
        return "" if declaration.to_exchange else declaration.queue
    return declaration.name if isinstance(declaration, Queue) else ""


def _is_new(declaration: Declaration, absent: Sequence[Declaration]) -> bool:
    if not isinstance(declaration, Binding):
        return declaration in absent
    exchanges = {part.name for part in absent if isinstance(part, Exchange)}
    others = exchanges if declaration.to_exchange else {part.name for part in absent if isinstance(part, Queue)}
    return declaration.exchange in exchanges or declaration.queue in others


def planned(settings: Settings) -> list[Exchange | Queue]:
    """Return postdate's own exchanges and queues that the routes need on any RabbitMQ. Pure."""
    found = [declaration for topology in plan(settings, native=True) for declaration in topology.declarations()]
    return [declaration for declaration in found if not isinstance(declaration, Binding)]


def _refuse(findings: Iterable[Comparison]) -> None:
    for state, error in ((Standing.DIFFERENT, TopologyMismatch), (Standing.FORBIDDEN, Refused)):
        about = [finding for finding in findings if finding.state is state and finding.declaration.ours]
        if about:
            raise error(".\n".join([*summary(about), "Nothing was changed"]))


def _compare(session: Session, topology: RouteTopology) -> Iterator[Comparison]:
    for declaration in (*topology.declarations(), *topology.targets):
        if not isinstance(declaration, Binding) and declaration.name:  # the default exchange always exists
            found = session.compare(topology.route, declaration, bool(topology.waits))
            yield replace(found, last_step=bool(topology.back) and isinstance(declaration, Exchange))


class Session:
    """A connection with one channel. It opens another one when the broker has closed that over a question."""

    def __init__(self, connection: pika.BlockingConnection) -> None:
        self._connection = connection
        self._channel: BlockingChannel | None = None
        properties = connection._impl.server_properties or {}
        self.version = str(properties.get("version", ""))
        self.native = delays_natively(self.version)

    def compare(self, route: str, wanted: Exchange | Queue, without_store: bool) -> Comparison:
        """Compare one exchange or queue with the broker's."""
        if "x-queue-version" in wanted.arguments and crashes_lazy_queues(self.version):
            return Comparison(route, wanted, Standing.DIFFERENT, crashing_version=self.version)
        if isinstance(wanted, Queue) and wanted.delays and not self.native:
            return Comparison(route, wanted, Standing.DIFFERENT, early_version=self.version)
        closed = self._declare(wanted, passive=True)
        if closed is None and wanted.ours:
            closed = self._declare(wanted, passive=False)
        if closed is None:
            return Comparison(route, wanted, Standing.SAME)
        reply = closed.reply_text
        if closed.reply_code == NOT_FOUND:
            return Comparison(route, wanted, Standing.AWAY if is_away(reply) else Standing.MISSING)
        if closed.reply_code == ACCESS_REFUSED:
            return Comparison(route, wanted, Standing.FORBIDDEN, reply)
        if isinstance(wanted, Exchange) and wanted.recreated:
            return Comparison(route, wanted, Standing.OUTDATED, reply)
        difference = difference_in(reply, wanted)
        return Comparison(route, wanted, Standing.DIFFERENT, reply, difference, without_store=without_store)

    def make(self, declaration: Declaration) -> bool:
        """Declare or bind. Return false for a binding to something of the consumers' that is missing. Raises
        ``Refused``."""
        if isinstance(declaration, Binding):
            closed = self._try(declaration.bind)
        else:
            closed = self._declare(declaration, passive=False)
        if closed is None:
            return True
        if isinstance(declaration, Binding) and declaration.foreign and closed.reply_code == NOT_FOUND:
            return False
        if closed.reply_code == ACCESS_REFUSED:
            raise Refused(not_permitted(closed.reply_text))
        raise Refused(not_done("declare", declaration, closed.reply_code, closed.reply_text))

    def unbind(self, binding: Binding) -> None:
        """Remove a binding, whether it exists or not. Raises ``Refused``."""
        closed = self._try(binding.unbind)
        if closed is not None and closed.reply_code != NOT_FOUND:
            raise Refused(not_done("remove", binding, closed.reply_code, closed.reply_text))

    def waiting(self, queue: str) -> int | None:
        """Return the number of ready messages of a queue; None where it does not exist. Raises ``Refused``."""
        found = self.counts(queue)
        return found.message_count if found else None

    def consumers(self, queue: str) -> int:
        """Return the number of consumers of a queue; 0 where it does not exist. Raises ``Refused``."""
        found = self.counts(queue)
        return found.consumer_count if found else 0

    def counts(self, queue: str) -> Any:
        """Return ``message_count`` (ready messages) and ``consumer_count`` of a queue; None where it does not exist.
        Raises ``Refused``."""
        answers: list[Any] = []
        closed = self._try(lambda channel: answers.append(channel.queue_declare(queue, passive=True)))
        if closed is not None and closed.reply_code != NOT_FOUND:
            raise Refused(f"RabbitMQ does not count queue '{queue}': {closed.reply_code} {closed.reply_text}")
        return answers[0].method if answers else None

    def lacks(self, declaration: Exchange | Queue) -> bool:
        """Return whether there is nothing of this name, not even on a node that is down."""
        closed = self._declare(declaration, passive=True)
        return closed is not None and is_gone(closed)

    def delete_if_empty(self, queue: Queue) -> bool:
        """Delete a queue that has no ready message. Return whether it was deleted. Raises ``Refused``.

        A classic queue checks that itself, and that it has no consumer. A quorum queue cannot (NOT_IMPLEMENTED, which
        closes the connection; 3.10 and 4.3). Its message count is 0 also where it does not answer within 0.25 s, so
        this fetches a message and deletes only a queue that has none. The caller makes sure that none can arrive.
        """
        if queue.arguments.get("x-queue-type") == "classic":
            closed = self._try(lambda channel: channel.queue_delete(queue.name, if_unused=True, if_empty=True))
            if closed is not None and closed.reply_code == _PRECONDITION_FAILED:
                return False
        else:
            got: list[object] = []
            closed = self._try(lambda channel: got.append(_requeue(channel, channel.basic_get(queue.name)[0])))
            if closed is None and got[0]:
                return False
            if closed is None:
                self.delete(queue)
        if closed is not None and closed.reply_code != NOT_FOUND:
            raise Refused(not_done("delete", queue, closed.reply_code, closed.reply_text))
        return True

    def delete(self, declaration: Exchange | Queue) -> None:
        """Delete a queue with its messages, or an exchange; either with its bindings. Raises ``Refused``."""
        if isinstance(declaration, Queue):
            closed = self._try(lambda channel: channel.queue_delete(declaration.name))
        else:
            closed = self._try(lambda channel: channel.exchange_delete(declaration.name))
        if closed is not None:
            raise Refused(not_done("delete", declaration, closed.reply_code, closed.reply_text))

    def _declare(self, declaration: Exchange | Queue, passive: bool) -> ChannelClosedByBroker | None:
        name, arguments = declaration.name, dict(declaration.arguments)
        if isinstance(declaration, Exchange):
            kind = declaration.type or "direct"
            return self._try(lambda c: c.exchange_declare(name, kind, passive, durable=True, arguments=arguments))
        return self._try(lambda c: c.queue_declare(name, passive, durable=True, arguments=arguments))

    def _try(self, call: Callable[[BlockingChannel], object]) -> ChannelClosedByBroker | None:
        """Make the call. Return the broker's refusal, or None."""
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
        try:
            call(self._channel)
        except ChannelClosedByBroker as closed:
            return closed
        return None


def _requeue(channel: BlockingChannel, got: Any) -> bool:
    """Requeue a fetched message, which keeps its position. Return whether there was one."""
    if got is None:
        return False
    channel.basic_nack(got.delivery_tag, requeue=True)
    return True


@contextmanager
def open_session(settings: Settings) -> Iterator[Session]:
    """Connect. An error of the connection raises ``BrokerUnavailable``."""
    with connected(settings.rabbitmq, f"{settings.bridge.name} setup", _TIMEOUT_S) as connection:
        yield Session(connection)
