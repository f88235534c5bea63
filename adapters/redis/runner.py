"""Sends scripts to the store in one round trip, and waits for the configured durability.

One call runs alone. Several run as one pipeline, on a cluster as one for each node (``adapters.redis.cluster``). WAIT
and WAITAOF count the writes of their own connection only, so calls with a wait share one connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoScriptError

from adapters.redis.cluster import Cluster
from adapters.redis.connect import Client
from adapters.redis.errors import store_errors, unavailable
from adapters.redis.scripts import Call, Wait, checked
from bridge.core.errors import StoreUnavailable


class Runner:
    """Runs scripts on one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def one(self, call: Call, wait: Wait | None = None) -> Any:
        """Return the reply of one script. Raises ``StoreUnavailable``."""
        reply = (await self.many((call,), wait))[0]
        if isinstance(reply, StoreUnavailable):
            raise reply
        return reply

    async def many(self, calls: Sequence[Call], wait: Wait | None = None) -> list[Any]:
        """Return the reply of each script, or the ``StoreUnavailable`` it failed with, in the same order.

        A call that failed may have been carried out: repeat it with the same token.
        """
        try:
            with store_errors():
                replies = await self._send(calls, wait)
                missing = [n for n, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
                if missing:
                    await self._load([calls[n] for n in missing])
                    for n, reply in zip(missing, await self._send([calls[n] for n in missing], wait), strict=True):
                        replies[n] = reply
        except StoreUnavailable as error:
            return [error] * len(calls)
        return [unavailable(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _send(self, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
        if isinstance(self._client, Cluster):
            return await self._client.send(calls, wait)
        if len(calls) == 1 and wait is None:
            return [await _alone(self._client, calls[0])]
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            pipe.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        if wait is None:
            return list(await pipe.execute(raise_on_error=False))
        pipe.execute_command(*wait.command)
        *replies, answered = await pipe.execute(raise_on_error=False)
        return checked(replies, answered, wait)

    async def _load(self, calls: Sequence[Call]) -> None:
        if isinstance(self._client, Cluster):
            await self._client.load(calls)
            return
        for text in {call.script.text for call in calls}:
            await self._client.script_load(text)


async def _alone(client: Client, call: Call) -> Any:
    try:
        return await client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
    except NoScriptError as error:
        return error
