"""What a load needs, from the figures in deploy/README.md, section Sizing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from bridge.delay.duration import write_duration
from bridge.operate.documents import Document, StatsFacts
from bridge.settings import Settings
from bridge.settings.model import TITLES, BrokerKind


class _Measured(NamedTuple):
    """Bytes of Redis for a parked message besides its body; messages a second that one process carries with p99 under
    75 ms; partitions of an intake for each process."""

    each: int
    carries: int
    partitions: int


_MEASURED: Mapping[BrokerKind, _Measured] = MappingProxyType(
    {"rabbitmq": _Measured(290, 12_000, 0), "kafka": _Measured(345, 20_000, 2)}
)
#: What the allocator rounds up (Redis 7.0 of Debian).
_ROUNDED_UP = 1.06
_ONE_REDIS = 35_000
#: How much of what a part carries a plan uses.
_USED = 0.7
#: Redis copies pages while it rewrites its append-only file.
_REWRITE = 2
#: From this memory of a machine (bytes) on, a plan points to a Redis Cluster.
_LARGE = 64 * 2**30
_HISTORY_BYTES = 120
_SHARDS_EACH = 4
#: A broker has each message twice: on its way in, and on its way out.
_PASSES = 2


class Need(Document):
    """Something that a load needs. ``value`` is for people, ``number`` for programs: bytes, or a count."""

    what: str
    value: str
    number: int
    because: str


class PlannedLoad(NamedTuple):
    """Delayed messages a second, the bytes of a body, and how long a message waits on average."""

    broker: BrokerKind
    rate: float
    size: int
    delay_ms: int

    @property
    def parked(self) -> int:
        """How many messages wait at one time."""
        return math.ceil(self.rate * self.delay_ms / 1000)

    @property
    def bytes_each(self) -> int:
        """Bytes of Redis for a parked message."""
        return round(_MEASURED[self.broker].each + _ROUNDED_UP * self.size)


def needs(load: PlannedLoad, settings: Settings) -> Iterator[Need]:
    """Yield what a load needs."""
    history = _HISTORY_BYTES * min(settings.history.max, math.ceil(load.rate * settings.history.keep / 1000))
    redis = load.parked * load.bytes_each + history
    each = f"{load.bytes_each} bytes each with a body of {load.size}"
    yield Need(what="parked messages", value=f"{load.parked:,}", number=load.parked, because="rate x delay")
    yield Need(what="memory in Redis", value=size_text(redis), number=redis, because=f"{each}, and the history")
    most = math.ceil(redis / 0.8)
    yield Need(what="maxmemory", value=size_text(most), number=most, because="postdate warns from 80% on")
    machine = most * _REWRITE
    because = "Redis may take twice as much while it rewrites its append-only file"
    yield Need(what="memory of Redis's machine", value=size_text(machine), number=machine, because=because)
    servers = max(1, math.ceil(load.rate / (_ONE_REDIS * _USED)))
    because = f"one moves {_ONE_REDIS:,}/s, used at 70%. More than one is a Redis Cluster"
    if machine > _LARGE * servers:
        because = f"enough for the rate. {size_text(machine)} of memory is much for one machine: use a Redis Cluster"
    yield Need(what="Redis servers", value=str(servers), number=servers, because=because)
    carries = _MEASURED[load.broker].carries
    busy = max(1, math.ceil(load.rate / (carries * _USED)))
    processes = max(2, busy + 1)
    because = f"one carries {carries:,}/s, used at 70%, and another may fail. Use two machines"
    yield Need(what="processes", value=str(processes), number=processes, because=because)
    shards = max(8, _SHARDS_EACH * processes)
    because = "redis.shards: at least one for each process. Change it only while nothing is parked"
    yield Need(what="shards", value=str(shards), number=shards, because=because)
    yield from _broker(load, processes)
    yield from _limits(load, settings)


def _broker(load: PlannedLoad, processes: int) -> Iterator[Need]:
    passes = math.ceil(_PASSES * load.rate)
    because = "each message passes twice: intake and destination"
    yield Need(what=f"messages a second in {TITLES[load.broker]}", value=f"{passes:,}", number=passes, because=because)
    if partitions := _MEASURED[load.broker].partitions * processes:
        because = "of each intake topic: at least one for each process"
        yield Need(what="partitions", value=str(partitions), number=partitions, because=because)


def _limits(load: PlannedLoad, settings: Settings) -> Iterator[Need]:
    """Yield the limits that the load passes."""
    if load.delay_ms > settings.limits.max_delay:
        because = f"it is {write_duration(settings.limits.max_delay)}"
        value = write_duration(load.delay_ms)
        yield Need(what="limits.max_delay, raised", value=value, number=load.delay_ms, because=because)
    if load.size > settings.limits.max_body:
        because = f"it is {size_text(settings.limits.max_body)}"
        yield Need(what="limits.max_body, raised", value=size_text(load.size), number=load.size, because=because)


def compared(load: PlannedLoad, settings: Settings, stats: StatsFacts) -> Iterator[tuple[bool, str]]:
    """Yield whether each part of what runs is enough, in a sentence."""
    wanted = {need.what: need.number for need in needs(load, settings)}
    most = sum(memory.max or 0 for memory in stats.memory)
    if most:
        text = f"maxmemory is {size_text(most)}, and the plan needs {size_text(wanted['maxmemory'])}"
        yield most >= wanted["maxmemory"], text
    else:
        yield False, f"maxmemory is not set, and the plan needs {size_text(wanted['maxmemory'])}"
    running = sum(report.get("broker") == load.broker for report in stats.instances)
    processes = wanted["processes"]
    yield running >= processes, f"processes for {TITLES[load.broker]}: {running}, and the plan needs {processes}"
    shards = settings.redis.shards
    yield shards >= processes, f"redis.shards: {shards}, for processes: {processes}"
    if stats.bytes_per_message is not None:
        near = stats.bytes_per_message <= 1.2 * load.bytes_each
        text = f"a parked message takes {stats.bytes_per_message} bytes, and the plan counts {load.bytes_each}"
        yield near, text


def size_text(count: float) -> str:
    """Return a number of bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.1f} {unit}" if unit != "B" else f"{count:.0f} B"
