"""What is wrong with the settings: one sentence each, and pydantic's findings in our words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bridge.core.errors import SettingsError

#: The way to a setting in the tree: ("redis", "url") or ("routes", "orders", "queue").
Path = tuple[str, ...]

_SENTENCES = {
    "missing": "is required",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
}


class Conflict(NamedTuple):
    """Settings that do not go together. ``paths``: those it is about, the one to change first."""

    paths: tuple[Path, ...]
    text: str


@dataclass(frozen=True)
class Place:
    """Where a value stands: the source as people call it, and the name as it is written there."""

    where: str
    key: str


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong. ``text`` completes "postdate.toml: redis.url ..."; ``given`` is the value as it stands
    there, or empty where it may not be shown."""

    place: Place
    text: str
    given: str = ""

    def __str__(self) -> str:
        given = f" (given: {self.given})" if self.given else ""
        return f"{self.place.where}: {self.place.key} {self.text}{given}"


def settings_error(mistakes: Iterable[Mistake]) -> SettingsError:
    """All mistakes in one error, a line each, without repetition, in the order they were found."""
    return SettingsError("\n".join(dict.fromkeys(str(mistake) for mistake in mistakes)))


def from_pydantic(error: Mapping[str, Any], place: Place, given: str) -> Mistake:
    """Put one of pydantic's findings into our words. Its own show the value, which may be a secret."""
    return Mistake(place, _SENTENCES.get(error["type"], _in_our_words(str(error["msg"]))), given)


def _in_our_words(text: str) -> str:
    """What else pydantic says, as the end of "redis.url ..."."""
    text = text.removeprefix("Value error, ")
    return f"must be {text.removeprefix('Input should be ')}" if text.startswith("Input should be ") else text
