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


class Node:
    """A node whose answers the test gives, call by call."""

    def __init__(self) -> None:
        self.asked: list[tuple[Call, asyncio.Future[Any]]] = []

    async def many(self, calls: Sequence[Call], _: object = None) -> list[Any]:
        (call,) = calls
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.asked.append((call, answer))
        return [await answer]


async def test_a_renewal_that_was_sent_before_a_claim_was_lost_does_not_forget_it() -> None:
    """In a Cluster a late node fails one call and answers the next. The lost claim would wait for its lease to end."""
    node: Any = Node()
    store = RedisStore(node, "postdate", 1, "aaaaaa", StoreClock())
    store._runner = node
    lost = asyncio.ensure_future(store.claim([0], 10, 1000, 15_000, 4000))
    renewal = asyncio.ensure_future(store.claim([0], 0, 0, 15_000, 4000))
    await asyncio.sleep(0)
    node.asked[0][1].set_result(StoreUnavailable("the node does not answer"))
    await lost
    node.asked[1][1].set_result(EMPTY)
    await renewal
    again = asyncio.ensure_future(store.claim([0], 10, 1000, 15_000, 4000))
    await asyncio.sleep(0)
    token = node.asked[0][0].args[1][:8]
    assert tuple(node.asked[2][0].args[3:]) == (token, token)
    node.asked[2][1].set_result(EMPTY)
    await again
    once_more = asyncio.ensure_future(store.claim([0], 10, 1000, 15_000, 4000))
    await asyncio.sleep(0)
    assert node.asked[3][0].args[3:] == ()
    once_more.cancel()


async def test_a_renewal_that_is_lost_takes_no_message_back_that_was_claimed_meanwhile() -> None:
    """It took none itself. To give back all between two lost calls would publish what is under way a second time."""
    node: Any = Node()
    store = RedisStore(node, "postdate", 1, "aaaaaa", StoreClock())
    store._runner = node
    lost = asyncio.ensure_future(store.claim([0], 10, 1000, 15_000, 4000))
    await asyncio.sleep(0)
    node.asked[0][1].set_result(StoreUnavailable("the node does not answer"))
    await lost
    claim = asyncio.ensure_future(store.claim([0], 10, 1000, 15_000, 4000))
    renewal = asyncio.ensure_future(store.claim([0], 0, 0, 15_000, 4000))
    await asyncio.sleep(0)
    node.asked[2][1].set_result(StoreUnavailable("the node does not answer"))
    await renewal
    node.asked[1][1].set_result(EMPTY)
    await claim
    again = asyncio.ensure_future(store.claim([0], 10, 1000, 15_000, 4000))
    await asyncio.sleep(0)
    assert node.asked[3][0].args[3:] == ()
    again.cancel()
