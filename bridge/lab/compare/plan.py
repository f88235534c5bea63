"""What a comparison measures in each mode, with which numbers, and what that means for the broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bridge.lab.bench.load import LINGER_S
from bridge.lab.compare.modes import Mode

#: Starting and ending the processes of a load.
_AROUND_S = 0.8
#: A bridge of its own, until it is ready, and its end.
_BRIDGE_S = 3.0
#: Messages a second that a small machine surely publishes, or parks.
_SURELY_PER_S = 4000
#: What a waiting message takes at most, in a store or a queue, with its body of 256 bytes.
_BYTES_WAITING = 700
#: A rate that is held for less than this says little.
_SAYS_S = 5.0
_KINDS = ("rate", "flood", "burst", "backlog", "restart")


@dataclass(frozen=True)
class Plan:
    """The numbers of a full run; ``quick`` has those of a look.

    Each of ``rates`` (messages a second) is held for ``duration_s`` with delays from the range ``delay_ms``. ``count``
    messages are published as fast as the confirms allow, once with the same delay for all (``flood_delay_ms``), once
    due at one moment (after ``burst_after_s``). Five times ``count`` wait while the bridge is started anew. When all
    messages of a load have come, copies are watched for during ``linger_s``.
    """

    rates: tuple[float, ...] = (500, 2000)
    duration_s: float = 15
    delay_ms: tuple[int, int] = (1000, 5000)
    count: int = 20_000
    flood_delay_ms: int = 3000
    burst_after_s: float = 4
    restart_rate: float = 500
    restart_s: float = 6
    restart_delay_ms: int = 1000
    backlog_delay_ms: tuple[int, int] = (3_600_000, 7_200_000)
    seed: int = 7
    size: int = 256
    linger_s: float = LINGER_S
    window: int = 2000
    kinds: tuple[str, ...] = _KINDS

    @property
    def backlog(self) -> int:
        """How many messages wait while the bridge is started anew."""
        return 5 * self.count

    @property
    def span(self) -> str:
        """The mixed delays, for people."""
        return f"{self.delay_ms[0] / 1000:g} to {self.delay_ms[1] / 1000:g} s"

    def delays_ms(self) -> list[tuple[int, int]]:
        """The ranges (from, to) of all delays that are asked for."""
        ranges = {
            "rate": self.delay_ms,
            "flood": (self.flood_delay_ms, self.flood_delay_ms),
            "burst": (1, round(self.burst_after_s * 1000)),
            "backlog": self.backlog_delay_ms,
            "restart": (self.restart_delay_ms, self.restart_delay_ms),
        }
        return [ranges[kind] for kind in self.kinds]

    def kinds_of(self, mode: Mode) -> Iterator[str]:
        """What is measured in a mode, in order.

        Where nothing waits there is no burst; what cannot be removed again is not put there; and where there is no
        bridge, nothing of ours is started anew.
        """
        for kind in self.kinds:
            skipped = {"burst": not mode.waits, "backlog": not (mode.waits and mode.tidy), "restart": not mode.bridged}
            if not skipped.get(kind):
                yield kind

    def titles(self, modes: Sequence[Mode]) -> list[str]:
        """The names of all steps, in order."""
        return [
            f"{mode.name}, {title}"
            for mode in modes
            for kind in self.kinds_of(mode)
            for title in ([f"rate {rate:g}" for rate in self.rates] if kind == "rate" else [kind])
        ]

    def seconds(self, modes: Sequence[Mode]) -> float:
        """About how long it takes."""
        wait_s, around_s = self.delay_ms[1] / 1000, _AROUND_S + self.linger_s
        each = {
            "rate": len(self.rates) * (self.duration_s + wait_s + around_s),
            "flood": self.count / _SURELY_PER_S + self.flood_delay_ms / 1000 + around_s,
            "burst": self.burst_after_s + self.count / _SURELY_PER_S + around_s,
            "backlog": self.backlog / _SURELY_PER_S + around_s,
            "restart": self.restart_s + self.restart_delay_ms / 1000 + around_s,
        }
        return sum(sum(each[kind] for kind in self.kinds_of(mode)) + _BRIDGE_S * mode.bridged for mode in modes)


def quick(plan: Plan) -> Plan:
    """A look of one to two minutes: one rate, delays of less than a second, no backlog and no restart."""
    return replace(
        plan,
        rates=(1000,),
        duration_s=1.5,
        delay_ms=(200, 800),
        count=2000,
        flood_delay_ms=600,
        burst_after_s=1.2,
        linger_s=0.25,
        kinds=("rate", "flood", "burst"),
    )


def caution(plan: Plan) -> str:
    """What must be said of a run that was too short to judge by; "" for one that was not."""
    if plan.duration_s >= _SAYS_S:
        return ""
    return (
        f"A look only: {plan.duration_s:g} s of messages for each way. On a machine that does something else meanwhile "
        "these figures say little, and another run's will differ."
    )


def load_sentence(plan: Plan, modes: Sequence[Mode]) -> str:
    """What the run will do to the broker and the store."""
    rates = " and ".join(f"{rate:,g}" for rate in plan.rates)
    text = (
        f"{_ways(len(modes))}, about {_about(plan.seconds(modes))}: {rates} messages a second for "
        f"{plan.duration_s:g} s each, and {plan.count:,} as fast as the broker takes them"
    )
    if "backlog" in plan.kinds and any("backlog" in plan.kinds_of(mode) for mode in modes):
        size_mb = plan.backlog * _BYTES_WAITING / 1e6
        text += f", then {plan.backlog:,} that wait (about {size_mb:,.0f} MB, in Redis or on the broker)"
    return f"{text}. Others on this broker will feel it. All of it has names of its own and is removed at the end."


def _ways(count: int) -> str:
    return "1 way" if count == 1 else f"{count} ways one after the other"


def _about(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
