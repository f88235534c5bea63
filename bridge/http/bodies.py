"""What of a message's content a caller may see: ``ui.bodies`` and ``ui.mask``. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

HIDDEN = "••••"
#: A larger body is not parsed to mask its fields.
MASKED_MAX = 1024 * 1024
OFF = "the setting ui.bodies hides all bodies"
NOT_JSON = "the setting ui.bodies hides bodies that are no JSON from the roles viewer and operator"
TOO_LARGE = "the setting ui.bodies hides bodies of more than 1 MiB from the roles viewer and operator"


def sees_all(bodies: str, admin: bool) -> bool:
    """Return whether a caller sees bodies as they are."""
    return bodies == "on" or (bodies == "masked" and admin)


def masked_body(bodies: str, mask: Sequence[str], raw: bytes, size: int) -> tuple[str | None, str]:
    """Return a body with hidden fields for a caller who does not see all; or None, and why it is hidden."""
    if bodies == "off":
        return None, OFF
    if size > MASKED_MAX or len(raw) < size:
        return None, TOO_LARGE
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None, NOT_JSON
    if not isinstance(value, dict | list):
        return None, NOT_JSON
    try:
        return json.dumps(masked(value, mask), ensure_ascii=False, indent=2), ""
    except RecursionError:
        return None, NOT_JSON


def masked(value: Any, mask: Sequence[str]) -> Any:
    """Return a JSON value with the fields of ``mask`` hidden at any depth; case does not matter."""
    if isinstance(value, Mapping):
        return {name: HIDDEN if is_masked(str(name), mask) else masked(one, mask) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [masked(one, mask) for one in value]
    return _masked_text(value, mask) if isinstance(value, str) else value


def _masked_text(text: str, mask: Sequence[str]) -> str:
    """Return text with hidden fields where it is JSON itself, as in many envelopes."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    hidden = masked(value, mask)
    return text if hidden == value else json.dumps(hidden, ensure_ascii=False)


def is_masked(name: str, mask: Sequence[str]) -> bool:
    """Return whether a field of this name is hidden."""
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in mask)
