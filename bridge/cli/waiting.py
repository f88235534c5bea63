"""Where the messages of routes without a store wait, over all brokers: counted, removed, and told of in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from bridge.settings import Settings

#: So many queues or topics are named in a sentence; of more, their number is.
_NAMED = 4
#: A row for each queue or topic.
Places = list[dict[str, Any]]


def level_places(settings: Settings, before: Sequence[Settings] = ()) -> Places:
    """The queues and topics of routes without a store, and what settings of before have left of such: how many
    messages, and whether each is in use, old, missing, or of no route of these settings. Blocking.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    found = []
    if names := settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.level_desk import count

        found += [_row("queue", one) for one in count(settings.only(names), before)]
    if names := settings.routes_of("kafka"):
        from adapters.kafka.level_desk import count as count_topics

        topics = count_topics(settings.only(names))
        found += [_row("topic", one) if one.routed else _row("topic", one, "no route") for one in topics]
    return found


def left_by_changes(settings: Settings) -> list[tuple[str, int, str]]:
    """``left_over``, for the start of a process: what RabbitMQ's routes without a store have left is not asked for,
    because that takes a hundred questions, and setup says when a list of levels has changed. Blocking.

    Raises ``BrokerUnavailable``, ``Refused``.
    """
    asked = [name for name, one in settings.routes.items() if one.broker == "kafka" or one.mode == "redis"]
    return list(left_over(level_places(settings.only(asked))))


def remove_level_places(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> Places:
    """Remove those that are old and empty, or all; a row each, with ``state`` removed (``dry_run``: removable), or kept
    and why. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    found: list[tuple[str, Any]] = []
    if names := settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.level_desk import remove

        found += [("queue", one) for one in remove(settings.only(names), before, everything, force, dry_run)]
    if names := settings.routes_of("kafka"):
        from adapters.kafka.level_desk import remove as remove_topics

        found += [("topic", one) for one in remove_topics(settings.only(names), everything, force, dry_run)]
    gone = "removable" if dry_run else "removed"
    return [{**_row(kind, one), "state": "kept" if one.kept else gone, "text": one.kept} for kind, one in found]


def left_over(places: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int, str]]:
    """Pure: of each route that has left levels behind, its name, how many messages are in them, and a sentence."""
    left = sorted((one for one in places if one["state"] in ("old", "no route")), key=itemgetter("route"))
    for route, group in groupby(left, itemgetter("route")):
        some = list(group)
        waiting = sum(one["messages"] for one in some if not one["is_dead"])
        dead = sum(one["messages"] for one in some if one["is_dead"])
        kept = f" {counted(dead, 'dead letter')} {'is' if dead == 1 else 'are'} kept there." if dead else ""
        unread = some[0]["state"] == "no route"
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
        else:
            text = "nothing waits in the levels that the settings no longer have: `postdate levels remove`."
        yield route, waiting + dead, f"{text}{kept}".removesuffix(".")


def _named(places: Sequence[dict[str, Any]]) -> str:
    """Those in which messages wait, the fullest first, and how many are empty."""
    full = sorted((one for one in places if one["messages"] and not one["is_dead"]), key=itemgetter("messages"))[::-1]
    words = [f"{one['messages']} in {one['kind']} '{one['name']}'" for one in full[:_NAMED]]
    if len(full) > _NAMED:
        words.append(f"the others in {len(full) - _NAMED} more")
    empty = sum(not one["messages"] for one in places)
    return ", ".join([*words, *([f"{empty} are empty"] if empty > 1 else ["1 is empty"] if empty else [])])


def counted(number: int, what: str) -> str:
    """A number of things: "1 message", "2 messages"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _row(kind: str, one: Any, state: str = "") -> dict[str, Any]:
    return {
        "route": one.route,
        "kind": kind,
        "name": one.name,
        "messages": one.messages,
        "state": state or ("old" if one.old else "missing" if one.messages is None else "in use"),
        "text": _of_old(one) if one.old else "",
        "is_dead": one.is_dead,
    }


def _of_old(one: Any) -> str:
    if not one.messages:
        return "is empty: `postdate levels remove`"
    if one.is_dead:
        return f"holds {counted(one.messages, 'dead letter')}"
    return f"holds {counted(one.messages, 'message')} and drains"
