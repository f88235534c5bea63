"""RabbitMQ's part ``topology`` of ``bridge.app.brokers.Broker``: what the routes need of it."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.rabbitmq.declarations import Binding, Declaration, Exchange
from adapters.rabbitmq.failure import FAILED_GONE
from adapters.rabbitmq.native_guard import timed_queue
from adapters.rabbitmq.nodes import diagnose as diagnose
from adapters.rabbitmq.protocols import judge_protocols
from adapters.rabbitmq.topology import declaring, policies, rejections
from adapters.rabbitmq.topology.interception import judge_interception as judge_interception
from adapters.rabbitmq.topology.rejections import judge_consumers as judge_consumers
from adapters.rabbitmq.topology.route_topology import plan as plan_routes
from bridge.core.errors import BrokerUnavailable
from bridge.desk.topology import Finding, Name, Part, Standing
from bridge.settings import Settings


def plan(settings: Settings, found: Sequence[Finding] = ()) -> list[Part]:
    """Return what `setup` declares. Pure. What was ``found`` shows whether RabbitMQ delays by itself."""
    names = {finding.part.name.name for finding in found}
    native = any(timed_queue(settings.queue_of(route)) in names for route in settings.routes_of("rabbitmq"))
    return [
        _part(topology.route, what) for topology in plan_routes(settings, native) for what in topology.declarations()
    ]


def verify(settings: Settings) -> list[Finding]:
    return [Finding(_part(part.route, part.declaration), part.state, part.text) for part in declaring.verify(settings)]


def declare(settings: Settings) -> tuple[list[Finding], list[str]]:
    created, warnings = declaring.declare(settings)
    states = {True: Standing.MADE, False: Standing.THERE}
    return [Finding(_part(route, declaration), states[new]) for route, declaration, new in created], warnings


def redeclare(settings: Settings) -> None:
    declaring.declare(settings)


def judge_policies(settings: Settings) -> list[tuple[str, str]]:
    """Compare policies with postdate's queues. Look for headers that RabbitMQ hides from bindings, and for consumers
    that requeue what fails. Blocking. Raises ``BrokerUnavailable`` where the settings name a management API and it does
    not answer; one that they do not name need not exist."""
    if settings.rabbitmq.management_url == "off":
        return []
    try:
        found = [(finding.route, finding.text) for finding in policies.judge_policies(settings)]
        return found + judge_protocols(settings) + rejections.judge_redeliveries(settings)
    except BrokerUnavailable:
        if settings.rabbitmq.management_url:
            raise
        return []


def open_fronts(settings: Settings, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return a route and a sentence for each front exchange without its intake queue, which delivers delayed
    messages at once or loses rejected ones. Pure."""
    found = []
    states = {(finding.part.route, finding.part.name): finding.state for finding in findings if finding.part.ours}
    for topology in plan_routes(settings):
        route, target = topology.route, settings.routes[topology.route].target
        intake = states.get((route, Name("queue", topology.intake.name)))
        front = states.get((route, Name("exchange", topology.front.name)))
        if intake is Standing.MISSING and front in (Standing.SAME, Standing.DIFFERENT):
            fate = "delayed messages are delivered at once" if target else "messages are lost"
            if topology.back:
                fate = FAILED_GONE
            found.append((route, f"the intake queue is missing, so {fate}. Run `postdate setup`"))
    return found


def replay_reach(settings: Settings) -> list[tuple[str, str]]:
    """RabbitMQ keeps nothing that postdate has taken in."""
    return []


def _part(route: str, declaration: Declaration) -> Part:
    arguments = dict(declaration.arguments)
    if isinstance(declaration, Binding):
        kind = "exchange" if declaration.to_exchange else "queue"
        ends = (Name("exchange", declaration.exchange), Name(kind, declaration.queue))
        name = f"{declaration.exchange} -> {declaration.queue}"
        if declaration.key:
            arguments = {"routing key": declaration.key, **arguments}
        return Part(Name("binding", name), route, True, arguments, ends)
    if isinstance(declaration, Exchange):
        arguments = {"type": declaration.type, **arguments}
        return Part(Name("exchange", declaration.name), route, declaration.ours, arguments)
    return Part(Name("queue", declaration.name), route, declaration.ours, arguments)
