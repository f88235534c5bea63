"""``postdate check``: judges the settings, the store and the topology, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from bridge.admin.topology import Finding, Name, Standing
from bridge.cli.options import BeforeOption, ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.settings import Settings


#: How many parts of a route are named; of more, the number is given.
_NAMED = 4
_WARNINGS = (Standing.NONE, Standing.FEW, Standing.UNLIKE, Standing.WAITS)


def check(config: ConfigOption = None, before: BeforeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Judge settings, store and topology without changing anything.

    Exit code 0: may run (warnings included), 1: something is wrong, 2: the settings are, 4: the store or a broker
    cannot be reached.
    """
    from bridge.app.wiring import settings_of_file, settings_with_routes
    from bridge.cli.output import rows
    from bridge.core.errors import FINE
    from bridge.settings import exposed_files, forgotten_broker, open_routes

    settings, old = settings_with_routes(config), [settings_of_file(file) for file in before or []]
    source = f"read from {settings.file}" if settings.file else "no settings file: defaults and the environment"
    words = f"routes {', '.join(settings.routes)}; {source}"
    found = [_finding("OK", "settings", words)]
    found += [_finding("WARN", "settings", text) for text in exposed_files(settings)]
    if forgotten := forgotten_broker(settings):
        found.append(_finding("WARN", "settings", forgotten))
    found += [_finding("WARN", f"route {name}", text) for name, text in open_routes(settings)]
    found += [*_store(settings), *_broker(settings, old)]
    rows(output, ["level", "subject", "text"], found)
    code = max(row["code"] for row in found)
    if code != FINE:
        raise typer.Exit(code)


def _finding(level: str, subject: str, text: str, code: int = 0) -> dict[str, Any]:
    return {"level": level, "subject": subject, "text": text, "code": code}


def _failed(subject: str, error: Exception) -> dict[str, Any]:
    from bridge.core.errors import FAILED, UNREACHABLE, Unreachable

    return _finding("FAIL", subject, str(error), UNREACHABLE if isinstance(error, Unreachable) else FAILED)


def _store(settings: Settings) -> Iterator[dict[str, Any]]:
    from bridge.app.open_desk import inspect_store
    from bridge.core.errors import PostdateError
    from bridge.settings import mask_url

    yield from _store_of_before(settings)
    yield from _strays(settings)
    if not settings.uses_store:
        return
    try:
        words, instances = inspect_store(settings)
    except PostdateError as error:
        yield _failed("store", error)
        return
    yield _finding("OK", "store", f"{mask_url(settings.redis.url.get_secret_value())} can be used")
    for word in words:
        yield _finding("WARN", "store", word)
    if instances:
        yield _finding("OK", "instances", f"{instances} running")
    else:
        yield _finding("WARN", "instances", "no postdate is running on this store: start one with `postdate run`")


def _store_of_before(settings: Settings) -> Iterator[dict[str, Any]]:
    """What is still parked of routes that need no store any more. A Redis that nobody has named need not be there."""
    from bridge.app.leftovers import stored_before
    from bridge.core.errors import PostdateError, Unreachable
    from bridge.settings import mask_url
    from bridge.settings.plan import emptied_stores

    where = mask_url(settings.redis.url.get_secret_value())
    for store in emptied_stores(settings):
        routes = ", ".join(store.delivering.routes)
        try:
            left = stored_before(store)
        except PostdateError as error:
            if settings.is_set("redis.url") or not isinstance(error, Unreachable):
                text = (
                    f"no store needed by {routes}, and whether Redis still holds their messages is not known: {error}"
                )
                yield _finding("WARN", "store", f"{text}. If it never held any, remove redis.url")
            else:
                yield _finding(
                    "OK", "store", f"no store needed by {routes}, and no Redis answers at the default {where}"
                )
            continue
        if left:
            yield _finding("WARN", "store", left)
        else:
            yield _finding("OK", "store", f"no store needed by {routes}. Redis holds no message of theirs: {where}")


def _strays(settings: Settings) -> Iterator[dict[str, Any]]:
    """What is parked under routes that the settings do not have."""
    import asyncio

    from bridge.app.leftovers import strays_of

    found, checked = asyncio.run(strays_of(settings))
    for one in found:
        yield _finding("WARN", f"route {one.route}", one.text)
    for text in checked:
        yield _finding("OK", "store", text)


def _broker(settings: Settings, before: Sequence[Settings]) -> Iterator[dict[str, Any]]:
    from bridge.app.topology import open_fronts, verify_topology
    from bridge.core.errors import FAILED, PostdateError

    try:
        found = verify_topology(settings)
    except PostdateError as error:
        yield _failed("broker", error)
        return
    yield from _topology(settings, found)
    yield from _policies(settings)
    for route, text in open_fronts(settings, found):
        yield _finding("FAIL", f"route {route}", text, FAILED)
    yield from _unread(settings)
    yield from _left_over(settings, before)


def _policies(settings: Settings) -> list[dict[str, Any]]:
    """Return what policies do to messages that wait."""
    from bridge.app.topology import judge_policies
    from bridge.core.errors import PostdateError

    try:
        harms = judge_policies(settings)
    except PostdateError as error:
        return [_finding("WARN", "policies", f"RabbitMQ's policies are not known: {error}")]
    return [_finding("WARN", f"route {route}", text) for route, text in harms]


def _topology(settings: Settings, found: Sequence[Finding]) -> Iterator[dict[str, Any]]:
    """A line for each route with all that exists, one with all that is created later, and one for each problem."""
    for route in dict.fromkeys(one.part.route for one in found):
        parts = [one for one in found if one.part.route == route]
        there = [one.part.name for one in parts if one.state is Standing.SAME]
        later = [one.part.name for one in parts if _is_made_later(settings, one)]
        if there:
            yield _finding("OK", f"route {route}", f"exists: {_listed(there)}")
        if later:
            text = f"missing: {_listed(later)}. `postdate run` or `postdate setup` creates what is missing"
            yield _finding("WARN", f"route {route}", text)
        for one in parts:
            if one.state is not Standing.SAME and one.part.name not in later:
                yield _judged(settings, one)


def _listed(names: Sequence[Name]) -> str:
    """A few by name; of many, the number of each kind."""
    from bridge.cli.setup import counts

    return ", ".join(map(str, names)) if len(names) <= _NAMED else counts(name.kind for name in names)


def _is_made_later(settings: Settings, one: Finding) -> bool:
    """A missing part of ours is a failure only where postdate may not declare it."""
    return one.state is Standing.MISSING and one.part.ours and settings.bridge.setup


def _left_over(settings: Settings, before: Sequence[Settings]) -> Iterator[dict[str, Any]]:
    """What a change of the mode or of the levels has left in queues and in topics."""
    from bridge.admin.leftovers import left_over
    from bridge.app.leftovers import survey_levels
    from bridge.core.errors import PostdateError

    try:
        places, unknown = survey_levels(settings, before)
    except PostdateError as error:
        yield _finding("WARN", "levels", f"whether previous settings left messages is not known: {error}")
        return
    for text in unknown:
        yield _finding("WARN", "levels", text)
    for left in left_over(places):
        yield _finding("WARN" if left.messages or not left.certain else "OK", f"route {left.route}", left.text)


def _unread(settings: Settings) -> Iterator[dict[str, Any]]:
    """Routes whose messages wait at the intake and are not taken, and routes without a store that no instance has."""
    from bridge.app.leftovers import without_consumer
    from bridge.core.errors import PostdateError

    try:
        found = without_consumer(settings)
    except PostdateError as error:
        yield _finding("WARN", "instances", f"whether every intake has a consumer is not known: {error}")
        return
    for one in found:
        yield _finding("WARN", f"route {one.route}", one.text)


def _judged(settings: Settings, one: Finding) -> dict[str, Any]:
    """Judge a part that neither exists as needed nor is created by itself."""
    from bridge.core.errors import FAILED

    subject = f"route {one.part.route}"
    if one.state in _WARNINGS:
        return _finding("WARN", subject, one.text)
    if one.state is Standing.OUTDATED and settings.bridge.setup:
        return _finding("WARN", subject, f"{one.text}, and so does `postdate run`")
    if one.state is Standing.FORBIDDEN:
        return _finding("WARN", subject, f"{one.part.name} cannot be compared: {one.text}")
    return _finding("FAIL", subject, one.text, FAILED)
