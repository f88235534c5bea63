"""Messages that a change of the settings left behind, and intakes that no consumer reads. Pure.

The collectors (``bridge.app.survey``, ``adapters/*``) count; this file decides what a count means and renders the
sentences for `check`, `levels` and `run`. ``why_kept`` in ``adapters/*/stale_levels.py`` says why a level is kept. No
sentence ends in a full stop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from bridge.desk.clock_step import ClockStep
from bridge.desk.severity import named

#: How many queues or topics a sentence names; of more it gives the number.
_NAMED = 4
_HIDES = "may hold messages that RabbitMQ does not count over AMQP"


class Use(StrEnum):
    """Whether the settings have a queue or topic. The values are the ``state`` of `postdate levels stats`."""

    IN_USE = "in use"
    MISSING = "missing"
    OLD = "old"
    NO_ROUTE = "no route"


@dataclass(frozen=True, slots=True)
class Place:
    """A queue or topic in which messages of a route without a store wait.

    ``messages`` is None where it does not exist. ``is_dead``: it holds dead letters. ``uncounted``: it may hold
    messages that AMQP does not count. ``kept``: why `levels remove` keeps it, "" where it goes.
    """

    route: str
    kind: str
    name: str
    messages: int | None
    use: Use
    is_dead: bool = False
    uncounted: bool = False
    kept: str = ""

    @property
    def text(self) -> str:
        """What its state means; "" while it is in use."""
        if self.use is Use.NO_ROUTE:
            return "no configured route delivers its messages"
        if self.use is not Use.OLD:
            return ""
        if not self.messages:
            return _HIDES if self.uncounted else "empty: `postdate levels remove` deletes it"
        return f"dead letters: {self.messages}" if self.is_dead else f"drains, messages left: {self.messages}"


class Inspection(NamedTuple):
    """What `check` asks of a store: its warnings, its loss while that is a trouble ("" for none), running instances,
    and the last step of its clock."""

    warnings: Sequence[str]
    loss: str
    instances: int
    step: ClockStep | None = None


class Intake(NamedTuple):
    """The intake of a route in the broker: how many messages wait there, and how many consumers it has. ``kind``: queue
    or topic."""

    route: str
    kind: str
    name: str
    messages: int
    readers: int


class Remains(NamedTuple):
    """What a store holds: messages to deliver, dead letters, and the messages to deliver by route."""

    waiting: int
    dead: int
    routes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Leftover:
    """What one route left behind. ``route`` is "" where it is not known. ``certain``: there are no more than the
    ``messages`` counted."""

    route: str
    messages: int
    text: str
    certain: bool = True


# -- in the store -----------------------------------------------------------------------------------------------------


def strays(parked: Mapping[str, int], known: Collection[str]) -> Iterator[Leftover]:
    """Yield parked messages of routes that the settings do not have."""
    for route, number in sorted(parked.items()):
        if route not in known:
            text = (
                f'route "{route}" is not configured and has parked messages: {number}. Unless another instance has '
                f"the route, they will not be delivered. Restore [routes.{route}], or list them: "
                f"`postdate list --route {route}`"
            )
            yield Leftover(route, number, text)


def left_in_store(title: str, routes: Iterable[str], found: Remains) -> str:
    """Return what a store holds that no route of a broker uses any more; "" for nothing. Another installation may
    share the store, so ``routes`` are only those that may own it."""
    owners = ", ".join(routes)
    where = f"{title} routes that had mode redis before ({owners})"
    kept = "Keep redis.url and redis.key_prefix until both counts are 0"
    if found.waiting:
        return (
            f"Redis still holds messages of {where}: {found.waiting} parked, {found.dead} dead. "
            f"`postdate run` delivers the parked ones when they are due. {kept}"
        )
    if found.dead:
        return (
            f"Redis still holds dead letters of {where}: {found.dead}. List them with `postdate list --state dead`, "
            f"then `retry` or `cancel` them. {kept}"
        )
    return ""


# -- in the broker ----------------------------------------------------------------------------------------------------


def left_over(places: Iterable[Place]) -> Iterator[Leftover]:
    """Yield, for each route that has stale queues or topics, what is in them."""
    stale = sorted((place for place in places if place.use in (Use.OLD, Use.NO_ROUTE)), key=attrgetter("route"))
    for route, group in groupby(stale, attrgetter("route")):
        of_route = list(group)
        waiting = sum(place.messages or 0 for place in of_route if not place.is_dead)
        dead = sum(place.messages or 0 for place in of_route if place.is_dead)
        hiding = [place for place in of_route if place.uncounted]
        sentences = [_stale(of_route, waiting, bool(hiding))]
        if hiding:
            sentences.append(_hidden(hiding, alone=not (waiting or dead)))
        if dead:
            sentences.append(f"Dead letters kept there: {dead}")
        yield Leftover(route, waiting + dead, ". ".join(sentences), not hiding)


def _stale(places: Sequence[Place], waiting: int, hiding: bool) -> str:
    if places[0].use is Use.NO_ROUTE:
        if not waiting:
            return "the levels of this route, which is not configured, are empty. Delete their topics"
        return (
            f"the levels of this route, which is not configured, hold messages: {waiting}. Unless another instance has "
            "the route, they will not be delivered. Restore the route until `postdate levels stats` shows 0"
        )
    if waiting:
        return (
            f"stale levels still hold messages: {waiting} ({_named(places)}). postdate delivers them when they are due."
            " Then `postdate levels remove` deletes the empty ones"
        )
    if hiding:
        return "stale levels hold no message that can be counted"
    return "stale levels are empty. Delete them with `postdate levels remove`"


def _hidden(places: Sequence[Place], alone: bool) -> str:
    """Warn of queues whose message count AMQP does not expose. Only where they are ``alone`` can they be removed: that
    would delete what is in the others, too."""
    names = named([f"'{place.name}'" for place in places], _NAMED)
    advice = "If it shows 0 there, delete them with `postdate levels remove --force`" if alone else "It shows all"
    return f"These {_HIDES}: {names}. See `rabbitmqctl list_queues name messages`. {advice}"


def _named(places: Sequence[Place]) -> str:
    """Name those in which messages wait, the fullest first, and count the empty ones."""
    full = sorted(
        (place for place in places if place.messages and not place.is_dead), key=lambda place: place.messages or 0
    )[::-1]
    words = [f"{place.kind} '{place.name}': {place.messages}" for place in full[:_NAMED]]
    if len(full) > _NAMED:
        words.append(f"more: {len(full) - _NAMED}")
    if empty := sum(not place.messages and not place.uncounted for place in places):
        words.append(f"empty: {empty}")
    return ", ".join(words)


def unread(intakes: Iterable[Intake], works_alone: Collection[str]) -> Iterator[Leftover]:
    """Yield intakes without a consumer, of routes without a store. Routes in ``works_alone`` need no postdate for
    messages with x-delay-level."""
    for intake in intakes:
        if intake.readers:
            continue
        fact = f"{intake.kind} '{intake.name}' has no consumer. Messages there: {intake.messages}"
        alone = (
            "" if intake.messages or intake.route not in works_alone else ", unless producers only use x-delay-level"
        )
        yield Leftover(intake.route, intake.messages, f"{fact}. Start `postdate run` with this route{alone}")


def stalled(intakes: Iterable[Intake], stored: Collection[str]) -> Iterator[Leftover]:
    """Yield intakes from which no message is taken though some wait; without those that ``unread`` yields. ``stored``
    are the routes with a store."""
    for intake in intakes:
        fact = f"{intake.kind} '{intake.name}' does not drain. Messages there: {intake.messages}"
        if intake.readers:
            yield Leftover(
                intake.route, intake.messages, f"{fact}. Its consumer is frozen or overloaded: see `postdate stats`"
            )
        elif intake.route in stored:
            yield Leftover(intake.route, intake.messages, f"{fact}. Start `postdate run` with this route")
