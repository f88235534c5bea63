"""Follows the master that Sentinel names, and lets go of one that is no longer it.

A demoted master that was frozen still accepts writes, until it becomes a replica and discards them. So every Sentinel
is asked once a second, and when it announces something. As soon as one names another master, every connection to the
old one is aborted, calls under way included. While no Sentinel answers, a failover would go unnoticed, so there is no
connection at all.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedConnection
from redis.exceptions import ConnectionError as LinkError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as SlowLink

log = structlog.get_logger("postdate")

#: Host and port.
Address = tuple[str, int]

#: How a sentence about a server begins that nobody reaches.
AWAY = "Redis does not answer"
LOOK_S = 1.0
#: What a Sentinel said counts for three looks.
FRESH_S = 3.0
#: Announcements of another master. The Sentinel that leads the failover sends the first one earlier than the second.
_NEWS = ("+promoted-slave", "+switch-master")


class NoMaster(LinkError):
    """No Sentinel names a master. Its text is a sentence for a person."""


class MasterAway(LinkError):
    """The master that Sentinel names cannot be reached. Its text is a sentence for a person."""


class Word(NamedTuple):
    """What a Sentinel said at a moment (monotonic): the master's address, and the number of the failover that made it
    so."""

    address: Address
    epoch: int
    at: float


def chosen(words: Iterable[Word], now: float, current: Address | None) -> Address | None:
    """Pure: the master by the words that are fresh. The latest failover counts: a Sentinel that was cut off tells of an
    earlier one. None where no word is fresh."""
    fresh = [word for word in words if now - word.at < FRESH_S]
    if not fresh:
        return None
    return max(fresh, key=lambda word: (word.epoch, word.address == current)).address


class Sentinels:
    """What all Sentinels of one master say. redis-py's pool takes it for its Sentinel."""

    def __init__(self, name: str, sentinels: Sequence[Redis], explain: Callable[[BaseException], str]) -> None:
        """``explain`` makes a sentence of an error of a connection."""
        self.master: Address | None = None
        self._name = name
        self._sentinels = {_place(sentinel): sentinel for sentinel in sentinels}
        self._explain = explain
        self._words: dict[str, Word] = {}
        self._failed: dict[str, str] = {}
        self._heard = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []
        self._pool: FollowingPool | None = None
        self._closed = False

    def serve(self, pool: FollowingPool) -> None:
        """Its connections are those to the master."""
        self._pool = pool

    async def discover_master(self, _: str) -> Address:
        """The master's address. Raises ``NoMaster``."""
        if not self._following:
            self._following = [asyncio.ensure_future(self._follow(*each)) for each in self._sentinels.items()]
        self._judge()
        while self.master is None and len(self._failed) < len(self._sentinels):
            self._heard.clear()
            await self._heard.wait()
        if self.master is None:
            raise NoMaster(self._reason())
        return self.master

    async def aclose(self) -> None:
        """Follow no more, and close every connection to a Sentinel."""
        self._closed = True
        for task in self._following:
            task.cancel()
        await asyncio.gather(*self._following, return_exceptions=True)
        for sentinel in self._sentinels.values():
            await sentinel.aclose()

    async def _follow(self, place: str, sentinel: Redis) -> None:
        while not self._closed:
            try:
                async with sentinel.pubsub(ignore_subscribe_messages=True) as news:
                    await news.subscribe(*_NEWS)
                    while not self._closed:
                        self._learn(place, await _ask(sentinel, self._name))
                        await news.get_message(timeout=LOOK_S)  # swallows a cancellation now and then
            except (RedisError, OSError, TimeoutError, RuntimeError) as error:
                self._failed[place] = self._explain(error)
                self._judge()
                self._heard.set()
            await asyncio.sleep(LOOK_S)

    def _learn(self, place: str, word: Word | None) -> None:
        if word is None:
            self._words.pop(place, None)
            self._failed[place] = ""
        else:
            self._words[place] = word
            self._failed.pop(place, None)
        self._judge()
        self._heard.set()

    def _judge(self) -> None:
        """Decide who is the master, and drop the connections to another."""
        before, self.master = self.master, chosen(self._words.values(), time.monotonic(), self.master)
        if before is None or before == self.master:
            return
        dropped = self._pool.abort() if self._pool is not None else 0
        if self.master is None:
            log.warning("no master", because=self._reason(), dropped=dropped)
        else:
            log.warning("another master", master=_write(self.master), before=_write(before), dropped=dropped)

    def away(self, address: Address, error: Exception) -> Exception:
        """``error`` itself, or ``MasterAway`` where it says no more than that nothing answers there."""
        said = self._explain(error)
        if not said.startswith(AWAY):
            return error
        found = re.search(r"\((.*)\)", said)
        return MasterAway(
            f"the master that Sentinel names does not answer at {_write(address)} ({found[1] if found else error}). "
            "Sentinel names another one when this one has been away for its down-after-milliseconds"
        )

    def _reason(self) -> str:
        errors = [f"{place}: {error}" for place, error in self._failed.items() if error]
        if len(errors) < len(self._failed):
            return f"the Sentinels know no master called {self._name}. Correct the name after the slash in redis.url"
        told = f" ({'; '.join(errors)})" if errors else ""
        return f"no Sentinel answers{told}. Start one, or correct the hosts in redis.url"


def _place(sentinel: Redis) -> str:
    options = sentinel.connection_pool.connection_kwargs
    return _write((options["host"], options["port"]))


def _write(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


async def _ask(sentinel: Redis, name: str) -> Word | None:
    """None where it knows no such master. While a failover goes on, its second answer still has the old address."""
    asked: Any = sentinel.pipeline(transaction=False)
    asked.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
    asked.execute_command("SENTINEL", "MASTER", name)
    at = time.monotonic()
    address, told = await asked.execute(raise_on_error=False)
    if isinstance(address, Exception):
        raise address
    if address is None:
        return None
    facts = {} if isinstance(told, Exception) else dict(zip(told[::2], told[1::2], strict=False))
    return Word((address[0].decode(), int(address[1])), int(facts.get(b"config-epoch", 0)), at)


class FollowingConnection(SentinelManagedConnection):
    """A connection to the master, and to none that has stopped being it while we were connecting."""

    async def connect_to(self, address: Address) -> None:
        """Connect to ``address``. Raises ``MasterAway``, and what redis-py raises."""
        sentinels: Sentinels = self.connection_pool.sentinel_manager
        try:
            await super().connect_to(address)  # type: ignore[no-untyped-call]
        except (LinkError, SlowLink) as error:
            raise sentinels.away(address, error) from error
        if address != sentinels.master:
            await self.disconnect()
            raise MasterAway(f"{_write(address)} is no longer the master. A failover is under way")


class FollowingTLSConnection(FollowingConnection, SSLConnection):
    """The same with TLS."""


class FollowingPool(SentinelConnectionPool):
    """The connections to the master."""

    def abort(self) -> int:
        """Abort every connection, at once and without sending what is buffered; how many there were. Calls under way
        fail, and redis-py connects anew for the next one."""
        connections = (*self._available_connections, *self._in_use_connections)
        writers = [writer for one in connections if (writer := one._writer) is not None]
        for writer in writers:
            writer.transport.abort()  # redis-py's own way waits until a frozen server has read what is buffered
        return len(writers)


async def ask_role(connection: FollowingConnection) -> None:
    """Raise ``MasterAway`` for a server that is a replica; one that does not let us ask is taken for a master."""
    await connection.send_command("ROLE")
    try:
        role = (await connection.read_response())[0]
    except ResponseError:
        return
    if role != b"master":
        raise MasterAway(f"{connection.host}:{connection.port} is a replica now. A failover is under way")


def master_client(sentinels: Sentinels, name: str, tls: bool, options: dict[str, Any]) -> Redis:
    """A client for the master, not connected yet."""
    kind = FollowingTLSConnection if tls else FollowingConnection
    pool = FollowingPool(name, sentinels, connection_class=kind, **options)  # type: ignore[no-untyped-call]
    sentinels.serve(pool)
    return Redis.from_pool(pool)
