"""Runs scripts on one server, standalone or the master that Sentinel names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from adapters.redis.link import Link
from adapters.redis.scripts import Call, Wait, checked, commands


class NodeClient(Redis):
    """redis-py's client, with its own way to send scripts."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        pool = self.connection_pool
        timeout_s = pool.connection_kwargs["socket_timeout"]
        self._link = Link(pool.get_connection, pool.release, timeout_s)
        #: WAIT holds up all replies after it, so its calls have a link of their own.
        self._waiting = Link(pool.get_connection, pool.release, timeout_s)

    async def send(self, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
        """Return the reply of each call, or the error it failed with, in the same order."""
        if wait is None:
            return await self._link.send(commands(calls))
        *replies, answered = await self._waiting.send([*commands(calls), wait.command])
        return checked(replies, answered, wait)

    async def load(self, calls: Sequence[Call]) -> None:
        """Load the scripts of these calls. Raises what redis-py raises."""
        for text in {call.script.text for call in calls}:
            await self.script_load(text)

    async def close_links(self) -> None:
        await self._link.close()
        await self._waiting.close()
