"""Where the records of a Kafka route without a store wait: names and settings of topics, pure.

::

    intake ──▶ postdate ──▶ a topic for each level ──▶ postdate, when the first of a partition is due ──▶ destination
                  └──────────────▶ the dead letters ◀────────────┘

Everything in a level's topic waits equally long, so each partition is in the order in which it is due, and its head is
all that has to be looked at. How far it was delivered is what the consumer group has committed; no other state is kept.

Names begin with the group, which tells one installation from another, and bear a digest of all that a reader of before
might not understand. The rule ``every`` matches what settings of before have left, too: it is read until it is empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from adapters.kafka.raw.record import VERSION
from bridge.delay.duration import read_duration_ms, write_duration
from bridge.delay.naming import Naming
from bridge.settings import Settings
from bridge.settings.names import ROUTE_NAME

#: A record in a level's topic has the whole of the original in it and is larger than that; and one that came compressed
#: is written as it is. What has come through an intake topic must find room.
_LARGEST_BYTES = 64 * 1024 * 1024
_FOREVER = "-1"


@dataclass(frozen=True, slots=True)
class LevelTopics:
    """One route's topics: ``levels`` by their wait in ms, and the dead letters; ``group`` reads the levels."""

    levels: Mapping[int, str]
    every: Naming
    dead: str
    group: str


def level_topics(settings: Settings, route: str) -> LevelTopics:
    """The topics of a route whose mode is levels."""
    base = settings.waiting_of(route)
    every = f"{base}level.*"
    levels = {ms: f"{base}level.{_written(ms)}.{_digest(ms)}" for ms in settings.headers.levels}
    return LevelTopics(levels, Naming(every, every), f"{base}dead", f"{base}levels")


def level_ms_in(topic: str) -> int:
    """How long records wait in a level's topic (ms), by its name; 0 where the name is none that postdate gives."""
    try:
        return read_duration_ms(topic.rpartition(".level.")[2].rpartition(".")[0])
    except ValueError:
        return 0


def route_in(settings: Settings, topic: str) -> str:
    """The route whose level a topic is, by its name; "" for a topic that is no level of this group's."""
    found = re.fullmatch(rf"{re.escape(settings.kafka.group)}\.({ROUTE_NAME})\.level\.[^.]+\.[0-9a-f]{{6}}", topic)
    return found[1] if found is not None and level_ms_in(topic) else ""


def made_with(settings: Settings, route: str) -> dict[str, dict[str, str]]:
    """The topics of a route and what each is made with. The broker's own clock stamps what comes, so that no other
    clock can make it delete a record too soon; dead letters stay until somebody acts."""
    topics = level_topics(settings, route)
    made = {name: _config(str(ms + settings.levels.retention)) for ms, name in topics.levels.items()}
    return {**made, topics.dead: _config(_FOREVER)}


def _config(retention_ms: str) -> dict[str, str]:
    return {
        "cleanup.policy": "delete",
        "retention.ms": retention_ms,
        "retention.bytes": _FOREVER,
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(_LARGEST_BYTES),
    }


def unfit(has: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """Why a topic that has these settings would lose records, as the second half of a sentence; "" where it would not.
    A setting that is not known is not judged."""
    if "compact" in has.get("cleanup.policy", ""):
        return "is compacted, and of records with one key only the last would be left: set cleanup.policy to delete"
    if int(has.get("retention.bytes", _FOREVER)) >= 0:
        return f"deletes what is beyond retention.bytes ({has['retention.bytes']}), read or not: set it to -1"
    has_ms, wanted_ms = int(has.get("retention.ms", _FOREVER)), int(wanted["retention.ms"])
    if has_ms >= 0 and not 0 <= wanted_ms <= has_ms:
        why = "dead letters stay" if wanted_ms < 0 else "the level and levels.retention"
        return f"deletes records after retention.ms ({has_ms}), read or not: set it to {wanted_ms} ({why})"
    return ""


def _digest(level_ms: int) -> str:
    """Six hex digits."""
    return blake2b(json.dumps([level_ms, VERSION]).encode(), digest_size=3).hexdigest()


def _written(level_ms: int) -> str:
    return write_duration(level_ms).replace(" ", "")
