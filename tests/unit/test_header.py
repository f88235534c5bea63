"""The delay headers: every value gives a moment or a reason, and no moment is earlier than what was asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.errors import HeaderError
from bridge.core.message import HeaderValue, Timestamp, Unreadable
from bridge.delay.header import DUE_HEADERS, KNOWN_DIALECTS, LEVELS_MS, OWN_HEADERS, Due, HeaderRules, read_due, wanted
from bridge.pipeline.derive import route_rules
from bridge.settings import Settings

NOW = 1_700_000_000_000  # 2023-11-14T22:13:20Z
YEAR = 365 * 86_400_000
OWN = HeaderRules()
ALL = HeaderRules(dialects=KNOWN_DIALECTS)
BEYOND_STR = 10**5000  # str() of it raises, in pytest's own names of tests too
BEYOND = pytest.param(BEYOND_STR, id="5001 digits")

TEXTS = st.text(max_size=80) | st.text(alphabet="0123456789 +-.:PTWDHMSZwdhms_e\x1b\ud800", max_size=70)
VALUES: st.SearchStrategy[HeaderValue] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 20),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, BEYOND_STR, -BEYOND_STR]),
    st.floats(),
    TEXTS,
    TEXTS.map(lambda text: text.encode(errors="surrogatepass")),
    st.binary(max_size=300),
    st.integers().map(Timestamp),
    st.just(Timestamp(BEYOND_STR)),
    st.text(max_size=500).map(Unreadable),
)
NAMES = sorted(wanted(ALL))
TIMES = st.integers(0, 2 * NOW)


def due(name: str, value: HeaderValue, rules: HeaderRules = ALL) -> int | None:
    return read_due({name: value}, NOW, None, rules).due_ms


def due_or_reason(
    headers: dict[str, HeaderValue], arrived_ms: int, published_ms: int | None, rules: HeaderRules
) -> Due | str:
    try:
        return read_due(headers, arrived_ms, published_ms, rules)
    except HeaderError as error:
        return str(error)


def reason(headers: dict[str, HeaderValue], rules: HeaderRules = ALL, published_ms: int | None = None) -> str:
    with pytest.raises(HeaderError) as caught:
        read_due(headers, NOW, published_ms, rules)
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        (5000, 5000),
        (5000.0, 5000),
        ("5000", 5000),
        (b"5000", 5000),
        (" 5000\t", 5000),
        ("+5", 5),
        ("90s", 90_000),
        (b"15m", 900_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("PT15M", 900_000),
        (2**31, 2**31),
        (YEAR, YEAR),
        (1000.7, 1001),
        (0.001, 1),
        (float(2**31) + 0.25, 2**31 + 1),
        ("1000.7", 1001),
        (b"1000.7", 1001),
        ("1000.0", 1000),
        ("+0.000001", 1),
        ("007.10", 8),
    ],
)
def test_x_delay_counts_from_arrival(value: HeaderValue, delay_ms: int) -> None:
    assert read_due({"x-delay": value}, NOW, None, OWN) == Due(NOW + delay_ms, delay_ms)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        0.0,
        -0.0,
        -0.5,
        -1e300,
        "0",
        "0.0",
        "-0.9",
        "-1.5",
        "-5s",
        b"-1",
        -(2**63),
        pytest.param(-BEYOND_STR, id="minus 5001 digits"),
    ],
)
def test_a_delay_that_is_zero_or_negative_is_due_on_arrival(value: HeaderValue) -> None:
    assert read_due({"x-delay": value}, NOW, NOW + 50, OWN) == Due(NOW, 0)


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        Timestamp(5),
        Unreadable("a table"),
        "",
        " ",
        "soon",
        "nan",
        "1.5ms",
        ".5",
        "5.",
        "1.5.5",
        "1,5",
        "-",
        "1_000",
        "0x10",
        "1e3",
        "1e400",
        "٥",
        "\ud800",
        "5\n",
        b"\xff\xfe",
        b"\x00\x00\x00\x00\x00\x00\x13\x88",
        "P1M",
        "9" * 400,
        b"9" * 400,
        "9" * 60,
        2**53,
        2**63,
        BEYOND,
        YEAR + 1,
        "366d",
    ],
)
def test_what_is_no_delay_is_refused(value: HeaderValue) -> None:
    assert reason({"x-delay": value}).startswith("header x-delay: ")


@pytest.mark.parametrize(
    ("value", "due_ms"),
    [
        (NOW + 1, NOW + 1),
        (float(NOW + 1), NOW + 1),
        (NOW + 0.5, NOW + 1),
        (f"{NOW}.000001", NOW + 1),
        (f"{NOW}.000", NOW),
        (str(NOW + 1), NOW + 1),
        (str(NOW + 1).encode(), NOW + 1),
        (Timestamp(NOW // 1000 + 1), NOW + 1000),
        ("2023-11-14T22:13:20.0000001Z", NOW + 1),
        (b"2023-11-15T00:13:21+02:00", NOW + 1000),
        (NOW, NOW),
        (NOW - 1, NOW),
        (0, NOW),
        (-(2**63), NOW),
        ("1999-12-31T00:00:00Z", NOW),
        (Timestamp(0), NOW),
    ],
)
def test_x_deliver_at_is_the_moment_or_arrival_if_that_is_past(value: HeaderValue, due_ms: int) -> None:
    assert read_due({"x-deliver-at": value}, NOW, None, OWN) == Due(due_ms)


@pytest.mark.parametrize(
    "value",
    [
        True,
        float("nan"),
        Unreadable("an array"),
        "",
        "90s",
        "2026-01-31T09:30:00",
        "9999-12-31T23:59:59Z",
        NOW + YEAR + 1,
        2**63,
        Timestamp(NOW),
        Timestamp(2**64),
    ],
)
def test_what_is_no_moment_is_refused_even_beside_a_good_delay(value: HeaderValue) -> None:
    assert reason({"x-delay": 5, "x-deliver-at": value}).startswith("header x-deliver-at: ")


def test_the_absolute_moment_wins_and_the_delay_is_not_looked_at() -> None:
    assert read_due({"x-delay": "nonsense", "x-deliver-at": NOW + 7}, NOW, None, OWN) == Due(NOW + 7)


def test_each_header_goes_before_those_that_stand_below_it() -> None:
    order = ["x-deliver-at", "x-delay", "x-delay-level", *KNOWN_DIALECTS]
    headers: dict[str, HeaderValue] = dict.fromkeys(reversed(order), "nonsense")
    for name in order:
        assert reason(headers).startswith(f"header {name}: ")
        del headers[name]
    assert read_due(headers, NOW, None, ALL) == Due(None)


@pytest.mark.parametrize(
    ("level", "delay_ms"), [(1, 1000), (3, 10_000), ("4", 30_000), (b"5", 60_000), (18, 7_200_000)]
)
def test_a_level_is_one_of_eighteen(level: HeaderValue, delay_ms: int) -> None:
    assert read_due({"x-delay-level": level}, NOW, None, OWN) == Due(NOW + delay_ms, delay_ms)


def test_a_timestamp_that_lost_its_milliseconds_is_rounded_up_where_the_route_says_so() -> None:
    asked = NOW // 1000 + 5
    for rules, due_ms in ((HeaderRules(), asked * 1000), (HeaderRules(round_timestamps=True), asked * 1000 + 999)):
        assert read_due({"x-deliver-at": Timestamp(asked)}, NOW, None, rules).due_ms == due_ms
        assert read_due({"x-deliver-at": asked * 1000 + 7}, NOW, None, rules).due_ms == asked * 1000 + 7


@pytest.mark.parametrize("level", [0, 19, -1, "", "3s", 1.5, "1.5", True, Timestamp(1), BEYOND])
def test_a_level_outside_of_the_list_is_refused(level: HeaderValue) -> None:
    assert reason({"x-delay-level": level}).startswith("header x-delay-level: ")


def test_the_levels_are_a_setting() -> None:
    assert len(LEVELS_MS) == 18
    rules = HeaderRules(levels_ms=(7, 8))
    assert due("x-delay-level", 2, rules) == NOW + 8
    assert "level from 1 to 2" in reason({"x-delay-level": 3}, rules)


def test_a_relative_delay_counts_from_the_brokers_timestamp() -> None:
    assert read_due({"x-delay": 5000}, NOW, NOW - 1000, OWN).due_ms == NOW + 4000
    assert read_due({"x-delay": 5000}, NOW, NOW + 1000, OWN).due_ms == NOW + 6000


def test_a_delay_that_ran_out_on_the_way_is_due_on_arrival() -> None:
    assert read_due({"x-delay": 5000}, NOW, NOW - 6000, OWN) == Due(NOW, 5000)


@pytest.mark.parametrize("published_ms", [-1, 0])
def test_a_timestamp_that_was_never_set_does_not_make_a_message_early(published_ms: int) -> None:
    assert read_due({"x-delay": 5000}, NOW, published_ms, OWN).due_ms == NOW + 5000


def test_a_timestamp_far_in_the_future_neither_parks_for_ever_nor_lifts_the_limit() -> None:
    microseconds = NOW * 1000
    assert "too far ahead" in reason({"x-delay": 5000}, OWN, microseconds)
    assert "max_delay" in reason({"x-deliver-at": microseconds}, OWN, microseconds)
    assert read_due({"x-deliver-at": NOW + 5}, NOW, microseconds, OWN).due_ms == NOW + 5


def test_the_limit_counts_from_the_publish_and_includes_its_last_millisecond() -> None:
    rules = HeaderRules(max_delay_ms=1000)
    assert read_due({"x-delay": 1000}, NOW, None, rules).due_ms == NOW + 1000
    assert read_due({"x-deliver-at": NOW + 1000}, NOW, None, rules).due_ms == NOW + 1000
    assert "limits.max_delay, 1s" in reason({"x-delay": 1001}, rules)
    assert "limits.max_delay, 1s" in reason({"x-deliver-at": NOW + 1001}, rules)
    assert "limits.max_delay, 1s" in reason({"x-deliver-at": NOW + 1000}, rules, NOW - 1)
    assert "limits.max_delay, 1s" in reason({"x-delay-level": 2}, rules)


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("x-opt-delivery-delay", 5000, NOW + 5000),
        ("x-opt-delivery-time", NOW + 5000, NOW + 5000),
        ("x-opt-scheduled-enqueue-time", Timestamp(NOW // 1000 + 5), NOW + 5000),
        ("x-opt-scheduled-enqueue-time", NOW + 5, NOW + 5),
        ("DELAY", "3", NOW + 10_000),
        ("TIMER_DELAY_SEC", "5", NOW + 5000),
        ("TIMER_DELAY_SEC", 5.0, NOW + 5000),
        ("TIMER_DELAY_MS", b"5", NOW + 5),
        ("x-opt-delivery-delay", 1000.7, NOW + 1001),
        ("TIMER_DELIVER_MS", f"{NOW}.5", NOW + 1),
        ("TIMER_DELIVER_MS", str(NOW + 5), NOW + 5),
        ("__STARTDELIVERTIME", str(NOW + 5), NOW + 5),
        ("scheduler-epoch", str(NOW // 1000 + 5).encode(), NOW + 5000),
        ("eta", "2023-11-14T22:13:21+00:00", NOW + 1000),
        ("eta", "2023-11-14T22:13:20.000001", NOW + 1),
        ("eta", b"2023-11-14T23:13:21+01:00", NOW + 1000),
        ("eta", "2020-01-01T00:00:00", NOW),
        ("eta", None, None),
    ],
)
def test_a_dialect_is_read_in_its_own_unit_where_it_is_switched_on(
    name: str, value: HeaderValue, due_ms: int | None
) -> None:
    assert due(name, value, HeaderRules(dialects=(name,))) == due_ms
    assert due(name, value, OWN) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-opt-delivery-delay", "5s"),
        ("x-opt-delivery-time", Timestamp(1)),
        ("x-opt-delivery-time", "2026-01-31T09:30:00Z"),
        ("x-opt-scheduled-enqueue-time", Timestamp(NOW)),
        ("DELAY", "19"),
        ("TIMER_DELAY_SEC", "1.5"),
        ("TIMER_DELAY_SEC", 1.5),
        ("TIMER_DELAY_MS", True),
        ("TIMER_DELIVER_MS", Unreadable("a table")),
        ("__STARTDELIVERTIME", "tomorrow"),
        ("scheduler-epoch", str(NOW)),
        ("eta", 5),
        ("eta", "1700000000000"),
        ("eta", Timestamp(5)),
        ("eta", ""),
    ],
)
def test_a_dialect_is_as_strict_as_postdates_own_headers(name: str, value: HeaderValue) -> None:
    assert reason({name: value}).startswith(f"header {name}: ")


@pytest.mark.parametrize("name", sorted(wanted(ALL)))
def test_a_null_value_is_no_header(name: str) -> None:
    assert read_due({name: None}, NOW, None, ALL) == Due(None)
    others: dict[str, HeaderValue] = {"x-delay": 5000, "x-delay-key": "k"}
    assert read_due(others | {name: None}, NOW, None, ALL) == read_due(
        {other: value for other, value in others.items() if other != name}, NOW, None, ALL
    )


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["x-delay", "x-opt-delivery-delay"]))
def test_a_fraction_of_a_millisecond_is_rounded_up(asked: float, name: str) -> None:
    found = due_or_reason({name: asked}, NOW, None, ALL)
    if asked > YEAR:
        assert isinstance(found, str)
    else:
        assert found == Due(NOW + max(0, ceil(asked)), max(0, ceil(asked)))


@given(st.integers(0, YEAR - 1), st.text("0123456789", min_size=1, max_size=40), st.sampled_from(["", "+", "-"]))
def test_decimal_text_is_rounded_up(whole: int, fraction: str, sign: str) -> None:
    text = f"{sign}{whole}.{fraction}"
    asked = max(0, ceil(Fraction(text)))
    for value in (text, text.encode()):
        assert read_due({"x-delay": value}, NOW, None, OWN) == Due(NOW + asked, asked)


def test_a_celery_message_without_eta_leaves_the_word_to_the_next_header() -> None:
    assert read_due({"eta": None, "TIMER_DELAY_MS": 5}, NOW, None, ALL).due_ms == NOW + 5


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("a", b"a"),
        (b"a", b"a"),
        (" a ", b" a "),
        ("ü" * 127, ("ü" * 127).encode()),
        (b"x" * 255, b"x" * 255),
        (42, b"42"),
        (-1, b"-1"),
        (10**254, b"1" + b"0" * 254),
    ],
)
@pytest.mark.parametrize("name", ["x-delay-key", "x-delay-cancel"])
def test_a_key_is_taken_as_it_was_written(name: str, value: HeaderValue, key: bytes) -> None:
    wanted_due = Due(NOW + 5, 5, key) if name == "x-delay-key" else Due(None, cancel=key)
    assert read_due({"x-delay": 5, name: value}, NOW, None, OWN) == wanted_due


@pytest.mark.parametrize(
    "value",
    [
        "",
        b"",
        "ü" * 128,
        b"x" * 256,
        10**255,
        BEYOND,
        b"\xff",
        "\ud800",
        True,
        1.0,
        Timestamp(1),
        Unreadable("a table"),
    ],
)
@pytest.mark.parametrize("name", ["x-delay-key", "x-delay-cancel"])
def test_what_is_no_key_is_refused(name: str, value: HeaderValue) -> None:
    assert reason({"x-delay": 5, name: value}).startswith(f"header {name}: ")


def test_a_cancel_is_read_alone() -> None:
    headers: dict[str, HeaderValue] = {"x-delay-cancel": "a", "x-delay": "nonsense", "x-delay-key": ""}
    assert read_due(headers, NOW, None, OWN) == Due(None, None, None, b"a")


@pytest.mark.parametrize(
    "headers", [{}, {"x-delay-key": ""}, {"x-delay-key": "a"}, {"X-Delay": 5}, {"DELAY": "nonsense"}]
)
def test_without_a_delay_header_a_message_goes_now(headers: dict[str, HeaderValue]) -> None:
    assert read_due(headers, NOW, None, OWN) == Due(None)


def test_the_names_that_sources_filter_by() -> None:
    assert sorted(DUE_HEADERS) == ["x-delay", "x-delay-cancel", "x-delay-level", "x-deliver-at"]
    assert sorted(OWN_HEADERS) == sorted(DUE_HEADERS | {"x-delay-key"})
    assert wanted(OWN) == OWN_HEADERS
    assert wanted(HeaderRules(dialects=("eta",))) == OWN_HEADERS | {"eta"}


def test_a_reason_shows_the_value_without_its_control_characters() -> None:
    assert reason({"x-delay": "\x1b[31m"}).startswith(r"header x-delay: '\x1b[31m' is not a duration")
    assert r" '\x00\xff'" in reason({"x-delay": b"\x00\xff"})
    assert "the boolean true" in reason({"x-delay": True})
    assert "a table cannot be" in reason({"x-delay": Unreadable("a table")})


@given(st.dictionaries(st.sampled_from(NAMES), VALUES), TIMES, st.none() | st.integers(), st.sampled_from([OWN, ALL]))
def test_any_headers_give_a_moment_or_a_short_printable_reason(
    headers: dict[str, HeaderValue], arrived_ms: int, published_ms: int | None, rules: HeaderRules
) -> None:
    found = due_or_reason(headers, arrived_ms, published_ms, rules)
    if isinstance(found, str):
        assert found.isprintable()
        assert len(found) < 300
        return
    assert found.due_ms is None or arrived_ms <= found.due_ms <= arrived_ms + 2 * rules.max_delay_ms
    assert found.delay_ms is None or 0 <= found.delay_ms <= rules.max_delay_ms
    assert not {found.key, found.cancel} & {b""}


@pytest.mark.parametrize("name", NAMES)
@given(value=VALUES)
def test_any_value_of_each_header_gives_a_moment_or_a_reason(name: str, value: HeaderValue) -> None:
    found = due_or_reason({name: value}, NOW, None, ALL)
    if isinstance(found, str):
        assert found.startswith(f"header {name}: ")
        assert found.isprintable()
        assert len(found) < 300


@given(
    st.integers(1, YEAR),
    st.sampled_from(["x-delay", "TIMER_DELAY_MS", "x-opt-delivery-delay"]),
    st.sampled_from([int, float, str, lambda ms: str(ms).encode()]),
    st.none() | st.integers(NOW - YEAR, NOW + YEAR),
)
def test_a_delay_never_ends_early(delay_ms: int, name: str, write: type[int], published_ms: int | None) -> None:
    found = read_due({name: write(delay_ms)}, NOW, published_ms, ALL)
    start = NOW if published_ms is None else published_ms
    assert found == Due(max(start + delay_ms, NOW), delay_ms)


@given(st.timedeltas(timedelta(days=-400), timedelta(days=360)), st.none() | st.integers(NOW - 86_400_000, NOW + YEAR))
def test_a_moment_is_never_early(away: timedelta, published_ms: int | None) -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC) + away
    found = read_due({"x-deliver-at": moment.isoformat()}, NOW, published_ms, OWN)
    asked_us = NOW * 1000 + away // timedelta(microseconds=1)
    assert found.due_ms is not None
    assert found.due_ms * 1000 >= asked_us
    assert found.due_ms == NOW or found.due_ms * 1000 < asked_us + 1000


@pytest.mark.parametrize("name", ["x-deliver-at", "x-opt-delivery-time"])
@pytest.mark.parametrize("value", [1_790_000_000, "1790000000", b"1790000000", 1.79e9])
def test_a_moment_in_seconds_is_an_error_and_not_a_delivery_at_once(name: str, value: HeaderValue) -> None:
    rules = HeaderRules(dialects=("x-opt-delivery-time",))
    with pytest.raises(HeaderError, match="looks like Unix seconds"):
        read_due({name: value}, 1_790_000_000_000, None, rules)


# -- eight bytes ------------------------------------------------------------------------------------------------------

BINARY = HeaderRules(dialects=KNOWN_DIALECTS, binary=True)


@pytest.mark.parametrize(
    ("name", "number", "moment"),
    [
        ("x-delay", 5000, NOW + 5000),
        ("x-delay", -5000, NOW),
        ("x-delay", YEAR, NOW + YEAR),
        ("x-deliver-at", NOW + 1, NOW + 1),
        ("x-delay-level", 3, NOW + 10_000),
        ("TIMER_DELAY_SEC", 2, NOW + 2000),
        ("scheduler-epoch", NOW // 1000 + 60, NOW + 60_000),
    ],
)
def test_a_number_of_eight_bytes_is_read_where_it_is_switched_on(name: str, number: int, moment: int) -> None:
    value = number.to_bytes(8, "big", signed=True)
    assert due(name, value, BINARY) == moment
    assert f"header {name}" in reason({name: value})


@pytest.mark.parametrize("value", [b"5000", b"60000000", b"  100000", b"+1000000", b"\x0000000000", b"1h 30min"])
def test_text_is_text_also_where_eight_bytes_are_a_number(value: bytes) -> None:
    plain = due_or_reason({"x-delay": value}, NOW, None, OWN)
    assert due_or_reason({"x-delay": value}, NOW, None, HeaderRules(binary=True)) == plain


@pytest.mark.parametrize(
    "value",
    [b"\0\0\0\0\0\0\x13", b"\0" * 9, b"\0\0\x13\x88", b"\x01" + bytes(7), b"\0\x01" + bytes(6), b"\xfe" + bytes(7)],
)
def test_other_bytes_are_no_number_and_no_early_delivery(value: bytes) -> None:
    assert reason({"x-delay": value}, BINARY).startswith("header x-delay: ")


@pytest.mark.parametrize("number", [1000, 256, -1000], ids=["no UTF-8", "text with NULs", "negative"])
def test_what_is_likely_a_number_of_java_is_refused_with_the_setting_that_takes_it(number: int) -> None:
    told = HeaderRules(binary_setting="routes.a.binary_numbers")
    long, short = number.to_bytes(8, "big", signed=True), number.to_bytes(4, "big", signed=True)
    assert reason({"x-delay": long}, told).endswith("as Java writes a long, set routes.a.binary_numbers = true")
    assert reason({"x-delay": short}, told).endswith(
        "send it as text, or as a long with routes.a.binary_numbers = true"
    )
    switched_on = replace(told, binary=True)
    assert due("x-delay", long, switched_on) == max(NOW, NOW + number)
    assert "as Java writes an int" in reason({"x-delay": short}, switched_on)


@pytest.mark.parametrize("value", [b"\0" * 7, b"\0" * 9, b"tomorrow", b"soon", "\0" * 8])
def test_nobody_is_told_of_that_setting_for_no_number_of_java_nor_where_there_is_none(value: HeaderValue) -> None:
    assert "Java" not in reason({"x-delay": value}, HeaderRules(binary_setting="routes.a.binary_numbers"))
    assert "Java" not in reason({"x-delay": (1000).to_bytes(8, "big")})


def test_only_on_kafka_there_is_that_setting() -> None:
    route = {"intercept": "a.delay", "deliver_to": "a"}
    settings = Settings.model_validate({"routes": {"a": {**route, "broker": "kafka"}, "b": route}})
    named = [route_rules(settings, name).headers.binary_setting for name in settings.routes]
    assert named == ["routes.a.binary_numbers", ""]


@given(st.integers(-(2**55), 2**55 - 1))
def test_every_number_in_eight_bytes_is_the_number(number: int) -> None:
    value = number.to_bytes(8, "big", signed=True)
    assert due_or_reason({"x-delay": value}, NOW, None, BINARY) == due_or_reason({"x-delay": number}, NOW, None, BINARY)
