"""Messages as lines of JSON: what `postdate export` writes and `postdate import` reads.

The first line says what was exported and when. Then each line is a message: readable facts, and the envelope as the
store keeps it, from which it is put back byte for byte. The last line has the number of messages, so that a file that
was cut off is noticed.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple
from zlib import crc32

from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.desk.protocol import Desk
from bridge.desk.rows import Stored
from bridge.operate.describe import message_of
from bridge.operate.find import Criteria, Scan, takes
from bridge.parking.envelope import Envelope, UnopenedEnvelope, unseal
from bridge.parking.identity import shard_of
from bridge.settings.process_plan import is_canary

FORMAT = 1
_STATES = frozenset({State.PARKED.value, State.CLAIMED.value, State.DEAD.value})


class DamagedLine(ValueError):
    """A line that is no message, or one that cannot be put back. The text says why."""


class Line(NamedTuple):
    """A message of a file. ``at_ms`` depends on the state, as in ``Row``."""

    id: bytes
    state: State
    at_ms: int
    broker: str
    reason: str
    envelope: bytes
    opened: Envelope


async def exported(desk: Desk, state: State | None, wanted: Criteria) -> AsyncIterator[dict[str, Any]]:
    """Iterate over the lines of an export: the messages in one state, or in all, that match. Canaries stay out."""
    now_ms, count, scan = await desk.now_ms(), 0, Scan()
    head = {"at": write_moment(now_ms), "at_ms": now_ms, "state": state.value if state else None}
    yield {"postdate": "export", "format": FORMAT, "cluster": await desk.identity(), **head, "filter": wanted.given()}
    async for stored in desk.stored():
        await scan.saw()
        if is_canary(stored.row.route):
            continue
        if state in (None, stored.row.state) and await takes(desk, stored.row, wanted):
            count += 1
            yield _line(stored)
    yield {"end": True, "messages": count}


def _line(stored: Stored) -> dict[str, Any]:
    row, envelope = stored
    line = {**message_of(row).as_dict(), "at_ms": row.at_ms, "envelope": b64encode(envelope).decode()}
    return {**line, "crc32": _checksum(line)}


def _checksum(line: Mapping[str, Any]) -> int:
    """Return the checksum of all members: a line that someone edited is refused."""
    return crc32(json.dumps(line, sort_keys=True).encode())


def read_head(text: str) -> str:
    """Read the first line; return when the file was written. Raises ``DamagedLine`` for a file that is no export, or
    one of another format. Pure."""
    members = _members(text)
    if members.get("postdate") != "export":
        raise DamagedLine("this is no file of `postdate export`")
    if members.get("format") != FORMAT:
        raise DamagedLine(f"the file has format {members.get('format')}, and this postdate reads format {FORMAT}")
    return str(members.get("at"))


def read_line(text: str) -> Line | int:
    """Read a message; of the last line return the number of messages. Raises ``DamagedLine``. Pure."""
    members = _members(text)
    if members.get("end") is True:
        return int(members.get("messages", -1))
    try:
        message_id, envelope = members["id"].encode(), b64decode(members["envelope"], validate=True)
        state, at_ms, crc = members["state"], int(members["at_ms"]), members.pop("crc32")
        shard_of(message_id)
    except (KeyError, TypeError, AttributeError, NotBase64, ValueError) as error:
        raise DamagedLine(f"a member is missing or wrong ({error})") from None
    if _checksum(members) != crc or state not in _STATES:
        raise DamagedLine("it was changed: the checksum does not fit")
    try:
        opened = unseal(envelope)
    except UnopenedEnvelope as error:
        raise DamagedLine(str(error)) from None
    return Line(
        message_id, State(state), at_ms, str(members.get("broker")), str(members.get("reason") or ""), envelope, opened
    )


def _members(text: str) -> dict[str, Any]:
    try:
        members = json.loads(text)
    except ValueError:
        raise DamagedLine("it is no JSON, or it was cut off") from None
    if not isinstance(members, dict):
        raise DamagedLine("it is no JSON object")
    return members
