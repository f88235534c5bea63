"""Sends scripts to the store in one round trip, and waits for the configured durability.

On a cluster it is one for each node (``adapters.redis.cluster``). WAIT and WAITAOF count the writes of their own
connection only, so they follow their calls on the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors, unavailable
from adapters.redis.scripts import Call, Wait
from bridge.core.errors import StoreUnavailable


class Runner:
    """Runs scripts on one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self, call: Call, wait: Wait | None = None) -> Any:
        """Return the reply of one script. Raises ``StoreUnavailable``."""
        return (await self.all((call,), wait))[0]

    async def all(self, calls: Sequence[Call], wait: Wait | None = None) -> list[Any]:
        """Return the reply of each script, in the same order. Raises the first ``StoreUnavailable`` among them."""
        replies = await self.many(calls, wait)
        for reply in replies:
            if isinstance(reply, StoreUnavailable):
                raise reply
        return replies

    async def many(self, calls: Sequence[Call], wait: Wait | None = None) -> list[Any]:
        """Return the reply of each script, or the ``StoreUnavailable`` it failed with, in the same order.

        A call that failed may have been carried out: repeat it with the same token.
        """
        if not calls:
            return []
        try:
            with store_errors():
                replies = await self._client.send(calls, wait)
                missing = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if missing:
                    await self._client.load([calls[n] for n in missing])
                    for n, reply in zip(
                        missing, await self._client.send([calls[n] for n in missing], wait), strict=True
                    ):
                        replies[n] = reply
        except StoreUnavailable as error:
            return [error] * len(calls)
        return [unavailable(reply) if isinstance(reply, Exception) else reply for reply in replies]
