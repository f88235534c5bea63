"""Which settings a running process takes over at a reload. All others need a restart.

Live are those that no connection and no other instance depends on. Whole routes are live, too, where a process of
their broker with a store runs before and after. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bridge.settings.model import Route, Settings
from bridge.settings.secret_file import FileSecret
from bridge.settings.urls import mask_url

#: Dotted names; a section alone stands for all of its settings.
_LIVE = (
    "auth",
    "bridge.shutdown_grace",
    "canary.delay",
    "canary.every",
    "dispatch.pace",
    "headers.message_id",
    "headers.on_bad",
    "headers.on_same_key",
    "http.base_path",
    "http.cert_file",
    "http.key_file",
    "http.request_max",
    "http.requests_per_second",
    "limits.max_body",
    "limits.max_delay",
    "log",
    "retry",
    "ui",
    "webhook",
)
_LIVE_OF_ROUTES = ("max_rate", "on_bad", "on_same_key")
#: The HTTP process is replaced if one of these sections changes.
_OF_HTTP = ("auth", "canary", "http", "limits", "log", "ui", "webhook")
_ROUTES, _ORIGIN = "routes", "origin"


class Changes(NamedTuple):
    """The dotted names of changed settings: those that are taken over, and those that need a restart. Names of the
    routes that are added and removed live are in ``live``, too."""

    live: tuple[str, ...]
    restart: tuple[str, ...]
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def concern_http(self) -> bool:
        return bool(self.added or self.removed) or any(name.partition(".")[0] in _OF_HTTP for name in self.live)


def is_live(name: str) -> bool:
    """Return whether a setting (dotted name) can change while the process runs."""
    section, _, rest = name.partition(".")
    if section == _ROUTES:
        return rest.rpartition(".")[2] in _LIVE_OF_ROUTES
    return section in _LIVE or name in _LIVE


def changes(old: Settings, new: Settings) -> Changes:
    found = sorted(_differing(old, new))
    live, restart = (tuple(name for name, is_so in found if is_so is wanted) for wanted in (True, False))
    after = with_live(old, new).routes
    added, removed = sorted(after.keys() - old.routes.keys()), sorted(old.routes.keys() - after.keys())
    return Changes(live, restart, tuple(added), tuple(removed))


def with_live(old: Settings, new: Settings) -> Settings:
    """Return ``old`` with the live settings of ``new``, and with its routes as far as they come and go live."""
    live: dict[str, dict[str, Any]] = {}
    for section, name, before, after in _pairs(old, new):
        if is_live(f"{section}.{name}") or _rotated(before, after):
            live.setdefault(section, {})[name] = after
    sections = {section: getattr(old, section).model_copy(update=found) for section, found in live.items()}
    routes = {
        name: route.model_copy(update={field: getattr(new.routes[name], field) for field in _LIVE_OF_ROUTES})
        if name in new.routes
        else route
        for name, route in old.routes.items()
        if name in new.routes or not _comes_and_goes(route, old, new)
    }
    routes |= {
        name: route for name, route in new.routes.items() if name not in old.routes and _comes_and_goes(route, old, new)
    }
    return old.model_copy(update={**sections, _ROUTES: routes})


def _comes_and_goes(route: Route, old: Settings, new: Settings) -> bool:
    """Return whether a process delivers the stored routes of this route's broker before the reload and after it."""
    after = {name: old.routes.get(name, other) for name, other in new.routes.items()}
    return route.stored and all(
        any(other.stored and other.broker == route.broker for other in routes.values())
        for routes in (old.routes, after)
    )


def _rotated(before: Any, after: Any) -> bool:
    """Whether the same file has another password. Connections read it by themselves."""
    files = isinstance(before, FileSecret) and isinstance(after, FileSecret) and before.file == after.file
    return files and mask_url(before.first) == mask_url(after.first)


def _pairs(old: Settings, new: Settings) -> Iterator[tuple[str, str, Any, Any]]:
    """Section, name and both values of every setting but those of routes."""
    for section in Settings.model_fields.keys() - {_ROUTES, _ORIGIN}:
        before, after = getattr(old, section), getattr(new, section)
        for name in type(before).model_fields:
            yield section, name, getattr(before, name), getattr(after, name)


def _differing(old: Settings, new: Settings) -> Iterator[tuple[str, bool]]:
    """The settings that differ, and whether each is taken over."""
    for section, name, before, after in _pairs(old, new):
        if before != after:
            yield f"{section}.{name}", is_live(f"{section}.{name}") or _rotated(before, after)
    for name in old.routes.keys() | new.routes.keys():
        if name not in old.routes or name not in new.routes:
            route = old.routes.get(name) or new.routes[name]
            yield f"{_ROUTES}.{name}", _comes_and_goes(route, old, new)
            continue
        past, other = old.routes[name], new.routes[name]
        for field in Route.model_fields:
            if getattr(past, field) != getattr(other, field):
                yield f"{_ROUTES}.{name}.{field}", field in _LIVE_OF_ROUTES
