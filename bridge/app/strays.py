"""What is parked under routes that the settings do not have, in the stores of both brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from bridge.admin.strays import Looked, strays
from bridge.core.errors import PostdateError, StoreUnfit

if TYPE_CHECKING:
    from bridge.settings import Settings


async def looked_at(settings: Settings) -> AsyncIterator[tuple[Settings, Looked]]:
    """The store of each broker, and the routes of what is due next there. One that cannot be asked is left out: it is
    told of where it is needed."""
    from adapters.redis.next_due import next_due

    for house in (*settings.store_houses(), *settings.unused_houses()):
        try:
            yield house, await next_due(house.redis)
        except StoreUnfit:
            continue
        except PostdateError:
            return


async def strays_of(settings: Settings) -> list[tuple[str, str]]:
    """Each such route with its sentence, and under "" what to say where a store is too large to look at all of it."""
    from bridge.settings.model import TITLES

    found = []
    async for house, looked in looked_at(settings):
        title = TITLES[house.broker]
        some = list(strays(looked, house.with_left.routes, title))
        if looked.share and not some:
            found.append(("", f"{looked.share} all are of routes that the settings have"))
        found += some
    return found
