"""Runs scripts on a Redis Cluster node by node, so that a frozen node does not delay the shards of the others.

redis-py's cluster client does delay them. After an error of one node it refreshes its slot map before the next call to
any node, and it may ask the frozen node for it. So scripts have their own connections here, and the slot map is
refreshed beside them. A late node gets no further calls until it has answered, or until redis.timeout has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.asyncio import RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.exceptions import AskError, RedisClusterException, RedisError

from adapters.redis.link import Link, renew_certificates
from adapters.redis.scripts import Call, Wait, checked, commands
from bridge.core.errors import StoreUnavailable

#: How long all shards wait for the slowest node. It grows for a node that answers later than that. Otherwise a claim
#: that always takes longer would be made and given back forever.
_PATIENCE_S = 0.3
_GROWTH = 2.0
_SHRINKING = 0.99


class Cluster(RedisCluster):
    """redis-py's client, with its own way to send scripts."""

    def __init__(self, timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s
        self._nodes: dict[str, ClusterNode] = {}
        #: WAIT holds up all replies after it, so its calls have links of their own.
        self._links: dict[str, Link] = {}
        self._waiting: dict[str, Link] = {}
        #: Rounds that a node has not answered in time, by the name of the node.
        self._late: dict[str, set[asyncio.Task[list[Any]]]] = {}
        #: Nodes whose last round failed or was late. A call waits for them only if no other node takes part.
        self._slow: set[str] = set()
        self._patience_s: dict[str, float] = {}
        self._refreshing: asyncio.Task[None] | None = None

    async def on_connect(self, connection: Any) -> None:
        """Greet a node as redis-py does."""
        await super().on_connect(connection)
        renew_certificates(connection)

    async def send(self, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
        """Return the reply of each call, or the error it failed with, in the same order."""
        if not self.nodes_manager.slots_cache:
            await self.initialize()
        by_node: dict[str, list[int]] = {}
        for n, call in enumerate(calls):
            by_node.setdefault(self._node_of(call), []).append(n)
        tasks = {
            name: asyncio.ensure_future(self._on_node(name, [calls[n] for n in places], wait))
            for name, places in by_node.items()
            if name not in self._late
        }
        await self._wait_for(tasks, self._timeout_s if wait is not None else 0.0)
        replies: list[Any] = [None] * len(calls)
        for name, places in by_node.items():
            answers = self._answers(name, tasks.get(name), len(places))
            for n, reply in zip(places, answers, strict=True):
                moved = isinstance(reply, AskError) and wait is None
                replies[n] = await self._moved(calls[n]) if moved else reply
        return replies

    async def load(self, calls: Sequence[Call]) -> None:
        """Load the scripts of these calls on the nodes that run them. Raises what redis-py raises."""
        for name, text in {(self._node_of(call), call.script.text) for call in calls}:
            await self._nodes[name].execute_command("SCRIPT", "LOAD", text)

    async def close_links(self) -> None:
        pending = [
            *(task for late in self._late.values() for task in late),
            *([self._refreshing] if self._refreshing is not None else []),
        ]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for link in (*self._links.values(), *self._waiting.values()):
            await link.close()
        for node in self._nodes.values():
            await node.disconnect()

    def _node_of(self, call: Call) -> str:
        """Return the name of the node that has the call's keys, and make our own connection pool for it."""
        node: Any = self.get_node_from_key(call.keys[0])
        if node.name not in self._nodes:
            options = dict(node.connection_kwargs)
            host, port = options.pop("host"), options.pop("port")
            own = ClusterNode(host, port, connection_class=node.connection_class, **options)
            self._nodes[node.name] = own
            self._links[node.name] = _link(own, self._timeout_s)
            self._waiting[node.name] = _link(own, self._timeout_s)
        return str(node.name)

    async def _wait_for(self, tasks: dict[str, asyncio.Task[list[Any]]], at_least_s: float) -> None:
        """Wait until every node that is expected to answer has done so, or until patience ends."""
        expected = [name for name in tasks if name not in self._slow] or list(tasks)
        if not expected:
            return
        patience_s = max(at_least_s, *(self._patience_s.get(name, _PATIENCE_S) for name in expected))
        try:
            await asyncio.wait([tasks[name] for name in expected], timeout=patience_s)
        except asyncio.CancelledError:
            for task in tasks.values():
                task.cancel()
            raise

    def _answers(self, name: str, task: asyncio.Task[list[Any]] | None, count: int) -> list[Any]:
        if task is not None and not task.done():
            self._late.setdefault(name, set()).add(task)
            self._slow.add(name)
            task.add_done_callback(partial(self._came_late, name))
        if task is None or not task.done():
            return [StoreUnavailable(f"the Redis Cluster node {name} does not answer")] * count
        if (error := task.exception()) is not None:
            self._slow.add(name)
            self._refresh_slots()
            return [error] * count
        self._slow.discard(name)
        self._patience_s[name] = max(_PATIENCE_S, self._patience_s.get(name, _PATIENCE_S) * _SHRINKING)
        answers = task.result()
        if any(isinstance(answer, Exception) for answer in answers):
            self._refresh_slots()
        return answers

    def _came_late(self, name: str, task: asyncio.Task[list[Any]]) -> None:
        late = self._late[name]
        late.discard(task)
        if not late:
            del self._late[name]
        if task.cancelled():
            return
        if task.exception() is not None:
            self._refresh_slots()
            return
        self._slow.discard(name)
        self._patience_s[name] = min(self._timeout_s, self._patience_s.get(name, _PATIENCE_S) * _GROWTH)

    async def _on_node(self, name: str, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
        if wait is None:
            return await self._links[name].send(commands(calls))
        *replies, answered = await self._waiting[name].send([*commands(calls), wait.command])
        return checked(replies, answered, wait)

    async def _moved(self, call: Call) -> Any:
        """Return the reply of a call whose slot is moving. redis-py follows the ASK redirection."""
        try:
            return await self.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        except (RedisError, RedisClusterException, OSError) as error:
            return error

    def _refresh_slots(self) -> None:
        """Refresh the slot map in the background."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.ensure_future(self._read_slots())

    async def _read_slots(self) -> None:
        try:
            await self.nodes_manager.initialize()
        except (RedisError, RedisClusterException, OSError):
            return  # no node answered; the next error starts another refresh


def _link(node: ClusterNode, timeout_s: float) -> Link:
    async def take() -> Any:
        connection: Any = node.acquire_connection()
        try:
            await connection.connect()
        except BaseException:
            node.release(connection)
            raise
        return connection

    async def give_back(connection: Any) -> None:
        node.release(connection)

    return Link(take, give_back, timeout_s)
