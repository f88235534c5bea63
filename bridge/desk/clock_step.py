"""A step of the store's clock: what it did, in a sentence. Each broker's store on a server notes the same step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from bridge.delay.duration import write_duration, write_moment

#: The notes of one step are made within this time.
_SAME_MS = 60_000
#: For how long a step is a trouble of the verdict. A step forward is not reported for longer.
STEP_NEWS_MS = 120_000


class ClockStep(NamedTuple):
    """The last step. Moments are Unix milliseconds by the store's clock, after the step.

    The clock stepped at ``at_ms`` by ``by_ms``. After a step back: it was ahead from ``from_ms`` to ``to_ms``, by that
    clock. ``messages`` with these arrivals waited at the step; of a step forward, they were due in between (0: none, or
    not every store has counted). ``alone``: a command lists them alone, for long enough to use it.
    """

    at_ms: int
    by_ms: int
    from_ms: int = 0
    to_ms: int = 0
    messages: int = 0
    alone: bool = False

    def __str__(self) -> str:
        stepped, at = write_duration(round(abs(self.by_ms), -3)), write_moment(self.at_ms)
        count = f", about {self.messages:,}," if self.messages else ""
        if self.by_ms > 0:
            what = f"Messages due in between{count} left at once, up to {stepped} early by the clock before"
            return f"Redis's clock stepped forward by {stepped}, to {at}. {what}"
        since, until = write_moment(self.from_ms), write_moment(self.to_ms)
        what = (
            f"Redis's clock stepped back by {stepped}, to {at}. Messages parked while it was ahead{count} "
            f"may wait {stepped} too long where their delay counts from arrival"
        )
        if not self.alone:
            return f"{what}. Then they leave by themselves"
        return f"{what}. Until {since}, `postdate list --parked-after {since} --parked-before {until}` lists them alone"


def last_of(steps: Iterable[ClockStep | None]) -> ClockStep | None:
    """Return the last step of these notes of several stores; None if there are none. Pure."""
    stores = list(steps)
    known = [step for step in stores if step is not None]
    if not known:
        return None
    last = max(known)
    same = [step for step in known if step.by_ms * last.by_ms > 0 and last.at_ms - step.at_ms < _SAME_MS]
    return last._replace(
        at_ms=min(step.at_ms for step in same),
        from_ms=min(step.from_ms for step in same),
        to_ms=max(step.to_ms for step in same),
        messages=sum(step.messages for step in same) if len(same) == len(stores) else 0,
        alone=all(step.alone for step in same),
    )
