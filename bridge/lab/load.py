"""A load on a broker, what came of it, and how a meter counts: shared by the instruments and a broker's lab."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

#: The start of a body: the message's number, with the run's number in its upper half, and the Unix time it is due.
STAMP = Struct(">Qd")
#: A message counts as early below this lateness (ms): clocks are read to a fraction of a millisecond.
EARLY_MS = -1.0
#: Default of ``Load.linger_s``.
LINGER_S = 1.0
_NUMBER = 0xFFFFFFFF


@dataclass(frozen=True)
class Load:
    """``count`` messages of ``size`` bytes for one exchange or topic.

    - ``queue``: the queue or topic where they arrive; "" if no meter runs.
    - ``run``: a 31-bit number that marks the messages of this load.
    - ``rate``: messages per second; 0 for as fast as confirms allow, with at most ``window`` unconfirmed.
    - ``delay_ms``: range of delays in steps of ``delay_step_ms``; (0, 0) for no delay.
    - ``due_at``: Unix time at which all messages are due, instead of delays.
    - ``keys``: number of order keys, used in turn.
    - ``asks``: how the producer requests the delay: the header ``x-delay``, or another one that the broker knows.
    - ``levels_ms``: rising levels, for a producer that requests a level by its number. It rounds up.
    - ``linger_s``: how long the meter watches for duplicates after the last message.
    """

    exchange: str
    key: str
    queue: str
    count: int
    run: int
    rate: float = 0
    delay_ms: tuple[int, int] = (0, 0)
    delay_step_ms: int = 1
    due_at: float = 0
    size: int = 256
    window: int = 2000
    keys: int = 1
    asks: str = "x-delay"
    levels_ms: tuple[int, ...] = ()
    seed: int = 7
    linger_s: float = LINGER_S

    def delays(self) -> Iterator[int]:
        """Endless delays in milliseconds, one per message. The same seed gives the same delays."""
        low, high = self.delay_ms
        drawn = random.Random(self.seed)  # noqa: S311 - the same delays in each run
        while True:
            yield drawn.randrange(low, high + 1, self.delay_step_ms)

    def allowed(self, elapsed_s: float, confirmed: int) -> int:
        """How many messages may be published so long after the beginning."""
        by_rate = int(elapsed_s * self.rate) + 1 if self.rate else self.count
        return min(self.count, by_rate, confirmed + self.window)


class Sent(NamedTuple):
    """What a generator did. Times are Unix seconds; ``refused`` counts negative confirms."""

    messages: int
    began: float
    ended: float
    refused: int


class Got(NamedTuple):
    """What a meter saw. ``first`` and ``last`` are Unix seconds, 0 if nothing arrived.

    ``late_ms``, ``numbers`` (index in publishing order) and ``at`` (Unix seconds) are in order of arrival, without
    duplicates. ``disordered`` counts messages that arrived after a later one of their key. It is counted only if all
    messages are due at one moment.
    """

    messages: int
    duplicates: int
    early: int
    late_ms: array[float]
    first: float
    last: float
    numbers: Sequence[int] = ()
    at: Sequence[float] = ()
    disordered: int = 0


class Tally:
    """Counts the arrivals of one load: lateness, duplicates, early messages and lost order."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._run = load.run
        # Only messages that are due at one moment have an order to keep.
        self._ordered = bool(load.due_at)
        self._last_of_key = [-1] * load.keys
        self._seen = bytearray(load.count)
        self._late_ms, self._at, self._numbers = array("d"), array("d"), array("L")
        self._duplicates = self._early = self._disordered = 0
        #: How many different messages have arrived.
        self.messages = 0

    def note(self, number: int, due: float, now: float) -> None:
        """Count a message with this stamp that arrived at ``now``. Messages of other runs are ignored."""
        if number >> 32 != self._run:
            return
        index = number & _NUMBER
        if self._seen[index]:
            self._duplicates += 1
            return
        self._seen[index] = 1
        self.messages += 1
        late_ms = (now - due) * 1000
        self._late_ms.append(late_ms)
        self._numbers.append(index)
        self._at.append(now)
        if late_ms < EARLY_MS:
            self._early += 1
        if self._ordered:
            key = index % self._load.keys
            if index < self._last_of_key[key]:
                self._disordered += 1
            else:
                self._last_of_key[key] = index

    def complete(self) -> bool:
        """Whether all have arrived and the time to watch for duplicates has passed."""
        return self.messages >= self._load.count and time.time() > self._at[-1] + self._load.linger_s

    def got(self) -> Got:
        first, last = (self._at[0], self._at[-1]) if self._at else (0.0, 0.0)
        seen = self.messages, self._duplicates, self._early
        return Got(*seen, self._late_ms, first, last, self._numbers, self._at, self._disordered)
