"""`python -m tests.cost.memory [PROGRAM]`: the bytes of a server that a parked message of 256 bytes takes, by key."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time

from redis import Redis
from redis.exceptions import RedisError

from adapters.kafka.raw.record import pack as record
from adapters.rabbitmq.raw.payload import pack as message
from bridge.core.ports import Batch
from bridge.parking.envelope import index_field, seal
from bridge.parking.identity import Ids
from tests.cost.instructions import open_store
from tests.devstack.service import clean_env, free_ports

_MESSAGES, _BATCH, _SHARDS = 200_000, 1_000, 8
_BODY = b"x" * 256
#: What stands beside the body: the properties of pika's delivery_mode=2, a Kafka key of 8 bytes.
_PAYLOADS = {
    "rabbitmq": message(b"order.timeout", b"\x10\x00\x02", _BODY),
    "rabbitmq, x-delay-key": message(b"order.timeout", b"\x10\x00\x02", _BODY),
    "kafka": record(0, 1_784_650_000_000, b"order-17", _BODY, (), b"orders.delay"),
}


async def _park(url: str, row: str) -> None:
    keyed, ids, now_ms = row.endswith("key"), Ids("tester"), int(time.time() * 1000)
    async with open_store(url, "memory", _SHARDS) as store:
        for n in range(_MESSAGES // _BATCH):
            shard = n % _SHARDS
            batch = Batch(store.new_token(), recent_max=10_000)
            for position in range(1, _BATCH + 1):
                message_id, due_ms = ids.next(now_ms + n, shard), now_ms + 3_600_000 + n * _BATCH + position
                key = b"order-%08d" % (n * _BATCH + position) if keyed else b""
                batch.messages.append((message_id, due_ms, seal(due_ms, now_ms, b"orders", key, b"", _PAYLOADS[row])))
                if keyed:
                    batch.found[index_field(b"orders", key)] = message_id
            await store.park({shard: batch})


def main() -> None:
    program = sys.argv[1] if len(sys.argv) > 1 else "redis-server"
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="postdate-memory-") as folder:
        server = subprocess.Popen(
            [program, "--port", str(port), "--save", "", "--dir", folder, "--maxmemory-policy", "noeviction"],
            env=clean_env(),
            stdout=subprocess.DEVNULL,
        )
        url = f"redis://127.0.0.1:{port}/0"
        try:
            with Redis.from_url(url) as client:
                while not _answers(client):
                    time.sleep(0.05)
                info = client.info()
                print(f"{program} {info['redis_version']}, {info['mem_allocator']}: bytes a message")
                for row in _PAYLOADS:
                    client.execute_command("FLUSHALL", "SYNC")
                    before = client.info("memory")["used_memory"]
                    asyncio.run(_park(url, row))
                    whole = (client.info("memory")["used_memory"] - before) / _MESSAGES
                    parts = {}
                    for name in ("msg", "due", "keys"):
                        keys = [f"{{memory:{shard}}}:{name}" for shard in range(_SHARDS)]
                        parts[name] = sum(client.memory_usage(key, samples=0) or 0 for key in keys) / _MESSAGES
                    text = ", ".join(f"{name} {size:.0f}" for name, size in parts.items())
                    print(f"{row:24} {whole:5.0f} ({text}); the envelope {_envelope(row)}")
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
