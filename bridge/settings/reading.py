"""Reads all settings at start. A flag wins over the environment, then a secret file, the TOML file, the default.

pydantic-settings lays these sources over one another. Its own sources are not used: they ignore missing files and
unknown names, lose the place of a value, and log values when debugging is on.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path as FilePath
from types import MappingProxyType
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import PydanticBaseSettingsSource

from bridge.core.errors import SettingsError
from bridge.settings.conflicts import conflicts, listening_conflicts
from bridge.settings.mistakes import (
    COMMAND_LINE,
    ENVIRONMENT,
    Location,
    Mistake,
    Path,
    ask,
    mistake,
    nearest,
    settings_error,
    unknown_setting,
)
from bridge.settings.model import Origin, Route, Settings
from bridge.settings.names import (
    NAMED,
    PREFIX,
    ROUTE_NAME,
    ROUTES,
    SECTIONS,
    TOKENS,
    advice_for,
    dotted,
    env_name,
    field_at,
    is_secret,
    leaves,
    rule_of,
)
from bridge.settings.secret_file import FileSecret
from bridge.settings.values import RULE_ERROR, ListOf, OneOf, Secret, shown

CONFIG = "POSTDATE_CONFIG"
#: Read by commands: where the API is, and its token.
_API = ("POSTDATE_API", "POSTDATE_API_TOKEN", "POSTDATE_API_TOKEN_FILE")
DEFAULT_FILE = "postdate.toml"
_FLAG = "flag"
#: The only setting that stands in no table, and in the settings file alone.
_INCLUDE = "include"
_FILE = "_FILE"
_NO_FLAGS: Mapping[str, object] = MappingProxyType({})
_BAD_NAME = "use a to z, 0 to 9 and _, starting with a letter"

# Variables with our prefix that are no settings: those of our tests, and those that Kubernetes and Docker links set for
# a service called "postdate" or "postdate-redis" (POSTDATE_PORT=tcp://..., POSTDATE_SERVICE_HOST).
_TESTS = (f"{PREFIX}TEST_", f"{PREFIX}DEVSTACK_")
_LINKED = re.compile(
    rf"{PREFIX}(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9]+)*|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_LINKED_PORT = re.compile(rf"{PREFIX}(?:[A-Z0-9]+_)*PORT=(?:tcp|udp|sctp)://.*")
_LOOSE_ROUTE = re.compile(rf"{PREFIX}ROUTES?_+(.+?)_+({'|'.join(Route.model_fields).upper()})")

#: Where tomllib found a syntax error.
_TOML_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")

#: pydantic's own errors in our words. Its sentences can repeat the value.
_PYDANTIC = {"missing": "is required", "bool_parsing": "must be true or false", "bool_type": "must be true or false"}


def load(
    path: FilePath | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, object] = _NO_FLAGS,
    listening: bool = False,
) -> Settings:
    """Read and check all settings.

    ``path``: the file named by a flag, or None for $POSTDATE_CONFIG, else ./postdate.toml, else no file.
    ``environ``: usually ``os.environ``. ``overrides``: the flags, by dotted name; None means "not given".
    ``listening``: the process will serve HTTP, so an address that other machines reach requires a token.
    Raises SettingsError with one line for each mistake. It never contains a secret.
    """
    file = _find_file(path, environ)
    # The order is the precedence.
    layers = (_read_overrides(overrides), *_read_environment(environ), _read_file(file))
    mistakes = [mistake for layer in layers for mistake in layer.mistakes]
    settings, wrong = _build(layers, mistakes)
    for conflict in (*conflicts(settings), *(listening_conflicts(settings) if listening else ())):
        if not wrong.intersection(conflict.paths):
            text = _about(conflict.paths[0], conflict.text, layers)
            mistakes.append(mistake(_place_of(conflict.paths, layers), text))
    if mistakes:
        raise settings_error(mistakes)
    return settings.model_copy(update={"origin": Origin(str(file or ""), _sources(layers))})


def require_routes(settings: Settings) -> None:
    """Raise SettingsError if there is no route: ``run``, ``setup`` and ``check`` need one."""
    if settings.routes:
        return
    variables = "set POSTDATE_ROUTES__ORDERS__INTERCEPT and POSTDATE_ROUTES__ORDERS__DELIVER_TO"
    if settings.file:
        route = '[routes.orders] with intercept = "orders.delay" and deliver_to = "orders"'
        raise SettingsError(f"No route is set in {settings.file}. Add {route}, or {variables}.")
    raise SettingsError(
        f"No route is set, and there is no ./{DEFAULT_FILE}. "
        f"Name your settings file with --config FILE or {CONFIG}, or {variables}."
    )


# One source


class _Layer(PydanticBaseSettingsSource):
    """The values of one source by path, with their places, and the mistakes in it."""

    def __init__(self, source: str) -> None:
        super().__init__(Settings)
        self.source = source
        self.mistakes: list[Mistake] = []
        self.values: dict[Path, Any] = {}
        self.refused: set[Path] = set()
        self.places: dict[Path, Location] = {}

    def put(self, path: Path, value: Any, place: Location) -> None:
        """Add a value. Secrets are wrapped at once, so that printing a layer never shows them."""
        field = field_at(path)
        wrap = field is not None and is_secret(field) and isinstance(value, str)
        self.values[path] = SecretStr(value) if wrap else value
        self.places[path] = place

    def put_table(self, data: Mapping[str, Any], place_of: Callable[[Path], Location], typed: bool = False) -> None:
        """Add a nested table. Unknown names become mistakes, and with ``typed`` text instead of a boolean or a list."""
        for path, value in _flatten(data):
            place = place_of(path)
            if (name := _wrong_name(path)) is not None:
                self.mistakes.append(_bad_name(place_of(path[: path.index(name) + 1]), path, name))
            elif (secret := _secret_in_file(path, value) or path) in self.values:
                self.mistakes.append(mistake(place, "is set twice: by its value and by a file"))
            elif secret != path:
                _take_file(self, secret, str(value), place)
            elif field_at(path) is None and not _is_table(path):
                self.mistakes.append(unknown_setting(place, advice_for(path)))
            elif text := _wrong_shape(path, value):
                self.mistakes.append(mistake(place, text))
                self.refused.add(path)
            elif typed and (text := _wrong_type(path, value)):
                self.mistakes.append(mistake(place, text, given=_shown(path, value)))
            else:
                self.put(path, value, place)

    def drop(self, path: Path) -> None:
        """Remove a wrong value, or all values of a route."""
        for known in [known for known in self.values if known[: len(path)] == path]:
            del self.values[known]

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Required by the base class. Not used: ``__call__`` returns everything at once."""
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
    """Walk down to the settings. A table in place of a value, or a value in place of a table, is returned as it is."""
    for name, value in data.items():
        path = (*above, str(name))
        if isinstance(value, Mapping) and _is_table(path) and (value or not _is_named(path)):
            yield from _flatten(value, path)
        else:
            yield path, value


def _is_named(path: Path) -> bool:
    return path[:-1] in NAMED


def _is_table(path: Path) -> bool:
    return path in NAMED or (len(path) == 1 and path[0] in SECTIONS) or _is_named(path)


def _wrong_shape(path: Path, value: Any) -> str | None:
    """Why a known name cannot have this value: it needs a table, or must not have one."""
    if _is_named(path) and value == {}:
        return "needs intercept and deliver_to" if path[0] == ROUTES else "needs role and token"
    if _is_table(path):
        example = {(ROUTES,): f"[{ROUTES}.orders]", TOKENS: f"[{dotted(TOKENS)}.alice]"}.get(path, f"[{dotted(path)}]")
        return f"must be a table: {example}"
    return "must be a value, not a table" if isinstance(value, Mapping) else None


def _wrong_type(path: Path, value: Any) -> str | None:
    """TOML has booleans and lists. The other sources have only text."""
    field = field_at(path)
    assert field is not None
    if field.annotation is bool and not isinstance(value, bool):
        return "must be true or false, without quotes"
    if isinstance(rule_of(field), ListOf) and not isinstance(value, list):
        return 'must be a list in brackets: ["...", "..."]'
    return None


def _shown(path: Path, value: Any) -> str:
    field = field_at(path)
    if field is None or is_secret(field):
        return ""
    return shown(value, words=field.annotation is bool or isinstance(rule_of(field), OneOf))


def _wrong_name(path: Path) -> str | None:
    """The invalid name of a route or token in a path; None for none."""
    names = [path[len(table)] for table in NAMED if path[: len(table)] == table and len(path) > len(table)]
    return next((name for name in names if not re.fullmatch(ROUTE_NAME, name, re.ASCII)), None)


def _bad_name(place: Location, path: Path, name: str) -> Mistake:
    """These names are part of environment variables, so they have no capitals."""
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower()).lstrip("_0123456789")
    near = nearest(name, [plain]) if plain else None
    kind = "route" if path[0] == ROUTES else "token"
    text = f"is not a valid {kind} name" if place.key.endswith(f".{name}") else f"contains an invalid {kind} name"
    return mistake(place, f"{text}: {_BAD_NAME}", ask(near))


def _secret_in_file(path: Path, value: Any) -> Path | None:
    """The secret that a name with ``_file`` behind it reads from a file; None for another name."""
    secret = (*path[:-1], path[-1].removesuffix(_FILE.lower()))
    field = field_at(secret)
    found = field_at(path) is None and field is not None and is_secret(field) and isinstance(value, str)
    return secret if found else None


# Flags and the settings file


def _read_overrides(overrides: Mapping[str, object]) -> _Layer:
    """Read the flags: dotted names ("redis.url") or tables. None means that the flag was not given."""
    layer = _Layer(_FLAG)
    for name, value in overrides.items():
        if value is None:
            continue
        data: Any = value
        for part in reversed(name.split(".")):
            data = {part: data}
        layer.put_table(data, lambda path: Location(COMMAND_LINE, dotted(path)))
    return layer


def _find_file(path: FilePath | None, environ: Mapping[str, str]) -> FilePath | None:
    """The file named by the flag or by POSTDATE_CONFIG, or ./postdate.toml if it exists.

    A named file is returned even if it is missing. Reading it fails then, so postdate never falls back to defaults.
    """
    if path is not None:
        return path
    if environ.get(CONFIG):
        return FilePath(environ[CONFIG])
    default = FilePath(DEFAULT_FILE)
    return default if default.exists() else None


def _read_file(file: FilePath | None) -> _Layer:
    """Read the TOML file, and the files with routes that it includes. Without a file the layer is empty."""
    layer = _Layer(str(file) if file else "no file")
    if file is None:
        return layer
    data = _parsed(file, layer)
    pattern = data.pop(_INCLUDE, "")
    layer.put_table(data, lambda path: Location(str(file), dotted(path)), typed=True)
    if not isinstance(pattern, str):
        text = 'must be a pattern in quotes, such as "routes.d/*.toml"'
        layer.mistakes.append(mistake(Location(str(file), _INCLUDE), text))
        return layer
    for other in _included(file, pattern, layer):
        _include(other, layer)
    return layer


def _included(file: FilePath, pattern: str, layer: _Layer) -> list[FilePath]:
    """The files that ``include`` names, in the order of their names. It is relative to the settings file."""
    found = sorted(glob(str(file.absolute().parent / pattern))) if pattern else []
    if pattern and not found and not has_magic(pattern):
        layer.mistakes.append(mistake(Location(str(file), _INCLUDE), "names a file that does not exist"))
    return [FilePath(name) for name in found]


def _include(file: FilePath, layer: _Layer) -> None:
    """Read a file that has routes only. Each route stands in one file."""
    data = _parsed(file, layer)
    routes = data.pop(ROUTES, {})
    for name in data:
        text = f"does not belong in an included file. Move it to {layer.source}"
        layer.mistakes.append(mistake(Location(str(file), name), text))
    first = {path[1]: place.where for path, place in layer.places.items() if path[0] == ROUTES and len(path) > 1}
    for name in [name for name in (routes if isinstance(routes, dict) else ()) if name in first]:
        layer.mistakes.append(mistake(Location(str(file), f"{ROUTES}.{name}"), f"is also in {first[name]}"))
        del routes[name]
    layer.put_table({ROUTES: routes}, lambda path: Location(str(file), dotted(path)), typed=True)


def _parsed(file: FilePath, layer: _Layer) -> dict[str, Any]:
    """The tables of a TOML file. What makes it unreadable becomes a mistake of the layer."""
    try:
        # utf-8-sig: Windows editors write a byte order mark, which tomllib refuses.
        text = file.read_bytes().decode("utf-8-sig")
        return tomllib.loads(text)
    except OSError as error:
        layer.mistakes.append(mistake(Location(str(file), "this file"), f"cannot be read: {error.strerror}"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        layer.mistakes.append(mistake(Location(str(file), f"line {line}"), "is not UTF-8 text"))
    except (ValueError, RecursionError) as error:
        layer.mistakes.append(_broken(str(file), text, str(error)))
    return {}


def _broken(file: str, text: str, reason: str) -> Mistake:
    """tomllib's error with file, line and column. The text there is not quoted: it may be a password."""
    found = _TOML_PLACE.search(reason)
    if found and found["line"]:
        line, column = int(found["line"]), int(found["column"])
    else:
        line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
    what = reason[: found.start()] if found else "Too deep or too large"
    if twice := re.fullmatch(r"Cannot declare (\(.*\)) twice", what):
        table = ".".join(re.findall(r"'([^']*)'", twice[1]))
        what = f"the table [{table}] occurs twice"
    return mistake(Location(file, f"line {line}, column {column}"), f"is not TOML: {what[:1].lower()}{what[1:]}")


# The environment


def _read_environment(environ: Mapping[str, str]) -> tuple[_Layer, _Layer]:
    """Read all variables with our prefix. Returns the layer of the environment and the layer of the secret files."""
    direct, files = _Layer(ENVIRONMENT), _Layer("file")
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX) or name in (CONFIG, *_API) or _is_not_ours(name, environ[name]):
            continue
        place = Location(ENVIRONMENT, name)
        if path := _path_of(name):
            if (name_in_path := _wrong_name(path)) is not None:
                direct.mistakes.append(_bad_name(place, path, name_in_path))
            else:
                direct.put(path, environ[name], place)
        elif (path := _path_of(name.removesuffix(_FILE))) and (field := field_at(path)) and is_secret(field):
            _take_file(files, path, environ[name], place)
        else:
            direct.mistakes.append(unknown_setting(place, _advice_for_variable(name)))
    return direct, files


def _is_not_ours(name: str, value: str) -> bool:
    linked = _LINKED.fullmatch(name) or _LINKED_PORT.fullmatch(f"{name}={value}")
    return name.startswith(_TESTS) or linked is not None


def _path_of(name: str) -> Path | None:
    """The path of the setting that a variable sets, or None. Case matters."""
    if name != name.upper():
        return None
    words = name.removeprefix(PREFIX).lower()
    section, _, rest = words.partition("__")
    # The name of a route or token may contain "__", a setting's name may not: so the last "__" separates them.
    path: Path = (section, *rest.rsplit("__", 1)) if section == ROUTES else (section, rest)
    named = "__".join(TOKENS) + "__"
    if words.startswith(named):
        path = (*TOKENS, *words.removeprefix(named).rsplit("__", 1))
    return path if field_at(path) else None


def _take_file(layer: _Layer, path: Path, file: str, place: Location) -> None:
    field = field_at(path)
    assert field is not None
    rule = rule_of(field)
    assert isinstance(rule, Secret)
    try:
        secret = FileSecret(file, rule.judge)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        # Shown only if it is certainly a path: some people put the password itself here.
        name = f" {file}" if file.startswith("/") and file.isprintable() else ""
        layer.mistakes.append(mistake(place, f"names a file{name} that cannot be read: {reason}"))
    else:
        layer.put(path, secret, Location(f"file {file}", place.key))


def _advice_for_variable(name: str) -> str:
    upper = name.upper()
    if loose := _LOOSE_ROUTE.fullmatch(upper):
        return ask(env_name((ROUTES, loose[1], loose[2])))
    if upper.startswith(f"{PREFIX}ROUTES__"):
        route, _, setting = upper.removeprefix(f"{PREFIX}ROUTES__").rpartition("__")
        near = nearest(setting, Route.model_fields)
        return ask(env_name((ROUTES, route, near)) if route and near else None)
    known = [env_name(path) for path, _ in leaves()]
    known += [env_name(path) + _FILE for path, field in leaves() if is_secret(field)]
    # Compared without the prefix, which would make every name similar. The section does so, too: thus the cutoff.
    near = nearest(name[len(PREFIX) :], [candidate.removeprefix(PREFIX) for candidate in [*known, CONFIG]], cutoff=0.8)
    return ask(near and PREFIX + near)


# All sources together


def _build(layers: Sequence[_Layer], mistakes: list[Mistake]) -> tuple[Settings, set[Path]]:
    """Let pydantic check every value. Also returns the paths of the wrong ones.

    Wrong values are noted and removed until the rest is valid, so that one run also finds the conflicts of the rest.
    """
    wrong: set[Path] = {path for layer in layers for path in layer.refused}
    while True:
        try:
            settings = Settings(_build_sources=(tuple(layers), {}))  # type: ignore[call-arg]  # mypy sees the fields only
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
        else:
            found = [_missing(name, field) for name, route in settings.routes.items() for field in route.lacks()]
            if not found:
                return settings, wrong
        for problem in found:
            path = _known_part(problem["loc"])
            if path not in wrong:  # A removed value is reported as missing in the next round.
                mistakes.append(_explained(problem, path, layers))
                wrong.add(path)
        # Only after all are explained: a route without a required setting is removed as a whole.
        before = _count(layers)
        for problem in found:
            path = _known_part(problem["loc"])
            for layer in layers:
                layer.drop(path[:2] if problem["type"] == "missing" else path)
        if _count(layers) == before:
            raise settings_error(mistakes)


def _missing(route: str, field: str) -> ErrorDetails:
    """A required setting that is not there, as pydantic reports one. What a route requires depends on its kind."""
    return ErrorDetails(type="missing", loc=(ROUTES, route, field), msg="", input=None)


def _explained(error: ErrorDetails, path: Path, layers: Sequence[_Layer]) -> Mistake:
    """One of pydantic's errors in our words."""
    place = _place_of((path,), layers)
    values = [layer.values[path] for layer in layers if path in layer.values]
    given = _shown(path, values[0]) if values else ""
    kind = error["type"]
    if kind == RULE_ERROR:
        return mistake(place, error["msg"], error["ctx"]["advice"], given)
    if kind == "missing":
        # The route may be a misspelt name of another one: ORDRES for ORDERS in the environment.
        others = {known[1] for layer in layers for known in layer.values if known[0] == ROUTES} - {path[1]}
        near = nearest(path[1], sorted(others))
        return mistake(place, _PYDANTIC[kind], ask(near and dotted((ROUTES, near))))
    text = error["msg"].removeprefix("Value error, ").replace("Input should be ", "must be ")
    return mistake(place, _PYDANTIC.get(kind, text), "", given)


def _count(layers: Sequence[_Layer]) -> int:
    return sum(len(layer.values) for layer in layers)


def _known_part(loc: Sequence[int | str]) -> Path:
    """pydantic's location, cut where the setting ends: it also counts the items of a list."""
    path = tuple(str(step) for step in loc)
    return next((path[:end] for end in (2, 3, 4) if field_at(path[:end])), path)


def _place_of(paths: Sequence[Path], layers: Sequence[_Layer]) -> Location:
    """The place of the first of ``paths`` that is set. For a missing setting, the place of its route."""
    for path in paths:
        for layer in layers:
            if path in layer.values:
                return layer.places[path]
    for layer in layers:
        for known in layer.values:
            if known[:2] == paths[0][:2] and known[0] == ROUTES:
                return Location(layer.places[known].where, dotted(paths[0]))
    return Location("default", dotted(paths[0]))


def _about(path: Path, text: str, layers: Sequence[_Layer]) -> str:
    """The text about ``path``, with its name if the place shown is that of another setting."""
    is_set = any(path in layer.values for layer in layers)
    return text if is_set else f"conflicts with {dotted(path)}, which {text}"


def _sources(layers: Sequence[_Layer]) -> dict[str, str]:
    """The source of each value that is not the default. The strongest wins."""
    found: dict[str, str] = {}
    for layer in reversed(layers):
        for path in layer.values:
            found[dotted(path)] = _FLAG if layer.source == _FLAG else layer.places[path].where
    return found


def settings_from(
    config: FilePath | None, overrides: Mapping[str, object] = _NO_FLAGS, listening: bool = False
) -> Settings:
    """Load the settings of a command, with this process's environment. Raises ``SettingsError``."""
    return load(config, os.environ, overrides, listening)


def settings_with_routes(
    config: FilePath | None, overrides: Mapping[str, object] = _NO_FLAGS, listening: bool = False
) -> Settings:
    """Load the settings of a command that needs a route. Raises ``SettingsError``."""
    settings = settings_from(config, overrides, listening)
    require_routes(settings)
    return settings


def settings_of_file(file: FilePath) -> Settings:
    return load(file, {})
