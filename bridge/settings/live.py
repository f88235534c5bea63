"""Which settings a running process takes over at a reload. All others need a restart.

Live are those that no connection, no topology and no other instance depends on. Pure.
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
_LIVE_OF_ROUTES = ("on_bad", "on_same_key")
#: The HTTP process is replaced if one of these sections changes.
_OF_HTTP = ("auth", "canary", "http", "limits", "log", "ui", "webhook")
_ROUTES, _ORIGIN = "routes", "origin"


class Changes(NamedTuple):
    """The dotted names of changed settings: those that are taken over, and those that need a restart."""

    live: tuple[str, ...]
    restart: tuple[str, ...]

    @property
    def concern_http(self) -> bool:
        """Whether the HTTP process needs the changes."""
        return any(name.partition(".")[0] in _OF_HTTP for name in self.live)


def is_live(name: str) -> bool:
    """Return whether a setting (dotted name) can change while the process runs."""
    section, _, rest = name.partition(".")
    if section == _ROUTES:
        return rest.rpartition(".")[2] in _LIVE_OF_ROUTES
    return section in _LIVE or name in _LIVE


def changes(old: Settings, new: Settings) -> Changes:
    """Return what differs."""
    found = sorted(_differing(old, new))
    return Changes(tuple(name for name, live in found if live), tuple(name for name, live in found if not live))


def with_live(old: Settings, new: Settings) -> Settings:
    """Return ``old`` with the live settings of ``new``. Routes that only one of them has stay as they are."""
    sections = {}
    for section in Settings.model_fields:
        if section in (_ROUTES, _ORIGIN):
            continue
        before, after = getattr(old, section), getattr(new, section)
        pairs = {name: (getattr(before, name), getattr(after, name)) for name in type(before).model_fields}
        live = {name: pair[1] for name, pair in pairs.items() if is_live(f"{section}.{name}") or _rotated(*pair)}
        sections[section] = before.model_copy(update=live)
    routes = {
        name: route.model_copy(update={field: getattr(new.routes[name], field) for field in _LIVE_OF_ROUTES})
        if name in new.routes
        else route
        for name, route in old.routes.items()
    }
    return old.model_copy(update={**sections, _ROUTES: routes})


def _rotated(before: Any, after: Any) -> bool:
    """Whether the same file has another password. Connections read it by themselves."""
    files = isinstance(before, FileSecret) and isinstance(after, FileSecret) and before.file == after.file
    return files and mask_url(before.first) == mask_url(after.first)


def _differing(old: Settings, new: Settings) -> Iterator[tuple[str, bool]]:
    """The settings that differ, and whether each is taken over."""
    for section in Settings.model_fields:
        if section in (_ROUTES, _ORIGIN):
            continue
        before, after = getattr(old, section), getattr(new, section)
        for name in type(before).model_fields:
            pair = getattr(before, name), getattr(after, name)
            if pair[0] != pair[1]:
                yield f"{section}.{name}", is_live(f"{section}.{name}") or _rotated(*pair)
    for name in old.routes.keys() | new.routes.keys():
        if name not in old.routes or name not in new.routes:
            yield f"{_ROUTES}.{name}", False
            continue
        past, other = old.routes[name], new.routes[name]
        for field in Route.model_fields:
            if getattr(past, field) != getattr(other, field):
                yield f"{_ROUTES}.{name}.{field}", field in _LIVE_OF_ROUTES
