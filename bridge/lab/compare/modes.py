"""The ways to wait that are compared: one table, in the order in which they are shown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from bridge.delay.duration import write_duration
from bridge.delay.ladder import whole_seconds
from bridge.delay.levels import rounding


class Rounding(Enum):
    """What a way makes of the delay that was asked for."""

    NONE = "none"
    LEVEL = "up to the next level"
    NEAREST = "to the nearest level"
    SECOND = "up to the whole second"


@dataclass(frozen=True)
class Mode:
    """One way to wait, in the words of a report: ``short`` in a line, ``how`` in full.

    ``route_mode`` is the mode of a postdate route, "" where the broker does it without postdate. ``asks`` is how the
    producer asks for the delay (``bridge.lab.bench.load.Load.asks``). ``waits`` is false for the way that does not.
    ``alone`` is true where postdate has set up the queues of ``route_mode`` and does not run. ``tidy`` is false where
    what waits stays on the broker when everything is deleted, so nothing long may be put there.
    """

    name: str
    title: str
    short: str
    how: str
    cannot: str
    cancel: str
    colour: str
    route_mode: str = ""
    asks: str = "x-delay"
    rounding: Rounding = Rounding.NONE
    waits: bool = True
    alone: bool = False
    tidy: bool = True

    @property
    def ours(self) -> bool:
        """Whether postdate vouches for it."""
        return bool(self.route_mode)

    @property
    def bridged(self) -> bool:
        """Whether a running postdate has a part in it."""
        return self.ours and not self.alone

    @property
    def by_level(self) -> bool:
        """Whether it has a queue for each level."""
        return self.route_mode == "levels"

    @property
    def keeps_moments(self) -> bool:
        """Whether messages that are due at one moment stay that."""
        return self.rounding is Rounding.NONE


# The colours are those of Okabe and Ito, which people with any colour vision can tell apart.
MODES = (
    Mode(
        "plain",
        "no delay",
        "Not delayed, for scale: the way to the broker and back.",
        "Published to the exchange itself, for scale.",
        "wait",
        "nothing waits",
        "#666666",
        waits=False,
    ),
    Mode(
        "redis",
        "redis",
        "postdate keeps it in Redis until it is due.",
        "postdate parks it in Redis and publishes it when it is due.",
        "go without Redis and a running postdate",
        "any message, by id or key",
        "#0072B2",
        route_mode="redis",
    ),
    Mode(
        "levels",
        "levels",
        "A queue for each of a few fixed delays, filled and emptied by postdate.",
        "Queues of the broker with a fixed time to live; postdate brings each delay to one of them, and from there to "
        "its destination.",
        "keep an exact moment, cancel, reschedule, list",
        "nothing",
        "#E69F00",
        route_mode="levels",
        rounding=Rounding.LEVEL,
    ),
    Mode(
        "alone",
        "levels, alone",
        "The same queues, and no postdate runs.",
        "The same queues, and no postdate runs: the producer names the level in x-delay-level, and the broker does the "
        "rest (levels.last_hop = broker).",
        "take any other delay, take delay headers off, see that nobody takes a message, cancel, reschedule, list",
        "nothing",
        "#56B4E9",
        route_mode="levels",
        asks="x-delay-level",
        rounding=Rounding.LEVEL,
        alone=True,
    ),
    Mode(
        "ladder",
        "ladder",
        "Queues of 1, 2, 4, 8 … seconds, one after the other, with postdate at both ends.",
        "Queues of the broker for powers of two of a second, passed one after the other.",
        "keep a part of a second, cancel, reschedule, list",
        "nothing",
        "#009E73",
        route_mode="ladder",
        rounding=Rounding.SECOND,
    ),
    Mode(
        "plugin",
        "plugin",
        "The delayed-message plugin of RabbitMQ.",
        "An exchange of type x-delayed-message, which keeps what waits in Mnesia on one node.",
        "list, reschedule, survive the loss of its node, run on RabbitMQ 4.3",
        "nothing",
        "#CC79A7",
        tidy=False,
    ),
    Mode(
        "ttl",
        "one TTL queue",
        "What most try first: one queue, an expiration on each message.",
        "Every message has its own expiration in one queue, which dead-letters to the real exchange.",
        "let a short delay pass a longer one before it",
        "nothing",
        "#D55E00",
        asks="expiration",
    ),
)

BY_NAME: Mapping[str, Mode] = {mode.name: mode for mode in MODES}


def as_set(mode: Mode, how: str) -> Mode:
    """The mode as ``levels.rounding`` makes it (``how``: up, nearest or refuse). A producer that names its level by
    itself rounds up in any case."""
    nearest = mode.by_level and mode.bridged and how == "nearest"
    return replace(mode, rounding=Rounding.NEAREST) if nearest else mode


def left_out(
    wanted: Collection[str], no_plugin: str, levels_ms: Sequence[int], longest_ms: int, how: str = "up"
) -> dict[str, str]:
    """The modes that cannot be measured here, by name, each with its reason.

    ``no_plugin`` says why there is no plugin, "" where there is one. ``levels_ms`` is ``headers.levels``, ``how``
    is ``levels.rounding``; the longest delay that will be asked for is ``longest_ms``.
    """
    found = {}
    for mode in MODES:
        if mode.name not in wanted:
            continue
        if mode.by_level and max(levels_ms) < longest_ms:
            found[mode.name] = (
                f"headers.levels ends at {write_duration(max(levels_ms))}, and delays of up to "
                f"{write_duration(longest_ms)} are measured"
            )
        elif mode.by_level and mode.bridged and how == "refuse":
            found[mode.name] = "levels.rounding = refuse makes a dead letter of every delay that is no level"
        elif mode.name == "plugin" and no_plugin:
            found[mode.name] = no_plugin
    return found


def promise(mode: Mode, levels_ms: Sequence[int]) -> Callable[[int], int]:
    """How long a message waits by the mode's own rule, from the delay that it asks for, both in milliseconds.

    Raises ValueError, for a mode with levels, above the last of them.
    """
    if mode.rounding is Rounding.NONE:
        return lambda asked_ms: asked_ms
    if mode.rounding is Rounding.SECOND:
        return lambda asked_ms: 1000 * whole_seconds(asked_ms)
    to_level = rounding(levels_ms, "nearest" if mode.rounding is Rounding.NEAREST else "up")
    return lambda asked_ms: to_level(asked_ms, asked_ms)


def levels_for(levels_ms: Sequence[int], delays_ms: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Those of the levels that the ranges of delays (from, to) can come to, rounded up or to the nearest: nobody needs
    queues for the others."""
    rising = sorted(levels_ms)
    last_below = [max((level for level in rising if level < low), default=rising[0]) for low, _ in delays_ms]
    first_above = [min((level for level in rising if level >= high), default=rising[-1]) for _, high in delays_ms]
    ranges = list(zip(last_below, first_above, strict=True))
    return tuple(level for level in rising if any(low <= level <= high for low, high in ranges))
