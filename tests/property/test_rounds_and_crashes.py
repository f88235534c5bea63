"""A process that dies in the middle of a round loses nothing: not a message, and not the order of a key's verbs.

The process dies behind one of its acknowledgements. Another one gets what was not acknowledged, and goes on. Every
message that would be delivered without a crash must still be delivered; copies may come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.core.message import Delivery
from bridge.parking.identity import Ids
from bridge.pipeline.park import Parker
from tests.property.test_rounds import EXAMPLES, HOUR_MS, PLACES, Sent, feed, sent
from tests.unit.house import House

LOG = b"log"


class Died(Exception):
    """The process is gone."""


def dies_after(house: House, accepts: int) -> None:
    """Nothing happens any more behind that many acknowledgements."""
    accept = house.source.accept
    left = accepts

    def counted(deliveries: Sequence[Delivery]) -> None:
        nonlocal left
        accept(deliveries)
        left -= bool(deliveries)
        if left == 0:
            raise Died

    house.source.accept = counted  # type: ignore[method-assign]


def feed_log(house: House, number: int, message: Sent) -> None:
    """A record of one log, whose records go to all shards in turn."""
    headers = {"x-delay": str(message.delay_ms)}
    if message.verb == "park":
        headers["x-delay-key"] = message.key
    elif message.verb == "cancel":
        headers = {"x-delay-cancel": message.key}
    house.source.feed(b"%d" % number, dict(headers), order_key=PLACES[0], origin=(LOG, number))


async def delivered(messages: list[Sent], spread: bool, accepts: int) -> set[str]:
    """The bodies that consumers get, with a crash behind so many acknowledgements (0: none)."""
    house = House(order="none" if spread else "key")
    for number, message in enumerate(messages):
        if spread:
            feed_log(house, number, message)
        else:
            feed(house, number, message, log=False)
    heir = House(house.memory, "bbbbbb")
    old = house.parker
    parts = old._routes, Ids("bbbbbb"), heir.wake.heard, heir.health, old._limits, heir.metrics, heir.stages.fullness
    heir.parker = Parker(house.source, heir.store, *parts)
    if accepts:
        dies_after(house, accepts)
    try:
        if messages:
            await house.park()
    except Died:
        del house.source.accept
        accepted = {delivery.origin for delivery in house.source.accepted}
        missing = [number for number in range(len(messages)) if (LOG, number) not in accepted]
        if not spread:
            house.source.lose_connection()
        elif missing:
            house.source.replay(LOG, missing[0])
        if house.source.left():
            await heir.parker.once(await house.source.take(1000, 1 << 30))
    assert house.source.left() == 0
    house.clock.advance(2 * HOUR_MS)
    while await heir.deliver():
        pass
    return set(heir.bodies())


def _later(verb: str, place: int) -> Sent:
    return Sent(verb, place, "a", HOUR_MS)


@settings(max_examples=4 * EXAMPLES)
@given(st.lists(sent, max_size=10), st.booleans(), st.integers(1, 4))
@example([_later("park", 0), _later("cancel", 0), _later("park", 0)], False, 1)
@example([_later("cancel", 0), _later("park", 1)], False, 1)
@example([_later("park", 0), _later("park", 1)], False, 1)
@example([_later("cancel", 0), _later("park", 0)], True, 1)
def test_a_crash_between_two_acknowledgements_loses_nothing(messages: list[Sent], spread: bool, accepts: int) -> None:
    expected = asyncio.run(delivered(messages, spread, 0))
    assert expected <= asyncio.run(delivered(messages, spread, accepts))
