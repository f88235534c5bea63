"""Sentences about exchanges and queues that differ from what postdate needs. Pure."""

from __future__ import annotations

import re
import shlex

from adapters.rabbitmq.refusals import no_right
from adapters.rabbitmq.topology.declarations import Binding, Declaration, Exchange, Queue

#: Above any that a policy usually has.
_PRIORITY = 1000
_OWN_POLICY = '{"overflow":"reject-publish"}'
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']*)' for .* but current is "
    r"(?:none|(?:the value )?'(?P<value>.*?)'(?: of type '\w+')?)$",
    re.DOTALL,
)


def is_ours(declaration: Declaration) -> bool:
    """Whether postdate declares it; the consumers' exchange is theirs."""
    return not isinstance(declaration, Exchange) or declaration.ours


def label(declaration: Declaration) -> str:
    """A declaration as a person calls it."""
    if isinstance(declaration, Binding):
        kind = "exchange" if declaration.to_exchange else "queue"
        return f"the binding from exchange '{declaration.exchange}' to {kind} '{declaration.queue}'"
    return f"{'exchange' if isinstance(declaration, Exchange) else 'queue'} '{declaration.name}'"


def is_newer(wanted: Queue, text: str) -> bool:
    """Whether RabbitMQ names an argument that an earlier postdate did not declare. It names the first that differs."""
    found = _INEQUIVALENT.search(text)
    return found is not None and found["name"] in wanted.arguments.keys() - (wanted.earlier or {}).keys()


def mismatch(route: str, wanted: Exchange | Queue, text: str, waits: bool = False) -> tuple[str, str]:
    """Pure: what exists and what is needed, and what to do, from what RabbitMQ says to a declaration that is not
    equal. ``waits``: messages of its route wait in queues, and not in a store."""
    found = _INEQUIVALENT.search(text)
    what = label(wanted)
    if found is None:
        return f"{what} of route {route} cannot be used: RabbitMQ says {text}", ""
    name, value = found["name"], found["value"]
    needed = wanted.type if name == "type" and isinstance(wanted, Exchange) else wanted.arguments.get(name)
    if name == "durable":
        needed = True
    has = f"{name} '{value}'" if value is not None else f"no {name}"
    needs = f"'{_written(needed)}'" if needed is not None else "none"
    what = f"{what} of route {route} exists with {has}, and postdate needs {needs}"
    if name == "x-queue-type" and value in ("classic", "quorum", None):
        return what, _other_type(route, value or "classic", _written(needed), waits)
    return what, _other_name(route, wanted)


def _other_type(route: str, has: str, needed: str, waits: bool) -> str:
    """Who wants another type for what waits, and changes the route's, means a setting that is not the route's."""
    meant = f' (levels.queue_type = "{needed}" is for the queues in which messages wait)' if waits else ""
    return (
        f'set routes.{route}.queue_type = "{has}" to keep what is there{meant}, or delete it when it is empty and run '
        "`postdate setup`"
    )


def _other_name(route: str, wanted: Exchange | Queue) -> str:
    if isinstance(wanted, Queue):
        setting, kind = "queue", "queue when it is empty"
    else:
        setting, kind = "intercept", "exchange"
    return f"set routes.{route}.{setting} to another name, or delete that {kind} and run `postdate setup`"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def unprotected(route: str, wanted: Queue, vhost: str) -> tuple[str, str]:
    """What a queue of an earlier postdate lacks, and the command that gives it that without deleting it."""
    return (
        f"{label(wanted)} of route {route} has no x-overflow 'reject-publish': under a length limit RabbitMQ drops "
        "confirmed messages from it",
        f"keep it and run {exempt(vhost, wanted.name, f'^{re.escape(wanted.name)}$')}",
    )


def exempt(vhost: str, name: str, pattern: str) -> str:
    """The command that puts queues under a policy of their own. A queue obeys one policy, that of the highest
    priority, so every other policy leaves them alone."""
    words = ("set_policy", "-p", vhost, "--priority", str(_PRIORITY), "--apply-to", "queues", name, pattern)
    return f"`rabbitmqctl {shlex.join(words)} '{_OWN_POLICY}'`"


def crashes_lazy_queues(version: str) -> bool:
    """Pure: whether this RabbitMQ is one in which a lazy classic queue with the newer storage crashes."""
    found = re.match(r"3\.10\.(\d+)(?!\d)", version)
    return found is not None and int(found[1]) < 7


def crashes(version: str) -> str:
    """What to do about a RabbitMQ that ``crashes_lazy_queues``."""
    return (
        f"RabbitMQ {version} crashes the classic queues that levels need: use 3.10.7 or later, or set "
        'levels.queue_type = "quorum"'
    )


def missing(route: str, wanted: Exchange | Queue) -> str:
    """What does not exist, and who makes it."""
    if is_ours(wanted):
        return f"{label(wanted)} of route {route} does not exist: run `postdate setup`"
    return (
        f"{label(wanted)}, which route {route} delivers to, does not exist, so messages without a delay header are "
        f"lost and due ones are refused: declare it, as the consumers need it, or correct routes.{route}.deliver_to"
    )


def outdated(route: str, wanted: Exchange) -> str:
    """An exchange that leads to another list of levels."""
    return (
        f"{label(wanted)} of route {route} leads to another list of levels: what waits in the queues of the old one is "
        "delivered when it is due, and `postdate check --before OLD.toml` (the settings of before) counts it; "
        "`postdate setup` makes the exchange anew"
    )


def replaced(route: str) -> str:
    """After an exchange was made again for another list of levels."""
    return (
        f"the levels of route {route} are others now: what waits in the old queues is delivered when it is due, and "
        "`postdate check --before OLD.toml` (the settings of before) counts it"
    )


def forbidden(text: str) -> str:
    """What to do about a lack of rights."""
    return f"{no_right(text)}, or run `postdate setup` as one who has it and set bridge.setup = false"
