"""Compares the topology with the broker's, and makes what is missing. Blocking: call it in a thread.

Everything is looked at before anything is made, so that a mismatch in the last declaration leaves none of the first
behind. AMQP has no question for the arguments of what exists; declaring it again with equal arguments changes nothing
and with others is refused, which is the comparison. It is only made where a passive declaration has found something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from adapters.rabbitmq.connection import addresses, connect
from adapters.rabbitmq.refusals import ACCESS_REFUSED
from adapters.rabbitmq.topology.declarations import Binding, Declaration, Exchange, Queue
from adapters.rabbitmq.topology.findings import (
    crashes,
    crashes_lazy_queues,
    forbidden,
    is_newer,
    is_ours,
    label,
    mismatch,
    missing,
    outdated,
    replaced,
    unprotected,
)
from adapters.rabbitmq.topology.plan import RouteTopology, plan
from adapters.rabbitmq.trouble import sentence
from bridge.core.errors import BrokerUnavailable, Refused, TopologyMismatch
from bridge.settings import Settings

_NOT_FOUND, _PRECONDITION_FAILED = 404, 406
_TIMEOUT_S = 5


class State(Enum):
    """How the broker's compares with ours. UNPROTECTED: declared by an earlier postdate, and still good to use."""

    SAME = "same"
    MISSING = "missing"
    OUTDATED = "outdated"
    UNPROTECTED = "unprotected"
    DIFFERENT = "different"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Finding:
    """One exchange or queue. ``what`` is how it stands and ``advice`` what to do about it, for a person, wherever
    ``state`` is not SAME; several may have one advice."""

    route: str
    declaration: Exchange | Queue
    state: State
    what: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """A sentence, without its stop."""
        return f"{self.what}: {self.advice}" if self.advice else self.what


@dataclass(frozen=True, slots=True)
class Made:
    """One declaration as ``declare`` left it. A binding is always made again, for AMQP cannot ask for it: it is known
    to be new where what it binds is."""

    route: str
    declaration: Declaration
    new: bool


def verify(settings: Settings) -> list[Finding]:
    """How each exchange and queue of the routes stands; changes nothing. Raises ``BrokerUnavailable``."""
    with open_session(settings) as session:
        return [finding for topology in plan(settings) for finding in _judge(session, topology)]


def declare(settings: Settings) -> tuple[list[Made], list[str]]:
    """Make what is missing; returns what was made or was there, and a warning for each exchange of the consumers'
    that is missing.

    Raises ``TopologyMismatch`` before anything is changed, ``Refused`` for a lack of rights, ``BrokerUnavailable``.
    """
    topologies = plan(settings)
    with open_session(settings) as session:
        findings = [finding for topology in topologies for finding in _judge(session, topology)]
        _refuse(findings)
        absent = [f.declaration for f in findings if f.state in (State.MISSING, State.OUTDATED)]
        old = [f.declaration for f in findings if f.state is State.OUTDATED]
        kept = [f.declaration for f in findings if f.state is State.UNPROTECTED]
        made = []
        for topology in topologies:
            for declaration in topology.declarations():
                if declaration in old and not isinstance(declaration, Binding):
                    session.delete(declaration)
                if declaration not in kept:
                    session.make(declaration)
                made.append(Made(topology.route, declaration, _new(declaration, absent)))
            for binding in topology.unbound:
                session.unbind(binding)
        warnings = [f.text for f in findings if f.state is State.MISSING and not is_ours(f.declaration)]
        warnings += [replaced(f.route) for f in findings if f.state is State.OUTDATED]
        warnings += told(f for f in findings if f.state is State.UNPROTECTED)
    return made, warnings


def _new(declaration: Declaration, absent: Sequence[Declaration]) -> bool:
    if not isinstance(declaration, Binding):
        return declaration in absent
    exchanges = {one.name for one in absent if isinstance(one, Exchange)}
    others = exchanges if declaration.to_exchange else {one.name for one in absent if isinstance(one, Queue)}
    return declaration.exchange in exchanges or declaration.queue in others


def planned_names(settings: Settings) -> tuple[list[str], list[str]]:
    """The names of the exchanges and of the queues that the routes need and that are postdate's own. Pure."""
    found = [one for topology in plan(settings) for one in topology.declarations()]
    exchanges = [one.name for one in found if isinstance(one, Exchange)]
    return exchanges, [one.name for one in found if isinstance(one, Queue)]


def _refuse(findings: Iterable[Finding]) -> None:
    for state, error in ((State.DIFFERENT, TopologyMismatch), (State.FORBIDDEN, Refused)):
        about = [finding for finding in findings if finding.state is state and is_ours(finding.declaration)]
        if about:
            raise error(".\n".join([*told(about), "Nothing was changed"]))


def told(findings: Iterable[Finding]) -> list[str]:
    """Pure: a sentence for each advice, of all that it is about, and of what is said of several the same, one."""
    by_advice: dict[str, list[str]] = {}
    for one in findings:
        by_advice.setdefault(one.advice, []).append(one.what)
    alike = by_advice.pop("", [])
    return [*dict.fromkeys(alike), *(f"{'; '.join(whats)}: {advice}" for advice, whats in by_advice.items())]


def _judge(session: Session, topology: RouteTopology) -> Iterator[Finding]:
    for declaration in (*topology.declarations(), topology.target):
        if not isinstance(declaration, Binding) and declaration.name:  # the default exchange is always there
            yield session.judge(topology.route, declaration, bool(topology.waits))


class Session:
    """A connection, and a channel that is opened anew when the broker has closed it over a question."""

    def __init__(self, connection: pika.BlockingConnection, vhost: str) -> None:
        self._connection = connection
        self._channel: BlockingChannel | None = None
        properties = connection._impl.server_properties or {}
        self._version = str(properties.get("version", ""))
        self._vhost = vhost

    def judge(self, route: str, wanted: Exchange | Queue, waits: bool) -> Finding:
        """Compare one. ``waits``: messages of its route wait in queues, and not in a store."""
        if "x-queue-version" in wanted.arguments and crashes_lazy_queues(self._version):
            return Finding(route, wanted, State.DIFFERENT, crashes(self._version))
        closed = self._ask(wanted, passive=True)
        if closed is None and is_ours(wanted):
            closed = self._ask(wanted, passive=False)
        if closed is None:
            return Finding(route, wanted, State.SAME)
        if closed.reply_code == _NOT_FOUND:
            return Finding(route, wanted, State.MISSING, missing(route, wanted))
        if closed.reply_code == ACCESS_REFUSED:
            return Finding(route, wanted, State.FORBIDDEN, forbidden(closed.reply_text))
        if isinstance(wanted, Exchange) and wanted.remade:
            return Finding(route, wanted, State.OUTDATED, outdated(route, wanted))
        if isinstance(wanted, Queue) and wanted.earlier is not None and is_newer(wanted, closed.reply_text):
            closed = self._ask(Queue(wanted.name, wanted.earlier), passive=False)
            if closed is None:
                return Finding(route, wanted, State.UNPROTECTED, *unprotected(route, wanted, self._vhost))
        return Finding(route, wanted, State.DIFFERENT, *mismatch(route, wanted, closed.reply_text, waits))

    def make(self, declaration: Declaration) -> None:
        """Declare or bind. Raises ``Refused``."""
        if isinstance(declaration, Binding):
            closed = self._try(lambda channel: _bind(channel, declaration))
        else:
            closed = self._ask(declaration, passive=False)
        if closed is None:
            return
        if closed.reply_code == ACCESS_REFUSED:
            raise Refused(forbidden(closed.reply_text))
        raise Refused(f"RabbitMQ refuses to make {label(declaration)}: {closed.reply_code} {closed.reply_text}")

    def unbind(self, binding: Binding) -> None:
        """Take a binding from a queue, whether it is there or not. Raises ``Refused``."""
        arguments = dict(binding.arguments)
        closed = self._try(lambda channel: channel.queue_unbind(binding.queue, binding.exchange, "", arguments))
        if closed is not None and closed.reply_code != _NOT_FOUND:
            raise Refused(f"RabbitMQ refuses to remove {label(binding)}: {closed.reply_code} {closed.reply_text}")

    def waiting(self, queue: str) -> int | None:
        """How many messages of a queue are ready; None where there is no such queue. Raises ``Refused``."""
        found = self.counts(queue)
        return found.message_count if found else None

    def consumers(self, queue: str) -> int:
        """How many consume a queue that exists. Raises ``Refused``."""
        found = self.counts(queue)
        return found.consumer_count if found else 0

    def counts(self, queue: str) -> Any:
        """The answer to a passive declaration: ``message_count`` of those that are ready, and ``consumer_count``; None
        where there is no such queue. Raises ``Refused``."""
        answers: list[Any] = []
        closed = self._try(lambda channel: answers.append(channel.queue_declare(queue, passive=True)))
        if closed is not None and closed.reply_code != _NOT_FOUND:
            raise Refused(f"RabbitMQ does not count queue '{queue}': {closed.reply_code} {closed.reply_text}")
        return answers[0].method if answers else None

    def delete_if_empty(self, queue: Queue) -> bool:
        """Delete a queue if no message of it is ready; whether it was. Raises ``Refused``.

        A classic queue looks by itself, and minds its consumers, too. A quorum queue cannot (NOT_IMPLEMENTED, which
        closes the connection; 3.10 and 4.3), and its count is 0 also where it does not answer in a quarter of a second:
        so a message is asked for, and only a queue that has none is deleted. See to it that none can come.
        """
        if queue.arguments.get("x-queue-type") == "classic":
            closed = self._try(lambda channel: channel.queue_delete(queue.name, if_unused=True, if_empty=True))
            if closed is not None and closed.reply_code == _PRECONDITION_FAILED:
                return False
        else:
            got: list[object] = []
            closed = self._try(lambda channel: got.append(_give_back(channel, channel.basic_get(queue.name)[0])))
            if closed is None and got[0]:
                return False
            if closed is None:
                self.delete(queue)
        if closed is not None and closed.reply_code != _NOT_FOUND:
            raise Refused(f"RabbitMQ refuses to delete {label(queue)}: {closed.reply_code} {closed.reply_text}")
        return True

    def delete(self, declaration: Exchange | Queue) -> None:
        """Delete a queue with what is in it, or an exchange, with their bindings. Raises ``Refused``."""
        if isinstance(declaration, Queue):
            closed = self._try(lambda channel: channel.queue_delete(declaration.name))
        else:
            closed = self._try(lambda channel: channel.exchange_delete(declaration.name))
        if closed is not None:
            raise Refused(f"RabbitMQ refuses to delete {label(declaration)}: {closed.reply_code} {closed.reply_text}")

    def _ask(self, declaration: Exchange | Queue, passive: bool) -> ChannelClosedByBroker | None:
        name, arguments = declaration.name, dict(declaration.arguments)
        if isinstance(declaration, Exchange):
            kind = declaration.type or "direct"
            return self._try(lambda c: c.exchange_declare(name, kind, passive, durable=True, arguments=arguments))
        return self._try(lambda c: c.queue_declare(name, passive, durable=True, arguments=arguments))

    def _try(self, call: Callable[[BlockingChannel], object]) -> ChannelClosedByBroker | None:
        """Carry out a call; the broker's objection, or None."""
        if self._channel is None or not self._channel.is_open:
            self._channel = self._connection.channel()
        try:
            call(self._channel)
        except ChannelClosedByBroker as closed:
            return closed
        return None


def _give_back(channel: BlockingChannel, got: Any) -> bool:
    """Whether there was a message. It goes back to where it was."""
    if got is None:
        return False
    channel.basic_nack(got.delivery_tag, requeue=True)
    return True


def _bind(channel: BlockingChannel, binding: Binding) -> None:
    arguments = dict(binding.arguments)
    if binding.to_exchange:
        channel.exchange_bind(binding.queue, binding.exchange, "", arguments)
    else:
        channel.queue_bind(binding.queue, binding.exchange, "", arguments)


@contextmanager
def open_session(settings: Settings) -> Iterator[Session]:
    """Connect, and turn every error of the connection into ``BrokerUnavailable``."""
    connection = connect(settings.rabbitmq, f"{settings.bridge.name} setup", _TIMEOUT_S)
    try:
        yield Session(connection, addresses(settings.rabbitmq)[0].virtual_host)
    except (AMQPError, OSError) as error:
        raise BrokerUnavailable(sentence(error)) from error
    finally:
        with suppress(AMQPError):
            connection.close()
