"""`python -m tests.cost.memory [PROGRAM]`: the bytes of a server that a parked message of 256 bytes takes, by key.

Redis doubles its hash tables at powers of two, and its allocator rounds up. So a message costs more just after a
doubling than before the next, and more on Debian's build than on the maker's. This measures at several counts between
two powers of two and prints the mean and the worst. Compare figures of the same build only.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from statistics import mean

from redis import Redis
from redis.exceptions import RedisError

from adapters.kafka.raw.record import pack as record
from adapters.rabbitmq.raw.payload import pack as message
from adapters.redis.store import RedisStore
from bridge.core.ports import Batch
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids
from tests.cost.instructions import open_store
from tests.devstack.service import clean_env, free_ports

_BATCH, _SHARDS = 1_000, 8
#: Messages in each shard: just after a doubling of Redis's tables, and on to just before the next.
_COUNTS = tuple(round(2 ** (14 + step / 8)) + 1 for step in range(8))
_BODY = b"x" * 256
#: What stands beside the body: the properties of pika's delivery_mode=2, a Kafka key of 8 bytes.
_PAYLOADS = {
    "rabbitmq": message(b"order.timeout", b"\x10\x00\x02", _BODY),
    "rabbitmq, x-delay-key": message(b"order.timeout", b"\x10\x00\x02", _BODY),
    "kafka": record(0, 1_784_650_000_000, b"order-17", _BODY, (), b"orders.delay"),
}


class _Parker:
    """Parks messages of a row."""

    def __init__(self, store: RedisStore, row: str) -> None:
        self._store = store
        self._payload, self._keyed = _PAYLOADS[row], row.endswith("key")
        self._ids, self._now_ms = Ids("tester"), int(time.time() * 1000)
        self._parked = 0

    async def park(self, shard: int, count: int) -> None:
        batch = Batch(self._store.new_token(), recent_max=10_000)
        for _ in range(count):
            self._parked += 1
            message_id = self._ids.next(self._now_ms + self._parked // _BATCH, shard)
            due_ms = self._now_ms + 3_600_000 + self._parked
            key = b"order-%08d" % self._parked if self._keyed else b""
            envelope = seal(due_ms, self._now_ms, b"orders", key, b"", self._payload)
            batch.messages.append((message_id, due_ms, envelope))
            if self._keyed:
                batch.found[index_field(b"orders", key)] = message_id
        await self._store.park({shard: batch})


async def _measure(url: str, client: Redis, row: str) -> dict[str, list[float]]:
    """Return the bytes a message at each count: in all, and in each key."""
    client.flushall()
    found: dict[str, list[float]] = {name: [] for name in ("all", "msg", "due", "keys")}
    async with open_store(url, "memory", _SHARDS) as store:
        parker, there = _Parker(store, row), 1
        for shard in range(_SHARDS):  # scripts, connections and counters are there whatever the number of messages
            await parker.park(shard, there)
        before = client.info("memory")["used_memory"]
        for count in _COUNTS:
            for at in range(there, count, _BATCH):
                for shard in range(_SHARDS):
                    await parker.park(shard, min(_BATCH, count - at))
            there = count
            found["all"].append((client.info("memory")["used_memory"] - before) / (count - 1) / _SHARDS)
            for name in list(found)[1:]:
                sizes = [client.memory_usage(f"{{memory:{shard}}}:{name}", samples=0) or 0 for shard in range(_SHARDS)]
                found[name].append(sum(sizes) / count / _SHARDS)
    return found


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "redis-server"
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="postdate-memory-") as folder:
        server = subprocess.Popen(
            [
                *(program, "--port", str(port), "--save", "", "--dir", folder),
                *("--maxmemory-policy", "noeviction", "--lazyfree-lazy-user-flush", "no"),
            ],
            env=clean_env(),
            stdout=subprocess.DEVNULL,
        )
        url = f"redis://127.0.0.1:{port}/0"
        try:
            with Redis.from_url(url) as client:
                while not _answers(client):
                    time.sleep(0.05)
                info = client.info()
                version = info.get("valkey_version", info["redis_version"])
                print(f"{program} {version}, {info['mem_allocator']}: bytes a message")
                for row in _PAYLOADS:
                    found = asyncio.run(_measure(url, client, row))
                    text = ", ".join(f"{name} {mean(sizes):.0f}" for name, sizes in found.items() if name != "all")
                    whole = f"mean {mean(found['all']):.0f} ({text}), worst {max(found['all']):.0f}"
                    print(f"{row:24} {whole}; the envelope {_envelope(row)}", flush=True)
        finally:
            server.kill()
            server.wait()


def _envelope(row: str) -> int:
    return len(seal(0, 0, b"orders", b"order-12345678" if row.endswith("key") else b"", b"", _PAYLOADS[row]))


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except (RedisError, OSError):
        return False


if __name__ == "__main__":
    main()
