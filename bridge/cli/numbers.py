"""The numbers of ``bench`` from its options."""

from __future__ import annotations

from dataclasses import replace

from bridge.bench.plan import KINDS, Plan
from bridge.duration import read_duration_ms
from bridge.errors import SettingsError


def a_plan(
    base: Plan,
    only: str | None,
    shares: str | None,
    rates: str | None,
    duration: str | None,
    bursts: str | None,
    backlog: int | None,
    runs: int,
) -> Plan:
    """What the options ask for; ``base`` is what they leave. Raises ``SettingsError``."""
    given = {
        "only": _kinds(only) if only else None,
        "shares": numbers("--shares", shares) if shares else None,
        "rates": numbers("--rates", rates) if rates else None,
        "duration_s": seconds(duration) if duration else None,
        "bursts": tuple(map(int, numbers("--burst", bursts))) if bursts else None,
        "backlog": backlog,
    }
    return replace(base, runs=runs, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in text.split(","))
    if strange := [kind for kind in kinds if kind not in KINDS]:
        raise SettingsError(f"--only: {strange[0]} is none of {', '.join(KINDS)}")
    return kinds


def numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(0 < number < 10**7 for number in numbers):
        raise SettingsError(f"{option}: {text} is not a list of numbers above 0, with commas")
    return numbers


def seconds(text: str) -> float:
    try:
        duration_ms = read_duration_ms(text)
    except ValueError as error:
        raise SettingsError(f"--duration: {error}") from None
    if duration_ms < 1000:
        raise SettingsError("--duration: at least 1s")
    return duration_ms / 1000
