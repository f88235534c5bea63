"""The names of postdate's own queues, exchanges and topics, including those that previous settings have declared.

They follow ``levels/waits.py`` of RabbitMQ and ``levels/level_topics.py`` of Kafka: change these files together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from bridge.delay.naming import STAR, Naming
from bridge.settings.model import Settings

#: Queues that delay messages end in a digest, so they are recognized whatever the mode of their route is now.
_DELAYING = r"(?:due|native|level\.[0-9a-z.]+|step\.[0-9]{2})\.[0-9a-f]{6}"
_SORTING = r"(?:plain|level|levels(?:\.[0-9a-f]{6})?)"
#: The end of the name of the exchange that sends undelayed messages to several destinations.
SPREAD = "spread"
#: The end of the name of the exchange that returns rejected messages, and the exchange that gets them.
BACK = "back"
RETRY = "postdate.retry"
#: The ends of the names of the exchange before an intake queue that takes every message, of the queue of messages that
#: RabbitMQ would delay by itself, and of the exchange that separates them.
EVERY, TIMED, SORT = "all", "timed", "sort"
_TIME = "[0-9][0-9a-z]*"
_DIGEST = "[0-9a-f]{6}"


def own_queues(settings: Settings) -> re.Pattern[str]:
    """Matches the whole name of a queue that belongs to a RabbitMQ route."""
    every, storeless = _beginnings(settings)
    return re.compile(rf"{every}(?:\.(?:{_DELAYING}|{TIMED}))?|{storeless}\.dead")


def own_exchanges(settings: Settings) -> re.Pattern[str]:
    """Matches the whole name of an internal exchange of a RabbitMQ route. Front exchanges do not match."""
    every, storeless = _beginnings(settings)
    ends = "|".join((_DELAYING, SPREAD, BACK, EVERY, SORT))
    return re.compile(rf"{every}\.(?:{ends})|{storeless}\.(?:dead|{_SORTING})|{re.escape(RETRY)}")


def _beginnings(settings: Settings) -> tuple[str, str]:
    """Patterns for the beginning of the names: of any route, and of any route without a store."""
    routes = settings.routes_of("rabbitmq")
    storeless = [name for name in routes if settings.routes[name].mode != "redis"]
    return _any(map(settings.queue_of, routes)), _any(map(settings.queue_of, storeless))


def _any(names: Iterable[str]) -> str:
    """A pattern that matches one of ``names``, and nothing if there are none."""
    return f"(?:{'|'.join(map(re.escape, names)) or '(?!)'})"


def takes_level_topic(naming: Naming, prefix: str) -> bool:
    """Whether a naming can match a topic in which a route's records wait: a level or the dead letters.

    ``prefix`` begins the names of these topics. The name of a level topic ends in its time and six hex digits.
    """
    level = f"{prefix}level."
    if naming.text_in(f"{prefix}dead") is not None:
        return True
    if not naming.is_rule:
        return re.fullmatch(rf"{re.escape(level)}{_TIME}\.{_DIGEST}", naming.intercept) is not None
    head, _, tail = naming.intercept.partition(STAR)
    begins = level.startswith(head) or re.fullmatch(rf"{re.escape(level)}{_TIME}(\.[0-9a-f]{{0,5}})?", head) is not None
    return begins and _can_end(level, tail)


def _can_end(level: str, tail: str) -> bool:
    """Whether the name of a level topic can end in ``tail``."""
    if re.fullmatch(r"[0-9a-f]{0,6}", tail):
        return True
    found = re.fullmatch(rf"(.*?)([0-9a-z]*)\.{_DIGEST}", tail)
    return found is not None and (not found[1] or (bool(found[2]) and level.endswith(found[1])))
