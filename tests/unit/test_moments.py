"""Moments as people write them for options and the API."""

from __future__ import annotations

import pytest

from bridge.core.errors import SettingsError
from bridge.operate.moments import read_border_ms

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("text", ["9" * 21, "-" + "9" * 21, "253402300800000", "99999999999w", "-99999999999w"])
def test_a_border_outside_the_years_1_to_9999_is_refused(back: bool, text: str) -> None:
    with pytest.raises(SettingsError, match=r"--parked-before: .* is outside the years 1 to 9999\.$"):
        read_border_ms("--parked-before", text, NOW_MS, back)


def test_a_duration_counts_from_now_or_back_from_now() -> None:
    assert read_border_ms("--due-before", "1h", NOW_MS) == NOW_MS + HOUR_MS
    assert read_border_ms("--since", "1h", NOW_MS, back=True) == NOW_MS - HOUR_MS
    for back in (False, True):
        borders_ms = [read_border_ms("--since", text, 0, back) for text in (str(NOW_MS), "2027-01-15T08:00:00Z")]
        assert borders_ms == [NOW_MS, NOW_MS]


@pytest.mark.parametrize("back", [False, True])
def test_what_is_neither_a_time_nor_a_duration_is_refused_with_all_that_is_read(back: bool) -> None:
    with pytest.raises(SettingsError) as raised:
        read_border_ms("--due-before", "soon", 0, back)
    assert str(raised.value) == (
        "--due-before: 'soon' is not a moment: write RFC 3339 like 2026-01-31T09:30:00Z, or Unix ms. "
        "Or give a duration such as 5m."
    )
