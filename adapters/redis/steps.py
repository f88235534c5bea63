"""Steps of the store's clock: noticed by each instance, noted in the hash {postdate}:store with what they did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from adapters.redis.connect import Client
from adapters.redis.errors import store_errors
from adapters.redis.keys import StoreKeys
from adapters.redis.runner import Runner
from bridge.core.clock import StoreClock
from bridge.delay.duration import write_moment
from bridge.desk.clock_step import STEP_NEWS_MS, ClockStep
from bridge.parking.envelope import contents
from bridge.parking.identity import arrived_ms_of

log = structlog.get_logger("postdate")

#: No step is reported for longer.
_SHOWN_MAX_MS = 24 * 3_600_000
#: The command that lists the messages of a step is offered if they stay alone for at least this time.
_OFFERED_MS = 60_000
#: A smaller step is in the log only: what it makes late counts as load elsewhere, too.
_WORTH_MS = 10_000
#: An instance sees a step within about a second. Until then it stamps arrivals by the clock before.
_SEEN_MS = 2000
#: How many ids the count of parked messages reads at once, and in all.
_PAGE, _READ_MAX = 2000, 1_000_000
#: How many of them, parked in the time of a step, are looked at in one call.
_LOOK = 200


def step_in(made: Mapping[str, int], now_ms: int) -> ClockStep | None:
    """Return the last step; None if there was none lately. Pure.

    A step back is reported until the clock shows again the last moment to which it was ahead.
    """
    at_ms, by_ms = made.get("stepped_ms", 0), made.get("stepped_by_ms", 0)
    if not by_ms or now_ms < at_ms:
        return None
    from_ms, to_ms = made["stepped_from_ms"], made["stepped_to_ms"]
    ahead_ms = min(to_ms - at_ms, _SHOWN_MAX_MS) if by_ms < 0 else 0
    if now_ms - at_ms >= max(STEP_NEWS_MS, ahead_ms):
        return None
    alone = from_ms - at_ms >= _OFFERED_MS and now_ms < from_ms
    return ClockStep(at_ms, by_ms, from_ms, to_ms, made["stepped_parked"], alone)


def ahead(made: Mapping[str, int], now_ms: int, by_ms: int) -> tuple[int, int]:
    """Return from when to when the clock was ahead, by that clock, where it has stepped back to ``now_ms``. Pure.

    Without a note of the step forward, that began with a moment that has not come again.
    """
    until_ms = now_ms - by_ms
    began_ms = made.get("stepped_ms", 0) if made.get("stepped_by_ms", 0) > 0 else 0
    return max(now_ms, began_ms - _SEEN_MS) if began_ms <= until_ms else now_ms, until_ms + _SEEN_MS


class ClockSteps:
    """Compares the store's clock with this process's monotonic one."""

    def __init__(self, client: Client, runner: Runner, keys: StoreKeys, clock: StoreClock) -> None:
        """``clock`` is the one by which this process works: it follows a step at once."""
        self._works_by = clock
        self._client: Any = client
        self._runner = runner
        self._keys = keys
        self._clock = StoreClock()

    def observe(self, sent_s: float, received_s: float, now_us: int) -> int:
        """Take a reply, as ``StoreClock.observe`` does. Return by how many ms the clock stepped; 0 for a small step."""
        by_ms = round(self._clock.observe(sent_s, received_s, now_us) / 1000)
        if by_ms:
            self._works_by.observe(sent_s, received_s, now_us)
            log.warning("the store's clock stepped", seconds=by_ms / 1000)
        return by_ms if abs(by_ms) >= _WORTH_MS else 0

    async def note(self, made: Mapping[str, int], now_ms: int, by_ms: int, due: int) -> list[bytes]:
        """Note a step. ``due``: the messages that became due since the look before it. Return the fields of the hash,
        as pairs."""
        from_ms, to_ms = ahead(made, now_ms, by_ms) if by_ms < 0 else (now_ms, now_ms)
        parked = await self._parked(from_ms, to_ms) if by_ms < 0 else 0
        if parked:
            moments = {"parked_after": write_moment(from_ms), "parked_before": write_moment(to_ms)}
            log.warning("messages were parked while the store's clock was ahead", messages=parked, **moments)
        args = (by_ms, from_ms, to_ms, due if by_ms > 0 else parked)
        found: list[bytes] = await self._runner.run(self._keys.call("step", args))
        return found

    async def _parked(self, from_ms: int, to_ms: int) -> int:
        """Count the parked messages that arrived between two moments, as `list` sees it: a Kafka record arrived at its
        timestamp. So it counts where postdate took it between these moments, and where its timestamp is between them.
        """
        count = read = 0
        with store_errors():
            for keys in self._keys.shards:
                place, page = 0, [b""]
                while page and read < _READ_MAX:
                    page = await self._client.zrange(keys.due, place, place + _PAGE - 1)
                    ids = [message_id for message_id in page if from_ms <= arrived_ms_of(message_id) < to_ms]
                    for at in range(0, len(ids), _LOOK):
                        found = await self._runner.run(keys.call("look", (0, *ids[at : at + _LOOK])))
                        count += sum(from_ms <= contents(head).arrived_ms < to_ms for head in found[4::5])
                    place, read = place + _PAGE, read + len(page)
        return count
