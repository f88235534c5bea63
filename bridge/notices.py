"""Lines in the log about messages: at most one a second of a kind, with how many it stands for.

A deleted queue or a producer with a typo concerns thousands of messages a second. The log says so at once and goes on
saying so, but does not repeat it for each; which ones it were, the store knows (``postdate list``).
"""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 1.0
_KINDS_MAX = 1000


class Notices:
    """Counts what is not worth a line of its own."""

    def __init__(self, write: Callable[..., None]) -> None:
        """``write(event, **facts)`` is a method of a logger."""
        self._write = write
        self._kinds: dict[tuple[str, ...], tuple[float, int]] = {}

    def tell(self, event: str, route: str, reason: str, **facts: object) -> None:
        """One message. The first word of ``reason`` is its kind; ``facts`` are those of the one that gets the line."""
        kind = (event, route, reason.partition(":")[0])
        told_at, untold = self._kinds.get(kind, (-_EVERY_S, 0))
        now = time.monotonic()
        if now - told_at < _EVERY_S:
            self._kinds[kind] = (told_at, untold + 1)
            return
        if len(self._kinds) >= _KINDS_MAX:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        self._write(event, route=route, reason=reason, messages=untold + 1, **facts)
