"""An instance that wakes up late, or loses one of its connections, takes back nothing that came after it."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from bridge.core.message import HeaderValue
from tests.unit.house import House

HOUR = 3_600_000


def later(key: str) -> dict[str, HeaderValue]:
    return {"x-delay": HOUR, "x-delay-key": key}


@pytest.mark.parametrize(
    "stale", [{"x-delay-cancel": "K"}, {"x-delay": HOUR, "x-delay-key": "K"}], ids=["cancels", "replaces"]
)
async def test_what_a_dead_connection_gave_is_not_carried_out_beside_another_routes(
    stale: dict[str, HeaderValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is away while it dies, and is back when another instance has gone on."""
    monkeypatch.setattr("bridge.telemetry.reconnect.FIRST_S", 0.001)
    house = House()
    routes = house.parker._routes
    routes["other"] = routes["orders"]
    other = House(house.memory, "bbbbbb")
    dead: set[str] = set()
    alive = house.source.alive
    monkeypatch.setattr(house.source, "alive", lambda delivery: delivery.route not in dead and alive(delivery))
    house.memory.away = "away"
    house.source.feed(b"stale", stale)
    house.source.feed(b"neighbour", later("Z"), route="other")
    parking = asyncio.create_task(house.park())
    await asyncio.sleep(0.01)
    dead.add("orders")
    house.memory.away = ""
    other.source.feed(b"stale", stale)
    other.source.feed(b"newest", later("K"))
    await other.park()
    await parking
    house.clock.advance(2 * HOUR)
    while await other.deliver():
        pass
    assert sorted(other.bodies()) == ["neighbour", "newest"]


async def test_a_connection_that_dies_while_keys_are_looked_up_cancels_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was frozen hears of its connection's end a moment after what had come on it."""
    house = House()
    house.source.feed(b"newest", later("K"))
    await house.park()
    find = house.store.find
    house.source.feed(b"", {"x-delay-cancel": "K"})

    async def slow(fields: list[bytes]) -> object:
        found = await find(fields)
        monkeypatch.setattr(house.source, "alive", lambda _: False)
        return found

    monkeypatch.setattr(house.store, "find", slow)
    await house.park()
    assert house.parked() == 1


@pytest.mark.parametrize("at_once", [1, 2, 10])
async def test_redelivered_messages_that_are_alike_get_an_id_each(at_once: int) -> None:
    house = House()
    house.source.hears = False
    for _ in range(6):
        house.publish("alike", HOUR)
    await house.park()
    first = {message_id for shard in house.memory.shards for message_id in shard.messages}
    house.source.hears = True
    house.source.lose_connection()
    while house.source.left():
        await house.parker.once(await house.source.take(at_once, 1 << 30))
    house.clock.advance(2 * HOUR)
    while await house.deliver():
        pass
    came = [claim.public_id for claim in house.sink.published]
    assert Counter(came) == dict.fromkeys(first, 2)


async def test_a_message_that_is_redelivered_twice_keeps_its_first_id() -> None:
    house = House()
    house.source.hears = False
    house.publish("alike", HOUR)
    for _ in range(2):
        await house.park()
        house.source.lose_connection()
    house.source.hears = True
    await house.park()
    house.clock.advance(2 * HOUR)
    while await house.deliver():
        pass
    assert len({claim.public_id for claim in house.sink.published}) == 1
