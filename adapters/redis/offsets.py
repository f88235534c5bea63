"""How far the records of each log were dealt with: the hash that ``lua/include/origins.lua`` keeps and describes."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from bridge.core.message import Origin
from bridge.core.ports import Batch

_OWED = b"\0owed"
_OFFSET = struct.Struct(">Q")


def origin_args(batch: Batch) -> Iterator[bytes | int]:
    """The origins of a batch as the park script takes them. Raises ``ValueError`` where only some messages have one."""
    if len(batch.origins) != len(batch.messages):
        raise ValueError("an origin for each message of a batch, or for none")
    for origin in (*batch.origins, *batch.owed):
        yield from origin


async def read_done(client: Any, key: str, origins: Sequence[Origin]) -> set[Origin]:
    """Those of the origins that were dealt with, by the hash under ``key``."""
    logs = list({log for log, _ in origins})
    values = await client.hmget(key, [*logs, *(log + _OWED for log in logs)])
    marks = {log: int(value or 0) for log, value in zip(logs, values, strict=False)}
    owed = {(log, offset) for log, packed in zip(logs, values[len(logs) :], strict=True) for offset in _offsets(packed)}
    return {(log, offset) for log, offset in origins if offset < marks[log]} - owed


def _offsets(packed: bytes | None) -> Iterator[int]:
    return (offset for (offset,) in _OFFSET.iter_unpack(packed or b""))
