"""The names of all settings, derived from the models: in the file, in the environment, and similar ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from bridge.settings.mistakes import Path, ask, nearest
from bridge.settings.model import NamedToken, Route, Section, Settings
from bridge.settings.values import Rule

PREFIX = "POSTDATE_"
ROUTES = "routes"
ROUTE_NAME = r"[a-z][a-z0-9_]*"


TOKENS: Path = ("auth", "tokens")
#: Tables that hold a table for each name: a route, a token.
NAMED: dict[Path, type[Section]] = {(ROUTES,): Route, TOKENS: NamedToken}
#: The fields of every section except the routes, by section name.
SECTIONS = {
    name: {own: leaf for own, leaf in field.annotation.model_fields.items() if (name, own) not in NAMED}
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}


def leaves_of(settings: Settings) -> Iterator[tuple[Path, FieldInfo, Any]]:
    """Every setting with its path and value, those of its routes and tokens last."""
    named = [(TOKENS, name) for name in settings.auth.tokens] + [((ROUTES,), name) for name in settings.routes]
    inner = [((*table, name, own), field) for table, name in named for own, field in NAMED[table].model_fields.items()]
    for path, field in [*leaves(), *inner]:
        value: Any = settings
        for name in path:
            value = value[name] if isinstance(value, Mapping) else getattr(value, name)
        yield path, field, value


def leaves() -> list[tuple[Path, FieldInfo]]:
    """Every setting of a section with its path."""
    return [((section, name), field) for section, fields in SECTIONS.items() for name, field in fields.items()]


def field_at(path: Path) -> FieldInfo | None:
    if named := NAMED.get(path[:-2]):
        return named.model_fields.get(path[-1])
    return SECTIONS.get(path[0], {}).get(path[1]) if len(path) == 2 else None


def is_secret(field: FieldInfo) -> bool:
    """True for passwords, and for URLs, which may contain one."""
    return field.annotation is SecretStr


def rule_of(field: FieldInfo) -> Rule | None:
    """The rule that reads and writes the field's values. Booleans have none."""
    return next((rule for rule in field.metadata if isinstance(rule, Rule)), None)


def dotted(path: Path) -> str:
    return ".".join(path)


def env_name(path: Path) -> str:
    return PREFIX + "__".join(path).upper()


def advice_for(path: Path) -> str:
    """'Did you mean ...?' for an unknown name in a file or on the command line; "" if no name is similar.

    Looks for a similar name in the same table, then for the same name in other tables.
    """
    parent, word = path[:-1], path[-1]
    if not parent:
        here = nearest(word, [*SECTIONS, ROUTES])
    else:
        named = NAMED.get(parent[:-1])
        here = nearest(word, named.model_fields if named else SECTIONS.get(parent[0], {}))
    elsewhere = [dotted(known) for known, _ in leaves() if known[-1] == word]
    return ask(here) or ask(*elsewhere)
