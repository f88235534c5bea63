"""The ways to wait that are compared: one table, in the order in which they are shown. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Rounding(Enum):
    """What a way makes of the delay that was asked for."""

    NONE = "none"
    LEVEL = "up to the next level"
    SECOND = "up to the whole second"


@dataclass(frozen=True)
class Mode:
    """One way to wait, in the words of a report.

    ``route_mode`` is the mode of a postdate route, "" where the broker does it without postdate. ``asks`` is how the
    producer asks for the delay (``bridge.bench.load.Load.asks``). ``waits`` is false for the way that does not.
    ``tidy`` is false where what waits stays on the broker when everything is deleted, so nothing long may be put there.
    """

    name: str
    title: str
    how: str
    cannot: str
    cancel: str
    colour: str
    route_mode: str = ""
    asks: str = "x-delay"
    rounding: Rounding = Rounding.NONE
    waits: bool = True
    tidy: bool = True

    @property
    def ours(self) -> bool:
        """Whether postdate vouches for it."""
        return bool(self.route_mode)


# The colours are those of Okabe and Ito, which people with any colour vision can tell apart.
MODES = (
    Mode(
        "plain",
        "no delay",
        "Published to the exchange itself, for scale.",
        "wait",
        "nothing waits",
        "#666666",
        waits=False,
    ),
    Mode(
        "redis",
        "redis",
        "postdate parks it in Redis and publishes it when it is due.",
        "go without Redis and a running postdate",
        "any message, by id or key",
        "#0072B2",
        route_mode="redis",
    ),
    Mode(
        "levels",
        "levels",
        "Queues of the broker with a fixed time to live; each delay is rounded up to the next one.",
        "keep an exact moment, cancel, reschedule, list",
        "nothing",
        "#E69F00",
        route_mode="levels",
        rounding=Rounding.LEVEL,
    ),
    Mode(
        "ladder",
        "ladder",
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
        "An exchange of type x-delayed-message, which keeps what waits in Mnesia on one node.",
        "list, reschedule, survive the loss of its node, run on RabbitMQ 4.3",
        "nothing",
        "#CC79A7",
        tidy=False,
    ),
    Mode(
        "ttl",
        "one TTL queue",
        "Every message has its own expiration in one queue, which dead-letters to the real exchange.",
        "let a short delay pass a longer one before it",
        "nothing",
        "#D55E00",
        asks="expiration",
    ),
)

BY_NAME: Mapping[str, Mode] = {mode.name: mode for mode in MODES}


def left_out(wanted: Collection[str], built: Collection[str], no_plugin: str) -> dict[str, str]:
    """The modes that cannot be measured here, by name, each with its reason.

    ``built`` are the route modes of this version; ``no_plugin`` says why there is no plugin, "" where there is one.
    """
    found = {}
    for mode in MODES:
        if mode.name not in wanted:
            continue
        if mode.route_mode and mode.route_mode not in built:
            found[mode.name] = "this version of postdate does not have it"
        elif mode.name == "plugin" and no_plugin:
            found[mode.name] = no_plugin
    return found


def promised_ms(mode: Mode, asked_ms: int, levels_ms: Sequence[int]) -> int:
    """How long a message waits by the mode's own rule; ``levels_ms`` rise. Above the last level nothing is promised,
    and the asked delay is returned."""
    if mode.rounding is Rounding.SECOND:
        return -(-asked_ms // 1000) * 1000
    if mode.rounding is Rounding.LEVEL:
        place = bisect_left(levels_ms, asked_ms)
        return levels_ms[place] if place < len(levels_ms) else asked_ms
    return asked_ms
