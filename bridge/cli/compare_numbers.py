"""The numbers and modes of ``compare`` from its options."""

from __future__ import annotations

from dataclasses import replace

from bridge.cli.numbers import numbers, seconds
from bridge.core.errors import SettingsError
from bridge.lab.compare.modes import MODES
from bridge.lab.compare.plan import Plan
from bridge.lab.compare.plan import quick as quick_plan


def comparison_plan(quick: bool, rates: str | None, duration: str | None, count: int | None, seed: int | None) -> Plan:
    """What the options ask for. Raises ``SettingsError``."""
    plan = quick_plan(Plan()) if quick else Plan()
    given = {
        "rates": tuple(sorted(set(numbers("--rates", rates)))) if rates is not None else None,
        "duration_s": seconds(duration) if duration is not None else None,
        "count": count,
        "seed": seed,
    }
    return replace(plan, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def chosen(text: str | None) -> list[str]:
    """The names of the modes that are wanted, in the order of the table. Raises ``SettingsError``."""
    known = [mode.name for mode in MODES]
    if text is None:
        return known
    wanted = {part.strip() for part in text.split(",")} - {""}
    if not wanted:
        raise SettingsError(f"--modes: none is named; write some of {', '.join(known)}, with commas")
    if strange := sorted(wanted - set(known)):
        raise SettingsError(f"--modes: {strange[0]!r} is none of {', '.join(known)}")
    return [name for name in known if name in wanted]
