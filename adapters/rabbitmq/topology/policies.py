"""What policies do to postdate's queues. Only RabbitMQ's management API tells; AMQP does not. Blocking."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.rabbitmq.declarations import Queue
from adapters.rabbitmq.management import Governed, reach
from adapters.rabbitmq.topology.findings import Effect, Harm, PolicyFinding
from adapters.rabbitmq.topology.route_topology import RouteTopology, plan
from bridge.settings import Settings


def judge_policies(settings: Settings) -> list[PolicyFinding]:
    """Return what policies do to the queues of all routes. Raises ``BrokerUnavailable`` where no API answers."""
    findings: list[PolicyFinding] = []
    with reach(settings.rabbitmq) as api:
        for route in plan(settings, native=True):
            queues = [queue for queue in route.declarations() if isinstance(queue, Queue)]
            governed = [(queue, found) for queue in queues if (found := api.queue(queue.name)) is not None]
            findings += _findings(route, governed, api.vhost)
    return findings


def harms_of(queue: Queue, governed: Governed) -> Iterator[Harm]:
    """Yield each thing that the policies of a queue do to its messages. Pure.

    Where expired messages are dead-lettered to the next queue, a policy that expires them makes them early.
    """
    rules, passes_on = governed.definition, "x-dead-letter-exchange" in queue.arguments
    ttl_ms, own_ms = rules.get("message-ttl"), queue.arguments.get("x-message-ttl")
    if isinstance(ttl_ms, int) and not (isinstance(own_ms, int) and own_ms <= ttl_ms):
        yield Harm("message-ttl", ttl_ms, Effect.SENDS_EARLY if passes_on else Effect.DELETES)
    if isinstance(rules.get("expires"), int):
        yield Harm("expires", rules["expires"], Effect.DELETES_QUEUE)
    for key in ("max-length", "max-length-bytes"):
        if key in rules and governed.refuses:
            yield Harm(key, rules[key], Effect.REFUSES)
        elif key in rules:
            yield Harm(key, rules[key], Effect.SENDS_OLDEST_EARLY if passes_on else Effect.DROPS_OLDEST)


def _findings(route: RouteTopology, queues: list[tuple[Queue, Governed]], vhost: str) -> Iterator[PolicyFinding]:
    """Yield one finding for each harm of each policy, with all queues that it harms."""
    harmed: dict[tuple[str, str, Harm], list[str]] = {}
    for queue, governed in queues:
        for harm in harms_of(queue, governed):
            harmed.setdefault((governed.policy, governed.operator_policy, harm), []).append(queue.name)
    operators = tuple(sorted({operator for _, operator, _ in harmed if operator}))
    for (policy, operator, harm), names in harmed.items():
        yield PolicyFinding(route.route, policy, operator, harm, tuple(names), vhost, route.intake.name, operators)
