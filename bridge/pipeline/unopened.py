"""What a claim returned and cannot be delivered: damaged envelopes, those of a newer version, ids without a message.

A damaged message becomes a dead letter. One of a newer version waits for an instance of that version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog

from bridge.core.message import Claim
from bridge.core.ports import Claimed
from bridge.telemetry.health import Health
from bridge.telemetry.metrics import Metrics
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

#: How many messages of a newer version are remembered, so that the log names each once.
_REMEMBERED_MAX = 10_000
_NAMED_MAX = 5


class Unopened:
    """Reports such messages, and has the damaged ones buried."""

    def __init__(
        self, bury: Callable[[Iterable[tuple[Claim, str]]], None], health: Health, metrics: Metrics, trouble_s: float
    ) -> None:
        """``trouble_s``: how long messages of a newer version are a trouble after they were last seen."""
        self._bury = bury
        self._health = health
        self._metrics = metrics
        self._trouble_s = trouble_s
        self._reported: set[bytes] = set()

    def note(self, shard: int, claimed: Claimed) -> None:
        """Report what a claim of a shard returned."""
        if claimed.ghosts:
            log.error("parked messages were deleted from the store by hand", shard=shard, messages=claimed.ghosts)
        if claimed.newer:
            self._note_newer(shard, claimed.newer)
        if claimed.damaged:
            self._metrics.damaged += len(claimed.damaged)
            self._bury(claimed.damaged)
            ids = _names([claim.id for claim, _ in claimed.damaged])
            log.error("dead letters", shard=shard, messages=len(claimed.damaged), ids=ids, reason=claimed.damaged[0][1])

    def _note_newer(self, shard: int, ids: Sequence[bytes]) -> None:
        text = "messages that a newer postdate parked are waiting: start an instance of that version"
        self._health.say(Subject("newer version", "in shard", str(shard)), text, for_s=self._trouble_s)
        unreported = [message_id for message_id in ids if message_id not in self._reported]
        if len(self._reported) + len(unreported) > _REMEMBERED_MAX:
            self._reported.clear()
        self._reported.update(unreported[:_REMEMBERED_MAX])
        if unreported:
            log.error("messages of a newer postdate", shard=shard, messages=len(unreported), ids=_names(unreported))


def _names(ids: Sequence[bytes]) -> list[str]:
    """Return the first few ids as text."""
    return [message_id.decode("ascii", "replace") for message_id in ids[:_NAMED_MAX]]
