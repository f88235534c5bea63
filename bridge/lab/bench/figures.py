"""From what a meter saw to the figures of a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from bridge.lab.bench.load import Got, Load, Sent

#: Figures by name; the unit stands last in it. None: cannot be known here.
Figures = dict[str, float | int | bool | None]

_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
#: The lateness counts as growing when its median in the last third is above so much times that in the first, plus so
#: many milliseconds: less is noise.
_GROWTH, _GROWTH_MS = 1.5, 5.0
#: Messages that are not as they must be.
FAULTS = ("lost", "duplicates", "early", "refused", "disordered")


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value that ``share`` (0 to 1) of the ordered ones lie below; None for none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


def is_growing(in_order: Sequence[float]) -> bool:
    """Whether the lateness, in the order of arrival, is higher at the end than at the beginning."""
    third = len(in_order) // 3
    if not third:
        return False
    return median(in_order[-third:]) > median(in_order[:third]) * _GROWTH + _GROWTH_MS


def lateness(in_order: Sequence[float]) -> Figures:
    """Percentiles and the maximum in milliseconds, and whether they grow."""
    ordered = sorted(in_order)
    found: Figures = {name: _rounded(percentile(ordered, share)) for name, share in _SHARES.items()}
    return {**found, "max_ms": _rounded(ordered[-1] if ordered else None), "growing": is_growing(in_order)}


def of_load(load: Load, sent: Sent, got: Got) -> Figures:
    """Everything about one load that was metered."""
    took_s, out_s = sent.ended - sent.began, got.last - got.first
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
        **lateness(got.late_ms),
    }


def middle(runs: Sequence[Mapping[str, float | int | bool | None]]) -> Figures:
    """The median of each figure over several runs; faults are added up, and one run that grows is growth."""
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
