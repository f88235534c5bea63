"""Read the delay headers: from what a producer wrote to the moment at which the message is due. Pure and total.

For every header value the answer is a ``Due`` or a HeaderError with the reason. It is never another exception, and
never an earlier moment than the one asked for. An ambiguous value is refused and not guessed.

A null value counts as no header. Text is UTF-8, at most 64 bytes, ASCII digits with an optional sign; spaces and tabs
around it are ignored. "1_000", "0x10" and "1e3" are refused. A fraction of a millisecond, in a float or as decimal
text, is rounded up, so that nothing is early. A number of seconds and a level must be whole. Eight bytes that begin
with 0 or 255 are a signed big-endian number, if the route says so (``HeaderRules.binary``): no text begins with either,
and no sensible moment is large enough to begin with another byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import ceil, isfinite
from typing import NamedTuple

from bridge.core.errors import BadValue, HeaderError
from bridge.core.message import HeaderValue, Timestamp, Unreadable
from bridge.core.reasons import Reason, ReasonKind
from bridge.delay.duration import (
    TEXT_MAX,
    quoted,
    read_decimal,
    read_duration_ms,
    read_integer,
    read_moment_ms,
    read_rfc3339_ms,
    write_duration,
)


class Kind(Enum):
    """How a header's value is read."""

    DURATION = "a number of ms, or text with a unit: relative"
    WAIT_MS = "a number of ms: relative"
    WAIT_S = "a number of seconds: relative"
    LEVEL = "1 to the number of levels: relative"
    MOMENT = "Unix ms, RFC 3339 text, or an AMQP timestamp: absolute"
    AT_MS = "Unix ms: absolute"
    AT_S = "Unix seconds: absolute"
    AT_ISO = "ISO 8601 text, UTC where it has no offset: absolute"


# Which header is read, and how. The order is the precedence: the first one present decides, and the others are ignored.
# postdate's own come first, then the dialects, absolute before relative, a number before a level.
_OWN = {"x-deliver-at": Kind.MOMENT, "x-delay": Kind.DURATION, "x-delay-level": Kind.LEVEL}
#: By this dialect quorum queues of RabbitMQ 4.4 delay by themselves.
NATIVE = "x-opt-delivery-time"
_DIALECTS = {
    NATIVE: Kind.AT_MS,  # AMQP 1.0: ActiveMQ, Artemis, Qpid JMS, RabbitMQ 4.4
    "x-opt-scheduled-enqueue-time": Kind.MOMENT,  # Azure Service Bus
    "TIMER_DELIVER_MS": Kind.AT_MS,  # RocketMQ 5
    "__STARTDELIVERTIME": Kind.AT_MS,  # RocketMQ 4 at Aliyun
    "scheduler-epoch": Kind.AT_S,  # etf1 kafka-message-scheduler
    "eta": Kind.AT_ISO,  # Celery, whose enable_utc is on unless switched off
    "x-opt-delivery-delay": Kind.WAIT_MS,  # AMQP 1.0, as above
    "TIMER_DELAY_MS": Kind.WAIT_MS,  # RocketMQ 5
    "TIMER_DELAY_SEC": Kind.WAIT_S,  # RocketMQ 5
    "DELAY": Kind.LEVEL,  # RocketMQ 4 and 5
}
_KEY = "x-delay-key"
CANCEL = "x-delay-cancel"

#: The names that a route may switch on, in the order of precedence.
KNOWN_DIALECTS = tuple(_DIALECTS)
#: The headers that make a message one to intercept; a key alone does not.
DUE_HEADERS = frozenset({*_OWN, CANCEL})
#: What a producer may set on every route, without dialects. Removed at delivery, as the dialects of a route are.
OWN_HEADERS = DUE_HEADERS | {_KEY}
#: RocketMQ's eighteen (MessageStoreConfig.messageDelayLevel), in milliseconds.
LEVELS_MS = tuple(1000 * s for s in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200))

_KEY_MAX = 255
#: What a timestamp in whole seconds may have lost.
_CUT_MS = 999
#: Fewer ASCII digits than this are a number in every reading of text.
_PLAIN_MAX = 19
_Reader = Callable[[HeaderValue], int]


@dataclass(frozen=True, slots=True)
class HeaderRules:
    """What a route accepts.

    ``dialects``: names beyond postdate's own, in any order. ``binary``: a number may also be eight bytes.
    ``binary_setting``: the name of that setting, where there is one. ``round_timestamps``: a timestamp in seconds was
    cut, and its moment may be up to 999 ms later.
    """

    dialects: tuple[str, ...] = ()
    levels_ms: tuple[int, ...] = LEVELS_MS
    max_delay_ms: int = 365 * 86_400_000
    binary: bool = False
    binary_setting: str = ""
    round_timestamps: bool = False
    # (name, reader, absolute), computed once, because read_due runs for every message.
    plan: tuple[tuple[str, _Reader, bool], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kinds = _OWN | {name: kind for name, kind in _DIALECTS.items() if name in self.dialects}
        moment = partial(_moment, _CUT_MS if self.round_timestamps else 0)
        readers = _READERS | {Kind.LEVEL: partial(_level, self.levels_ms), Kind.MOMENT: moment}
        object.__setattr__(self, "plan", tuple((n, readers[kind], kind in _ABSOLUTE) for n, kind in kinds.items()))


class Due(NamedTuple):
    """What the headers ask for.

    ``due_ms``: Unix milliseconds, never before arrival; None: no delay header, deliver now. ``delay_ms``: the relative
    delay asked for, 0 where it was negative; None if the moment was absolute. ``key``: the producer's own id, read
    only where there is a delay. ``cancel``: the key to cancel; then nothing else is set and nothing else was read.
    """

    due_ms: int | None
    delay_ms: int | None = None
    key: bytes | None = None
    cancel: bytes | None = None


_NOT_DELAYED = Due(None)


def wanted(rules: HeaderRules) -> frozenset[str]:
    """Return the names that a source has to hand over: postdate's own, and the dialects that are switched on."""
    return OWN_HEADERS | frozenset(rules.dialects)


def read_due(headers: Mapping[str, HeaderValue], arrived_ms: int, published_ms: int | None, rules: HeaderRules) -> Due:
    """Read when a message is due. All times are Unix milliseconds.

    A relative delay counts from ``published_ms`` if that is above 0 (Kafka writes -1 for "none", and a clock at 0 was
    never set), else from ``arrived_ms``. Zero, negative and past moments are due on arrival.
    Raises HeaderError, and only that, with the header's name, its printable value, and the reason.
    """
    if headers.get(CANCEL) is not None:
        return Due(None, None, None, _read_key(CANCEL, headers[CANCEL]))
    for name, read, absolute in rules.plan:
        value = headers.get(name)
        if value is None:
            continue  # as the plugin does. Celery writes a null "eta" where there is no delay
        if rules.binary:
            value = _unpacked(value)
        try:
            asked = read(value)
            due_ms = _due_ms(asked, absolute, value, arrived_ms, published_ms, rules)
        except BadValue as error:
            values = {**error.values, "setting": rules.binary_setting}
            raise _wrong(name, error.text + _perhaps_a_number(value, rules), values) from None
        delay_ms = None if absolute else max(asked, 0)
        key = headers.get(_KEY)
        return Due(due_ms, delay_ms, _read_key(_KEY, key) if key is not None else None)
    return _NOT_DELAYED


def _due_ms(
    asked: int, absolute: bool, value: HeaderValue, arrived_ms: int, published_ms: int | None, rules: HeaderRules
) -> int:
    """Return the due moment. Raises BadValue if the wait, counted from the publish, is above the limit."""
    if asked <= (arrived_ms if absolute else 0):
        return arrived_ms
    start = published_ms if published_ms is not None and published_ms > 0 else arrived_ms
    # A producer's clock may be wrong, or count microseconds. It must not lift the limit of an absolute moment ...
    delay_ms = asked - (start if start < arrived_ms else arrived_ms) if absolute else asked
    if delay_ms > rules.max_delay_ms:
        most = write_duration(rules.max_delay_ms)
        raise BadValue("{value} goes beyond limits.max_delay, {most}", value=_shown(value), most=most)
    if absolute:
        return asked
    if start - arrived_ms > rules.max_delay_ms:  # ... and not park a relative delay endlessly
        text = "{value} has no start, the message's own timestamp is too far ahead of its arrival"
        raise BadValue(text, value=_shown(value))
    return max(start + asked, arrived_ms)


def _read_key(name: str, value: HeaderValue) -> bytes:
    """Return a key in UTF-8. It is not stripped, because it has to be found exactly as it was written."""
    if type(value) is int and value.bit_length() <= 4 * _KEY_MAX:  # str() of an int beyond 4300 digits raises
        value = str(value)
    if isinstance(value, str):
        value = value.encode(errors="surrogatepass")  # a lone surrogate then fails as UTF-8 below
    if not isinstance(value, bytes):
        raise _wrong(name, "{value} is not a key, which is text", {"value": _shown(value)})
    if not 0 < len(value) <= _KEY_MAX:
        values = {"value": _shown(value), "size": len(value), "most": _KEY_MAX}
        raise _wrong(name, "{value} has {size} bytes, a key has 1 to {most}", values)
    try:
        value.decode()
    except UnicodeDecodeError:
        raise _wrong(name, "{value} is not UTF-8 text", {"value": _shown(value)}) from None
    if value[:1] == b"\0":
        raise _wrong(name, "{value} begins with a NUL, and a key does not", {"value": _shown(value)})
    return value


def _wrong(name: str, text: str, values: Mapping[str, object]) -> HeaderError:
    return HeaderError(Reason(ReasonKind.BAD_HEADER, f"header {name}: {text}", values))


def _unpacked(value: HeaderValue) -> HeaderValue:
    """Return the number if the value is one of eight bytes, as the head of this file says; else the value."""
    if isinstance(value, bytes) and len(value) == 8 and value[0] in (0, 255):
        return int.from_bytes(value, "big", signed=True)
    return value


def _perhaps_a_number(value: HeaderValue, rules: HeaderRules) -> str:
    """Return advice, a template, for a value that is probably a number as Java writes it; "" for another."""
    if not rules.binary_setting or not isinstance(value, bytes) or value[:1] not in (b"\0", b"\xff"):
        return ""
    if len(value) == 8:
        return "; if it is a number in eight bytes, as Java writes a long, set {setting} = true"
    if len(value) == 4:
        return (
            "; if it is a number in four bytes, as Java writes an int, send it as text, or as a long with "
            "{setting} = true"
        )
    return ""


def _text(value: str | bytes) -> str:
    if isinstance(value, str):
        return value
    if len(value) > TEXT_MAX:
        raise BadValue("{value} is longer than {most} bytes", value=_shown(value), most=TEXT_MAX)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadValue("{value} is not UTF-8 text", value=_shown(value)) from None


def _number(value: HeaderValue, read_text: Callable[[str], int] = read_integer) -> int:
    """Return a whole number of the header's unit. Text goes through ``read_text``."""
    if type(value) is int:  # not isinstance: True is an int, too, but not a delay
        return value
    if isinstance(value, (str, bytes)):
        return read_text(_text(value))
    if isinstance(value, float):
        if value.is_integer():  # false for NaN and the infinities
            return int(value)
        raise BadValue("{value} is not a whole number", value=_shown(value))
    raise BadValue("{value} cannot be a delay", value=_shown(value))


def _milliseconds(value: HeaderValue, read_text: Callable[[str], int] = read_integer) -> int:
    """Return a number of milliseconds. A fraction is rounded up. Text goes through ``read_text``."""
    if type(value) is int or (type(value) is bytes and len(value) < _PLAIN_MAX and value.isdigit()):
        return int(value)  # nearly every header: the rules below give the same, four times slower
    if isinstance(value, float) and isfinite(value):
        return ceil(value)
    if isinstance(value, (str, bytes)) and (rounded := read_decimal(_text(value))) is not None:
        return rounded
    return _number(value, read_text)


def _level(levels_ms: tuple[int, ...], value: HeaderValue) -> int:
    # RocketMQ takes 0 as "now" and 19 as 18. Both are refused: there is no level 0, and 18 would be early.
    level = _number(value)
    if not 1 <= level <= len(levels_ms):
        raise BadValue("{value} is not a level from 1 to {most}", value=_shown(value), most=len(levels_ms))
    return levels_ms[level - 1]


def _moment(cut_ms: int, value: HeaderValue) -> int:
    if isinstance(value, Timestamp):
        return value.seconds * 1000 + cut_ms
    return _at_ms(value, read_moment_ms)


def _at_ms(value: HeaderValue, read_text: Callable[[str], int] = read_integer) -> int:
    """Return Unix milliseconds. Refuse what looks like Unix seconds.

    Current Unix seconds, read as milliseconds, are a day in January 1970: past, so the message would be delivered at
    once. That would be a silent early delivery by a plain mistake, and no producer means that January.
    """
    moment = _milliseconds(value, read_text)
    if 10**9 <= moment < 10**10:
        raise BadValue("{value} looks like Unix seconds, and this header counts in milliseconds", value=_shown(value))
    return moment


def _iso(value: HeaderValue) -> int:
    if not isinstance(value, (str, bytes)):
        raise BadValue("{value} is not ISO 8601 text", value=_shown(value))
    return read_rfc3339_ms(_text(value), naive_is_utc=True)


_READERS: dict[Kind, _Reader] = {
    Kind.DURATION: lambda value: _milliseconds(value, read_duration_ms),
    Kind.WAIT_MS: _milliseconds,
    Kind.WAIT_S: lambda value: 1000 * _number(value),
    Kind.AT_MS: _at_ms,
    Kind.AT_S: lambda value: 1000 * _number(value),
    Kind.AT_ISO: _iso,
}
_ABSOLUTE = frozenset({Kind.MOMENT, Kind.AT_MS, Kind.AT_S, Kind.AT_ISO})


def _shown(value: HeaderValue) -> str:
    """Return a short, printable form of any value for an error sentence."""
    if isinstance(value, Unreadable):
        return quoted(value.kind)[1:-1]
    if isinstance(value, Timestamp):
        return f"the timestamp of {_shown(value.seconds)} seconds"
    if isinstance(value, (str, bytes)):
        return quoted(value)
    if value is None:
        return "a value of nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return str(value)
