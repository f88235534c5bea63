"""Counts what Redis does for a message: the instructions of each script, by callgrind.

A count is the same on a busy machine, so it can be compared from one day to the next. It includes Redis's own reading
of the command and writing of the reply.
"""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from adapters.redis.connect import connect
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Origin
from bridge.core.ports import Batch
from bridge.parking.envelope import seal
from bridge.parking.history import HistoryLimits
from bridge.settings import Redis as RedisSettings
from tests.devstack.service import clean_env, free_ports

#: Thousand instructions a message: row -> batch size -> count.
Counts = dict[str, dict[str, float]]

SIZES = (1, 10, 100, 500)
#: In this order they are counted: what was counted before changes a count by some percent. The test counts the first
#: two: the fixed price of a script shows at 1, that of a message at 100.
ORDER = (1, 100, 10, 500)
#: How many batches of each size are counted. Redis collects the garbage of Lua with every 50th script, which costs as
#: much as five small ones: a multiple of 50 always has its share.
_BATCHES = {1: 50, 10: 50, 100: 50, 500: 4}
#: Far messages that wait in the shard all the time, so that its sorted set has a usual depth.
_WAITING = 2_000
_PAYLOAD = b"x" * 256
_START_S = 60.0
_LEASE_MS, _DRAIN_MS = 3_600_000, 3_600_000


class Counter:
    """One Redis under callgrind, which writes a file of counts when it is told to."""

    def __init__(self, server: str, folder: Path) -> None:
        self._folder = folder
        self._files = 0
        (port,) = free_ports(1)
        self.url = f"redis://127.0.0.1:{port}/0"
        profile = folder / "callgrind.out"
        self._process = subprocess.Popen(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", "--quiet"),
                *(server, "--port", str(port), "--save", "", "--appendonly", "no", "--hz", "1"),
                *("--dir", str(folder), "--maxmemory-policy", "noeviction"),
            ],
            env=clean_env(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    async def ready(self) -> None:
        """Return when the server answers. Raises ``TimeoutError``."""
        client = Redis.from_url(self.url)
        until = time.monotonic() + _START_S
        while time.monotonic() < until:
            with suppress(RedisError, OSError):
                await client.ping()
                await client.aclose()
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"redis-server under callgrind did not answer in {_START_S:g} s")

    def count(self) -> int:
        """Return the instructions since the last count."""
        subprocess.run(
            ["callgrind_control", "--dump", str(self._process.pid)], check=True, capture_output=True, env=clean_env()
        )
        self._files += 1
        text = (self._folder / f"callgrind.out.{self._files}").read_text()
        found = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        if not found:
            raise RuntimeError("callgrind wrote no count")
        return int(found[1])

    def stop(self) -> None:
        """End the server."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@asynccontextmanager
async def open_store(url: str, prefix: str, shards: int = 1) -> AsyncIterator[RedisStore]:
    settings = RedisSettings.model_validate({"url": url, "timeout": "60s"})
    store = RedisStore(connect(settings), prefix, shards, "one", StoreClock(), HistoryLimits(86_400_000, 10_000))
    await store.open("none", 0, 60_000)
    try:
        yield store
    finally:
        await store.close()


class _Load:
    """Messages that are the same in each run but for the moment."""

    def __init__(self, store: RedisStore, now_ms: int) -> None:
        self._store = store
        self._random = random.Random(1)
        self._now_ms = now_ms
        self._made = 0

    def batch(self, size: int, broker: str, due_ms: int = 0) -> Batch:
        """Return a batch of overdue messages, or of those that are due later, as a bridge of this broker parks it."""
        batch = Batch(self._store.new_token(), recent_max=10_000)
        for _ in range(size):
            due = due_ms or self._now_ms - self._random.randrange(60_000)
            message_id = self._random.randbytes(20)
            envelope = seal(due, self._now_ms, b"orders", b"", b"", _PAYLOAD)
            batch.messages.append((message_id, due, envelope))
            if broker == "rabbitmq":
                batch.recent += message_id[:8] + message_id
            else:
                origin: Origin = (b"orders.delay/0", self._made)
                batch.origins.append(origin)
            self._made += 1
        return batch


def version_of(server: str) -> str:
    """Return name and version of a server's program, for which alone its counts hold."""
    text = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout
    return " ".join(word for word in text.split() if word in ("Redis", "Valkey") or word.startswith("v="))


async def measure(server: str, folder: Path, sizes: Sequence[int] = ORDER) -> Counts:
    """Return the counts of parking, claiming and settling for each size of a batch."""
    counts: Counts = {}
    for broker in ("rabbitmq", "kafka"):
        (folder / broker).mkdir()
        # A server of its own: what ran before on a server changes a count by up to a tenth.
        counter = Counter(server, folder / broker)
        try:
            await counter.ready()
            await _one_broker(counter, counts, broker, sizes)
        finally:
            counter.stop()
    return counts


async def _one_broker(counter: Counter, counts: Counts, broker: str, sizes: Sequence[int]) -> None:
    async def counted(row: str, size: int, steps: list[Callable[[], Awaitable[Any]]]) -> None:
        counter.count()
        for step in steps:
            await step()
        counts.setdefault(row, {})[str(size)] = round(counter.count() / size / len(steps) / 1000, 1)

    async with open_store(counter.url, broker) as store:
        load = _Load(store, int(time.time() * 1000))
        waiting = load.batch(_WAITING, broker, int(time.time() * 1000) + 86_400_000)
        waiting.recent = b""
        await store.park({0: waiting})
        for size in sizes:
            await _one_size(store, load, broker, size, counted)


async def _one_size(store: RedisStore, load: _Load, broker: str, size: int, counted: Any) -> None:
    claims: list[list[Claim]] = []

    async def park(batch: Batch) -> None:
        await store.park({0: batch})

    async def claim() -> None:
        claimed = (await store.claim([0], size, 1 << 30, _LEASE_MS, _DRAIN_MS))[0]
        claims.append(claimed.claims)  # type: ignore[union-attr]

    await park(load.batch(1, broker))  # loads the scripts
    await claim()
    await store.settle(claims.pop())
    # Made here, because a record is parked only if its offset is the highest so far.
    batches = [load.batch(size, broker) for _ in range(_BATCHES[size])]
    before = await store.parked_by_route(["orders"])
    await counted(f"park, {broker}", size, [lambda batch=batch: park(batch) for batch in batches])
    parked = (await store.parked_by_route(["orders"]))["orders"] - before["orders"]
    if parked != size * len(batches):
        raise RuntimeError(f"{len(batches)} batches of {size} parked {parked}")
    if broker == "rabbitmq":
        await counted("claim", size, [claim for _ in batches])
        if [len(some) for some in claims] != [size] * len(batches):
            raise RuntimeError(f"claims of {size} took {[len(some) for some in claims]}")
        await counted("settle", size, [lambda some=some: store.settle(some) for some in claims])
