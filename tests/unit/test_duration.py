"""Durations and moments as text, held against tables, against datetime, and against arbitrary text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import BadValue
from bridge.delay.duration import (
    quoted,
    read_duration_ms,
    read_integer,
    read_moment_ms,
    read_rfc3339_ms,
    write_age,
    write_duration,
    write_moment,
)


def test_an_age_is_in_whole_seconds_that_have_passed() -> None:
    assert [write_age(ms) for ms in (0, 999.9, 1999, 17_695, 61_500)] == ["0ms", "999ms", "1s", "17s", "1m 1s"]


READERS: list[Callable[[str], int]] = [read_integer, read_duration_ms, read_moment_ms, read_rfc3339_ms]
# Text near the grammar finds more than arbitrary text does.
NEARLY = st.text(alphabet="0123456789 \t\n+-.,:PTWDHMSYZwdhmszt_e٣\x1b\ud800", max_size=70)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("5000", 5000),
        ("+5", 5),
        ("-5", -5),
        (" \t5000 ", 5000),
        ("007", 7),
        ("500ms", 500),
        ("90s", 90_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("36h", 129_600_000),
        ("1.5h", 5_400_000),
        ("0.001s", 1),
        ("1.000ms", 1),
        ("15 m", 900_000),
        ("1h30m", 5_400_000),
        ("1h 30m 2.5s", 5_402_500),
        ("-1h 30m", -5_400_000),
        ("PT15M", 900_000),
        ("pt15m", 900_000),
        ("P1DT2H", 93_600_000),
        ("P2W", 1_209_600_000),
        ("PT0.5S", 500),
        ("PT0,5S", 500),
        ("-PT5S", -5000),
        ("9" * 60, int("9" * 60)),
    ],
)
def test_a_duration_is_read_as_milliseconds(text: str, ms: int) -> None:
    assert read_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "write a number with a unit"),
        (" ", "write a number with a unit"),
        ("5000.0", "write a number with a unit"),
        ("1_000", "write a number with a unit"),
        ("٥", "write a number with a unit"),
        ("²", "write a number with a unit"),
        ("0x10", "write a number with a unit"),
        ("1e3", "write a number with a unit"),
        ("- 5s", "write a number with a unit"),
        ("--5s", "write a number with a unit"),
        ("5s\n", "write a number with a unit"),
        ("5\n", "write a number with a unit"),
        ("15M", "write a number with a unit"),
        ("5x", "write a number with a unit"),
        (".5s", "write a number with a unit"),
        ("1,5s", "write a number with a unit"),
        ("30m 1h", "write a number with a unit"),
        ("1h 1h", "write a number with a unit"),
        ("nan", "write a number with a unit"),
        ("P", "write a number with a unit"),
        ("PT", "write a number with a unit"),
        ("P1DT", "write a number with a unit"),
        ("P1H", "write a number with a unit"),
        ("PT1D", "write a number with a unit"),
        ("P1Y", "no fixed length"),
        ("P1M", "no fixed length"),
        ("P1Y2M3DT4H", "no fixed length"),
        ("1.5ms", "whole number of milliseconds"),
        ("0.0001s", "whole number of milliseconds"),
        ("PT0.0005S", "whole number of milliseconds"),
        ("9" * 65, "longer than 64"),
        ("9" * 100_000, "longer than 64"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("-1", -1),
        (" 1700000000123 ", 1_700_000_000_123),
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00z", 0),
        ("1970-01-01 00:00:00Z", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T19:00:00-05:00", 0),
        ("1970-01-01T00:00:00.1Z", 100),
        ("1970-01-01T00:00:00.123Z", 123),
        ("1970-01-01T00:00:00.123000000Z", 123),
        ("1970-01-01T00:00:00.123000001Z", 124),
        ("1970-01-01T00:00:00.1234Z", 124),
        ("1970-01-01T00:00:59.999999999Z", 60_000),
        ("1969-12-31T23:59:59.9999Z", 0),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139_000),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000),
    ],
)
def test_a_moment_is_read_as_unix_milliseconds(text: str, ms: int) -> None:
    assert read_moment_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2026-01-31T09:30:00", "no offset"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2026-01-31T24:00:00Z", "time of day"),
        ("2026-01-31T09:60:00Z", "time of day"),
        ("2026-01-31T09:30:61Z", "time of day"),
        ("2026-02-29T09:30:00Z", "day in the calendar"),
        ("2026-13-01T09:30:00Z", "day in the calendar"),
        ("0000-01-01T00:00:00Z", "day in the calendar"),
        ("2026-01-31T09:30:00+24:00", "such offset"),
        ("2026-01-31T09:30:00+01:60", "such offset"),
        ("2026-01-31T09:30:00+0100", "not a moment"),
        ("2026-01-31T09:30Z", "not a moment"),
        ("2026-01-31", "not a moment"),
        ("20260131T093000Z", "not a moment"),
        ("2026-01-31T09:30:00.Z", "not a moment"),
        ("2026-01-31T09:30:00.1234567890Z", "not a moment"),
        ("2026-01-31T09:30:00Z\n", "not a moment"),
        ("٢026-01-31T09:30:00Z", "not a moment"),
        ("5s", "not a moment"),
        ("1700000000.5", "not a moment"),
        ("", "not a moment"),
        ("1" * 65, "longer than 64"),
    ],
)
def test_what_is_no_moment_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_moment_ms(text)


def test_a_naive_moment_is_utc_only_where_the_caller_says_so() -> None:
    assert read_rfc3339_ms("1970-01-01T00:00:01", naive_is_utc=True) == 1000
    assert read_rfc3339_ms("1970-01-01T02:00:01+02:00", naive_is_utc=True) == 1000


def test_bare_digits_are_no_rfc_3339() -> None:
    with pytest.raises(ValueError, match="not a moment"):
        read_rfc3339_ms("1700000000000")


@pytest.mark.parametrize("text", ["5000.0", "1_000", "0x10", "1e3", "٥", "5s", "", "+", "5\n", "9" * 65])
def test_an_integer_is_ascii_digits_only(text: str) -> None:
    with pytest.raises(ValueError, match=r"decimal digits|longer than 64"):
        read_integer(text)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (500, "500ms"),
        (2500, "2.5s"),
        (60_000, "1m"),
        (5_400_000, "1h 30m"),
        (90_061_001, "1d 1h 1m 1.001s"),
        (86_400_005, "1d 0.005s"),
        (-1500, "-1.5s"),
        (31_536_000_000, "365d"),
    ],
)
def test_a_duration_is_written_for_people(ms: int, text: str) -> None:
    assert write_duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (1_769_851_800_120, "2026-01-31T09:30:00.120Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, "-62135596800001"),
    ],
)
def test_a_moment_is_written_as_rfc_3339_or_as_a_number_beyond_it(ms: int, text: str) -> None:
    assert write_moment(ms) == text


@given(st.integers(-(10**20), 10**20))
def test_every_duration_comes_back_as_it_was_written(ms: int) -> None:
    assert read_duration_ms(write_duration(ms)) == ms


@given(st.integers(-(10**20), 10**20) | st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_every_moment_comes_back_as_it_was_written(ms: int) -> None:
    assert read_moment_ms(write_moment(ms)) == ms


@given(st.datetimes(timezones=st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m)))))
def test_a_moment_is_what_datetime_says_and_never_earlier(moment: datetime) -> None:
    exact_us = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    read_us = read_moment_ms(moment.isoformat()) * 1000
    assert 0 <= read_us - exact_us < 1000


def number_or_error(read: Callable[[str], int], text: str) -> int | ValueError:
    try:
        return read(text)
    except ValueError as error:
        return error


@pytest.mark.parametrize("read", READERS)
@given(text=st.text() | NEARLY)
def test_any_text_gives_a_number_or_a_short_printable_sentence(read: Callable[[str], int], text: str) -> None:
    found = number_or_error(read, text)
    if isinstance(found, ValueError):
        assert type(found) is BadValue
        assert str(found).isprintable()
        assert len(str(found)) < 250


@given(st.text() | st.binary())
def test_a_quotation_is_printable_and_at_most_60_characters(text: str | bytes) -> None:
    assert quoted(text).isprintable()
    assert len(quoted(text)) <= 60
