"""What must hold between the settings of Kafka's routes: which topics they take from, and where they deliver to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from bridge.delay.naming import STAR, Naming, is_topic, mistake, taken_by
from bridge.settings.mistakes import Conflict, Path
from bridge.settings.model import Route, Settings
from bridge.settings.names import ROUTES

#: The names of level topics begin with the group and the route's name, and a topic's name has at most 249 characters.
_WAITING_MAX = 200
_TIME = "[0-9][0-9a-z]*"
_DIGEST = "[0-9a-f]{6}"
_RABBITMQS = ("queue", "queue_type")
_KAFKAS = ("also", "binary_numbers", "tombstones")


class _Named(NamedTuple):
    """A naming and the setting it stands in. ``item`` is its place in a list, from 1; 0 where it is none."""

    route: str
    naming: Naming
    item: int

    def path(self, field: str) -> Path:
        """Of the setting that ``field`` (intercept or deliver_to) stands in."""
        return (ROUTES, self.route, "also" if self.item else field)

    def says(self, text: str) -> str:
        """``text`` about it, with its place in the list."""
        return f"(item {self.item}) {text}" if self.item else text


def topic_conflicts(settings: Settings) -> Iterator[Conflict]:
    """All conflicts of this kind."""
    for name, route in settings.routes.items():
        yield from _strange(name, route)
    named = [
        _Named(name, naming, item)
        for name in settings.routes_of("kafka")
        for item, naming in enumerate(settings.routes[name].namings())
    ]
    good = [one for one in named if not mistake(one.naming)]
    for one in named:
        if text := mistake(one.naming):
            yield Conflict((one.path(_wrong_half(one.naming)),), one.says(text))
    for first, second in combinations(good, 2):
        yield from _overlap(first, second)
    for one in good:
        yield from _loop(one, good)
    yield from _allowed(settings, good)
    for name, route in settings.routes.items():
        if route.broker == "kafka" and route.mode == "levels":
            yield from _without_store(settings, name, good)


def _without_store(settings: Settings, name: str, named: list[_Named]) -> Iterator[Conflict]:
    mode: Path = (ROUTES, name, "mode")
    waiting = settings.waiting_of(name)
    if len(waiting) > _WAITING_MAX:
        text = f"is too long with the route's name: both together have at most {_WAITING_MAX - 2} characters"
        yield Conflict((("kafka", "group"), mode), text)
    if settings.routes[name].tombstones == "cancel":
        yield Conflict(((ROUTES, name, "tombstones"), mode), "must be deliver where the mode is levels")
    for one in named:
        if takes_waiting(one.naming, waiting):
            text = f'is "{one.naming.intercept}", which takes from "{waiting}*", where records of {ROUTES}.{name} wait'
            yield Conflict((one.path("intercept"), mode), one.says(text))


def takes_waiting(naming: Naming, waiting: str) -> bool:
    """Whether a naming takes from a topic that can exist and in which records wait: the dead letters, or a level, whose
    name ends in its time and six hex digits (``adapters/kafka/levels/plan.py``). ``waiting`` begins all their names."""
    begin = f"{waiting}level."
    if naming.text_in(f"{waiting}dead") is not None:
        return True
    if not naming.is_rule:
        return re.fullmatch(rf"{re.escape(begin)}{_TIME}\.{_DIGEST}", naming.intercept) is not None
    head, _, tail = naming.intercept.partition(STAR)
    begins = begin.startswith(head) or re.fullmatch(rf"{re.escape(begin)}{_TIME}(\.[0-9a-f]{{0,5}})?", head) is not None
    return begins and _can_end(begin, tail)


def _can_end(begin: str, tail: str) -> bool:
    """Whether a level's name can end so."""
    if re.fullmatch(r"[0-9a-f]{0,6}", tail):
        return True
    found = re.fullmatch(rf"(.*?)([0-9a-z]*)\.{_DIGEST}", tail)
    return found is not None and (not found[1] or (bool(found[2]) and begin.endswith(found[1])))


def _strange(name: str, route: Route) -> Iterator[Conflict]:
    """What the other broker has."""
    kafka = route.broker == "kafka"
    text = (
        "is for RabbitMQ: Kafka has no queues"
        if kafka
        else 'is for Kafka, and this route is one of RabbitMQ unless it says broker = "kafka"'
    )
    for field in _RABBITMQS if kafka else _KAFKAS:
        if getattr(route, field) != Route.model_fields[field].default:
            yield Conflict(((ROUTES, name, field), (ROUTES, name, "broker")), text)


def _wrong_half(naming: Naming) -> str:
    return "intercept" if mistake(Naming(naming.intercept, naming.intercept)) else "deliver_to"


def _overlap(first: _Named, second: _Named) -> Iterator[Conflict]:
    mine, theirs = second.naming.intercept, first.naming.intercept
    if first.naming.meets(second.naming):
        whose = "another of this route" if first.route == second.route else f"{ROUTES}.{first.route}"
        clash = f"as in {whose}" if mine == theirs else f'and in {whose} it is "{theirs}"'
        text = f'is "{mine}", {clash}: a topic belongs to one'
        yield Conflict((second.path("intercept"), first.path("intercept")), second.says(text))


def _loop(one: _Named, all_named: list[_Named]) -> Iterator[Conflict]:
    for other in all_named:
        if one.naming.always_feeds(other.naming):
            whose = "this route" if other.route == one.route else f"{ROUTES}.{other.route}"
            text = f'is "{one.naming.deliver_to}", which {whose} intercepts: it would delay for ever'
            yield Conflict((one.path("deliver_to"), other.path("intercept")), one.says(text))


def _allowed(settings: Settings, named: list[_Named]) -> Iterator[Conflict]:
    taken = [(one.route, one.naming) for one in named]
    for name in settings.routes_of("kafka"):
        path: Path = (ROUTES, name, "allow_to")
        for item, topic in enumerate(settings.routes[name].allow_to, start=1):
            if not is_topic(topic):
                yield Conflict((path,), f"(item {item}) must be the name of a topic, without a *")
            elif (route := taken_by(topic, taken)) is not None:
                text = f'is "{topic}", which {ROUTES}.{route} intercepts: it would delay for ever'
                yield Conflict((path,), f"(item {item}) {text}")
