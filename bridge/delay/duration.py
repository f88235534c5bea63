"""Read and write durations and moments as text, in whole milliseconds. Pure.

Headers and settings share these functions, so that "36h" means the same in both. All arithmetic is on integers: a float
would turn 0.1 s into a number that is not a whole number of milliseconds.

All readers take at most ``TEXT_MAX`` characters, which bounds their cost. They ignore spaces and tabs around the text,
but not line breaks. Digits are ASCII: ``int()`` also takes "1_000" and "٥", which no other reader of the same header
would understand. Every refusal is a ``BadValue``, which is a ValueError, of one printable sentence.
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta

from bridge.core.errors import BadValue

#: The longest text that is read, in characters. RFC 3339 with nanoseconds has 35.
TEXT_MAX = 64

_BLANKS = " \t"
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"([+-]?)([0-9]+)\.([0-9]+)")
_PART = re.compile(r"([0-9]+)(?:\.([0-9]+))?[ \t]*([A-Za-z]+)[ \t]*")

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
# A text must use units in this order. Lower case only: many readers take "15M" for months.
_UNITS = {"w": 7 * _DAY, "d": _DAY, "h": _HOUR, "m": _MINUTE, "s": _SECOND, "ms": 1}
_ISO_DATE = {"W": 7 * _DAY, "D": _DAY}
_ISO_TIME = {"H": _HOUR, "M": _MINUTE, "S": _SECOND}
_HINT = "write a number with a unit, such as 90s, 1h 30m, 90000ms or PT15M"

_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = _EPOCH.toordinal()
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999  # 0001-01-01 to 9999-12-31, the range of datetime


def quoted(text: str | bytes) -> str:
    """Return ``text`` for an error sentence: quoted, at most 60 characters, without control characters."""
    shown = repr(text[:TEXT_MAX]).removeprefix("b")  # only Python writes bytes with a b in front
    return shown if len(shown) <= 60 else f"{shown[:56]}...{shown[0]}"


def read_integer(text: str) -> int:
    """Read ASCII decimal digits with an optional sign. Raises ValueError for all else, "5000.0" and "1e3" included."""
    bare = _bare(text)
    if _INTEGER.fullmatch(bare) is None:
        raise BadValue("{value} is not a whole number in decimal digits", value=quoted(text))
    return int(bare)


def read_decimal(text: str) -> int | None:
    """Read ASCII decimal digits with a point, rounded up to a whole number; None for anything else."""
    match = _DECIMAL.fullmatch(_bare(text))
    if match is None:
        return None
    whole, is_whole = int(match[2]), not match[3].strip("0")
    return -whole if match[1] == "-" else whole + (not is_whole)


def read_duration_ms(text: str) -> int:
    """Read a duration as milliseconds. A leading minus makes it negative.

    Three forms. Bare digits are milliseconds. Numbers with w, d, h, m, s, ms from large to small: "90s", "1.5h",
    "1h 30m". ISO 8601 with weeks, days, hours, minutes, seconds in either case: "PT15M", "P1DT2H", "P2W" (ISO
    8601-1:2019 5.5.2, decimal comma too). A fraction needs a unit and must make whole milliseconds.
    Raises ValueError with the reason, also for years and months, because their length is not fixed.
    """
    bare = _bare(text)
    if _INTEGER.fullmatch(bare):
        return int(bare)
    sign = -1 if bare.startswith("-") else 1
    unsigned = bare[1:] if bare.startswith(("-", "+")) else bare
    try:
        return sign * (_iso(unsigned[1:].upper()) if unsigned[:1] in ("P", "p") else _sum(unsigned, _UNITS))
    except ValueError as error:
        raise BadValue(f"{{value}} is not a duration: {error}", value=quoted(text)) from None


def read_moment_ms(text: str) -> int:
    """Read a moment as Unix milliseconds, from RFC 3339 text or from digits. Raises ValueError with the reason."""
    bare = _bare(text)
    return int(bare) if _INTEGER.fullmatch(bare) else read_rfc3339_ms(bare)


def read_rfc3339_ms(text: str, *, naive_is_utc: bool = False) -> int:
    """Read RFC 3339 text (section 5.6: T and Z in either case, a blank for the T) as Unix milliseconds.

    A fraction finer than a millisecond is rounded up, so that nothing is early. The offset is required, unless
    ``naive_is_utc``: a guess at the producer's time zone could be hours early. Second 60 is refused, because Unix time
    has no number for a leap second (POSIX, Seconds Since the Epoch).
    Raises ValueError with the reason.
    """
    match = _RFC3339.fullmatch(_bare(text))
    if match is None:
        raise BadValue(
            "{value} is not a moment: write RFC 3339 like 2026-01-31T09:30:00Z, or Unix ms", value=quoted(text)
        )
    *fields, fraction, offset = match.groups()
    if offset is None and not naive_is_utc:
        raise BadValue("{value} has no offset from UTC: add Z or one like +02:00", value=quoted(text))
    year, month, day, hour, minute, second = map(int, fields)
    if second == 60:
        raise BadValue(
            "{value} is a leap second, which Unix time cannot name: write second 59 or the next 00", value=quoted(text)
        )
    if hour > 23 or minute > 59 or second > 59:
        raise BadValue("{value} has no such time of day", value=quoted(text))
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        raise BadValue("{value} has no such day in the calendar", value=quoted(text)) from None
    minutes = days * 1440 + hour * 60 + minute - _offset_minutes(text, offset)
    return minutes * _MINUTE + second * _SECOND + _round_up_ms(fraction)


def write_duration(ms: int) -> str:
    """Write ``ms`` as "500ms", "2.5s", "1h 30m", "-1d". ``read_duration_ms`` reads it back exactly."""
    if ms < 0:
        return "-" + write_duration(-ms)
    if ms < _SECOND:
        return f"{ms}ms"
    parts = []
    rest = ms
    for unit, size in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    if rest:
        seconds, thousandths = divmod(rest, _SECOND)
        parts.append(f"{seconds}.{thousandths:03d}".rstrip("0").rstrip(".") + "s" if thousandths else f"{seconds}s")
    return " ".join(parts)


def write_age(ms: float) -> str:
    """Return an age or a wait as ``write_duration`` does, from a second on in whole seconds that have passed."""
    return write_duration(int(ms) if ms < _SECOND else int(ms) // _SECOND * _SECOND)


def write_moment(ms: int) -> str:
    """Write Unix milliseconds as RFC 3339 in UTC, "2026-01-31T09:30:00.000Z".

    Outside the years 1 to 9999, which RFC 3339 cannot name, it is the number. ``read_moment_ms`` reads both back.
    """
    if not FIRST_MS <= ms <= LAST_MS:
        return str(ms)
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds") + "Z"


def _bare(text: str) -> str:
    """Strip the blanks, after the length has been bounded."""
    if len(text) > TEXT_MAX:
        raise BadValue("{value} is longer than {most} characters", value=quoted(text), most=TEXT_MAX)
    return text.strip(_BLANKS)


def _iso(text: str) -> int:
    """Read what follows the P, in upper case."""
    days, t, times = text.replace(",", ".").partition("T")
    if "Y" in days or "M" in days:
        raise ValueError("years and months have no fixed length, write days")
    total = _sum(days, _ISO_DATE) if days or not t else 0
    return total + _sum(times, _ISO_TIME) if t else total


def _sum(text: str, units: dict[str, int]) -> int:
    """Add up "1h 30m" by ``units``, which run from large to small."""
    order = list(units)
    total = at = 0
    while at < len(text) or not at:
        part = _PART.match(text, at)
        if part is None or part[3] not in order:
            raise ValueError(_HINT)
        order = order[order.index(part[3]) + 1 :]
        total += _scaled(part[1], part[2] or "", units[part[3]])
        at = part.end()
    return total


def _scaled(whole: str, fraction: str, unit: int) -> int:
    ms, rest = divmod(int(whole + fraction) * unit, int("1" + "0" * len(fraction)))
    if rest:
        raise ValueError("it does not come to a whole number of milliseconds")
    return ms


def _offset_minutes(text: str, offset: str | None) -> int:
    if offset is None or offset in "Zz":
        return 0
    hours, minutes = int(offset[1:3]), int(offset[4:6])
    if hours > 23 or minutes > 59:
        raise BadValue("{value} has no such offset from UTC", value=quoted(text))
    return (hours * 60 + minutes) * (-1 if offset[0] == "-" else 1)


def _round_up_ms(fraction: str | None) -> int:
    return -(-int(fraction.ljust(9, "0")) // 1_000_000) if fraction else 0
