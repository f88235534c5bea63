"""One source of settings, read: values with their places, and what was wrong on the way."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from bridge.settings.given import given
from bridge.settings.mistakes import Mistake, Path, Place
from bridge.settings.model import Settings
from bridge.settings.names import ROUTE_NAME, ROUTES, SECTIONS, dotted, field_at, is_secret, no_such_setting, rule_of
from bridge.settings.nearest import nearest
from bridge.settings.rules import ListOf


class Layer(PydanticBaseSettingsSource):
    """The values of one source by their way in the tree; pydantic-settings lays the layers over one another.

    pydantic-settings' own sources are not used: they pass over a missing file, over a misspelt name of the
    environment and over the place a value came from, and they log values when its debugging is switched on.
    """

    def __init__(self, source: str) -> None:
        super().__init__(Settings)
        self.source = source
        self.mistakes: list[Mistake] = []
        self.values: dict[Path, Any] = {}
        self.places: dict[Path, Place] = {}

    def put(self, path: Path, value: Any, place: Place) -> None:
        """Take a value. Secrets are wrapped at once, so that nothing that prints a layer shows them."""
        field = field_at(path)
        wrap = field is not None and is_secret(field) and isinstance(value, str)
        self.values[path] = SecretStr(value) if wrap else value
        self.places[path] = place

    def put_table(self, data: Mapping[str, Any], place_of: Callable[[Path], Place], typed: bool = False) -> None:
        """Take a nested table; whatever is not in the tree becomes a mistake. With ``typed`` switches and lists have to
        be such: elsewhere there is nothing but text."""
        for path, value in _flatten(data):
            if path[0] == ROUTES and len(path) > 1 and not re.fullmatch(ROUTE_NAME, path[1], re.ASCII):
                self.mistakes.append(Mistake(place_of(path[:2]), bad_route_name(path[1])))
            elif text := _objection(path, value):
                self.mistakes.append(Mistake(place_of(path), text))
            elif typed and (field := field_at(path)) and (text := _wrong_type(field, value)):
                self.mistakes.append(Mistake(place_of(path), text, given(field, value)))
            else:
                self.put(path, value, place_of(path))

    def drop(self, path: Path) -> None:
        """Forget a value that turned out wrong, or all values of a route."""
        for known in [known for known in self.values if known[: len(path)] == path]:
            del self.values[known]

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Not asked for: ``__call__`` hands over everything at once."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """The values as the nested dict that pydantic-settings merges."""
        tree: dict[str, Any] = {}
        for path, value in self.values.items():
            table = tree
            for name in path[:-1]:
                table = table.setdefault(name, {})
            table[path[-1]] = value
        return tree


def _flatten(data: Mapping[str, Any], above: Path = ()) -> Iterable[tuple[Path, Any]]:
    """Walk down to the settings, and no further: what is no table, or a table of the wrong depth, ends the way."""
    for name, value in data.items():
        path = (*above, str(name))
        if isinstance(value, Mapping) and _is_table(path) and (value or not _is_route(path)):
            yield from _flatten(value, path)
        else:
            yield path, value


def _is_route(path: Path) -> bool:
    return len(path) == 2 and path[0] == ROUTES


def _is_table(path: Path) -> bool:
    return path in {(ROUTES,), *((name,) for name in SECTIONS)} or _is_route(path)


def _objection(path: Path, value: Any) -> str | None:
    """Why a value cannot stand at ``path``, as half a sentence, or None."""
    if _is_route(path) and value == {}:
        return "has no settings; it needs intercept and deliver_to"
    if _is_table(path):
        example = f"[{ROUTES}.orders]" if path == (ROUTES,) else f"[{dotted(path)}]"
        return f"must be a table: {example}"
    if field_at(path) is None:
        return no_such_setting(path)
    return f"is one value and not a table [{dotted(path)}]" if isinstance(value, Mapping) else None


def _wrong_type(field: FieldInfo, value: Any) -> str | None:
    """What TOML can say better than by a text, as half a sentence, or None."""
    if field.annotation is bool and not isinstance(value, bool):
        return "must be true or false, without quotes"
    if isinstance(rule_of(field), ListOf) and not isinstance(value, list):
        return 'must be a list, in brackets: ["...", "..."]'
    return None


def bad_route_name(name: str) -> str:
    """Route names are part of names of the environment, which has no upper and lower case to tell apart."""
    text = "is not a name for a route: use a to z, 0 to 9 and _, a letter first"
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("_0123456789")
    return f"{text}; did you mean {ROUTES}.{plain}?" if plain and nearest(name, [plain]) else text
