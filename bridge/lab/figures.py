"""Statistics of loads for bench and compare: percentiles, order, rounding, gaps, medians of runs. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from statistics import median

from bridge.lab.load import Got, Load, Sent

#: Figures by name. The name ends with the unit. None: not available on this machine.
Figures = dict[str, float | int | bool | None]

#: The percentiles of a bench.
SHARES: dict[str, float] = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
#: The percentiles of a comparison.
MORE_SHARES: dict[str, float] = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "p999_ms": 0.999}
#: Messages that are not as they must be.
FAULTS = ("lost", "duplicates", "early", "refused", "disordered")
#: Lateness grows if its median in the last third exceeds this factor times that of the first third, plus this many
#: milliseconds. Less is noise.
_GROWTH, _GROWTH_MS = 1.5, 5.0
#: A curve has a point at these shares: every hundredth, and ever finer steps towards the end.
_CURVE = (*(step / 100 for step in range(100)), *(1 - 0.01 * 0.8**step for step in range(1, 32)))
#: Short and long delays are compared only with at least this many messages of each.
_LEAST = 8


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that ``share`` (0 to 1) of the ordered values lie below; None if there are none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def quantiles(late_ms: Iterable[float], shares: dict[str, float] = MORE_SHARES) -> Figures:
    """Percentiles and maximum in milliseconds; each None if nothing arrived."""
    ordered = sorted(late_ms)
    found = {name: percentile(ordered, share) for name, share in (shares | {"max_ms": 1}).items()}
    return {name: None if value is None else round(value, 2) for name, value in found.items()}


def is_growing(in_order: Sequence[float]) -> bool:
    """Whether the lateness, in order of arrival, is higher at the end than at the beginning."""
    third = len(in_order) // 3
    if not third:
        return False
    return median(in_order[-third:]) > median(in_order[:third]) * _GROWTH + _GROWTH_MS


def of_load(
    load: Load, sent: Sent, got: Got, late_ms: Sequence[float] | None = None, shares: dict[str, float] = SHARES
) -> Figures:
    """All figures of one load. ``late_ms`` replaces the lateness that the meter saw."""
    took_s, out_s = sent.ended - sent.began, got.last - got.first
    late = got.late_ms if late_ms is None else late_ms
    order: Figures = {"disordered": got.disordered} if load.due_at else {}
    return {
        "messages": load.count,
        "publish_per_s": round(load.count / took_s) if took_s > 0 else None,
        "deliver_per_s": round(got.messages / out_s) if out_s > 0 else None,
        "lost": load.count - got.messages,
        "duplicates": got.duplicates,
        "early": got.early,
        "refused": sent.refused,
        **order,
        **quantiles(late, shares),
        "growing": is_growing(late),
    }


def faults(figures: Figures) -> dict[str, int]:
    """The faults in these figures that are not 0."""
    return {name: int(figures[name] or 0) for name in FAULTS if figures.get(name)}


def faults_sentence(name: str, found: Mapping[str, int]) -> str:
    """Pure: the faults of a row or a mode, such as "rate 500: lost 2, early 1"."""
    return f"{name}: " + ", ".join(f"{fault} {count}" for fault, count in found.items())


def middle(runs: Sequence[Mapping[str, float | int | bool | None]]) -> Figures:
    """The median of each figure over several runs. Faults are summed; growth in one run is growth."""
    found: Figures = {}
    for name in runs[0] if runs else ():
        values = [value for run in runs if (value := run[name]) is not None]
        if not values:
            found[name] = None
        elif name in FAULTS:
            found[name] = sum(values)
        elif isinstance(values[0], bool):
            found[name] = any(values)
        else:
            found[name] = median(values)
    return found


def curve(late_ms: Sequence[float]) -> list[tuple[float, float]]:
    """The distribution as pairs of a share (0 to 1) and the lateness (ms) below which that share lies.

    The last pair is the maximum. A share that fewer than one message would decide is left out.
    """
    ordered = sorted(late_ms)
    if not ordered:
        return []
    kept = [share for share in _CURVE if (1 - share) * len(ordered) >= 1]
    return [(round(share, 6), round(ordered[int(share * len(ordered))], 3)) for share in kept] + [
        (1.0, round(ordered[-1], 3))
    ]


def out_of_order(numbers: Sequence[int]) -> int:
    """How many messages arrived after one that was published later. ``numbers`` is in order of arrival."""
    return sum(number < highest for number, highest in zip(numbers, accumulate(numbers, max), strict=True))


def short_behind_long_ms(asked_ms: Sequence[int], late_ms: Sequence[float]) -> float | None:
    """Median lateness of the quarter with the shortest delays minus that of the quarter with the longest.

    It is about 0 if a short delay can pass a longer one. In a single queue it is about the difference of the delays.
    None if all delays are equal or there are too few messages.
    """
    by_delay = sorted(zip(asked_ms, late_ms, strict=True))
    quarter = len(by_delay) // 4
    if quarter < _LEAST or by_delay[0][0] == by_delay[-1][0]:
        return None
    shortest, longest = by_delay[:quarter], by_delay[-quarter:]
    return round(median(late for _, late in shortest) - median(late for _, late in longest), 2)


def rounding(asked_ms: Sequence[int], promised_ms: Sequence[int]) -> Figures:
    """By how much a mode's own rule lengthens the requested delays, in milliseconds."""
    longer = sorted(promised - asked for asked, promised in zip(asked_ms, promised_ms, strict=True))
    return {"rounding_p50_ms": percentile(longer, 0.5), "rounding_max_ms": longer[-1] if longer else None}


def moved_ms(promised: Callable[[int], int], from_s: float, to_s: float) -> int:
    """How far (ms) a mode's own rule moves the common due moment, for the message that it moves furthest.

    ``from_s`` and ``to_s`` (below 0) are the seconds from that moment when publishing began and ended. A mode that
    publishes at another speed requests other delays, so only what exceeds the rounding can be compared.
    """
    asked_ms = range(max(1, round(-to_s * 1000)), round(-from_s * 1000) + 1)
    return max((promised(asked) - asked for asked in asked_ms), default=0)


def standstill_ms(at: Sequence[float]) -> float | None:
    """The longest time between two arrivals (rising Unix seconds), in milliseconds."""
    gaps = [after - before for before, after in pairwise(at)]
    return round(max(gaps) * 1000, 1) if gaps else None


def in_bins(at: Sequence[float], moment: float, bin_s: float) -> list[tuple[float, int]]:
    """Arrivals per bin: (start in seconds from ``moment``, count). Empty bins between others have count 0."""
    counts = Counter(int((moment_s - moment) // bin_s) for moment_s in at)
    places = range(min(counts), max(counts) + 1) if counts else ()
    return [(round(place * bin_s, 4), counts[place]) for place in places]


def thinned(pairs: Sequence[tuple[float, float]], most: int) -> list[tuple[float, float]]:
    """At most ``most`` of the pairs, evenly spaced."""
    step = -(-len(pairs) // most)
    return list(pairs[:: max(step, 1)])


def number(value: float | None, whole_from: int = 100) -> str:
    """A figure for people, with one decimal below ``whole_from``; "" for None."""
    if value is None:
        return ""
    shown = round(value, 1) or 0  # avoids -0
    return f"{shown:,.0f}" if abs(shown) >= whole_from or shown == int(shown) else f"{shown:,.1f}"
