"""Claims whose reply was lost are given back by the next claim, whatever other calls are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from adapters.redis.scripts import Call
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.errors import StoreUnavailable

EMPTY = [1, 1_800_000_000_000_000, -1, 0, b""]


AWAY = StoreUnavailable("the node does not answer")


class Node:
    """A node whose answers the test gives, call by call, and a store on it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Call, asyncio.Future[Any]]] = []
        runner: Any = self
        self.store = RedisStore(runner, "postdate", 1, "aaaaaa", StoreClock())
        self.store._runner = runner

    async def many(self, calls: Sequence[Call], _: object = None) -> list[Any]:
        (call,) = calls
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.append((call, answer))
        return [await answer]

    async def asks(self, limit: int = 10) -> asyncio.Future[Any]:
        """Send a claim. A ``limit`` of 0 is a renewal."""
        asked = asyncio.ensure_future(self.store.claim([0], limit, 100 * limit, 15_000, 4000))
        await asyncio.sleep(0)
        return asked

    async def answers(self, number: int, asked: asyncio.Future[Any], answer: object) -> None:
        """Answer a call by its number, and let its sender go on."""
        self.asked[number][1].set_result(answer)
        await asked

    def given_back(self, number: int) -> tuple[object, ...]:
        """The tokens of the first and the last claim that a call gives back."""
        return tuple(self.asked[number][0].args[3:])


async def test_a_renewal_that_was_sent_before_a_claim_was_lost_does_not_forget_it() -> None:
    """In a Cluster a late node fails one call and answers the next. The lost claim would wait for its lease to end."""
    node = Node()
    lost, renewal = await node.asks(), await node.asks(0)
    await node.answers(0, lost, AWAY)
    await node.answers(1, renewal, EMPTY)
    again = await node.asks()
    token = node.asked[0][0].args[1][:8]
    assert node.given_back(2) == (token, token)
    await node.answers(2, again, EMPTY)
    once_more = await node.asks()
    assert node.given_back(3) == ()
    once_more.cancel()


async def test_a_renewal_that_is_lost_takes_no_message_back_that_was_claimed_meanwhile() -> None:
    """It took none itself. To give back all between two lost calls would publish what is under way a second time."""
    node = Node()
    await node.answers(0, await node.asks(), AWAY)
    claim, renewal = await node.asks(), await node.asks(0)
    await node.answers(2, renewal, AWAY)
    await node.answers(1, claim, EMPTY)
    again = await node.asks()
    assert node.given_back(3) == ()
    again.cancel()
