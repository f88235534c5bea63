"""Whether what producers publish to the front exchanges reaches postdate, and nothing else. Blocking."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress

from adapters.rabbitmq.levels.waits import plan_waits
from adapters.rabbitmq.management import reach
from adapters.rabbitmq.native_guard import timed_queue
from adapters.rabbitmq.probes import ask_queues
from adapters.rabbitmq.topology.fronts import delay_routes, foreign_bindings
from adapters.rabbitmq.topology.native_delays import judge_native_delays
from adapters.rabbitmq.trouble import full
from bridge.core.errors import BrokerUnavailable, Refused
from bridge.desk.severity import CheckResult, fail, ok, warn
from bridge.settings import Settings


def judge_interception(settings: Settings) -> list[CheckResult]:
    """Return a failure for each foreign binding of a front exchange, for each queue that takes no messages in, and for
    each in which RabbitMQ itself delays.

    What cannot be asked is a result, too; a broker that does not answer is none.
    """
    found = list(_silent(settings))
    with suppress(BrokerUnavailable, Refused):
        found += judge_native_delays(settings)
    try:
        found += [fail(f"route {front.route}", front.text, advice=front.advice) for front in foreign_bindings(settings)]
        found += _full(settings)
    except BrokerUnavailable as error:
        text = f"other bindings of front exchanges, and queues at a length limit, are not known: {error}"
        asked = settings.rabbitmq.management_url not in ("", "off")
        found.append((warn if asked else ok)("RabbitMQ", text))
    return found


def consumed_queues(settings: Settings) -> Mapping[str, str]:
    """Return the queues from which postdate takes, on any RabbitMQ, each with its route. Pure."""
    found = {settings.queue_of(name): name for name in settings.routes_of("rabbitmq")}
    storeless = [name for name in found.values() if not settings.routes[name].stored]
    found |= {timed_queue(settings.queue_of(name)): name for name in delay_routes(settings)}
    return found | {due: name for name in storeless if (due := plan_waits(settings, name).due)}


def _silent(settings: Settings) -> Iterator[CheckResult]:
    queues = consumed_queues(settings)
    try:
        found = asyncio.run(ask_queues(settings.rabbitmq, queues))
    except BrokerUnavailable:
        return
    for queue, text in found.items():
        yield fail(f"route {queues[queue]}", text)


def _full(settings: Settings) -> Iterator[CheckResult]:
    with reach(settings.rabbitmq) as api:
        for queue, route in consumed_queues(settings).items():
            found = api.queue(queue)
            if found is not None and found.limit is not None and found.refuses and found.ready >= found.limit:
                yield fail(f"route {route}", full(queue, found.ready, found.limit))
