"""A load on a broker and what came of it: the words between the bench and a broker's generator and meter."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

#: A body begins with the number of its message, which holds the run's in its upper half, and the Unix time it is due.
STAMP = Struct(">Qd")
#: A message is early when it comes so long before it is due: clocks are read to a fraction of a millisecond.
EARLY_MS = -1.0
#: How long copies are watched for when every message has come, unless a load says otherwise.
LINGER_S = 1.0


@dataclass(frozen=True)
class Load:
    """``count`` messages of ``size`` bytes to an exchange or a topic, and the queue or the topic in which
    they must arrive ("": nobody looks).

    ``rate`` a second, 0 for as fast as the confirms allow with ``window`` of them outstanding. Due after ``delay_ms``
    (from, to; (0, 0) for no delay at all) in steps of ``delay_step_ms``, or all at the Unix time ``due_at``.
    They have ``keys`` order keys, in turn. ``run`` is a 31-bit number that tells this run's messages from any others.
    ``asks`` is how the producer asks for the delay: the header ``x-delay``, or what else the load's broker knows; where
    it is by the number of a level, ``levels_ms`` are the levels, rising, and the next longer one is asked for. When all
    have come, copies are watched for during ``linger_s``.
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
        """The delay of one message after the other in milliseconds, without end: the same ones for the same seed."""
        low, high = self.delay_ms
        drawn = random.Random(self.seed)  # noqa: S311 - the same delays in each run
        while True:
            yield drawn.randrange(low, high + 1, self.delay_step_ms)


class Sent(NamedTuple):
    """What a generator did. Unix seconds; ``refused`` are negative confirms."""

    messages: int
    began: float
    ended: float
    refused: int


class Got(NamedTuple):
    """What a meter saw. ``first`` and ``last`` are Unix seconds, 0 for none.

    ``late_ms``, ``numbers`` (places in the order of publishing, from 0) and ``at`` (Unix seconds) are in the order of
    arrival, the copies left out. ``disordered`` came after a later one of their key, where all are due at one moment;
    else it is 0.
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


#: Carries out a load, telling ``progress(confirmed, received)`` of it; what came of it. Blocking.
Carry = Callable[[Load, Callable[[int, int], None]], tuple[Sent, Got | None]]
