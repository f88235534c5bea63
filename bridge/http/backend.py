"""What all endpoints share: the settings, the desk, the caller's view of bodies, and the audit log."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Protocol

import structlog
from fastapi import Depends, Request
from starlette.responses import Response

from bridge.admin.desk import Desk, Stats
from bridge.admin.past import AuditEntry
from bridge.admin.send import Message
from bridge.app.canary import CanaryState
from bridge.app.open_desk import Reserve
from bridge.app.operations import Operation, Operations
from bridge.core.errors import PostdateError
from bridge.http.access import Caller, caller_of
from bridge.http.line import Processes
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

log = structlog.get_logger("postdate")


class Stores(Protocol):
    """The stores behind the API; ``bridge.app.open_desk.KeptStores`` in production."""

    async def desk(self) -> Desk:
        """Return the desk of all stores. Raises ``Refused``, ``StoreUnavailable``, ``StoreUnfit``."""

    async def park(
        self, broker: BrokerKind, make: Callable[[int], Message], reserve: Reserve | None = None
    ) -> tuple[bytes, Message]:
        """Park the message that ``make`` makes of the store's clock; ``reserve`` may replace its id. Raises as
        ``desk``, and what ``reserve`` raises."""

    async def close(self) -> None:
        """Close all connections."""


#: One look at the store serves all who ask within this time.
FRESH_S = 1.0
#: Rates are over the last minute, of one sample a second.
_RATE_S, _SAMPLE_S = 60.0, 0.9


class Kept:
    """Answers that take long, each made at most once in its time. Those who ask meanwhile wait for the same one."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, name: str, fresh_s: float, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer, made again if it is older than ``fresh_s``. Raises what ``make`` raises."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            at, found = self._found.get(name, (0.0, None))
            if not at or time.monotonic() - at > fresh_s:
                found = await make()
                self._found[name] = time.monotonic(), found
            return found


class Rate:
    """Rates per second, from totals seen over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=120)

    def per_second(self, totals: Mapping[str, int], now_s: float) -> dict[str, float]:
        """Take totals; return how fast each grows."""
        if not self._seen or now_s - self._seen[-1][0] > _SAMPLE_S:
            self._seen.append((now_s, totals))
        while now_s - self._seen[0][0] > _RATE_S and len(self._seen) > 1:
            self._seen.popleft()
        then_s, before = self._seen[0]
        passed_s = now_s - then_s
        return {
            name: round(max(0, count - before.get(name, 0)) / passed_s, 2) if passed_s > 0 else 0.0
            for name, count in totals.items()
        }


class Events:
    """Wakes all who listen for events when someone did something."""

    def __init__(self) -> None:
        self.listeners = 0
        #: How often someone did something.
        self.number = 0
        self._news = asyncio.Event()

    def audited(self) -> None:
        """Wake the listeners."""
        self.number += 1
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, seen: int, seconds: float) -> None:
        """Wait until something was done that a listener has not seen, or for some time."""
        if self.number == seen:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._news.wait()


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

    def forget(self) -> None:
        """Look again at the next request."""
        self._found = None


class Backend:
    """One app's settings and stores."""

    def __init__(
        self, settings: Settings, stores: Stores, processes: Processes, canaries: Callable[[], Sequence[CanaryState]]
    ) -> None:
        self.settings = settings
        self.stores = stores
        self.processes = processes
        self.canaries = canaries
        self.look = Look(stores)
        self.operations = Operations(stores.desk, self._bulk_ended)
        self.events = Events()
        self.rates = Rate()
        self.route_rates: dict[str, Rate] = {}
        self.kept = Kept()

    async def desk(self) -> Desk:
        """Return the desk of all stores."""
        return await self.stores.desk()

    def _bulk_ended(self, operation: Operation) -> None:
        via = operation.by.rpartition("(")[2].rstrip(")")
        self.processes.verbs[operation.verb, via] += operation.done

    async def note(self, caller: Caller, verb: str, what: str, messages: int, reason: str = "") -> None:
        """Write an entry of the audit log, after something was done. A store that is away now does not undo it."""
        self.processes.verbs[verb, caller.via] += messages
        log.info("audit", who=caller.who, via=caller.via, verb=verb, what=what, messages=messages, reason=reason)
        try:
            await (await self.desk()).note(AuditEntry(caller.who, caller.via, verb, what[:500], messages, reason))
        except PostdateError as error:
            log.warning("the audit log was not written", because=str(error))
        self.events.audited()


def backend_of(request: Request) -> Backend:
    """Return the backend of the app that answers a request."""
    found: Backend = request.app.state.backend
    return found


Here = Annotated[Backend, Depends(backend_of)]
Who = Annotated[Caller, Depends(caller_of)]


def reply(value: Any, status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(json.dumps(value, separators=(",", ":"), default=str), status, media_type="application/json")
