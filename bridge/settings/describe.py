"""All settings as text, with the source of each: what ``config show`` and the page show."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from bridge.settings.mistakes import Path
from bridge.settings.model import Settings
from bridge.settings.names import dotted, leaves, rule_of


def describe(settings: Settings) -> list[tuple[str, str, str]]:
    """Return (name, value, source) of every setting, routes last.

    Values are written as the file would have them; passwords are dots and URLs have theirs masked. The source is
    "flag", "environment", "file PATH" (a secret read from there), the name of the TOML file, or "default".
    """
    return [
        (dotted(path), _write(field, value_at(settings, path)), settings._sources.get(dotted(path), "default"))
        for path, field in leaves(settings.routes)
    ]


def value_at(settings: Settings, path: Path) -> Any:
    """The value of one setting."""
    value: Any = settings
    for name in path:
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _write(field: FieldInfo, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    rule = rule_of(field)
    return rule.write(value) if rule else str(value)
