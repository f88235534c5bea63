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
from bridge.desk.severity import named
from bridge.desk.topology import Standing

#: Priority of the policy that exempts postdate's queues: above that of most policies.
_PRIORITY = 1000
_OWN_POLICY = '{"overflow":"reject-publish"}'
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
        return _joined(*_fact_and_advice(self)) if self.state is not Standing.SAME else ""


class Effect(Enum):
    """What a policy makes RabbitMQ do to the messages of a queue. ``time`` is its value as a duration."""

    DELETES = "deletes confirmed messages after {time}"
    SENDS_EARLY = "sends messages on early after {time}"
    DELETES_QUEUE = "deletes the queue and its messages after {time} without a consumer"
    REFUSES = "refuses further messages above that. Producers must check their confirms"
    DROPS_OLDEST = "deletes the oldest message, even a confirmed one above that"
    SENDS_OLDEST_EARLY = "sends the oldest message on early above that"


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
        policies = (("policy", self.policy), ("operator policy", self.operator_policy))
        by = " and ".join(f"{kind} '{name}'" for kind, name in policies if name)
        queues = named([*map(repr, self.queues)], 3)
        # A queue obeys only the policy of the highest priority, so every other policy leaves postdate's queues alone.
        pattern, priority = rf"^{re.escape(self.base)}(\.|$)", str(_PRIORITY)
        words = ("set_policy", "-p", self.vhost, "--priority", priority, "--apply-to", "queues", self.base, pattern)
        advice = f"Run `rabbitmqctl {shlex.join(words)} '{_OWN_POLICY}'`"
        if self.operators:
            names = ", ".join(f"'{name}'" for name in self.operators)
            advice = f"{advice}. Also narrow the pattern of operator policy {names}: no other policy overrules it"
        effect = self.harm.effect.value.format(time=write_duration(self.harm.value))
        return f"{by} gives {queues} {self.harm.key} {self.harm.value}: RabbitMQ {effect}. {advice}"


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
        fact, advice = _fact_and_advice(finding)
        facts.setdefault(advice, {})[fact] = None
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


def _fact_and_advice(part: Comparison) -> tuple[str, str]:
    """Return what differs, and what to do about it; "" for nothing."""
    what = f"{_label(part.declaration)} of route {part.route}"
    if part.crashing_version:
        fact = f"RabbitMQ {part.crashing_version} crashes the classic queues that levels need"
        return fact, 'Use 3.10.7 or later, or set levels.queue_type = "quorum"'
    if part.early_version:
        fact = f"RabbitMQ {part.early_version} does not delay by itself, as mode native of route {part.route} needs"
        return fact, f"Use 4.4 or later on every node, or another routes.{part.route}.mode"
    match part.state:
        case Standing.MISSING if not part.declaration.ours:
            return _missing_target(part)
        case Standing.MISSING:
            return f"{what} does not exist", "Run `postdate setup`"
        case Standing.AWAY:
            fact = f"{what} is a classic queue on a node that is down: RabbitMQ takes nothing into it"
            return fact, "Start that node"
        case Standing.OUTDATED:
            fact = f"{what} leads to another list of levels. {_OLD_LEVELS}"
            return fact, "`postdate setup` recreates the exchange"
        case Standing.FORBIDDEN:
            return not_permitted(part.reply), ""
    if part.difference is None:
        return f"{what} cannot be used: RabbitMQ replies {part.reply}", ""
    name, found, needed = part.difference.argument, part.difference.found, part.difference.needed
    has = f"{name} '{found}'" if found is not None else f"no {name}"
    fact = f"{what} exists with {has}, and postdate needs {'none' if needed is None else repr(needed)}"
    return fact, _advice_for(part, part.difference)


def _missing_target(part: Comparison) -> tuple[str, str]:
    """Return fact and advice for a missing exchange or queue of the consumers'."""
    route = part.route
    if isinstance(part.declaration, Queue):
        setting, why = "queue", f"to which route {route} returns messages, does not exist"
    elif part.last_step:
        setting, why = "then", f"which gets messages of route {route} after their last attempt, does not exist"
    else:
        setting, why = (
            "deliver_to",
            (
                f"the target of route {route}, does not exist: RabbitMQ drops messages without a delay header, and "
                "postdate cannot deliver due ones"
            ),
        )
    advice = f"Declare it as its consumers need it, or correct routes.{route}.{setting}"
    return f"{_label(part.declaration)}, {why}", advice


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
