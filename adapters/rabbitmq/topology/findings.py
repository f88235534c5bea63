"""What a comparison with the broker found, as values, and the sentence for each. Pure.

RabbitMQ says only in a text which argument of a queue or exchange differs: AMQP has no field for it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from adapters.rabbitmq.declarations import Binding, Declaration, Exchange, Queue
from adapters.rabbitmq.refusals import no_right
from bridge.delay.duration import write_duration
from bridge.desk.topology import Standing

#: Priority of the policy that exempts postdate's queues: above that of most policies.
_PRIORITY = 1000
_OWN_POLICY = '{"overflow":"reject-publish"}'
#: Queues named in one sentence; of the others it gives the number.
_NAMED_MAX = 3
_INEQUIVALENT = re.compile(
    r"inequivalent arg '(?P<name>[^']*)' for .* but current is "
    r"(?:none|(?:the value )?'(?P<value>.*?)'(?: of type '\w+')?)$",
    re.DOTALL,
)
_OLD_LEVELS = (
    "Messages in the previous level queues are still delivered when due. `postdate check --before OLD.toml`, with the "
    "previous settings, counts them"
)


@dataclass(frozen=True, slots=True)
class ArgumentDifference:
    """One argument with another value than postdate needs; None where the argument is absent."""

    argument: str
    found: str | None
    needed: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One exchange or queue compared with the broker's.

    ``difference`` is None where RabbitMQ's ``reply`` names no argument. ``crashing_version`` is set where that version
    of RabbitMQ cannot hold the queue, ``early_version`` where it would send messages on at once. ``without_store``: the
    messages of its route wait in level queues. ``last_step``: it gets messages after their last attempt.
    """

    route: str
    declaration: Exchange | Queue
    state: Standing
    reply: str = ""
    difference: ArgumentDifference | None = None
    crashing_version: str = ""
    early_version: str = ""
    without_store: bool = False
    last_step: bool = False

    @property
    def text(self) -> str:
        """What differs and what to do about it, without the final stop; "" where nothing differs."""
        return _joined(_fact(self), _advice(self)) if self.state is not Standing.SAME else ""


class Effect(Enum):
    """What a policy makes RabbitMQ do to the messages of a queue."""

    DELETES = "deletes confirmed messages"
    SENDS_EARLY = "sends messages on early"
    DELETES_QUEUE = "deletes the queue and its messages"
    REFUSES = "refuses further messages"
    DROPS_OLDEST = "deletes the oldest message, even a confirmed one"
    SENDS_OLDEST_EARLY = "sends the oldest message on early"


@dataclass(frozen=True, slots=True)
class Harm:
    """One key of a policy, with what it does to the messages of a queue."""

    key: str
    value: int
    effect: Effect


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """A policy that harms some queues of a route in the same way.

    ``base`` is the name of the route's intake queue, with which all its queues begin. ``operators`` are the operator
    policies that govern queues of the route: no other policy overrules them.
    """

    route: str
    policy: str
    operator_policy: str
    harm: Harm
    queues: tuple[str, ...]
    vhost: str
    base: str
    operators: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What the policy does, and the command against it, without the final stop."""
        return _policy_text(self)


def is_ours(declaration: Declaration) -> bool:
    """Return whether postdate declares it. Target exchanges and queues belong to the consumers."""
    return isinstance(declaration, Binding) or declaration.ours


def difference_in(reply: str, wanted: Exchange | Queue) -> ArgumentDifference | None:
    """Read RabbitMQ's reply to a declaration that is not equal. None where it names no argument."""
    found = _INEQUIVALENT.search(reply)
    if found is None:
        return None
    name = found["name"]
    needed = wanted.type if name == "type" and isinstance(wanted, Exchange) else wanted.arguments.get(name)
    if name == "durable":
        needed = True
    return ArgumentDifference(name, found["value"], None if needed is None else _written(needed))


def crashes_lazy_queues(version: str) -> bool:
    """Return whether this RabbitMQ crashes a lazy classic queue with the newer storage."""
    found = re.match(r"3\.10\.(\d+)(?!\d)", version)
    return found is not None and int(found[1]) < 7


# -- sentences --------------------------------------------------------------------------------------------------------


def _label(declaration: Declaration) -> str:
    if isinstance(declaration, Binding):
        kind = "exchange" if declaration.to_exchange else "queue"
        return f"the binding from exchange '{declaration.exchange}' to {kind} '{declaration.queue}'"
    return f"{'exchange' if isinstance(declaration, Exchange) else 'queue'} '{declaration.name}'"


def summary(findings: Iterable[Comparison]) -> list[str]:
    """Return one sentence for each advice, with every fact that it is for."""
    facts: dict[str, dict[str, None]] = {}
    for finding in findings:
        facts.setdefault(_advice(finding), {})[_fact(finding)] = None
    return [_joined("; ".join(sentences), advice) for advice, sentences in facts.items()]


def levels_replaced(route: str) -> str:
    """Return the warning after an exchange was recreated for another list of levels."""
    return f"the levels of route {route} have changed. {_OLD_LEVELS}"


def not_permitted(reply: str) -> str:
    """Return fact and advice where the user of rabbitmq.url lacks a right to declare."""
    return f"{no_right(reply)}, or run `postdate setup` as a user that has it and set bridge.setup = false"


def not_done(action: str, declaration: Declaration, code: int, reply: str) -> str:
    """Return the sentence for a refused ``action`` (declare, unbind, delete)."""
    return f"RabbitMQ refuses to {action} {_label(declaration)}: {code} {reply}"


def _joined(fact: str, advice: str) -> str:
    return f"{fact}. {advice}" if advice else fact


def _fact(part: Comparison) -> str:
    what = f"{_label(part.declaration)} of route {part.route}"
    if part.crashing_version:
        return f"RabbitMQ {part.crashing_version} crashes the classic queues that levels need"
    if part.early_version:
        return f"RabbitMQ {part.early_version} does not delay by itself, as mode native of route {part.route} needs"
    match part.state:
        case Standing.MISSING if isinstance(part.declaration, Queue) and not part.declaration.ours:
            return f"{_label(part.declaration)}, to which route {part.route} returns messages, does not exist"
        case Standing.MISSING if part.last_step:
            return (
                f"{_label(part.declaration)}, which gets messages of route {part.route} after their last attempt, does "
                "not exist"
            )
        case Standing.MISSING if not is_ours(part.declaration):
            return (
                f"{_label(part.declaration)}, the target of route {part.route}, does not exist: RabbitMQ drops "
                "messages without a delay header, and postdate cannot deliver due ones"
            )
        case Standing.MISSING:
            return f"{what} does not exist"
        case Standing.AWAY:
            return f"{what} is a classic queue on a node that is down: RabbitMQ takes nothing into it"
        case Standing.OUTDATED:
            return f"{what} leads to another list of levels. {_OLD_LEVELS}"
        case Standing.FORBIDDEN:
            return not_permitted(part.reply)
    if part.difference is None:
        return f"{what} cannot be used: RabbitMQ replies {part.reply}"
    name, found, needed = part.difference.argument, part.difference.found, part.difference.needed
    has = f"{name} '{found}'" if found is not None else f"no {name}"
    return f"{what} exists with {has}, and postdate needs {'none' if needed is None else repr(needed)}"


def _advice(part: Comparison) -> str:
    if part.crashing_version:
        return 'Use 3.10.7 or later, or set levels.queue_type = "quorum"'
    if part.early_version:
        return f"Use 4.4 or later on every node, or another routes.{part.route}.mode"
    match part.state:
        case Standing.MISSING if not is_ours(part.declaration):
            setting = "queue" if isinstance(part.declaration, Queue) else "then" if part.last_step else "deliver_to"
            return f"Declare it as its consumers need it, or correct routes.{part.route}.{setting}"
        case Standing.MISSING:
            return "Run `postdate setup`"
        case Standing.AWAY:
            return "Start that node"
        case Standing.OUTDATED:
            return "`postdate setup` recreates the exchange"
        case Standing.DIFFERENT if part.difference is not None:
            return _advice_for(part, part.difference)
    return ""


def _advice_for(part: Comparison, difference: ArgumentDifference) -> str:
    route, found = part.route, difference.found or "classic"
    if difference.argument == "x-queue-type" and found in ("classic", "quorum"):
        # A user who wants another type for level queues may have changed that of the route by mistake.
        levels = f'. levels.queue_type = "{difference.needed}" sets the type of the level queues alone'
        return (
            f'Set routes.{route}.queue_type = "{found}" to keep it, or delete it when it is empty and run '
            f"`postdate setup`{levels if part.without_store else ''}"
        )
    if isinstance(part.declaration, Queue):
        setting, kind = "queue", "queue when it is empty"
    else:
        setting, kind = "intercept", "exchange"
    return f"Set routes.{route}.{setting} to another name, or delete that {kind} and run `postdate setup`"


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _policy_text(found: PolicyFinding) -> str:
    named = (("policy", found.policy), ("operator policy", found.operator_policy))
    by = " and ".join(f"{kind} '{name}'" for kind, name in named if name)
    more = f" and {len(found.queues) - _NAMED_MAX} more" if len(found.queues) > _NAMED_MAX else ""
    queues = ", ".join(map(repr, found.queues[:_NAMED_MAX])) + more
    # A queue obeys only the policy of the highest priority, so every other policy leaves postdate's queues alone.
    pattern = rf"^{re.escape(found.base)}(\.|$)"
    words = ("set_policy", "-p", found.vhost, "--priority", str(_PRIORITY), "--apply-to", "queues", found.base, pattern)
    advice = f"Run `rabbitmqctl {shlex.join(words)} '{_OWN_POLICY}'`"
    if found.operators:
        names = ", ".join(f"'{name}'" for name in found.operators)
        advice = f"{advice}. Also narrow the pattern of operator policy {names}: no other policy overrules it"
    return f"{by} gives {queues} {found.harm.key} {found.harm.value}: RabbitMQ {_effect(found.harm)}. {advice}"


def _effect(harm: Harm) -> str:
    match harm.effect:
        case Effect.DELETES | Effect.SENDS_EARLY:
            return f"{harm.effect.value} after {write_duration(harm.value)}"
        case Effect.DELETES_QUEUE:
            return f"{harm.effect.value} after {write_duration(harm.value)} without a consumer"
        case Effect.REFUSES:
            return f"{harm.effect.value} above that. Producers must check their confirms"
    return f"{harm.effect.value} above that"
