"""Which instances run, as one of them sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bridge.core.process_mark import has_ended

#: An observer looks once a second. A longer pause tells nothing of the others.
_LOOKS_S = 1.5
#: Between a look at the clock and one at the beats, new beats may come for so long.
_READING_MS = 10_000


class _Beat(NamedTuple):
    """The last beat of an instance, when it was first seen here, and whether the instance counted then."""

    until_ms: int
    seen_s: float
    counts: bool


class Roll:
    """Counts an instance while its beats change, by the monotonic clock of the observer.

    A beat is the moment, by the store's clock, until which the instance wants to count. That clock may step, so it
    judges only beats of instances that this observer has not seen before.
    """

    def __init__(self) -> None:
        self._beats: dict[str, _Beat] = {}
        self._ttl_ms = 0
        self._looked_s = 0.0

    def running(self, beats: Mapping[str, int], ttl_ms: int, store_ms: int, now_s: float) -> list[str]:
        """Return the instances that run, in alphabetical order. ``beats`` are all of the list in the store.

        ``ttl_ms`` is the time without a beat after which an instance counts as dead; 0 keeps the last one.
        """
        self._ttl_ms = ttl_ms or self._ttl_ms
        unseen_s = self._unseen_s(now_s)
        known = {name: beat._replace(seen_s=beat.seen_s + unseen_s) for name, beat in self._beats.items()}
        self._beats, self._looked_s = {}, now_s
        for name, until_ms in beats.items():
            last = known.get(name)
            if last is None:
                last = _Beat(until_ms, now_s, plausible(until_ms, store_ms, self._ttl_ms))
            elif last.until_ms != until_ms:
                last = _Beat(until_ms, now_s, True)
            self._beats[name] = last
        return sorted(name for name, beat in self._beats.items() if beat.counts and not self._silent(beat, now_s))

    def silent(self, now_s: float) -> dict[str, int]:
        """Return the last beats of instances that count as dead, so that they can be removed from the list."""
        return {name: beat.until_ms for name, beat in self._beats.items() if self._silent(beat, now_s)}

    def _silent(self, beat: _Beat, now_s: float) -> bool:
        return now_s - beat.seen_s - self._unseen_s(now_s) >= self._ttl_ms / 1000

    def _unseen_s(self, now_s: float) -> float:
        """Return the time in which this observer could not look, because it was suspended or the store was away."""
        return max(0.0, now_s - self._looked_s - _LOOKS_S)


def plausible(until_ms: float, store_ms: int, ttl_ms: float) -> bool:
    """Return whether an instance that beats in time has this beat. One too far ahead dates from before a step. Pure."""
    return store_ms < until_ms <= store_ms + ttl_ms


def believable(until_ms: float, store_ms: int, report: Mapping[str, object]) -> bool:
    """Return the same for a reader that looks only once, and reads the clock before the beats; False for a process of
    this machine that has ended."""
    ttl_ms = ttl_of(report) or float("inf")
    return plausible(until_ms, store_ms, ttl_ms + _READING_MS) and not has_ended(report.get("process"))


def silent_ms(until_ms: float, store_ms: int, report: Mapping[str, object]) -> int:
    """Return for how long an instance that is not believable has been silent, as far as its beat tells. Pure."""
    ttl_ms, over_ms = ttl_of(report), store_ms - int(until_ms)
    return ttl_ms + (over_ms if over_ms >= -ttl_ms else 0)


def ttl_of(report: Mapping[str, object]) -> int:
    """Return how far ahead (ms) the beats of an instance are; 0 for a report that does not tell. Pure."""
    ttl_ms = report.get("takeover_ms")
    return ttl_ms if isinstance(ttl_ms, int) else 0
