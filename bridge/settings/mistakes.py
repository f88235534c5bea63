"""What is wrong with the settings: one line for each mistake, with the place, the rule and the advice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from bridge.core.errors import SettingsError

#: The path of a setting in the tree: ("redis", "url") or ("routes", "orders", "queue").
Path = tuple[str, ...]

ENVIRONMENT, COMMAND_LINE = "environment", "command line"
_PHRASES = {ENVIRONMENT: "in the environment", COMMAND_LINE: "on the command line"}


class Conflict(NamedTuple):
    """Settings that contradict each other: their paths, first the one to change, and what that one must be."""

    paths: tuple[Path, ...]
    text: str


@dataclass(frozen=True)
class Location:
    """Where a value was written: the source, and the key in the spelling of that source."""

    where: str
    key: str


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong. ``advice`` is a second sentence, or empty."""

    fact: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.fact}. {self.advice}" if self.advice else self.fact


def mistake(place: Location, text: str, advice: str = "", given: str = "") -> Mistake:
    """A wrong value or file. ``text`` completes "postdate.toml: redis.url ..."; ``given`` is the value if it may be
    shown."""
    return Mistake(f"{place.where}: {place.key} {text}" + (f" (given: {given})" if given else ""), advice)


def unknown_setting(place: Location, advice: str) -> Mistake:
    """A name that no setting has."""
    return Mistake(f'unknown setting "{place.key}" {_PHRASES.get(place.where, f"in {place.where}")}', advice)


def settings_error(mistakes: Iterable[Mistake]) -> SettingsError:
    """All mistakes in one error, one line each, in the order they were found, without repetition."""
    return SettingsError("\n".join(dict.fromkeys(map(str, mistakes))))


def nearest(word: str, names: Iterable[str], cutoff: float = 0.61) -> str | None:
    """The one of ``names`` most similar to ``word``, or None. Ignores case, ``-`` and ``_``."""
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(_plain(name), name)
    if _plain(word) in plain:
        return plain[_plain(word)]
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=cutoff)
    return plain[found[0]] if found else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The sentence 'Did you mean "NAME"?', or "" if no name is similar."""
    return ask(nearest(word, names))


def ask(*names: str | None) -> str:
    """The same for names that are known already; "" without any."""
    named = " or ".join(f'"{name}"' for name in names if name)
    return f"Did you mean {named}?" if named else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
