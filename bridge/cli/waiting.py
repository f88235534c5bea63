"""Where the messages of routes without a store wait, over all brokers: counted, removed, and told of in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from bridge.settings import Settings

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
    """Remove old ones, or all; a row each. Blocking. Raises ``BrokerUnavailable``, ``Refused``."""
    found = []
    if names := settings.routes_of("rabbitmq"):
        from adapters.rabbitmq.level_desk import remove

        found += [_row("queue", one) for one in remove(settings.only(names), before, everything, force, dry_run)]
    if names := settings.routes_of("kafka"):
        from adapters.kafka.level_desk import remove as remove_topics

        found += [_row("topic", one) for one in remove_topics(settings.only(names), everything, force, dry_run)]
    return found


def left_over(places: Iterable[dict[str, Any]]) -> Iterator[tuple[str, int, str]]:
    """Pure: of each route that has left levels behind, its name, how many messages are in them, and a sentence."""
    left = sorted((one for one in places if one["state"] in ("old", "no route")), key=itemgetter("route"))
    for route, group in groupby(left, itemgetter("route")):
        some = list(group)
        waiting = sum(one["messages"] for one in some if not one["is_dead"])
        dead = sum(one["messages"] for one in some if one["is_dead"])
        kept = f" {dead} dead letters are kept there." if dead else ""
        unread = some[0]["state"] == "no route"
        if unread and waiting:
            text = (
                f"{waiting} messages wait in levels of this route, which the settings do not have, and nobody delivers "
                "them, unless another postdate of the group has it: put the route back until `postdate levels stats` "
                "counts none."
            )
        elif waiting:
            text = (
                f"{waiting} messages wait in levels that the settings no longer have, and are delivered when they are "
                "due; `postdate levels stats` counts them, and `postdate levels remove` clears them away when they are "
                "empty."
            )
        elif unread:
            text = "nothing waits in the levels of this route, which the settings do not have: delete their topics."
        else:
            text = "nothing waits in the levels that the settings no longer have: `postdate levels remove`."
        yield route, waiting + dead, f"{text}{kept}".removesuffix(".")


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
    return f"holds {one.messages} dead letters" if one.is_dead else f"holds {one.messages} messages and drains"
