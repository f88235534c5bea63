"""The numbers of ``bench`` from its options."""

from __future__ import annotations

from dataclasses import replace

from bridge.core.errors import SettingsError
from bridge.delay.duration import quoted, read_duration_ms
from bridge.lab.bench.plan import KINDS, Plan

#: More a second, or at once, than any one broker takes.
_MOST = 10_000_000


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
        "only": _kinds(only) if only is not None else None,
        "shares": numbers("--shares", shares) if shares is not None else None,
        "rates": numbers("--rates", rates) if rates is not None else None,
        "duration_s": seconds(duration) if duration is not None else None,
        "bursts": _whole("--burst", bursts) if bursts is not None else None,
        "backlog": backlog,
    }
    return replace(base, runs=runs, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in text.split(","))
    if strange := [kind for kind in kinds if kind not in KINDS]:
        raise SettingsError(f"--only: {quoted(strange[0])} is none of {', '.join(KINDS)}")
    return kinds


def numbers(option: str, text: str) -> tuple[float, ...]:
    """A list with commas. Raises ``SettingsError``, whose text says which of them is wrong, and why."""
    return tuple(_number(option, part.strip()) for part in text.split(","))


def _number(option: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise SettingsError(f"{option}: {quoted(text)} is no number; write numbers above 0, with commas") from None
    if not number > 0:
        raise SettingsError(f"{option}: {quoted(text)} is not above 0")
    if number > _MOST:
        raise SettingsError(f"{option}: {quoted(text)} is too many, {_MOST:,} is the most")
    return number


def _whole(option: str, text: str) -> tuple[int, ...]:
    found = numbers(option, text)
    if broken := [number for number in found if number != int(number)]:
        raise SettingsError(f"{option}: {broken[0]:g} is not a whole number")
    return tuple(map(int, found))


def seconds(text: str) -> float:
    """How long, for ``--duration``. Raises ``SettingsError``."""
    try:
        duration_ms = read_duration_ms(text)
    except ValueError as error:
        raise SettingsError(f"--duration: {error}") from None
    if duration_ms < 1000:
        hint = f": without a unit it is milliseconds, write {text.strip()}s" if text.strip().isdecimal() else ""
        raise SettingsError(f"--duration: {quoted(text)} is less than 1s{hint}")
    return duration_ms / 1000
