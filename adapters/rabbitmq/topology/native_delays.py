"""Which RabbitMQ it is, and in which queues of postdate and of the consumers it delays by itself. Blocking."""

from __future__ import annotations

from collections.abc import Iterator

from adapters.rabbitmq.declarations import Queue
from adapters.rabbitmq.management import ManagementApi, reach
from adapters.rabbitmq.native_guard import timed_queue
from adapters.rabbitmq.topology.declaring import open_session
from adapters.rabbitmq.topology.fronts import delay_routes, ends_of
from bridge.delay.header import NATIVE
from bridge.desk.severity import CheckResult, fail, named, ok
from bridge.settings import Settings


def judge_native_delays(settings: Settings) -> Iterator[CheckResult]:
    """Yield the version, a failure for each intake queue that RabbitMQ's own delays reach, and the consumers' queues in
    which they act, as far as the management API tells. Raises ``BrokerUnavailable``."""
    with open_session(settings) as session:
        yield ok("RabbitMQ", f"version {session.version}")
        if not session.native:
            return
        quorum = [name for name in delay_routes(settings) if settings.queue_type_of(name) == "quorum"]
        declared = [name for name in quorum if not session.lacks(Queue(settings.queue_of(name)))]
        open_routes = {name for name in declared if session.lacks(Queue(timed_queue(settings.queue_of(name))))}
    yield from (_reached(settings, name, "`postdate setup` declares what keeps it away") for name in open_routes)
    with reach(settings.rabbitmq) as api:
        for name in quorum:
            front, intake = settings.routes[name].intercept, settings.queue_of(name)
            if name not in open_routes and ("queue", intake) in ends_of(api.bindings_of(front)):
                yield _reached(settings, name, f"Remove the bindings from exchange '{front}' to that queue")
        for name in settings.routes_of("rabbitmq"):
            yield from _acting(name, _quorum_queues(api, settings, name))


def _reached(settings: Settings, name: str, advice: str) -> CheckResult:
    text = (
        f"messages with {NATIVE} reach queue '{settings.queue_of(name)}': RabbitMQ holds them there, in no list, and a "
        "moment after the year 2244 stops the queue for good"
    )
    return fail(f"route {name}", text, advice=advice)


def _acting(name: str, queues: list[str]) -> Iterator[CheckResult]:
    if queues:
        text = f"RabbitMQ itself delays by {NATIVE} what producers publish past postdate to quorum queues"
        yield ok(f"route {name}", f"{text}: {named([*map(repr, queues)], 3)}")


def _quorum_queues(api: ManagementApi, settings: Settings, name: str) -> list[str]:
    """Return the quorum queues of the consumers of a route, as far as they are bound to its target itself."""
    route = settings.routes[name]
    names = {route.queue} if route.retries else set()
    for target in filter(None, route.targets):
        names |= {queue for kind, queue in ends_of(api.bindings_of(target)) if kind == "queue"}
    found = ((queue, api.queue(queue)) for queue in sorted(names))
    return [queue for queue, there in found if there is not None and there.arguments.get("x-queue-type") == "quorum"]
