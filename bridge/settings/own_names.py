"""What postdate's own queues and exchanges on RabbitMQ are called, also those that settings of before have left."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bridge.settings.model import Settings

#: What holds messages for a time has its name from ``rabbitmq/levels/plan.py``, with a digest, so that it is known
#: whatever the mode of its route is by now.
_WAITING = r"(?:due|level\.[0-9a-z.]+|step\.[0-9]{2})\.[0-9a-f]{6}"
_SORTING = r"(?:plain|all|level|levels(?:\.[0-9a-f]{6})?)"


def own_queues(settings: Settings) -> re.Pattern[str]:
    """Matches the whole name of a queue of any route of RabbitMQ."""
    every, storeless = _beginnings(settings)
    return re.compile(rf"{every}(?:\.{_WAITING})?|{storeless}\.dead")


def own_exchanges(settings: Settings) -> re.Pattern[str]:
    """Matches the whole name of an exchange of any route of RabbitMQ, but for those that producers publish to."""
    every, storeless = _beginnings(settings)
    return re.compile(rf"{every}\.{_WAITING}|{storeless}\.(?:dead|{_SORTING})")


def _beginnings(settings: Settings) -> tuple[str, str]:
    """What matches the beginning of the names of any route; and of any route without a store."""
    routes = settings.routes_of("rabbitmq")
    storeless = [name for name in routes if settings.routes[name].mode != "redis"]
    return _any(map(settings.queue_of, routes)), _any(map(settings.queue_of, storeless))


def _any(names: Iterable[str]) -> str:
    """What matches one of these; nothing at all where there is none."""
    return f"(?:{'|'.join(map(re.escape, names)) or '(?!)'})"
