"""What keeps RabbitMQ's own delays out of postdate's queues, from RabbitMQ 4.4 on. Pure.

A quorum queue of 4.4 holds a message until the moment in its header ``x-opt-delivery-time``. In an intake queue such a
message is in no list, and nothing cancels it. One whose moment is after the year 2244 stops the queue for good (tried
on a build before the release). A classic queue does not read the header. So an exchange behind the front sorts::

    front ──delay headers, x-opt-delivery-time──▶ sort ──x-opt-delivery-time──▶ timed (classic queue)
                                                   │ rest
                                                  all ──▶ intake queue

RabbitMQ puts one copy into a queue, however many bindings lead there. So the bindings of earlier, from the front to the
intake queue, may stay for a moment beside these: then a message with both headers comes twice, and none is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from adapters.rabbitmq.declarations import Arguments, Binding, Declaration, Exchange, Queue
from bridge.delay.header import NATIVE
from bridge.settings.own_names import EVERY, SORT, TIMED

#: The first RabbitMQ whose quorum queues delay what is published to them.
FIRST = (4, 4)
_HAS_HEADER: Arguments = {"x-match": "any-with-x", NATIVE: None}


def delays_natively(version: str) -> bool:
    """Return whether the quorum queues of this RabbitMQ delay by themselves."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= FIRST


def timed_queue(intake: str) -> str:
    """Return the name of the queue for messages that RabbitMQ would delay by itself."""
    return f"{intake}.{TIMED}"


def sort_exchange(intake: str) -> str:
    """Return the name of the exchange that separates them."""
    return f"{intake}.{SORT}"


def every_message(intake: str) -> tuple[Declaration, ...]:
    """Return the exchange that leads every message to the intake queue."""
    every = f"{intake}.{EVERY}"
    return Exchange(every, "fanout"), Binding(every, intake, {})


def sorting(intake: str, timed: Queue) -> tuple[Declaration, ...]:
    """Return what separates the messages behind the front."""
    sort = sort_exchange(intake)
    return (
        timed,
        *every_message(intake),
        Exchange(sort, arguments={"alternate-exchange": f"{intake}.{EVERY}"}),
        Binding(sort, timed.name, _HAS_HEADER),
    )


def leads(front: str, intake: str, before: Sequence[Binding]) -> Iterator[Binding]:
    """Yield the bindings of the front that take the place of those to the intake queue."""
    sort = sort_exchange(intake)
    yield from (replace(binding, queue=sort, to_exchange=True) for binding in before)
    if all(binding.arguments["x-match"] != "all" for binding in before):
        yield Binding(front, sort, _HAS_HEADER, to_exchange=True)
