"""Settings from the environment: ``POSTDATE_REDIS__URL`` and, for secrets, ``POSTDATE_REDIS__URL_FILE``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path as FilePath

from bridge.settings.layers import Layer, bad_route_name
from bridge.settings.mistakes import Mistake, Path, Place
from bridge.settings.model import Route
from bridge.settings.names import PREFIX, ROUTE_NAME, ROUTES, env_name, field_at, is_secret, leaves
from bridge.settings.nearest import did_you_mean, nearest

CONFIG = "POSTDATE_CONFIG"
_FILE = "_FILE"
_SECRET_MAX = 64 * 1024

# Names with our prefix that are no settings: the tests' own, and what Kubernetes and Docker links put into every
# container beside a service called "postdate" or "postdate-redis" (POSTDATE_PORT=tcp://..., POSTDATE_SERVICE_HOST).
_TESTS = (f"{PREFIX}TEST_", f"{PREFIX}DEVSTACK_")
_LINKED = re.compile(
    rf"{PREFIX}(?:[A-Z0-9]+_)*(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9]+)*|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
_LINKED_PORT = re.compile(rf"{PREFIX}(?:[A-Z0-9]+_)*PORT=(?:tcp|udp|sctp)://.*")
_LOOSE_ROUTE = re.compile(rf"{PREFIX}ROUTES?_+(.+?)_+({'|'.join(Route.model_fields).upper()})")


def read_environment(environ: Mapping[str, str]) -> tuple[Layer, Layer]:
    """Read all names with our prefix: the layer of the environment itself, and the one of the secret files."""
    direct, files = Layer("environment"), Layer("file")
    for name in sorted(environ):
        if not name.upper().startswith(PREFIX) or name == CONFIG or _is_not_ours(name, environ[name]):
            continue
        place = Place("environment", name)
        if path := _path_of(name):
            _take(direct, path, environ[name], place)
        elif (path := _path_of(name.removesuffix(_FILE))) and _may_be_file(path):
            _take_file(files, path, environ[name], place)
        else:
            direct.mistakes.append(Mistake(place, _no_such_name(name)))
    return direct, files


def _is_not_ours(name: str, value: str) -> bool:
    linked = _LINKED.fullmatch(name) or _LINKED_PORT.fullmatch(f"{name}={value}")
    return name.startswith(_TESTS) or linked is not None


def _path_of(name: str) -> Path | None:
    """The way in the tree of a name of the environment, or None. The name counts exactly as it is written."""
    if name != name.upper():
        return None
    words = name.removeprefix(PREFIX).lower()
    section, _, rest = words.partition("__")
    # A route's name may hold underscores, the name of a setting has no double one: so the last "__" parts them.
    path = (section, *rest.rsplit("__", 1)) if section == ROUTES else (section, rest)
    return path if field_at(path) else None


def _may_be_file(path: Path) -> bool:
    field = field_at(path)
    return field is not None and is_secret(field)


def _take(layer: Layer, path: Path, value: str, place: Place) -> None:
    if path[0] == ROUTES and not re.fullmatch(ROUTE_NAME, path[1], re.ASCII):
        layer.mistakes.append(Mistake(place, f"has a name in it that {bad_route_name(path[1])}"))
    else:
        layer.put(path, value, place)


def _take_file(layer: Layer, path: Path, file: str, place: Place) -> None:
    try:
        secret = _read_secret(file)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        # Only what is surely a path is shown: some put the password itself here by mistake.
        shown = f" {file}" if file.startswith("/") and file.isprintable() else ""
        layer.mistakes.append(Mistake(place, f"names a file{shown} that cannot be read: {reason}"))
    else:
        layer.put(path, secret, Place(f"file {file}", place.key))


def _read_secret(file: str) -> str:
    """The text of a secret file without its last line break, which editors and ``echo`` put there."""
    if not file:
        raise ValueError("no name is given")
    with FilePath(file).open("rb") as stream:
        content = stream.read(_SECRET_MAX + 1)
    if len(content) > _SECRET_MAX:
        raise ValueError("it is too long for a secret")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        # Not chained: the exception of the decoder holds the secret.
        raise ValueError("it is not UTF-8") from None
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise ValueError("it is empty")
    return text


def _no_such_name(name: str) -> str:
    return f"is not a setting{_hint(name)}"


def _hint(name: str) -> str:
    if loose := _LOOSE_ROUTE.fullmatch(name.upper()):
        return f"; did you mean {env_name((ROUTES, loose[1], loose[2]))}?"
    if name.upper().startswith(f"{PREFIX}ROUTES__"):
        return _hint_route(name.upper())
    known = [env_name(path) for path, _ in leaves()]
    known += [env_name(path) + _FILE for path, field in leaves() if is_secret(field)]
    bare = [one.removeprefix(PREFIX) for one in [*known, CONFIG]]
    return did_you_mean(name[len(PREFIX) :], bare).replace("mean ", f"mean {PREFIX}")


def _hint_route(name: str) -> str:
    route, _, setting = name.removeprefix(f"{PREFIX}ROUTES__").rpartition("__")
    near = nearest(setting, Route.model_fields)
    return f"; did you mean {env_name((ROUTES, route, near))}?" if route and near else ""
