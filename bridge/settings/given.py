"""A wrong value as it was given, for the sentence about it, as far as it may be shown.

Somebody may have put a password where it does not belong. So a secret is never shown, and of other texts only what
looks like the values that settings have: a number, perhaps with a unit, or one of a few words misspelt.
"""

from __future__ import annotations

import re
from datetime import date, time
from typing import Any

from pydantic.fields import FieldInfo

from bridge.settings.names import is_secret, rule_of
from bridge.settings.rules import OneOf

_NUMBER = re.compile(r"[-+]?[\d.,_]{1,12} ?[A-Za-z]{0,3}", re.ASCII)
_WORD = re.compile(r"[A-Za-z_-]{1,20}")
_LONGEST = 60


def given(field: FieldInfo, value: Any) -> str:
    """Pure: as the file would have it; empty where it may not be shown."""
    shown = None if is_secret(field) else _shown(value, field.annotation is bool or isinstance(rule_of(field), OneOf))
    return shown if shown is not None and len(shown) <= _LONGEST else ""


def _shown(value: Any, words_too: bool) -> str | None:
    if isinstance(value, str):
        fits = _NUMBER.fullmatch(value) or (words_too and _WORD.fullmatch(value))
        return f'"{value}"' if fits or not value else None
    if isinstance(value, list | tuple):
        items = [_shown(one, words_too) for one in value[:_LONGEST]]
        return f"[{', '.join(map(str, items))}]" if None not in items else None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | date | time) else None
