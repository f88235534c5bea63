"""What must hold between the settings that say what producers may ask for; and what ``check`` says of an open route."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.settings.mistakes import Conflict, Path
from bridge.settings.model import Route, Settings
from bridge.settings.names import ROUTES
from bridge.settings.own_names import own_queues


def trust_conflicts(settings: Settings) -> Iterator[Conflict]:
    """All conflicts of this kind."""
    for name, route in settings.routes.items():
        if route.tombstones == "cancel" and not route.cancel:
            yield Conflict(
                ((ROUTES, name, "tombstones"), (ROUTES, name, "cancel")), "must be deliver where cancel is false"
            )
        if route.on_same_key and route.mode != "redis":
            paths: tuple[Path, ...] = ((ROUTES, name, "on_same_key"), (ROUTES, name, "mode"))
            yield Conflict(paths, f"is for mode redis: without a store ({route.mode}) no key is kept")
        if route.broker == "rabbitmq" and "allow_to" in route.model_fields_set:
            yield from _queues(settings, name, route)


def _queues(settings: Settings, name: str, route: Route) -> Iterator[Conflict]:
    path: Path = (ROUTES, name, "allow_to")
    if route.deliver_to and not route.allow_to:
        return
    if route.deliver_to:
        text = f'is for deliver_to = "" on RabbitMQ: the bindings of exchange "{route.deliver_to}" decide here'
        yield Conflict((path, (ROUTES, name, "deliver_to")), text)
        return
    if not route.allow_to:
        yield Conflict((path,), "must name a queue, or be left out: without it producers may name any queue")
    if settings.headers.keep_cc:
        yield Conflict((path, ("headers", "keep_cc")), "needs headers.keep_cc = false: CC names more queues")
    own = own_queues(settings)
    for item, queue in enumerate(route.allow_to, start=1):
        if not queue:
            yield Conflict((path,), f"(item {item}) must be the name of a queue")
        elif own.fullmatch(queue):
            yield Conflict((path,), f'(item {item}) is "{queue}", a queue of postdate\'s own')


def open_routes(settings: Settings) -> Iterator[tuple[str, str]]:
    """Routes whose producers may write to any queue through postdate, and what to do."""
    for name, route in settings.routes.items():
        if route.broker == "rabbitmq" and not route.deliver_to and not route.allow_to:
            yield (
                name,
                f"every producer of exchange '{route.intercept}' can write to any queue, because deliver_to is the "
                f"default exchange. List the queues that producers may name in routes.{name}.allow_to",
            )
