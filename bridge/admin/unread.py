"""Routes without a store at whose intake nobody is: no store tells of instances there, and what is delayed piles up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bridge.settings import Settings
from bridge.telemetry.plural import counted


class Intake(NamedTuple):
    """Where what is delayed on a route without a store comes first: how many messages wait there to be taken, and how
    many are there to take them. ``kind``: queue or topic."""

    route: str
    kind: str
    name: str
    messages: int
    readers: int


def unread(settings: Settings, intakes: Iterable[Intake]) -> Iterator[tuple[str, str]]:
    """Pure: each route with an intake that nobody takes from, and a sentence, without its stop."""
    for one in intakes:
        if one.readers:
            continue
        what = f"nobody takes from {one.kind} '{one.name}'"
        if one.messages:
            verb = "waits" if one.messages == 1 else "wait"
            what = f"{counted(one.messages, 'message')} {verb} in {one.kind} '{one.name}', and nobody takes from it"
        unless = "" if one.messages or not _goes_alone(settings, one.route) else ", unless x-delay-level is all you use"
        yield one.route, f"{what}: no postdate with this route is running, start one with `postdate run`{unless}"


def stalled(settings: Settings, intakes: Iterable[Intake]) -> Iterator[tuple[str, str]]:
    """Pure: of intakes that none is taken from though messages wait there, each that ``unread`` does not tell of, and a
    sentence, without its stop."""
    for one in intakes:
        what = f"messages wait in {one.kind} '{one.name}' and none is taken: {one.messages}"
        if one.readers:
            yield one.route, f"{what}. The consumer that holds it is frozen or overloaded: see `postdate stats`"
        elif settings.routes[one.route].mode == "redis":
            yield one.route, f"{what}. No postdate with this route is running: start one with `postdate run`"


def _goes_alone(settings: Settings, route: str) -> bool:
    """Whether a message with ``x-delay-level`` needs no postdate."""
    return settings.routes[route].broker == "rabbitmq" and settings.routes[route].mode == "levels"
