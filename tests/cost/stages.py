"""Counts what postdate's own process does for a message: the instructions of each stage, by callgrind.

The stages and the store's client are the real ones. A stand-in answers in place of Redis and of the broker, so what is
counted ends where hiredis has packed a command and parsed a reply. A count is the same on a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hiredis

from adapters.memory import MemorySink, MemorySource
from adapters.redis.scripts import Call, Wait, commands
from adapters.redis.store import RedisStore
from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Delivery
from bridge.delay.header import HeaderRules
from bridge.parking.envelope import seal
from bridge.parking.identity import ID_BYTES, Ids
from bridge.pipeline.assemble import PipelineRules, assemble
from bridge.pipeline.claim import ClaimRules
from bridge.pipeline.decide import RouteRules
from bridge.pipeline.park import ParkLimits
from bridge.pipeline.settle import RetryRules
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from tests.cost.instructions import ORDER, Counts
from tests.devstack.service import clean_env

ROWS = ("process, park", "process, claim and publish", "process, settle")
_BATCHES = {1: 60, 10: 20, 100: 5, 500: 2}
_ROUTE = RouteRules(HeaderRules(), "key", "dead", "replace", "find", 1 << 20)
_REPLIES = {
    "park": b":1\r\n",
    "let_go": b"*6\r\n:1\r\n:0\r\n:-1\r\n:0\r\n$0\r\n\r\n:1\r\n",
}


class _Redis:
    """Packs each command as the link does, and parses a reply that was written before."""

    def __init__(self, ids: Ids, clock: StoreClock) -> None:
        self._ids, self._clock = ids, clock
        self.due = b""

    def make_due(self, size: int) -> None:
        """Write the reply of the next claim."""
        now_ms = int(self._clock.now_us() // 1000)
        ids = b"".join(self._ids.next(now_ms, 0) for _ in range(size))
        envelope = seal(now_ms - 5, now_ms - 1000, b"orders", b"", b"", b"x" * 256)
        values = [b"$%d\r\n%s\r\n" % (len(value), value) for value in (ids, *[envelope] * size)]
        self.due = b"*%d\r\n:1\r\n:%d\r\n:-1\r\n:0\r\n%s" % (4 + len(values), now_ms * 1000, b"".join(values))

    async def send(self, calls: Sequence[Call], wait: Wait | None) -> list[Any]:
        reader = hiredis.Reader()
        for call, command in zip(calls, commands(calls), strict=True):
            hiredis.pack_command(tuple(command))
            if call.script.name == "settle":
                ids = call.args[3 : 1 + 3 * call.args[0] : 3]
                reader.feed(b":%d\r\n" % (sum(map(len, ids)) // ID_BYTES))
            else:
                reader.feed(_REPLIES.get(call.script.name) or self.due)
        return [reader.gets() for _ in calls]


async def _child() -> None:
    clock = StoreClock()
    now_s = time.monotonic()
    clock.observe(now_s, now_s, int(time.time() * 1e6))
    ids = Ids("tester")
    redis = _Redis(ids, clock)
    store = RedisStore(redis, "cost", 1, "tester", clock)  # type: ignore[arg-type]
    source, sink = MemorySource(clock, 1000), MemorySink[Claim](1000)
    rules = ClaimRules(15_000, 4_000, 1, 1000, 1 << 30, 5000)
    limits = ParkLimits(1000, 1 << 30, 10_000)
    routes = {"orders": _ROUTE}
    pipeline = PipelineRules(routes, rules, RetryRules(500, 2, 30_000, 3), limits, {}, ahead_ms=8)
    stages = assemble(store, source, sink, pipeline, ids, {}, Health(), Metrics(routes))
    stages.leases.take_over(frozenset({0}))

    async def taken(size: int) -> list[Delivery]:
        for _ in range(size):
            source.feed(b"x" * 256, {"x-delay": 60_000}, order_key=b"orders")
        return await source.take(size, 1 << 30)

    async def deliver() -> None:
        await stages.claimer.once()

    for size in ORDER:
        for counted in (False, True):  # once to warm up
            number = _BATCHES[size] if counted else 1
            batches = [await taken(size) for _ in range(number)]
            _turn(counted)
            for batch in batches:
                await stages.parker.once(batch)
            _turn(counted)
            dues = []
            for _ in range(number):
                redis.make_due(size)
                dues.append(redis.due)
            for due in dues:
                redis.due = due
                _turn(counted and due is dues[0])
                await deliver()
            _turn(counted)
            await asyncio.sleep(0)
            _turn(counted)
            while stages.settler.pending():
                await stages.settler.once()
            _turn(counted)
            sink.published.clear()
            source.accepted.clear()


def _turn(counted: bool) -> None:
    """Tell the parent that the next part begins or ended, and wait until it has read the count."""
    if counted:
        sys.stdout.write(".")
        sys.stdout.flush()
        while not select.select([sys.stdin], [], [], 0.01)[0]:
            pass
        os.read(0, 1)


def measure(folder: Path) -> Counts:
    """Return the counts of each stage for each size of a batch."""
    profile = folder / "stages.out"
    child = subprocess.Popen(
        [
            *("valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}", "--instr-atstart=no", "--quiet"),
            *(sys.executable, "-m", "tests.cost.stages"),
        ],
        env=clean_env() | {"PYTHONHASHSEED": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    counts: Counts = {row: {} for row in ROWS}
    files = 0

    def control(*words: str) -> None:
        subprocess.run(["callgrind_control", *words, str(child.pid)], check=True, capture_output=True, env=clean_env())

    try:
        for size in ORDER:
            for row in ROWS:
                for part in ("begins", "ends"):
                    if child.stdout.read(1) != b".":
                        raise RuntimeError("the stages ended early")
                    if part == "begins":
                        control("--instr=on")
                        control("--zero")
                    else:
                        control("--dump")
                        control("--instr=off")
                        files += 1
                        text = (folder / f"stages.out.{files}").read_text()
                        total = next(line for line in text.splitlines() if line.startswith(("totals:", "summary:")))
                        counts[row][str(size)] = round(int(total.split()[1]) / size / _BATCHES[size] / 1000, 1)
                    child.stdin.write(b".")
                    child.stdin.flush()
    finally:
        child.kill()
        child.wait()
    return counts


if __name__ == "__main__":
    asyncio.run(_child())
