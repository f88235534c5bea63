"""``postdate check``: judges the settings, the store and the topology, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from bridge.cli.options import BeforeOption, ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.settings import Settings


#: So many parts of a route are named; of more, the number is.
_NAMED = 4


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
    from bridge.app.wiring import inspect_store
    from bridge.core.errors import PostdateError
    from bridge.settings import mask_url

    yield from _store_of_before(settings)
    yield from _strays(settings)
    if not settings.store_houses():
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
    from bridge.app.wiring import left_in_store
    from bridge.core.errors import PostdateError, Unreachable
    from bridge.settings import mask_url

    where = mask_url(settings.redis.url.get_secret_value())
    for house in settings.emptied_houses():
        routes = ", ".join(house.with_left.routes)
        try:
            left = left_in_store(house)
        except PostdateError as error:
            if settings.names_redis or not isinstance(error, Unreachable):
                text = f"{routes} need none, but whether anything is parked there from before cannot be told: {error}"
                yield _finding("WARN", "store", f"{text}; if nothing ever was, leave out redis.url")
            else:
                yield _finding("OK", "store", f"{routes} need none; none answers at the default {where}")
            continue
        if left:
            yield _finding("WARN", "store", left)
        else:
            yield _finding("OK", "store", f"{routes} need none, and nothing is parked at {where}")


def _strays(settings: Settings) -> Iterator[dict[str, Any]]:
    """What is parked under routes that the settings do not have."""
    import asyncio

    from bridge.app.strays import strays_of

    for route, text in asyncio.run(strays_of(settings)):
        yield _finding("WARN", f"route {route}", text) if route else _finding("OK", "store", text)


def _broker(settings: Settings, before: Sequence[Settings]) -> Iterator[dict[str, Any]]:
    from bridge.app.wiring import verify_topology
    from bridge.core.errors import PostdateError

    try:
        found = verify_topology(settings)
    except PostdateError as error:
        yield _failed("broker", error)
        return
    yield from _topology(settings, found)
    yield from _policies(settings)
    yield from _open_fronts(settings, found)
    yield from _unread(settings)
    yield from _left_over(settings, before)


def _policies(settings: Settings) -> list[dict[str, Any]]:
    """What policies of RabbitMQ do to messages that wait. An API that nobody has named need not be there."""
    from bridge.app.wiring import judged_policies
    from bridge.core.errors import PostdateError

    named = settings.rabbitmq.management_url
    if named == "off" or not settings.routes_of("rabbitmq"):
        return []
    try:
        harms = judged_policies(settings)
    except PostdateError as error:
        return [_finding("WARN", "policies", f"RabbitMQ's policies are not known: {error}")] if named else []
    return [_finding("WARN", f"route {route}", text) for route, text in harms]


def _topology(settings: Settings, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A line for each route with all that is there, one with all that is still to be made, and one for each problem."""
    for route in dict.fromkeys(row["route"] for row in found):
        rows = [row for row in found if row["route"] == route]
        there = [row["what"] for row in rows if row["state"] == "same"]
        later = [row["what"] for row in rows if _is_made_later(settings, row)]
        if there:
            yield _finding("OK", f"route {route}", f"{_listed(there)} {'is' if len(there) == 1 else 'are'} there")
        if later:
            verbs = ("does", "makes it") if len(later) == 1 else ("do", "makes them")
            text = f"{_listed(later)} {verbs[0]} not exist yet: `postdate run` or `postdate setup` {verbs[1]}"
            yield _finding("WARN", f"route {route}", text)
        for row in rows:
            if row["state"] != "same" and row["what"] not in later:
                yield _judged(settings, row)


def _listed(labels: list[str]) -> str:
    """A few by name, and of many, how many there are of each kind."""
    from bridge.cli.setup import counts

    return ", ".join(labels) if len(labels) <= _NAMED else counts(label.partition(" ")[0] for label in labels)


def _is_made_later(settings: Settings, row: dict[str, Any]) -> bool:
    """What is missing of ours is a failure only if nobody is going to declare it."""
    return bool(row["state"] == "missing" and row["ours"] and settings.bridge.setup)


def _left_over(settings: Settings, before: Sequence[Settings]) -> Iterator[dict[str, Any]]:
    """What a change of the mode or of the levels has left in queues and in topics."""
    from bridge.app.leftovers import left_over, level_places
    from bridge.core.errors import PostdateError

    try:
        places, unknown = level_places(settings, before)
    except PostdateError as error:
        yield _finding("WARN", "levels", f"whether settings of before have left any is not known: {error}")
        return
    for text in unknown:
        yield _finding("WARN", "levels", text)
    for left in left_over(places):
        yield _finding("WARN" if left.messages or not left.sure else "OK", f"route {left.route}", left.text)


def _open_fronts(settings: Settings, found: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A front exchange without its intake queue sends delayed messages on to the consumers like all others."""
    from bridge.core.errors import FAILED

    for route in dict.fromkeys(row["route"] for row in found):
        states = {row["what"]: row["state"] for row in found if row["route"] == route and row["ours"]}
        intake, front = f"queue '{settings.queue_of(route)}'", f"exchange '{settings.routes[route].intercept}'"
        if states.get(intake) == "missing" and states.get(front) in ("same", "different"):
            fate = (
                "delayed messages are delivered at once" if settings.routes[route].deliver_to else "messages are lost"
            )
            text = f"{fate}, for the intake queue is missing: run `postdate setup`"
            yield _finding("FAIL", f"route {route}", text, FAILED)


def _unread(settings: Settings) -> Iterator[dict[str, Any]]:
    """Routes whose messages wait at the intake and are not taken, and routes without a store that no instance has."""
    from bridge.admin.unread import stalled, unread
    from bridge.app.unread import intakes_of, stalled_intakes
    from bridge.core.errors import PostdateError

    try:
        intakes, still = intakes_of(settings), stalled_intakes(settings)
    except PostdateError as error:
        yield _finding("WARN", "instances", f"whether one takes from each intake cannot be told: {error}")
        return
    for route, text in (*unread(settings, intakes), *stalled(settings, still)):
        yield _finding("WARN", f"route {route}", text)


def _judged(settings: Settings, row: dict[str, Any]) -> dict[str, Any]:
    """What is neither there nor made by itself."""
    from bridge.core.errors import FAILED

    subject, state = f"route {row['route']}", row["state"]
    if state in ("none", "few", "unlike", "waits"):
        return _finding("WARN", subject, row["text"])
    if state == "outdated" and settings.bridge.setup:
        return _finding("WARN", subject, f"{row['text']}, and so does `postdate run`")
    if state == "forbidden":
        return _finding("WARN", subject, f"{row['what']} cannot be compared: {row['text']}")
    return _finding("FAIL", subject, row["text"], FAILED)
