"""Which messages a verb is about: ids, or what stands under a key."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bridge.core.errors import NotFound, Refused, SettingsError
from bridge.parking.identity import shard_of

if TYPE_CHECKING:
    from bridge.admin.desk import Desk
    from bridge.settings import Settings


def read_ids(texts: Sequence[str]) -> list[bytes]:
    """Ids as they were typed. Raises ``SettingsError`` for what is none."""
    found = []
    for text in texts:
        raw = os.fsencode(text)
        try:
            shard_of(raw)
        except ValueError as error:
            raise SettingsError(f"{text!r} is {error}; `postdate list` shows them") from None
        found.append(raw)
    return found


def check_choice(ids: Sequence[str] | None, key: str | None) -> None:
    """Raise ``SettingsError`` unless either ids or a key are given."""
    if bool(ids) == (key is not None):
        raise SettingsError("Give ids, or --key with --route.")


async def targets(
    desk: Desk, settings: Settings, ids: Sequence[str] | None, key: str | None, route: str | None
) -> list[bytes]:
    """The ids that are meant. Raises ``SettingsError``, ``NotFound``, and ``Refused`` for a key that many have."""
    check_choice(ids, key)
    if key is None:
        return read_ids(ids or [])
    found = await desk.find(_route(settings, route), os.fsencode(key))
    if found.unlisted:
        raise Refused(
            f"{found.unlisted} messages stand under key {key!r}, so it names none of them: "
            f"find the one you mean with `postdate list --key`, and take its id"
        )
    if not found.ids:
        raise NotFound(
            f"No message has key {key!r} on route {_route(settings, route)}{strange_route(settings, route)}."
        )
    return found.ids


def strange_route(settings: Settings, route: str | None) -> str:
    """Half a sentence about a route that the settings do not have, or that has no store, or nothing. It may have
    messages all the same."""
    from bridge.app.open_desk import no_store
    from bridge.settings.mistakes import nearest

    if route is None or route in settings.routes:
        return f"; {text}" if (text := no_store(settings, route)) else ""
    near = nearest(route, settings.routes)
    return f"; there is no route {route} in the settings" + (f", the nearest is {near}" if near else "")


def judge_strange_route(settings: Settings, route: str | None) -> None:
    """Where nothing was found. Raises ``SettingsError`` for a route that the settings do not have."""
    from bridge.telemetry.printable import complain

    text = strange_route(settings, route).removeprefix("; ")
    if route is not None and route not in settings.routes:
        raise SettingsError(f"{text[0].upper()}{text[1:]}.")
    if text:
        complain(f"Warning: {text}.")


def _route(settings: Settings, route: str | None) -> str:
    """The route that is meant: messages of one that is no longer in the settings may still be parked."""
    if route is not None:
        return route
    if len(settings.routes) == 1:
        return next(iter(settings.routes))
    raise SettingsError(f"--key needs --route, one of {', '.join(settings.routes) or 'those in the settings'}.")
