"""What of a message's content a caller may see: ``ui.bodies`` and ``ui.mask``. Pure.

For a caller who does not see all, a body that is no JSON is hidden whole. In JSON and in headers, at any depth:

| what | shown |
|---|---|
| a member whose name matches ``ui.mask`` (``plain``: any case, accent, separator or Unicode form) | hidden |
| the value beside such a name: ``{"name": "password", "value": ...}``, ``["password", ...]`` | hidden |
| text that is JSON, or JSON that was encoded twice, with or without a BOM | masked like the rest |
| text that begins like JSON or XML and is not JSON to its end | hidden |
| other text with such a name before ``=``, ``:`` or ``>``: forms, headers, logs | hidden |
| any other text, and numbers | shown |
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_plus

HIDDEN = "••••"
#: A larger body is not parsed to mask its fields.
MASKED_MAX = 256 * 1024
#: A field with a longer name is hidden without a look.
_NAME_MAX = 256
#: How the members end that hold a name, and the value of that name.
_NAMING, _VALUES = ("name", "key", "field", "header"), ("value", "val", "values", "data", "text", "content")
_LOOKS_ENCODED = re.compile(r"[\[{]|<[A-Za-z?!/]")
_NAME_IN_TEXT = re.compile(r"""([^\r\n"'\\=:<>&;?,{}()\[\]]{1,64}+)["'\\\]]*[ \t]{0,4}[=:>]""")
_REPEATED = re.compile(r" #\d+\Z")
_SEPARATORS = re.compile(r"[\W_]+")
OFF = "the setting ui.bodies hides all bodies"
NOT_JSON = "the setting ui.bodies hides bodies that are no JSON from the roles viewer and operator"
TOO_LARGE = "the setting ui.bodies hides bodies of more than 256 KiB from the roles viewer and operator"


@dataclass(frozen=True, slots=True)
class Sight:
    """What a caller sees: everything if ``whole``, else what the settings ``ui.bodies`` and ``ui.mask`` allow."""

    whole: bool = True
    bodies: str = "on"
    mask: Sequence[str] = ()

    def headers(self, headers: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return headers as the caller sees them."""
        return headers if self.whole else _masked_members(headers, tuple(self.mask))

    def hides(self, name: str) -> bool:
        """Return whether the value of a header is hidden from the caller."""
        return not self.whole and is_masked(name, self.mask)


EVERYTHING = Sight()


def sees_all(bodies: str, admin: bool) -> bool:
    """Return whether a caller sees bodies as they are."""
    return bodies == "on" or (bodies == "masked" and admin)


def masked_body(bodies: str, mask: Sequence[str], raw: bytes, size: int) -> tuple[str | None, str]:
    """Return a body with hidden fields for a caller who does not see all; or None, and why it is hidden."""
    if bodies == "off":
        return None, OFF
    if size > MASKED_MAX or len(raw) < size:
        return None, TOO_LARGE
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(raw), dict | list):
            return json.dumps(masked(value, mask), ensure_ascii=False, indent=2), ""
    return None, NOT_JSON


def masked(value: Any, mask: Sequence[str]) -> Any:
    """Return a JSON value with the fields of ``mask`` hidden at any depth."""
    if isinstance(value, Mapping):
        return _masked_members(value, tuple(mask))
    if isinstance(value, list | tuple):
        if len(value) == 2 and _names(value[0], mask):
            return [value[0], HIDDEN]
        return [masked(item, mask) for item in value]
    return _masked_text(value, mask) if isinstance(value, str) else value


def _masked_members(value: Mapping[Any, Any], mask: tuple[str, ...]) -> dict[Any, Any]:
    hides = any(_ends(name, _NAMING) and _names(member, mask) for name, member in value.items())
    return {
        name: HIDDEN if is_masked(str(name), mask) or (hides and _ends(name, _VALUES)) else masked(member, mask)
        for name, member in value.items()
    }


def _ends(name: Any, ends: tuple[str, ...]) -> bool:
    return plain(str(name)[-_NAME_MAX:]).endswith(ends)


def _names(value: Any, mask: Sequence[str]) -> bool:
    """Return whether a value is the name of a hidden field. A long text is none."""
    return isinstance(value, str) and len(value) <= _NAME_MAX and is_masked(value, mask)


def _masked_text(text: str, mask: Sequence[str]) -> str:
    """Return text as the table above says."""
    bare = text.lstrip("\ufeff \t\r\n")
    if bare[:1] in ("{", "[", '"'):
        with suppress(ValueError, RecursionError):
            value = json.loads(bare)
            hidden = masked(value, mask)
            return text if hidden == value else json.dumps(hidden, ensure_ascii=False)
    if _LOOKS_ENCODED.match(bare) or _names_masked(unquote_plus(text), mask):
        return HIDDEN
    return text


def _names_masked(text: str, mask: Sequence[str]) -> bool:
    found = {match[1].strip() for match in _NAME_IN_TEXT.finditer(text)}
    return any(is_masked(name, mask) or is_masked(name.rpartition(" ")[2], mask) for name in found)


def is_masked(name: str, mask: Sequence[str]) -> bool:
    """Return whether a field of this name is hidden."""
    return len(name) > _NAME_MAX or _matches(name, tuple(mask))


@lru_cache(maxsize=1024)
def _matches(name: str, mask: tuple[str, ...]) -> bool:
    return _pattern(mask).search(plain(_REPEATED.sub("", name))) is not None


@lru_cache(maxsize=8)
def _pattern(mask: tuple[str, ...]) -> re.Pattern[str]:
    """Return the patterns as one: ``*word*`` is found anywhere, ``word`` is the whole name."""
    found = []
    for pattern in mask:
        parts = [plain(part) for part in pattern.split("*")]
        if any(parts) or len(parts) > 1:
            ends = "" if not parts[0] else r"\A", "" if not parts[-1] else r"\Z"
            found.append(ends[0] + ".*".join(parts).removeprefix(".*").removesuffix(".*") + ends[1])
    return re.compile("|".join(found) if found else r"(?!)")


@lru_cache(maxsize=1024)
def plain(name: str) -> str:
    """Return the letters and digits of a name: lower case, without accents, in the plain one of its Unicode forms."""
    text = name.lower() if name.isascii() else unicodedata.normalize("NFKD", name.casefold()).casefold()
    return _SEPARATORS.sub("", text)
