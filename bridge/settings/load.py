"""Reading all settings at start: flag over environment over secret file over TOML file over default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from types import MappingProxyType

from pydantic import ValidationError

from bridge.core.errors import SettingsError
from bridge.settings.checks import conflicts
from bridge.settings.environment import CONFIG, read_environment
from bridge.settings.given import given
from bridge.settings.layers import Layer
from bridge.settings.mistakes import Mistake, Path, Place, from_pydantic, settings_error
from bridge.settings.model import Settings
from bridge.settings.names import ROUTES, dotted, field_at
from bridge.settings.nearest import did_you_mean
from bridge.settings.tables import DEFAULT_FILE, FLAG, find_file, read_file, read_overrides

_NO_FLAGS: Mapping[str, object] = MappingProxyType({})


def load(path: FilePath | None, environ: Mapping[str, str], overrides: Mapping[str, object] = _NO_FLAGS) -> Settings:
    """Read and check all settings.

    ``path``: the file that a flag named, or None for $POSTDATE_CONFIG, else ./postdate.toml, else no file.
    ``environ``: usually ``os.environ``. ``overrides``: what flags set, by dotted name; None means "not given".
    Raises SettingsError whose text has a line for every mistake, and never a secret.
    """
    # The order is the precedence.
    file = find_file(path, environ)
    layers = (read_overrides(overrides), *read_environment(environ), read_file(file))
    mistakes = [mistake for layer in layers for mistake in layer.mistakes]
    settings, wrong = _build(layers, mistakes)
    for conflict in conflicts(settings):
        if not wrong.intersection(conflict.paths):
            mistakes.append(
                Mistake(_place_of(conflict.paths, layers), _about(conflict.paths[0], conflict.text, layers))
            )
    if mistakes:
        raise settings_error(mistakes)
    settings._file = str(file or "")
    return settings


def require_routes(settings: Settings) -> None:
    """Raise SettingsError if there is no route: then ``run``, ``setup`` and ``check`` have nothing to work on."""
    if not settings.routes:
        raise SettingsError(
            f'No route is set ({_read_from(settings)}): add [routes.orders] with intercept = "orders.delay" and '
            'deliver_to = "orders" to the settings file, or set '
            "POSTDATE_ROUTES__ORDERS__INTERCEPT and POSTDATE_ROUTES__ORDERS__DELIVER_TO."
        )


def _read_from(settings: Settings) -> str:
    """Which file was looked at, for people who wonder why a setting of theirs is not there."""
    if settings.file:
        return f"read from {settings.file}"
    return f"there is no ./{DEFAULT_FILE} here; --config FILE or {CONFIG} names another file"


def _build(layers: Sequence[Layer], mistakes: list[Mistake]) -> tuple[Settings, set[Path]]:
    """Let pydantic check every value. Wrong ones are noted and taken out until the rest can stand.

    So the conflicts between the right ones are found in the same run. Also returns the paths of the wrong values.
    """
    wrong: set[Path] = set()
    while True:
        try:
            settings = Settings(_build_sources=(tuple(layers), {}))  # type: ignore[call-arg]  # mypy sees the fields only
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False, include_context=False)
        else:
            settings._sources.update(_sources(layers))
            return settings, wrong
        for one in found:
            path = _known_part(one["loc"])
            if path in wrong:  # it is missing because it was wrong
                continue
            mistake = from_pydantic(one, _place_of((path,), layers), _given(path, layers))
            mistakes.append(_explain(one["type"], mistake, path, layers))
            wrong.add(path)
        # Only after all are explained: a route without a required setting goes as a whole.
        before = _count(layers)
        for one in found:
            path = _known_part(one["loc"])
            for layer in layers:
                layer.drop(path[:2] if one["type"] == "missing" else path)
        if _count(layers) == before:
            raise settings_error(mistakes)


def _count(layers: Sequence[Layer]) -> int:
    return sum(len(layer.values) for layer in layers)


def _known_part(loc: Sequence[int | str]) -> Path:
    """pydantic's location, cut off where the setting ends (it also counts the items of a list)."""
    path = tuple(str(step) for step in loc)
    return next((path[:end] for end in (2, 3) if field_at(path[:end])), path)


def _place_of(paths: Sequence[Path], layers: Sequence[Layer]) -> Place:
    """Where the first of ``paths`` that anybody has set stands; for a missing one, where its route stands."""
    for path in paths:
        for layer in layers:
            if path in layer.values:
                return layer.places[path]
    for layer in layers:
        for known in layer.values:
            if known[:2] == paths[0][:2] and known[0] == ROUTES:
                return Place(layer.places[known].where, dotted(paths[0]))
    return Place("default", dotted(paths[0]))


def _given(path: Path, layers: Sequence[Layer]) -> str:
    """What stands at ``path`` in the first layer that has it, as far as it may be shown."""
    field = field_at(path)
    values = [layer.values[path] for layer in layers if path in layer.values]
    return given(field, values[0]) if field is not None and values else ""


def _about(path: Path, text: str, layers: Sequence[Layer]) -> str:
    """The text about ``path``, which it names when the place shown is that of another setting."""
    return text if any(path in layer.values for layer in layers) else f"does not go with {dotted(path)}, which {text}"


def _explain(kind: str, mistake: Mistake, path: Path, layers: Sequence[Layer]) -> Mistake:
    """A route that lacks something may be a misspelt name of another: ORDRES for ORDERS in the environment."""
    if kind != "missing":
        return mistake
    others = {known[1] for layer in layers for known in layer.values if known[0] == ROUTES} - {path[1]}
    hint = did_you_mean(path[1], sorted(others))
    return Mistake(mistake.place, mistake.text + hint.replace("mean ", f"mean {ROUTES}.")) if hint else mistake


def _sources(layers: Sequence[Layer]) -> dict[str, str]:
    """The source of each value that is no default, the strongest winning."""
    found: dict[str, str] = {}
    for layer in reversed(layers):
        for path in layer.values:
            found[dotted(path)] = FLAG if layer.source == FLAG else layer.places[path].where
    return found
