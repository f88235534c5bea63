"""What a comparison measures: the modes (ways to delay a message) and the plan of steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from bridge.delay.duration import write_duration
from bridge.delay.header import NATIVE
from bridge.delay.ladder import whole_seconds
from bridge.delay.levels import rounding
from bridge.lab.command import changed, chosen, numbers, seconds
from bridge.lab.load import LINGER_S

#: Starting and ending the processes of a load.
_AROUND_S = 0.8
#: Starting a bridge and stopping it.
_BRIDGE_S = 3.0
#: Messages per second that even a small machine publishes or parks.
_SURELY_PER_S = 4000
#: The most that a waiting message takes in a store or queue, with its body of 256 bytes.
_BYTES_WAITING = 700
#: A rate held for less than this is only a hint.
_MEANINGFUL_S = 5.0
_KINDS = ("rate", "flood", "burst", "backlog", "restart")


class Rounding(Enum):
    """How a mode changes the requested delay."""

    NONE = "none"
    LEVEL = "up to the next level"
    NEAREST = "to the nearest level"
    SECOND = "up to the whole second"


@dataclass(frozen=True)
class Mode:
    """One way to delay a message, in the words of the report: ``how`` it works.

    - ``route_mode``: the mode of the postdate route; "" if the broker delays without postdate.
    - ``asks``: how the producer requests the delay (``Load.asks``).
    - ``waits``: false for the mode without a delay.
    - ``alone``: true if postdate has created the queues of ``route_mode`` and does not run.
    - ``tidy``: false if waiting messages stay on the broker when everything is deleted. Such a mode gets no backlog.
    """

    name: str
    title: str
    colour: str
    how: str
    cannot: str
    cancel: str = "nothing"
    route_mode: str = ""
    asks: str = "x-delay"
    rounding: Rounding = Rounding.NONE
    waits: bool = True
    alone: bool = False
    tidy: bool = True

    @property
    def ours(self) -> bool:
        """Whether postdate is responsible for it."""
        return bool(self.route_mode)

    @property
    def bridged(self) -> bool:
        """Whether a running postdate takes part."""
        return self.ours and not self.alone

    @property
    def by_level(self) -> bool:
        """Whether it has a queue per level."""
        return self.route_mode == "levels"


# The colours of Okabe and Ito, which people with any colour vision can tell apart, and two of Paul Tol's.
MODES = (
    Mode(
        "plain",
        "no delay",
        "#666666",
        "Published to the destination itself, for scale.",
        "delay",
        cancel="nothing waits",
        waits=False,
    ),
    Mode(
        "redis",
        "redis",
        "#0072B2",
        "postdate parks it in Redis and publishes it when it is due.",
        "run without Redis and postdate",
        cancel="any message, by id or key",
        route_mode="redis",
    ),
    Mode(
        "levels",
        "levels",
        "#E69F00",
        "Queues of the broker with a fixed time to live. postdate brings each message to one, and then to its "
        "destination.",
        "keep an exact moment, list, cancel, reschedule",
        route_mode="levels",
        rounding=Rounding.LEVEL,
    ),
    Mode(
        "alone",
        "levels, alone",
        "#56B4E9",
        "The same queues without a running postdate. The producer names the level in x-delay-level. The broker does "
        "the rest (levels.last_hop = broker).",
        "take any other delay, remove delay headers, notice an unroutable message, list, cancel, reschedule",
        route_mode="levels",
        asks="x-delay-level",
        rounding=Rounding.LEVEL,
        alone=True,
    ),
    Mode(
        "ladder",
        "ladder",
        "#009E73",
        "Queues of the broker for powers of two of a second. A message passes them one after the other.",
        "keep a fraction of a second, list, cancel, reschedule",
        route_mode="ladder",
        rounding=Rounding.SECOND,
    ),
    Mode(
        "native",
        "native",
        "#882255",
        "A quorum queue of RabbitMQ 4.4 or later delays by itself. postdate brings each message to it, and then to its "
        "destination.",
        "run on an earlier RabbitMQ, list, cancel, reschedule",
        route_mode="native",
    ),
    Mode(
        "unaided",
        "RabbitMQ 4.4 alone",
        "#999933",
        "The quorum queue of the consumers delays. The producer writes the due moment in x-opt-delivery-time.",
        "delay in a classic queue, refuse a bad value, list, cancel, reschedule",
        asks=NATIVE,
    ),
    Mode(
        "plugin",
        "plugin",
        "#CC79A7",
        "An exchange of type x-delayed-message, which keeps waiting messages in Mnesia on one node.",
        "list, cancel, reschedule, survive the loss of its node",
        tidy=False,
    ),
    Mode(
        "ttl",
        "one TTL queue",
        "#D55E00",
        "Every message has its own expiration in one queue, which dead-letters to the real exchange.",
        "let a short delay overtake a longer one",
        asks="expiration",
    ),
)

BY_NAME: Mapping[str, Mode] = {mode.name: mode for mode in MODES}


def as_set(mode: Mode, how: str) -> Mode:
    """The mode under ``levels.rounding`` (``how``: up, nearest or refuse). Producers that name a level round up."""
    nearest = mode.by_level and mode.bridged and how == "nearest"
    return replace(mode, rounding=Rounding.NEAREST) if nearest else mode


def left_out(
    wanted: Collection[str], lacking: Mapping[str, str], levels_ms: Sequence[int], longest_ms: int, how: str = "up"
) -> dict[str, str]:
    """The modes that cannot be measured here, by name, each with its reason.

    ``lacking``: what the broker cannot do, with reasons. ``levels_ms`` is ``headers.levels``, ``how`` is
    ``levels.rounding``, ``longest_ms`` the longest delay of the plan.
    """
    ends, longest = write_duration(max(levels_ms)), write_duration(longest_ms)
    found = dict(lacking)
    for mode in MODES:
        if mode.by_level and mode.bridged and how == "refuse":
            found[mode.name] = "levels.rounding = refuse makes a dead letter of every delay that is no level"
        if mode.by_level and max(levels_ms) < longest_ms:
            found[mode.name] = f"headers.levels ends at {ends}, and delays of up to {longest} are measured"
    return {name: found[name] for name in BY_NAME if name in found and name in wanted}


def promise(mode: Mode, levels_ms: Sequence[int]) -> Callable[[int], int]:
    """The mode's rounding rule: from the requested delay to the time a message waits, both in milliseconds.

    The rule of a mode with levels raises ValueError above the last level.
    """
    if mode.rounding is Rounding.NONE:
        return lambda asked_ms: asked_ms
    if mode.rounding is Rounding.SECOND:
        return lambda asked_ms: 1000 * whole_seconds(asked_ms)
    to_level = rounding(levels_ms, "nearest" if mode.rounding is Rounding.NEAREST else "up")
    return lambda asked_ms: to_level(asked_ms, asked_ms)


def levels_for(levels_ms: Sequence[int], delays_ms: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The levels that delays in these ranges (from, to) can be rounded to. Only they need queues."""
    rising, found = sorted(levels_ms), set()
    for low, high in delays_ms:
        least = max((level for level in rising if level < low), default=rising[0])
        most = min((level for level in rising if level >= high), default=rising[-1])
        found |= {level for level in rising if least <= level <= most}
    return tuple(sorted(found))


# -- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ComparePlan:
    """What a comparison measures in each mode. The defaults are those of a full run.

    - rate: each of ``rates`` (messages per second) is held for ``duration_s``, with delays from ``delay_ms``.
    - flood: ``count`` messages as fast as confirms allow, all with ``flood_delay_ms``.
    - burst: ``count`` messages as fast as confirms allow, all due at one moment, ``burst_after_s`` from the start.
    - backlog: five times ``count`` messages that wait for hours.
    - restart: the bridge restarts while messages arrive at ``restart_rate``.
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
        """The number of messages that wait."""
        return 5 * self.count

    @property
    def span(self) -> str:
        """The range of mixed delays, for people."""
        return f"{self.delay_ms[0] / 1000:g} to {self.delay_ms[1] / 1000:g} s"

    def delays_ms(self) -> list[tuple[int, int]]:
        """The ranges (from, to) of all requested delays."""
        ranges = {
            "rate": self.delay_ms,
            "flood": (self.flood_delay_ms, self.flood_delay_ms),
            "burst": (1, round(self.burst_after_s * 1000)),
            "backlog": self.backlog_delay_ms,
            "restart": (self.restart_delay_ms, self.restart_delay_ms),
        }
        return [ranges[kind] for kind in self.kinds]

    def kinds_of(self, mode: Mode) -> list[str]:
        """The kinds of steps for a mode, in order.

        Without a delay there is no burst and no backlog. An untidy mode has no backlog. Without a bridge there is no
        restart.
        """
        had = {"burst": mode.waits, "backlog": mode.waits and mode.tidy, "restart": mode.bridged}
        return [kind for kind in self.kinds if had.get(kind, True)]

    def titles(self, modes: Sequence[Mode]) -> list[str]:
        """The names of all steps, in order."""
        names = {kind: [kind] for kind in self.kinds} | {"rate": [f"rate {rate:g}" for rate in self.rates]}
        return [f"{mode.name}, {name}" for mode in modes for kind in self.kinds_of(mode) for name in names[kind]]

    def seconds(self, modes: Sequence[Mode]) -> float:
        """The approximate duration."""
        wait_s, around_s = self.delay_ms[1] / 1000, _AROUND_S + self.linger_s
        each = {
            "rate": len(self.rates) * (self.duration_s + wait_s + around_s),
            "flood": self.count / _SURELY_PER_S + self.flood_delay_ms / 1000 + around_s,
            "burst": self.burst_after_s + self.count / _SURELY_PER_S + around_s,
            "backlog": self.backlog / _SURELY_PER_S + around_s,
            "restart": self.restart_s + self.restart_delay_ms / 1000 + around_s,
        }
        return sum(sum(each[kind] for kind in self.kinds_of(mode)) + _BRIDGE_S * mode.bridged for mode in modes)


def quick(plan: ComparePlan) -> ComparePlan:
    """A plan for one to two minutes: one rate, no backlog and no restart.

    The delays lie between levels and between whole seconds, so that each rule of rounding shows.
    """
    return replace(
        plan,
        rates=(1000,),
        duration_s=1.5,
        delay_ms=(1200, 3400),
        count=2000,
        flood_delay_ms=1200,
        burst_after_s=1.2,
        linger_s=0.25,
        kinds=("rate", "flood", "burst"),
    )


def with_options(
    is_quick: bool, rates: str | None, duration: str | None, count: int | None, seed: int | None
) -> ComparePlan:
    """The plan with the options that were given. Raises ``SettingsError``."""
    at = numbers("--rates", rates)
    plan = quick(ComparePlan()) if is_quick else ComparePlan()
    rising = None if at is None else tuple(sorted(set(at)))
    return changed(plan, rates=rising, duration_s=seconds(duration), count=count, seed=seed)


def chosen_modes(text: str | None) -> list[str]:
    """The names of the wanted modes, in the order of ``MODES``. Raises ``SettingsError``."""
    return list(BY_NAME) if text is None else chosen("--modes", list(BY_NAME), text)


def caution(plan: ComparePlan) -> str:
    """A warning for a run that is too short to judge by; "" if it is long enough."""
    if plan.duration_s >= _MEANINGFUL_S:
        return ""
    return (
        f"A quick look: {plan.duration_s:g} s of messages for each way. On a busy machine these figures say little. "
        "Another run will give others."
    )


def load_sentence(plan: ComparePlan, modes: Sequence[Mode]) -> str:
    """What the run will do to the broker and the store, for the user to read before it starts."""
    rates = " and ".join(f"{rate:,g}" for rate in plan.rates)
    took_s = plan.seconds(modes)
    about = f"{took_s:.0f} s" if took_s < 90 else f"{took_s / 60:.0f} minutes"
    waiting = ""
    if any("backlog" in plan.kinds_of(mode) for mode in modes):
        size_mb = plan.backlog * _BYTES_WAITING / 1e6
        waiting = f", then {plan.backlog:,} that wait (about {size_mb:,.0f} MB, in Redis or on the broker)"
    return (
        f"Ways: {len(modes)}, one after the other, in about {about}. Load: {rates} messages per second for "
        f"{plan.duration_s:g} s each, then {plan.count:,} as fast as the broker takes them{waiting}. It slows down "
        "other users of this broker. Its objects have unique names and are deleted at the end."
    )
