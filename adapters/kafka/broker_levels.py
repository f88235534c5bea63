"""Kafka's part ``levels`` of ``bridge.app.brokers.Broker``: messages that wait in the broker."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.kafka import stale_levels
from adapters.kafka.stale_levels import count_intakes as count_intakes
from bridge.desk.leftovers import Intake, Place
from bridge.settings import Settings


def levels_at(settings: Settings, before: Sequence[Settings]) -> list[Settings]:
    """Return what to ask for levels: the settings' own Kafka with its routes; where no route uses one, the Kafka that
    the settings name and those of previous settings. Kafka lists all topics of a group."""
    if names := settings.routes_of("kafka"):
        return [settings.only(names)]
    named = [settings.only(())] if settings.is_set("kafka.bootstrap_servers") else []
    asked = [*named, *(old.only(()) for old in before if old.routes_of("kafka"))]
    return list({(place.kafka.bootstrap_servers, place.kafka.group): place for place in reversed(asked)}.values())


def unknown_hint(settings: Settings) -> str:
    if not settings.is_set("kafka.bootstrap_servers"):
        return ""
    return ". If no route ever used Kafka, remove kafka.bootstrap_servers"


def looks_at_start(settings: Settings) -> list[str]:
    return settings.routes_of("kafka")


def count_levels(settings: Settings, before: Sequence[Settings]) -> list[Place]:
    return stale_levels.count(settings)


def remove_levels(
    settings: Settings, before: Sequence[Settings], everything: bool, force: bool, dry_run: bool
) -> list[Place]:
    names = settings.routes_of("kafka")
    return stale_levels.remove(settings.only(names), everything, force, dry_run) if names else []


def remaining_exchanges(settings: Settings, before: Sequence[Settings]) -> dict[str, str]:
    """Kafka has nothing beside topics."""
    return {}


def works_alone(settings: Settings) -> list[str]:
    """Kafka moves no record by itself."""
    return []


def stalled_intakes(settings: Settings) -> list[Intake]:
    """Kafka gives a partition to another consumer by itself."""
    return []
