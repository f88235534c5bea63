"""From what came to what is told of it: quantiles, order, a short delay behind a long one, rounding. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from bridge.lab.bench.figures import Figures, percentile

_SHARES = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
#: The curve of a distribution is told at these shares: every hundredth, and ever finer towards the end.
_CURVE = (*(step / 100 for step in range(100)), *(1 - 0.01 * 0.8**step for step in range(1, 32)))
#: With fewer messages than this on both sides, nothing is said about short and long delays.
_LEAST = 8


def lateness(late_ms: Sequence[float]) -> Figures:
    """Quantiles and the maximum, in milliseconds; None for each where nothing came."""
    ordered = sorted(late_ms)
    found: Figures = {name: _rounded(percentile(ordered, share)) for name, share in _SHARES.items()}
    return {**found, "max_ms": _rounded(ordered[-1] if ordered else None)}


def curve(late_ms: Sequence[float]) -> list[tuple[float, float]]:
    """The distribution as pairs of a share (0 to 1) and the lateness in milliseconds that it lies below; the last pair
    is the maximum. No share is told that fewer than one message would decide."""
    ordered = sorted(late_ms)
    if not ordered:
        return []
    told = [share for share in _CURVE if (1 - share) * len(ordered) >= 1]
    return [(round(share, 6), round(ordered[int(share * len(ordered))], 3)) for share in told] + [
        (1.0, round(ordered[-1], 3))
    ]


def out_of_order(numbers: Sequence[int]) -> int:
    """How many messages came after one that was published later; ``numbers`` in the order of arrival."""
    highest, found = -1, 0
    for number in numbers:
        if number < highest:
            found += 1
        else:
            highest = number
    return found


def short_behind_long_ms(asked_ms: Sequence[int], late_ms: Sequence[float]) -> float | None:
    """How much later the messages with the shortest quarter of delays are than those with the longest, in the median.

    Where a message can pass a longer delay before it, this is about 0; in one queue it is about the difference of the
    delays. None where the delays are all alike or the messages too few.
    """
    by_delay = sorted(zip(asked_ms, late_ms, strict=True))
    quarter = len(by_delay) // 4
    if quarter < _LEAST or by_delay[0][0] == by_delay[-1][0]:
        return None
    shortest, longest = by_delay[:quarter], by_delay[-quarter:]
    return round(median(late for _, late in shortest) - median(late for _, late in longest), 2)


def rounding(asked_ms: Sequence[int], promised_ms: Sequence[int]) -> Figures:
    """By how much a mode's own rule lengthens the delays that were asked for, in milliseconds."""
    longer = sorted(promised - asked for asked, promised in zip(asked_ms, promised_ms, strict=True))
    return {"rounding_p50_ms": percentile(longer, 0.5), "rounding_max_ms": longer[-1] if longer else None}


def moved_ms(promised: Callable[[int], int], from_s: float, to_s: float) -> int:
    """How far a mode's own rule moves the one moment at which all are due, for the message that it moves furthest, in
    milliseconds.

    ``from_s`` and ``to_s``, below 0, are when they were published, in seconds from that moment: two modes that publish
    at another speed ask for other delays, so that what came after the rounding alone can be compared.
    """
    asked_ms = range(max(1, round(-to_s * 1000)), round(-from_s * 1000) + 1)
    return max((promised(asked) - asked for asked in asked_ms), default=0)


def standstill_ms(at: Sequence[float]) -> float | None:
    """The longest time between two arrivals (Unix seconds, rising), in milliseconds."""
    gaps = [after - before for before, after in pairwise(at)]
    return round(max(gaps) * 1000, 1) if gaps else None


def in_bins(at: Sequence[float], moment: float, bin_s: float) -> list[tuple[float, int]]:
    """How many came in each bin: (its beginning in seconds from ``moment``, count), gaps told as 0."""
    if not at:
        return []
    places = [int((one - moment) // bin_s) for one in at]
    counts = dict.fromkeys(range(min(places), max(places) + 1), 0)
    for place in places:
        counts[place] += 1
    return [(round(place * bin_s, 4), count) for place, count in counts.items()]


def thinned(pairs: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most so many of the pairs, evenly taken."""
    step = -(-len(pairs) // most)
    return list(pairs[:: max(step, 1)])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
