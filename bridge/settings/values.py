"""The rules for single values: read what a person wrote, write it back for a file.

A rule stands in the ``Annotated`` metadata of a field. It raises ``PydanticCustomError`` with the second half of a
sentence ("must be ..."). It never repeats the value, which may be a misplaced password (see ``shown``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, SecretStr
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from bridge.delay.duration import read_duration_ms, write_duration
from bridge.delay.naming import read_naming
from bridge.delay.schedule import WAIT_MAX_MS, read_jitter
from bridge.settings.mistakes import did_you_mean

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
_SIZE = re.compile(r"(\d{1,15}) ?([A-Za-z]{1,3})")
_BARE_NUMBER = re.compile(r"\s*[-+]?[\d_.]+\s*")
_SHOWN_NUMBER = re.compile(r"[-+]?[\d.,_]{1,12} ?[A-Za-z]{0,3}", re.ASCII)
_SHOWN_WORD = re.compile(r"[A-Za-z_-]{1,20}")
_SHOWN_MAX = 60

#: A parked message has a bit for each destination that has confirmed it (``bridge.parking.envelope``).
DESTINATIONS_MAX = 6

#: The type of the errors that rules raise. The context of pydantic's own errors is never read: it may hold the value.
RULE_ERROR = "setting"


def wrong(text: str, advice: str = "") -> PydanticCustomError:
    """The error of a rule. ``text`` completes "redis.url ...", ``advice`` is a sentence of its own."""
    return PydanticCustomError(RULE_ERROR, "{text}", {"text": text, "advice": advice})


class Rule:
    """Reads a setting as a person wrote it, or raises. Writes a checked value as text."""

    def read(self, value: Any) -> Any:
        raise NotImplementedError

    def write(self, value: Any) -> str:
        return str(value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


@dataclass(frozen=True)
class Whole(Rule):
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int

    def read(self, value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"[-+]?\d{1,18}", value.strip(), re.ASCII):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            raise wrong(f"must be a whole number from {self.low} to {self.high}")
        return value


@dataclass(frozen=True)
class Number(Rule):
    """A finite number from ``low`` to ``high``."""

    low: float
    high: float

    def read(self, value: Any) -> float:
        try:
            number = math.nan if isinstance(value, bool) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not self.low <= number <= self.high:
            raise wrong(f"must be a number from {self.low} to {self.high}")
        return number


@dataclass(frozen=True)
class Duration(Rule):
    """A duration with its unit, from ``low`` to ``high`` (both text like "5s"), stored as whole milliseconds.

    ``optional``: "" means none, and is stored as 0."""

    low: str
    high: str
    step: str = "1ms"
    optional: bool = False

    def read(self, value: Any) -> int:
        if self.optional and value == "":
            return 0
        if _is_bare_number(value):
            raise wrong('needs a unit, such as "30s"')
        if not isinstance(value, str):
            raise wrong('must be a duration in quotes, such as "500ms", "30s" or "36h"')
        try:
            duration_ms = read_duration_ms(value.strip())
        except ValueError:
            raise wrong('must be a duration with a unit, such as "500ms", "30s" or "36h"') from None
        self._check(duration_ms)
        return duration_ms

    def _check(self, duration_ms: int) -> None:
        if not milliseconds(self.low) <= duration_ms <= milliseconds(self.high):
            raise wrong(f"must be from {self.low} to {self.high}")
        if duration_ms % milliseconds(self.step):
            raise wrong(f"must be a multiple of {self.step}")

    def write(self, value: Any) -> str:
        return "" if self.optional and not value else str(write_duration(value))


@dataclass(frozen=True)
class Size(Rule):
    """A size with its unit ("64MiB", "8MB", "512KiB", "100B"), from ``low`` to ``high``, stored as whole bytes."""

    low: str
    high: str

    def read(self, value: Any) -> int:
        if _is_bare_number(value):
            raise wrong('needs a unit, such as "64MiB"')
        try:
            size = size_in_bytes(value if isinstance(value, str) else "")
        except ValueError:
            raise wrong('must be a size with a unit, such as "64MiB", "8MB" or "512KiB"') from None
        if not size_in_bytes(self.low) <= size <= size_in_bytes(self.high):
            raise wrong(f"must be from {self.low} to {self.high}")
        return size

    def write(self, value: Any) -> str:
        return write_size(value)


@dataclass(frozen=True)
class Text(Rule):
    """Text that ``pattern`` matches as a whole. ``must`` describes the pattern in words."""

    pattern: str
    must: str

    def read(self, value: Any) -> str:
        text = read_text(value)
        if not re.fullmatch(self.pattern, text):
            raise wrong(f"must be {self.must}")
        return text


@dataclass(frozen=True)
class BrokerName(Rule):
    """The name of an exchange, queue or topic. AMQP allows 255 bytes of UTF-8."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        if len(text.encode()) > 255:
            raise wrong("must be at most 255 bytes")
        if not text.isprintable():
            raise wrong("must not contain control characters")
        return text


@dataclass(frozen=True)
class Mapped(Rule):
    """A pair of topics: intercepted and delivered to."""

    def read(self, value: Any) -> str:
        naming = read_naming(read_text(value))
        if naming is None:
            raise wrong('must be two topics with an arrow between: "refunds.delay -> refunds"')
        return f"{naming.intercept} -> {naming.deliver_to}"


@dataclass(frozen=True)
class Destinations(Rule):
    """The name of an exchange or topic, or a list of several. One name is stored as text, several as a tuple."""

    def read(self, value: Any) -> str | tuple[str, ...]:
        name = BrokerName()
        if not isinstance(value, list | tuple):
            return name.read(value)
        if not value:
            raise wrong("must be a name or a list of names")
        names = tuple(name.read(item) for item in value)
        if len(names) > DESTINATIONS_MAX:
            raise wrong(f"must have at most {DESTINATIONS_MAX} names")
        if len(set(names)) < len(names):
            raise wrong("must not contain a name twice")
        return names if len(names) > 1 else names[0]

    def write(self, value: Any) -> str:
        return value if isinstance(value, str) else ", ".join(value)


@dataclass(frozen=True)
class LastStep(Rule):
    """What follows the last attempt: dead, or the exchange or topic that gets the message."""

    def read(self, value: Any) -> str:
        text = read_text(value)
        kind, colon, name = text.partition(":")
        if text == "dead" or (colon and kind in ("exchange", "topic") and name):
            return text if text == "dead" else f"{kind}:{BrokerName().read(name)}"
        raise wrong('must be "dead", "exchange:NAME" (RabbitMQ) or "topic:NAME" (Kafka)')


@dataclass(frozen=True)
class Postponed(Rule):
    """By how much a moment may be postponed: a share of the delay ("20%") or a duration ("30s")."""

    def read(self, value: Any) -> str:
        text = read_text(value).strip()
        try:
            jitter = read_jitter(text)
        except ValueError:
            raise wrong('must be a share of the delay such as "20%", or a duration such as "30s"') from None
        if jitter.most_ms > WAIT_MAX_MS or jitter.most_ms < 0:
            raise wrong("must be from 0ms to 365d")
        return text


@dataclass(frozen=True)
class OneOf(Rule):
    """One of ``choices``, by default those of the field's ``Literal``. "" is allowed and not listed in the error."""

    choices: Sequence[str] = ()

    def read(self, value: Any) -> str:
        if isinstance(value, str) and value in self.choices:
            return value
        named = [choice for choice in self.choices if choice]
        advice = did_you_mean(value, named) if isinstance(value, str) else ""
        raise wrong(f"must be one of {', '.join(named)}", advice)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        rule = self if self.choices else OneOf(get_args(source))
        return core_schema.no_info_before_validator_function(rule.read, handler(source))


@dataclass(frozen=True)
class ListOf(Rule):
    """A list in TOML, or comma-separated text in the environment. Each item obeys ``item``."""

    item: Rule
    least: int = 0

    def read(self, value: Any) -> list[Any]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",")] if value.strip() else []
        if not isinstance(value, list | tuple):
            raise wrong("must be a list of texts (in the environment: one text with commas)")
        if len(value) < self.least:
            raise wrong("must not be empty")
        return [self._read_item(place, item) for place, item in enumerate(value, start=1)]

    def _read_item(self, place: int, value: Any) -> Any:
        try:
            return self.item.read(value)
        except PydanticCustomError as error:
            advice = str((error.context or {}).get("advice", ""))
            raise wrong(f"(item {place}) {error.message()}", advice) from None


@dataclass(frozen=True)
class Secret(Rule):
    """Text that is never shown. What came from a file stays a ``FileSecret``."""

    def read(self, value: Any) -> Any:
        self.judge(read_text(value.get_secret_value() if isinstance(value, SecretStr) else value))
        return value

    def judge(self, text: str) -> None:
        """Raise ValueError for a text that the setting cannot have."""


class Token(Secret):
    """A token for the HTTP API, or "". Never shown. It travels in a header, so it is printable ASCII without spaces."""

    def judge(self, text: str) -> None:
        if text and not re.fullmatch(r"[!-~]{16,512}", text):
            raise wrong("must be 16 to 512 printable ASCII characters without spaces")


def _is_bare_number(value: Any) -> bool:
    if isinstance(value, str):
        return _BARE_NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_text(value: Any) -> str:
    """Return ``value`` if it is text that has a UTF-8 form (the environment may hold other bytes), else raise."""
    if not isinstance(value, str):
        raise wrong("must be text in quotes")
    if any("\ud800" <= sign <= "\udfff" for sign in value):
        raise wrong("must be UTF-8 text")
    return value


def milliseconds(text: str) -> int:
    """The whole milliseconds of a duration such as "25s". For defaults and limits in the code."""
    return int(read_duration_ms(text))


def size_in_bytes(text: str) -> int:
    """The whole bytes of a size such as "64MiB". Raises ValueError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if not found or found[2].upper() not in _UNITS:
        raise ValueError("no size")
    return int(found[1]) * _UNITS[found[2].upper()]


def write_size(size: int) -> str:
    """The shortest exact text for a number of bytes: 67108864 is "64MiB", 8000000 is "8MB"."""
    texts = [f"{size // factor}{unit.replace('IB', 'iB')}" for unit, factor in _UNITS.items() if size % factor == 0]
    return min(texts, key=len)


def shown(value: Any, words: bool) -> str:
    """A wrong value as the file has it, for an error; "" if it may not be shown.

    People put passwords into the wrong setting. So of texts, only numbers with a unit are shown, and short words where
    ``words`` is true: that is, where the setting expects one of a few words.
    """
    text = _shown(value, words)
    return text if text is not None and len(text) <= _SHOWN_MAX else ""


def _shown(value: Any, words: bool) -> str | None:
    if isinstance(value, str):
        fits = _SHOWN_NUMBER.fullmatch(value) or (words and _SHOWN_WORD.fullmatch(value))
        return f'"{value}"' if fits or not value else None
    if isinstance(value, list | tuple):
        items = [_shown(item, words) for item in value[:_SHOWN_MAX]]
        return f"[{', '.join(map(str, items))}]" if None not in items else None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | date | time) else None
