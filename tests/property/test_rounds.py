"""A batch that goes in rounds has the outcome that the same messages have one after the other.

Two houses on memory stores get the same deliveries, with a few keys on routing keys of all shards; one gets them in
batches, the other one by one. Then all that is parked is delivered, and what consumers and the desk see is compared.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.core.errors import StoreUnavailable
from bridge.core.message import HeaderValue
from bridge.parking.identity import shard_for
from bridge.pipeline.decide import SAME_KEY
from tests.unit.house import SHARDS, House

#: Routing keys, or logs, one of each shard.
PLACES = [
    next(key for key in (b"%d" % number for number in range(99)) if shard_for(key, SHARDS) == n) for n in range(SHARDS)
]
HOUR_MS = 3_600_000
#: How many a property has by default; few in the fast tier.
EXAMPLES = settings().max_examples


class Sent(NamedTuple):
    """What a producer sends: where, when due, with which key; or a cancellation."""

    verb: str
    place: int
    key: str
    delay_ms: int


verbs = st.sampled_from(["park", "park", "park", "cancel", "find", "plain", "bad"])
sent = st.builds(
    Sent, verbs, st.integers(0, SHARDS - 1), st.sampled_from("ab"), st.sampled_from([200, 5000, 5000, HOUR_MS])
)


def feed(house: House, number: int, message: Sent, log: bool) -> None:
    headers: dict[str, HeaderValue] = {"x-delay": message.delay_ms}
    message_id = None
    if message.verb == "park":
        headers["x-delay-key"] = message.key
    elif message.verb == "cancel":
        headers = {"x-delay-cancel": message.key}
    elif message.verb == "find":
        message_id = message.key.encode()
    elif message.verb == "bad":
        headers = {"x-delay": "soon"}
    place = PLACES[message.place]
    origin = (b"log-%d" % message.place, number) if log else None
    house.source.feed(b"%d" % number, headers, order_key=place, message_id=message_id, origin=origin)


class Outcome(NamedTuple):
    """What there is to see of a house in the end: bodies in the order of each place, and dead letters."""

    bodies: list[list[str]]
    dead: list[str]
    marks: list[dict[bytes, int]]


async def outcome(
    messages: list[Sent], mode: str, one_by_one: bool, log: bool, fails: frozenset[int] = frozenset()
) -> Outcome:
    """``fails`` are calls of the way in to the store that fail or lose their reply, by number."""
    house = House(on_same_key=mode)
    well = house.store._call
    if fails:
        _fail(house, fails)
    for number, message in enumerate(messages):
        feed(house, number, message, log)
        if one_by_one:
            await house.park()
    if messages and not one_by_one:
        await house.park()
    assert house.source.left() == 0
    house.store._call = well  # type: ignore[method-assign]
    house.store.lose_reply(0)
    dead = sorted(house.dead())
    house.clock.advance(HOUR_MS)
    while await house.deliver():
        pass
    places = {str(number): message.place for number, message in enumerate(messages)}
    bodies = [[body for body in house.bodies() if places[body] == place] for place in range(SHARDS)]
    return Outcome(bodies, dead, [dict(shard.offsets.marks) for shard in house.memory.shards])


def _fail(house: House, fails: frozenset[int]) -> None:
    """The memory store's own door counts its calls; even ones fail before they are carried out, odd ones after."""
    calls = 0
    call = house.store._call

    def counted(adds: bool = False) -> object:
        nonlocal calls
        calls += 1
        if calls in fails:
            if calls % 2:
                house.store.lose_reply()
            else:
                raise StoreUnavailable("the store is away")
        return call(adds)

    house.store._call = counted  # type: ignore[method-assign, assignment]


def ran(work: object) -> Outcome:
    return asyncio.run(work)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that is away is asked again at once."""
    monkeypatch.setattr("bridge.telemetry.reconnect.FIRST_S", 0.0)


@settings(max_examples=4 * EXAMPLES)
@given(st.lists(sent, max_size=14), st.sampled_from(["replace", "replace", "keep", "reject"]), st.booleans())
def test_a_batch_has_the_outcome_of_one_after_the_other(messages: list[Sent], mode: str, log: bool) -> None:
    assert ran(outcome(messages, mode, False, log)) == ran(outcome(messages, mode, True, log))


@settings(max_examples=2 * EXAMPLES)
@given(
    st.lists(sent, max_size=10),
    st.sampled_from(["replace", "keep", "reject"]),
    st.booleans(),
    st.frozensets(st.integers(1, 12), max_size=4),
)
def test_and_so_it_has_when_calls_to_the_store_fail(
    messages: list[Sent], mode: str, log: bool, fails: frozenset[int]
) -> None:
    assert ran(outcome(messages, mode, False, log, fails)) == ran(outcome(messages, mode, True, log))


def test_the_reason_of_a_dead_letter_names_the_taken_key() -> None:
    messages = [Sent("park", place, "a", HOUR_MS) for place in range(SHARDS)]
    assert ran(outcome(messages, "reject", False, False)).dead == [str(SAME_KEY)] * (SHARDS - 1)
