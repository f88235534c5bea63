"""Names and settings of the topics of a Kafka route without a store. Pure.

::

    intake ──▶ postdate ──▶ a topic for each level ──▶ postdate, when the head of a partition is due ──▶ target
                  └──────────────▶ dead letters ◀────────────┘

All records of a level's topic wait equally long, so each partition is ordered by due time and only its head matters.
The group's committed offset says how far it was delivered; there is no other state.

A name begins with the group, which separates installations, and ends in a digest of the level and the record format.
The rule ``every`` also matches levels of previous settings: postdate reads them until they are empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from adapters.kafka.raw.record import VERSION
from adapters.kafka.topology.findings import POLICY, RETENTION, SIZE, Difference, Shortfall
from bridge.delay.duration import read_duration_ms, write_duration
from bridge.delay.naming import Naming
from bridge.settings import Settings
from bridge.settings.names import ROUTE_NAME

#: A record in a level's topic contains the original, and is not compressed where the original was. Every record that
#: came through an intake must fit. ``setup.level_config`` raises this for an intake that accepts more.
_LARGEST_BYTES = 64 * 1024 * 1024
_FOREVER = "-1"


@dataclass(frozen=True, slots=True)
class LevelTopics:
    """The topics of one route: ``levels`` by their wait in ms, and the dead letters. ``group`` reads the levels."""

    levels: Mapping[int, str]
    every: Naming
    dead: str
    group: str


def level_topics(settings: Settings, route: str) -> LevelTopics:
    """The topics of a route whose mode is levels."""
    base = settings.level_prefix_of(route)
    every = f"{base}level.*"
    levels = {ms: f"{base}level.{write_duration(ms).replace(' ', '')}.{_digest(ms)}" for ms in settings.headers.levels}
    return LevelTopics(levels, Naming(every, every), f"{base}dead", f"{base}levels")


def level_ms_in(topic: str) -> int:
    """The wait (ms) that a level's name states; 0 for a name that postdate does not give."""
    try:
        return read_duration_ms(topic.rpartition(".level.")[2].rpartition(".")[0])
    except ValueError:
        return 0


def route_in(settings: Settings, topic: str) -> str:
    """The route that a level's topic belongs to, by its name; empty for any other topic of this group."""
    found = re.fullmatch(rf"{re.escape(settings.kafka.group)}\.({ROUTE_NAME})\.level\.[^.]+\.[0-9a-f]{{6}}", topic)
    return found[1] if found is not None and level_ms_in(topic) else ""


def made_with(settings: Settings, route: str) -> dict[str, dict[str, str]]:
    """The topics of a route, with the settings to create them with. The broker stamps the records (LogAppendTime),
    so that no other clock can make it delete a record too soon. Dead letters are kept until someone acts."""
    topics = level_topics(settings, route)
    configs = {name: _config(str(ms + settings.levels.retention)) for ms, name in topics.levels.items()}
    return {**configs, topics.dead: _config(_FOREVER)}


def _config(retention_ms: str) -> dict[str, str]:
    return {
        POLICY: "delete",
        RETENTION: retention_ms,
        "retention.bytes": _FOREVER,
        "message.timestamp.type": "LogAppendTime",
        SIZE: str(_LARGEST_BYTES),
    }


def unfit(has: Mapping[str, str], wanted: Mapping[str, str]) -> Shortfall | None:
    """Why a topic with the settings ``has`` would lose records. Settings that may not be read are not judged."""
    if "compact" in has.get(POLICY, ""):
        return Shortfall(Difference.COMPACTED)
    kept_bytes = int(has.get("retention.bytes", _FOREVER))
    if kept_bytes >= 0:
        return Shortfall(Difference.BOUNDED, kept_bytes, -1)
    has_ms, wanted_ms = int(has.get(RETENTION, _FOREVER)), int(wanted[RETENTION])
    if has_ms >= 0 and not 0 <= wanted_ms <= has_ms:
        return Shortfall(Difference.FORGETS_DEAD if wanted_ms < 0 else Difference.FORGETS, has_ms, wanted_ms)
    return None


def _digest(level_ms: int) -> str:
    """Six hex digits."""
    return blake2b(json.dumps([level_ms, VERSION]).encode(), digest_size=3).hexdigest()
