"""Finding the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The one of ``names`` most like ``word``, or None. Case, ``-`` and doubled ``_`` make no difference."""
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(_plain(name), name)
    if _plain(word) in plain:
        return plain[_plain(word)]
    found = difflib.get_close_matches(_plain(word), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The end of a sentence: "; did you mean NAME?", or nothing when no name is near."""
    name = nearest(word, names)
    return f"; did you mean {name}?" if name else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
