"""What all endpoints share: the settings, the desk, the caller's view of bodies, and the audit log."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Protocol

import structlog
from fastapi import Depends, Request
from starlette.responses import Response

from bridge.admin.desk import Desk, Stats
from bridge.admin.send import Message
from bridge.app.operations import Operations
from bridge.http.access import Caller, caller_of
from bridge.http.line import Processes
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

log = structlog.get_logger("postdate")


class Stores(Protocol):
    """The stores behind the API; ``bridge.app.open_desk.KeptStores`` in production."""

    async def desk(self) -> Desk:
        """Return the desk of all stores. Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``."""

    async def park(self, broker: BrokerKind, make: Callable[[int], Message]) -> tuple[bytes, Message]:
        """Park the message that ``make`` makes of the store's clock. Raises as ``desk``."""

    async def close(self) -> None:
        """Close all connections."""


#: One look at the store serves all who ask within this time.
FRESH_S = 1.0


class Look:
    """The numbers of the store, read at most once in ``FRESH_S``."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._lock = asyncio.Lock()
        self._found: Stats | None = None
        self._at = 0.0

    async def stats(self) -> Stats:
        """Return the numbers. Raises as the desk."""
        async with self._lock:
            if self._found is None or time.monotonic() - self._at > FRESH_S:
                self._found = await (await self._stores.desk()).stats()
                self._at = time.monotonic()
            return self._found


class Backend:
    """One app's settings and stores."""

    def __init__(self, settings: Settings, stores: Stores, processes: Processes) -> None:
        self.settings = settings
        self.stores = stores
        self.processes = processes
        self.look = Look(stores)
        self.operations = Operations(stores.desk)

    async def desk(self) -> Desk:
        """Return the desk of all stores."""
        return await self.stores.desk()

    async def note(self, caller: Caller, verb: str, what: str, reason: str = "") -> None:
        """Write an entry of the audit log."""
        log.info("audit", who=caller.who, via=caller.via, verb=verb, what=what, reason=reason)


def backend_of(request: Request) -> Backend:
    """Return the backend of the app that answers a request."""
    found: Backend = request.app.state.backend
    return found


Here = Annotated[Backend, Depends(backend_of)]
Who = Annotated[Caller, Depends(caller_of)]


def reply(value: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(value, separators=(",", ":"), default=str), status, media_type="application/json")
