"""The names of all settings, worked out from the models: dotted ones, those of the environment, and the nearest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from bridge.settings.mistakes import Path
from bridge.settings.model import Route, Settings
from bridge.settings.nearest import did_you_mean, nearest
from bridge.settings.rules import Rule

PREFIX = "POSTDATE_"
ROUTES = "routes"
ROUTE_NAME = r"[a-z][a-z0-9_]*"


def sections() -> dict[str, dict[str, FieldInfo]]:
    """The fields of every section but the routes, by the section's name."""
    found = {}
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found[name] = dict(field.annotation.model_fields)
    return found


def leaves(routes: Iterable[str] = ()) -> Iterator[tuple[Path, FieldInfo]]:
    """Every setting with its way in the tree, those of the given routes last."""
    for section, fields in SECTIONS.items():
        for name, field in fields.items():
            yield (section, name), field
    for route in routes:
        for name, field in Route.model_fields.items():
            yield (ROUTES, route, name), field


def field_at(path: Path) -> FieldInfo | None:
    """The field that stands at ``path``, or None where there is no such setting."""
    if len(path) == 3 and path[0] == ROUTES:
        return Route.model_fields.get(path[2])
    return SECTIONS.get(path[0], {}).get(path[1]) if len(path) == 2 else None


def is_secret(field: FieldInfo) -> bool:
    """True for passwords, and for URLs, which may hold one."""
    return field.annotation is SecretStr


def rule_of(field: FieldInfo) -> Rule | None:
    """The rule that reads and writes the field's values; switches (true, false) have none."""
    return next((rule for rule in field.metadata if isinstance(rule, Rule)), None)


def dotted(path: Path) -> str:
    return ".".join(path)


def env_name(path: Path) -> str:
    return PREFIX + "__".join(path).upper()


def no_such_setting(path: Path) -> str:
    """The sentence for an unknown name in a file or on the command line; ``path`` is as it was written."""
    return "is not a setting" + _hint(path)


def _hint(path: Path) -> str:
    """In the same table first, then the same word in another table, then anything alike."""
    parent, word = path[:-1], path[-1]
    if not parent:
        here = nearest(word, [*SECTIONS, ROUTES])
    else:
        here = nearest(word, Route.model_fields if parent[0] == ROUTES else SECTIONS.get(parent[0], {}))
    if here:
        return f"; did you mean {dotted((*parent, here))}?"
    return _hint_elsewhere(word) or did_you_mean(dotted(path), [dotted(known) for known, _ in leaves()])


def _hint_elsewhere(word: str) -> str:
    """A right name in the wrong table: name the tables that have it."""
    right = [dotted(path) for path, _ in leaves() if path[-1] == word]
    return f"; did you mean {' or '.join(right)}?" if right else ""


#: Worked out once: the models do not change while the program runs.
SECTIONS = sections()
