"""Log lines about messages: at most one a second for each cause, with the number of messages it stands for.

A deleted queue or a producer's typo concerns thousands of messages a second. The first gets a line at once; the others
are counted and logged a second later, or when the process stops. `postdate list` shows which messages they were.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bridge.core.reasons import Reason, ReasonKind
from bridge.telemetry.printable import brief

_EVERY_S = 1.0
#: How many causes of one kind get lines of their own, so that no producer can flood the log with one mistake.
_CAUSES_MAX = 8


@dataclass(slots=True)
class _Cause:
    """When it was last logged, how many messages are held back since then, and the last one's reason and facts."""

    told_at: float
    reason: Reason
    held_back: int = 0
    facts: dict[str, object] = field(default_factory=dict)


class Notices:
    """Counts messages, and logs each cause once a second."""

    def __init__(self, write: Callable[..., None]) -> None:
        """``write(event, **facts)`` is a method of a logger."""
        self._write = write
        self._kinds: dict[tuple[str, str, ReasonKind], dict[str, _Cause]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, event: str, route: str, reason: Reason, **facts: object) -> None:
        """Count one message, in a running loop. ``facts`` are those of the message that gets the line."""
        causes = self._kinds.setdefault((event, route, reason.kind), {})
        name = reason.text
        if name not in causes and len(causes) >= _CAUSES_MAX:
            name = ""
        now = time.monotonic()
        cause = causes.get(name)
        if cause is None:
            cause = causes[name] = _Cause(now - _EVERY_S, reason)
        if cause.held_back or now - cause.told_at < _EVERY_S:
            cause.held_back, cause.reason, cause.facts = cause.held_back + 1, reason, facts
        else:
            cause.told_at = now
            self._write(event, route=route, reason=brief(str(reason)), messages=1, **facts)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._on_time)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell_rest()

    def _on_time(self) -> None:
        self._tell_rest()
        self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._on_time) if self._kinds else None

    def _tell_rest(self) -> None:
        """Log what is held back, and forget causes that had no message for a while."""
        now = time.monotonic()
        for (event, route, _), causes in self._kinds.items():
            for name, cause in tuple(causes.items()):
                if cause.held_back:
                    self._write(
                        event, route=route, reason=brief(str(cause.reason)), messages=cause.held_back, **cause.facts
                    )
                    cause.told_at, cause.held_back = now, 0
                elif now - cause.told_at >= _EVERY_S:
                    del causes[name]
        self._kinds = {kind: causes for kind, causes in self._kinds.items() if causes}
