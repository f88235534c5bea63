"""Whether what consumers reject reaches postdate: their queue must dead-letter to it, by its arguments or by a policy.

AMQP cannot ask a queue for its arguments, and only RabbitMQ's management API knows policies. Where it answers, `setup`
sets a policy of its own, but only on a queue that no policy governs: RabbitMQ applies a single policy to a queue, so
another one would stop working.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from adapters.rabbitmq.connection import addresses
from adapters.rabbitmq.management import Governed, ManagementApi, reach
from bridge.core.errors import BrokerUnavailable
from bridge.desk.topology import Finding, Name, Part, Standing
from bridge.settings import Settings
from bridge.settings.own_names import RETRY
from bridge.telemetry.subject import Subject

_EXCHANGE, _KEY, _STRATEGY = "dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy"
#: RabbitMQ keeps a rejected message until postdate's intake has it. Only quorum queues can, and only those that refuse
#: messages when they are full. Otherwise a dead letter is lost while the intake is not available.
_AT_LEAST_ONCE = {_STRATEGY: "at-least-once", "overflow": "reject-publish"}
#: Redeliveries a second that mean a loop, if they are at least half of all deliveries.
_LOOP_RATE = 10
_LIMITS = ("max-length", "max-length-bytes")
_APPLIES = {
    "all": ("classic", "quorum"),
    "queues": ("classic", "quorum"),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
}


@dataclass(frozen=True, slots=True)
class DeadLettering:
    """What the queue of a retry route's consumers needs: arguments or a policy."""

    route: str
    queue: str
    vhost: str

    @property
    def policy(self) -> str:
        """The name of postdate's policy."""
        return f"postdate.{self.route}"

    @property
    def pattern(self) -> str:
        """The pattern that matches this queue alone."""
        return f"^{re.escape(self.queue)}$"

    def definition(self, governed: Governed | None) -> dict[str, str]:
        """Return the definition of the policy. A queue with a length limit keeps what it does when it is full. A queue
        that is not known may be a quorum queue, the only kind for which the rest matters."""
        found = {_EXCHANGE: RETRY, _KEY: self.route}
        quorum = governed is None or governed.arguments.get("x-queue-type") == "quorum"
        limited = governed is not None and any(f"x-{limit}" in governed.arguments for limit in _LIMITS)
        return found | _AT_LEAST_ONCE if quorum and not limited else found

    def arguments(self, governed: Governed | None) -> dict[str, str]:
        """Return the same as arguments for the declaration of the queue."""
        return {f"x-{name}": value for name, value in self.definition(governed).items()}

    def command(self, governed: Governed | None) -> str:
        """Return the command that sets the policy."""
        definition = json.dumps(self.definition(governed), separators=(",", ":"))
        words = ("-p", self.vhost, "--apply-to", "queues", self.policy, self.pattern, definition)
        return shlex.join(("rabbitmqctl", "set_policy", *words))


def asked_of(settings: Settings) -> list[DeadLettering]:
    """Return what the queues of all retry routes need. Pure."""
    vhost = addresses(settings.rabbitmq)[0].virtual_host
    names = [name for name in settings.routes_of("rabbitmq") if settings.routes[name].retries]
    return [DeadLettering(name, settings.routes[name].queue, vhost) for name in names]


class DeadLetterPath(NamedTuple):
    """How a queue dead-letters. ``text`` is a fact. ``free``: postdate may set its policy."""

    reaches: bool
    text: str
    free: bool = False


def judge(asked: DeadLettering, governed: Governed | None, policies: Iterable[Mapping[str, Any]]) -> DeadLetterPath:
    """Judge one queue. ``policies`` are those of the virtual host, as the API describes them. Pure."""
    queue = f"queue '{asked.queue}'"
    if governed is None:
        return DeadLetterPath(False, f"{queue} does not exist, so whether it dead-letters to postdate is not known")
    own = {name: governed.arguments.get(f"x-{name}") for name in (_EXCHANGE, _KEY)}
    found = _governing(asked.queue, str(governed.arguments.get("x-queue-type")), policies)
    name = str(found.get("name") or governed.policy)
    rules = found.get("definition") or governed.definition
    exchange, key = own[_EXCHANGE] or rules.get(_EXCHANGE), own[_KEY] or rules.get(_KEY)
    by = "its arguments" if own[_EXCHANGE] else f"policy '{name}'"
    free = not own[_EXCHANGE] and name in ("", asked.policy)
    if (exchange, key) == (RETRY, asked.route):
        safe = asked.definition(governed)
        strategy = governed.arguments.get(f"x-{_STRATEGY}") or rules.get(_STRATEGY)
        if safe.get(_STRATEGY) and strategy != safe[_STRATEGY]:
            text = f"{queue} dead-letters to postdate by {by}, at most once: RabbitMQ loses a rejected message while "
            return DeadLetterPath(False, f"{text}postdate's intake queue is not available", name in ("", asked.policy))
        return DeadLetterPath(True, f"{queue} dead-letters to postdate by {by}")
    if exchange is not None:
        to = f"exchange '{exchange}' with routing key '{key}'" if key else f"exchange '{exchange}' without routing key"
        return DeadLetterPath(False, f"{queue} dead-letters to {to} by {by}, and not to postdate", free)
    if name and not free:
        text = f"{queue} does not dead-letter to postdate. Policy '{name}' governs it, and RabbitMQ applies one policy"
        return DeadLetterPath(False, f"{text} to a queue: add {_EXCHANGE} and {_KEY} to that policy")
    return DeadLetterPath(False, f"{queue} does not dead-letter to postdate", free)


def _governing(queue: str, kind: str, policies: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the policy that RabbitMQ applies to a queue; empty for none."""
    fits = [
        policy
        for policy in policies
        if kind in _APPLIES.get(str(policy.get("apply-to")), ()) and _matches(str(policy.get("pattern")), queue)
    ]
    return max(fits, key=lambda policy: int(policy.get("priority") or 0), default={})


def _matches(pattern: str, queue: str) -> bool:
    try:
        return re.search(pattern, queue) is not None
    except re.error:  # Erlang's patterns are a little richer
        return False


def judge_consumers(settings: Settings, change: bool = False) -> list[Finding]:
    """Return a finding for each consumers' queue, and one for postdate's policy where the queue needs it.

    ``change``: set the policy where that is possible. Blocking. A management API that does not answer is a finding.
    """
    asked = asked_of(settings)
    if not asked:
        return []
    try:
        with reach(settings.rabbitmq) as api:
            policies = _policies(api)
            return [finding for queue in asked for finding in _judged(api, queue, policies, change)]
    except BrokerUnavailable as error:
        return _unknown(asked, str(error))


def judge_redeliveries(settings: Settings) -> list[tuple[str, str]]:
    """Return route and sentence for each consumers' queue that redelivers without end. Blocking. Raises
    ``BrokerUnavailable``."""
    found = []
    if asked := asked_of(settings):
        with reach(settings.rabbitmq) as api:
            for queue in asked:
                governed = api.queue(queue.queue)
                found.append((queue.route, redelivering(queue, governed.rates) if governed else ""))
    return [(route, text) for route, text in found if text]


def redelivery_troubles(settings: Settings) -> dict[Subject, str]:
    """Return subject and sentence of each consumers' queue that redelivers without end. Raises as
    ``judge_redeliveries``."""
    return {Subject("rabbitmq", "consumers of", route): text for route, text in judge_redeliveries(settings)}


def redelivering(asked: DeadLettering, rates: Mapping[str, Any]) -> str:
    """Return the sentence for a queue whose consumers requeue what fails; "" for any other. Pure.

    A consumer that ends returns what it had, once. A consumer that requeues gets the same messages again at once.
    """
    again, all_of = ((rates.get(name) or {}).get("rate") or 0 for name in ("redeliver_details", "deliver_get_details"))
    if again < _LOOP_RATE or again < all_of / 2:
        return ""
    return (
        f"queue '{asked.queue}' redelivers {again:.0f} messages a second: its consumers requeue what fails, and "
        "postdate sees no failure. Reject with requeue=false: see deploy/retries.md, Before you start"
    )


def _unknown(asked: Sequence[DeadLettering], why: str) -> list[Finding]:
    found = []
    for queue in asked:
        text = f"whether queue '{queue.queue}' dead-letters to postdate is not known: {why}"
        found += _findings(queue, None, Standing.ASKED, text)
    return found


def _policies(api: ManagementApi) -> list[Mapping[str, Any]] | None:
    """Return all policies; None where the user may not read them, and so may not set one either."""
    try:
        return api.listed("policies")
    except BrokerUnavailable:
        return None


def _judged(
    api: ManagementApi, asked: DeadLettering, policies: Sequence[Mapping[str, Any]] | None, change: bool
) -> list[Finding]:
    governed = api.queue(asked.queue)
    judgement = judge(asked, governed, policies or ())
    if judgement.reaches:
        return [Finding(_queue(asked, governed), Standing.THERE, judgement.text)]
    if policies is None or not judgement.free:
        return _findings(asked, governed, Standing.ASKED, judgement.text)
    if not change:
        return _findings(asked, governed, Standing.PLANNED, judgement.text)
    try:
        api.set_policy(asked.policy, asked.pattern, asked.definition(governed))
    except BrokerUnavailable as error:
        return _findings(asked, governed, Standing.ASKED, f"{judgement.text}, and postdate may not set it: {error}")
    text = f"queue '{asked.queue}' dead-letters to postdate by policy '{asked.policy}'"
    return [Finding(_queue(asked, governed), Standing.THERE, text), Finding(_policy(asked, governed), Standing.MADE)]


def _findings(asked: DeadLettering, governed: Governed | None, state: Standing, fact: str) -> list[Finding]:
    arguments = ", ".join(f"{name} = {value}" for name, value in asked.arguments(governed).items())
    command = asked.command(governed)
    first = "`postdate setup` sets a policy. Or declare" if state is Standing.PLANNED else "Declare"
    text = f"{fact}. {first} the queue with {arguments}, or run `{command}`"
    if governed is None:
        text = f"{text}. For a classic queue leave out {' and '.join(_AT_LEAST_ONCE)}"
    return [Finding(_queue(asked, governed), state, text), Finding(_policy(asked, governed), state)]


def _queue(asked: DeadLettering, governed: Governed | None) -> Part:
    return Part(Name("queue", asked.queue), asked.route, False, asked.arguments(governed))


def _policy(asked: DeadLettering, governed: Governed | None) -> Part:
    arguments = {"pattern": asked.pattern, "apply-to": "queues", **asked.definition(governed)}
    return Part(Name("policy", asked.policy), asked.route, True, arguments)
