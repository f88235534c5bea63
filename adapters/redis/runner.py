"""Sends scripts to the store in one round trip, and waits for the durability that was asked for.

One call runs alone; several run as one pipeline on a single server, or side by side on a cluster. WAIT and WAITAOF
count the writes of their own connection only, so with them everything goes down one connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from redis.asyncio import RedisCluster
from redis.exceptions import NoScriptError, RedisError

from adapters.redis.connect import Client, sentence, store_errors
from adapters.redis.scripts import Script
from bridge.errors import StoreUnavailable


class Call(NamedTuple):
    """One script with its keys, all of one shard, and its arguments."""

    script: Script
    keys: tuple[str, ...]
    args: Sequence[Any]


class Wait(NamedTuple):
    """A wait that follows the writes on the same connection, how many must have answered, and what is said, with the
    advice behind it, when fewer have."""

    command: tuple[Any, ...]
    needed: int
    words: str
    advice: str = ""


class Runner:
    """Runs scripts on one client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def one(self, call: Call, wait: Wait | None = None) -> Any:
        """The reply of one script. Raises ``StoreUnavailable``."""
        reply = (await self.many((call,), wait))[0]
        if isinstance(reply, StoreUnavailable):
            raise reply
        return reply

    async def many(self, calls: Sequence[Call], wait: Wait | None = None) -> list[Any]:
        """The reply of each script, or the ``StoreUnavailable`` it failed with, in the same place.

        A call whose place holds an error may have been carried out all the same: repeat it with the same token.
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
        return [_ours(reply) if isinstance(reply, Exception) else reply for reply in replies]

    async def _send(self, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
        if isinstance(self._client, RedisCluster):
            return await _on_cluster(self._client, calls, wait)
        if len(calls) == 1 and wait is None:
            return [await _alone(self._client, calls[0])]
        pipe = self._client.pipeline(transaction=False)
        for call in calls:
            pipe.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        if wait is None:
            return list(await pipe.execute(raise_on_error=False))
        pipe.execute_command(*wait.command)
        *replies, answered = await pipe.execute(raise_on_error=False)
        return _checked(replies, answered, wait)

    async def _load(self, calls: Sequence[Call]) -> None:
        for text in {call.script.text for call in calls}:
            if isinstance(self._client, RedisCluster):
                await self._client.script_load(text)
            else:
                await self._client.script_load(text)


async def _alone(client: Client, call: Call) -> Any:
    try:
        return await client.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
    except NoScriptError as error:
        return error


async def _on_cluster(client: RedisCluster, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
    if wait is None:
        return list(await asyncio.gather(*(_alone(client, call) for call in calls), return_exceptions=True))
    by_node: dict[Any, list[int]] = {}
    await client.initialize()
    for n, call in enumerate(calls):
        by_node.setdefault(client.get_node_from_key(call.keys[0]), []).append(n)
    replies: list[Any] = [None] * len(calls)
    rounds = (_on_node(node, [calls[n] for n in places], wait) for node, places in by_node.items())
    for places, answers in zip(by_node.values(), await asyncio.gather(*rounds, return_exceptions=True), strict=True):
        failed = isinstance(answers, BaseException)
        for n, reply in zip(places, [answers] * len(places) if failed else cast(list[Any], answers), strict=True):
            replies[n] = reply
    if any(isinstance(reply, Exception) and not isinstance(reply, NoScriptError) for reply in replies):
        await client.aclose()  # the map of slots may be old: the next call draws it anew
    return replies


async def _on_node(node: Any, calls: Sequence[Call], wait: Wait) -> list[Any]:
    """All calls and the wait down one connection of one node, which redis-py's cluster client never promises."""
    connection = node.acquire_connection()
    try:
        await connection.connect()
        commands = [("EVALSHA", call.script.sha, len(call.keys), *call.keys, *call.args) for call in calls]
        await connection.send_packed_command(connection.pack_commands([*commands, wait.command]), check_health=False)
        replies = []
        for _ in range(len(commands) + 1):
            try:
                replies.append(await connection.read_response())
            except RedisError as error:
                if not connection.is_connected:
                    raise
                replies.append(error)
    except BaseException:
        await connection.disconnect()
        raise
    finally:
        node.release(connection)
    return _checked(replies[:-1], replies[-1], wait)


def _checked(replies: list[Any], answered: Any, wait: Wait) -> list[Any]:
    """Every reply; in place of those that worked, the error that the wait was not answered by enough."""
    error: Exception | None = None
    if isinstance(answered, Exception):
        error = answered
    else:
        count = answered[0] if isinstance(answered, list) else answered  # WAITAOF answers [this server, replicas]
        if count < wait.needed:
            error = StoreUnavailable(f"{wait.words}: {count} of {wait.needed} answered{wait.advice}")
    return [reply if error is None or isinstance(reply, Exception) else error for reply in replies]


def _ours(error: Exception) -> StoreUnavailable:
    return error if isinstance(error, StoreUnavailable) else StoreUnavailable(sentence(error))
