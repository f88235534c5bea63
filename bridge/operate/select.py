"""Which messages a person means: by id or by key, and the sentences about routes that have none."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from bridge.core.errors import NotFound, Refused, SettingsError
from bridge.core.reasons import ReasonKind
from bridge.desk.past import PastFilter
from bridge.desk.protocol import Desk
from bridge.operate.where import ended, not_seen, past_entries
from bridge.parking.identity import shard_of
from bridge.settings import Settings
from bridge.settings.mistakes import nearest

#: The first words of reasons. No broker and no stage gives that of a message that the store damaged, or that of a dead
#: letter which the journal has without its reason.
_REASONS = sorted((*ReasonKind, "damaged", "unknown"))


def read_ids(texts: Sequence[str]) -> list[bytes]:
    """Read ids as they were typed. Raises ``SettingsError`` for what is none."""
    found = []
    for text in texts:
        try:
            raw = os.fsencode(text)
            shard_of(raw)
        except ValueError:
            raise SettingsError(f"{text!r} is not a message id. `postdate list` prints the ids.") from None
        found.append(raw)
    return found


async def ids_of_key(desk: Desk, settings: Settings, key: bytes, route: str | None) -> list[bytes]:
    """Return the ids of the messages with this key.

    Raises ``SettingsError`` where the route is missing, or is not configured and has none, ``NotFound``, and
    ``Refused`` for a key that too many messages have.
    """
    name = _route(settings, route)
    found = await desk.find(name, key)
    text = key.decode("utf-8", "backslashreplace")
    if found.unlisted:
        raise Refused(
            f"Key {text!r} is not unique on route {name!r}. Messages: {found.unlisted}. "
            "Find yours with `postdate list --key KEY`, and use its id."
        )
    if not found.ids:
        fact = f"No message has key {text!r} on route {name!r}"
        if entries := await past_entries(desk, PastFilter(route=name, key=key)):
            raise NotFound(f"{fact}: {ended(entries[0])} (id {entries[0].id.decode()}).")
        if name not in settings.routes:
            raise SettingsError(unknown_route(settings.routes, name))
        if text := no_store(settings, name):
            raise NotFound(f"{fact}. {text[0].upper()}{text[1:]}.")
        raise NotFound(f"{fact}: {await not_seen(desk)}.")
    return found.ids


def _route(settings: Settings, route: str | None) -> str:
    """Return the route of a key. One that was removed from the settings may still have parked messages."""
    if route is not None:
        return route
    if len(settings.routes) == 1:
        return next(iter(settings.routes))
    raise SettingsError(f"A key needs a route. Configured routes: {', '.join(settings.routes) or 'none'}.")


def unknown_route(routes: Collection[str], route: str) -> str:
    """Return the sentences about a route that is none of the configured ``routes``. Pure."""
    near = nearest(route, routes)
    hint = f"Did you mean {near!r}?" if near else f"Configured routes: {', '.join(routes) or 'none'}."
    return f"Route {route!r} is not configured. {hint}"


def judge_reason(reason: str | None) -> None:
    """Raise ``SettingsError`` if no reason starts like this. Pure."""
    if reason and not any(word.startswith(reason) or reason.startswith(f"{word}:") for word in _REASONS):
        raise SettingsError(f"No reason starts with {reason!r}. Known reasons: {', '.join(_REASONS)}.")


def no_store(settings: Settings, route: str | None = None) -> str:
    """Return the sentence that this route, or every route, has no store; "" where one has. Pure."""
    named = [name for name in settings.routes if route in (None, name)]
    modes = {settings.routes[name].mode for name in named}
    if not named or "redis" in modes:
        return ""
    what = f"route {named[0]} has no store" if len(named) == 1 else "no route has a store"
    return (
        f"{what} (mode {' and '.join(sorted(modes))}). Messages wait in the broker, where none can be shown, cancelled "
        "or rescheduled. `postdate levels stats` counts them"
    )


def refuse_without_store(settings: Settings, route: str) -> None:
    """Raise ``Refused`` if this route has no store."""
    if text := no_store(settings, route):
        raise Refused(text)
