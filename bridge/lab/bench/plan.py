"""What a bench measures, and with which numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

KINDS = ("plain", "share", "rate", "burst", "backlog")


@dataclass(frozen=True)
class Plan:
    """The record's numbers; ``quick`` has those of a look. A broker may have others.

    ``shares`` of the plain rate are held for ``duration_s``, and so are ``rates`` a second. ``only`` names the kinds
    of rows. The backlog is due hours later than anybody waits; beside it ``backlog_rate`` a second are held, unless
    that is 0. Messages have ``keys`` order keys, in turn.
    """

    only: tuple[str, ...] = KINDS
    shares: tuple[float, ...] = (0.25, 0.18)
    rates: tuple[float, ...] = (500, 2000, 5000)
    duration_s: float = 60
    runs: int = 1
    plain: int = 300_000
    bursts: tuple[int, ...] = (20_000,)
    burst_after_s: float = 15
    backlog: int = 1_000_000
    backlog_rate: float = 2000
    idle_s: float = 10
    delay_ms: tuple[int, int] = (2000, 8000)
    size: int = 256
    window: int = 2000
    keys: int = 1

    def wants(self, kind: str) -> bool:
        """Whether rows of this kind are measured. Shares need the plain rate."""
        return kind in self.only or (kind == "plain" and "share" in self.only)

    def titles(self) -> Iterator[str]:
        """The names of the steps, in order."""
        steps = {
            "plain": ["plain"],
            "share": [f"share {share:g}" for share in self.shares],
            "rate": [f"rate {rate:g}" for rate in self.rates],
            "burst": [f"burst {count}" for count in self.bursts],
            "backlog": ["backlog", *([f"rate {self.backlog_rate:g} + backlog"] if self.backlog_rate else [])],
        }
        return (title for kind in KINDS if self.wants(kind) for title in steps[kind])


def quick(plan: Plan) -> Plan:
    """Half a minute on a small machine: one row of each kind, shorter waits, a small part of the backlog."""
    return replace(
        plan,
        shares=(0.18,),
        rates=(2000,),
        duration_s=3,
        plain=60_000,
        burst_after_s=4,
        backlog=20_000,
        backlog_rate=0,
        idle_s=1,
        delay_ms=(500, 1000),
    )
