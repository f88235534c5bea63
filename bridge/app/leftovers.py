"""Where the messages of routes without a store wait, over all brokers: counted, removed, and told of in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from bridge.core.errors import PostdateError
from bridge.settings import Settings
from bridge.telemetry.plural import counted

#: So many queues or topics are named in a sentence; of more, their number is.
_NAMED = 4
#: What is said of a queue whose messages nobody can count.
_HIDES = "may hold messages that RabbitMQ alone tries to deliver and does not count over AMQP"
#: A row for each queue or topic.
Places = list[dict[str, Any]]


def level_places(settings: Settings, before: Sequence[Settings] = ()) -> tuple[Places, list[str]]:
    """The queues and topics of routes without a store, and what settings of before have left of such: how many
    messages, and whether each is in use, old, missing, or of no route of these settings. Blocking.

    And a sentence, without its stop, for each broker that no route uses any more and that cannot be asked. Raises
    ``BrokerUnavailable``, ``Refused`` for one that a route uses.
    """
    found, unknown = [], []
    for asked in _rabbitmqs(settings, before):
        from adapters.rabbitmq.levels.cleanup import count

        try:
            found += [_row("queue", one) for one in count(asked, before)]
        except PostdateError as error:
            unknown.append(_unknown("RabbitMQ", asked, error))
    for asked in _kafkas(settings, before):
        from adapters.kafka.levels.cleanup import count as count_topics

        try:
            topics = count_topics(asked)
        except PostdateError as error:
            hint = "; if nothing ever did, leave out kafka.bootstrap_servers" if settings.names_kafka else ""
            unknown.append(_unknown("Kafka", asked, error) + hint)
            continue
        found += [_row("topic", one) if one.routed else _row("topic", one, "no route") for one in topics]
    return found, unknown


def _rabbitmqs(settings: Settings, before: Sequence[Settings]) -> list[Settings]:
    """The RabbitMQ to ask, with the routes that these settings have there. Where they have none, one that settings of
    before have a route of, with the address and the password of now if there are any."""
    if names := settings.routes_of("rabbitmq"):
        return [settings.only(names)]
    olds = [old for old in before if old.routes_of("rabbitmq")]
    if settings.names_rabbitmq:
        return [settings.only(())] if olds else []
    return list({old.rabbitmq.url: old.only(()) for old in reversed(olds)}.values())


def _kafkas(settings: Settings, before: Sequence[Settings]) -> list[Settings]:
    """The same of Kafka. It can be asked for all topics of a group: so it is, also without settings of before, where
    somebody has named it."""
    if names := settings.routes_of("kafka"):
        return [settings.only(names)]
    named = [settings.only(())] if settings.names_kafka else []
    asked = [*named, *(old.only(()) for old in before if old.routes_of("kafka"))]
    return list({(one.kafka.bootstrap_servers, one.kafka.group): one for one in reversed(asked)}.values())


def _unknown(broker: str, asked: Settings, error: PostdateError) -> str:
    """What is said of a broker that need not be there. Raises ``error`` where a route needs it."""
    if asked.routes:
        raise error
    return f"no route uses {broker}, but whether anything waits there from before cannot be told: {error}"


class Left(NamedTuple):
    """What a route has left behind: how many messages, whether that is ``sure`` to be all, and a sentence without its
    stop."""

    route: str
    messages: int
    sure: bool
    text: str


def left_by_changes(settings: Settings) -> tuple[list[Left], list[str]]:
    """``left_over``, and what cannot be told, for the start of a process: what RabbitMQ's routes without a store have
    left is not asked for, because that takes a hundred questions, and setup says when a list of levels has changed.
    Blocking.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    asked = [name for name, one in settings.routes.items() if one.broker == "kafka" or one.mode == "redis"]
    places, unknown = level_places(settings.only(asked))
    return list(left_over(places)), unknown


def remove_level_places(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> Places:
    """Remove those that are old and empty, or all; a row each, with ``state`` removed (``dry_run``: removable), or kept
    and why. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    found: list[tuple[str, Any]] = []
    for asked in _rabbitmqs(settings, before):
        from adapters.rabbitmq.levels.cleanup import remove

        found += [("queue", one) for one in remove(asked, before, everything, force, dry_run)]
    if names := settings.routes_of("kafka"):
        from adapters.kafka.levels.cleanup import remove as remove_topics

        found += [("topic", one) for one in remove_topics(settings.only(names), everything, force, dry_run)]
    gone = "removable" if dry_run else "removed"
    return [{**_row(kind, one), "state": "kept" if one.kept else gone, "text": one.kept} for kind, one in found]


def fronts_left(settings: Settings, before: Iterable[Settings]) -> dict[str, str]:
    """Pure: of each route of RabbitMQ that had no store and is gone, what nobody removes: a sentence, without its
    stop."""
    fronts = {settings.routes[name].intercept for name in settings.routes_of("rabbitmq")}
    queues = {settings.queue_of(name) for name in settings.routes_of("rabbitmq")}
    found = {}
    for old in before:
        for name in old.routes_of("rabbitmq"):
            front, queue = old.routes[name].intercept, old.queue_of(name)
            parts = [f"front exchange '{front}'"] * (front not in fronts)
            parts += [f"intake queue '{queue}' and the exchanges '{queue}.…'"] * (queue not in queues)
            if parts and name not in settings.routes and old.routes[name].mode != "redis":
                found[name] = (
                    f"this never deletes {', '.join(parts)} of route {name}, which the settings do not have: do that "
                    "by hand, the front first, when nobody publishes there and the queue is empty"
                )
    return found


def left_over(places: Iterable[dict[str, Any]]) -> Iterator[Left]:
    """Pure: of each route that has left levels behind, what is in them."""
    left = sorted((one for one in places if one["state"] in ("old", "no route")), key=itemgetter("route"))
    for route, group in groupby(left, itemgetter("route")):
        some = list(group)
        waiting = sum(one["messages"] for one in some if not one["is_dead"])
        dead = sum(one["messages"] for one in some if one["is_dead"])
        kept = f" {counted(dead, 'dead letter')} {'is' if dead == 1 else 'are'} kept there." if dead else ""
        unread = some[0]["state"] == "no route"
        hiding = [one for one in some if one["uncounted"]]
        verbs = ("waits", "is", "it is") if waiting == 1 else ("wait", "are", "they are")
        if unread and waiting:
            text = (
                f"{counted(waiting, 'message')} {verbs[0]} in levels of this route, which the settings do not have, "
                "and nobody delivers what is there, unless another postdate of the group has the route: put it back "
                "until `postdate levels stats` counts none."
            )
        elif waiting:
            text = (
                f"{counted(waiting, 'message')} {verbs[0]} in levels that the settings no longer have, and {verbs[1]} "
                f"delivered when {verbs[2]} due: {_named(some)}; `postdate levels remove` clears away what is empty."
            )
        elif unread:
            text = "nothing waits in the levels of this route, which the settings do not have: delete their topics."
        elif hiding:
            text = "in the levels that the settings no longer have no message is counted, but that need not be all."
        else:
            text = "nothing waits in the levels that the settings no longer have: `postdate levels remove`."
        told = f"{text}{_hidden(hiding, alone=not (waiting or dead))}{kept}".removesuffix(".")
        yield Left(route, waiting + dead, not hiding, told)


def _hidden(places: Sequence[dict[str, Any]], alone: bool) -> str:
    """What is said of queues that may hold messages which nobody can count; "" if there are none. Only where they are
    ``alone``, and no other holds any, can they be removed: that would delete what is in the others, too."""
    if not places:
        return ""
    names = ", ".join(f"'{place['name']}'" for place in places[:_NAMED])
    more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
    several, them = ("", "it") if len(places) == 1 else ("s", "them")
    end = f"shows none in {them}, remove {them} with `postdate levels remove --force`" if alone else "shows all"
    when = "when " if alone else ""
    return f" Queue{several} {names}{more} {_HIDES}: {when}`rabbitmqctl list_queues name messages` {end}."


def _named(places: Sequence[dict[str, Any]]) -> str:
    """Those in which messages wait, the fullest first, and how many are empty."""
    full = sorted((one for one in places if one["messages"] and not one["is_dead"]), key=itemgetter("messages"))[::-1]
    words = [f"{one['messages']} in {one['kind']} '{one['name']}'" for one in full[:_NAMED]]
    if len(full) > _NAMED:
        words.append(f"the others in {len(full) - _NAMED} more")
    empty = sum(not one["messages"] and not one["uncounted"] for one in places)
    return ", ".join([*words, *([f"{empty} are empty"] if empty > 1 else ["1 is empty"] if empty else [])])


def _row(kind: str, one: Any, state: str = "") -> dict[str, Any]:
    return {
        "route": one.route,
        "kind": kind,
        "name": one.name,
        "messages": one.messages,
        "state": state or ("old" if one.old else "missing" if one.messages is None else "in use"),
        "text": "nobody delivers what is there" if state else _of_old(one) if one.old else "",
        "is_dead": one.is_dead,
        "uncounted": one.uncounted,
    }


def _of_old(one: Any) -> str:
    if not one.messages and one.uncounted:
        return _HIDES
    if not one.messages:
        return "is empty: `postdate levels remove`"
    if one.is_dead:
        return f"holds {counted(one.messages, 'dead letter')}"
    return f"holds {counted(one.messages, 'message')} and drains"
