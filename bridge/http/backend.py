"""What all endpoints share: the settings, the desk, the caller's view of bodies, and the audit log."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Annotated, Any

import structlog
from fastapi import Depends, Request
from starlette.responses import Response

from bridge.app.canaries import CanaryState
from bridge.core.errors import PostdateError, Refused, StoreSilent
from bridge.delay.duration import write_moment
from bridge.desk.numbers import Stats
from bridge.desk.past import AuditEntry
from bridge.http.access import Caller, Role, caller_of
from bridge.http.line import Processes
from bridge.http.problems import Problem
from bridge.operate.bulk import Operations, logged
from bridge.operate.documents import Document, OperationFacts, RouteFacts
from bridge.operate.local import LocalOperator
from bridge.operate.masking import Sight, sees_all
from bridge.operate.stores import Look, Stores
from bridge.operate.verdict import Known, LocalReport, Overall, judge
from bridge.pipeline.derive import loss_cure, rate_limits
from bridge.settings import Settings, mask_url
from bridge.settings.model import TITLES
from bridge.telemetry.subject import rendered

log = structlog.get_logger("postdate")


#: Rates are over the last ten seconds, of one sample a second: soon after all stood still they say so.
_RATE_S, _SAMPLE_S = 10.0, 0.9
#: A rate over less time is none.
_FIRST_S = 3.0


class Kept:
    """Answers that take long, each made at most once in its time. Those who ask meanwhile wait for the same one."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, Any]] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(
        self, name: str, fresh_s: float, make: Callable[[], Awaitable[Any]], within_s: float | None = None
    ) -> Any:
        """Return the answer, made again if it is older than ``fresh_s``; the last one if that is not done ``within_s``.
        Raises what ``make`` raises, and ``TimeoutError`` without a last one."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            at, found = self._found.get(name, (0.0, None))
            if not at or time.monotonic() - at > fresh_s:
                try:
                    async with asyncio.timeout(within_s):
                        found = await make()
                    self._found[name] = time.monotonic(), found
                except TimeoutError:
                    if not at:
                        raise
            return found


class Rate:
    """Rates per second, from totals seen over the last ten seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=120)

    def per_second(self, totals: Mapping[str, int], now_s: float) -> dict[str, float]:
        """Take totals; return how fast each grows; nothing in the first seconds, when there is no rate yet.

        What a total had counted before it was first seen does not count.
        """
        if self._seen:  # what has gone silent counted in this time, too
            first, last = self._first(), self._seen[-1][1]
            totals = {name: count for name, count in last.items() if count != first[name]} | dict(totals)
        if not self._seen or now_s - self._seen[-1][0] > _SAMPLE_S:
            self._seen.append((now_s, totals))
        while now_s - self._seen[0][0] > _RATE_S and len(self._seen) > 1:
            self._seen.popleft()
        passed_s = now_s - self._seen[0][0]
        if passed_s < _FIRST_S:
            return {}
        first = self._first()
        return {name: round(max(0, count - first.get(name, count)) / passed_s, 2) for name, count in totals.items()}

    def _first(self) -> dict[str, int]:
        """Return each total as it was first seen in this time."""
        return {name: count for _, earlier in reversed(self._seen) for name, count in earlier.items()}


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


#: A store that takes longer for its numbers is away.
_PATIENCE_S = 2.5
#: A probe waits no longer for them, and takes those of the last look until they are so old.
_SOON_S, _KNOWN_S = 0.6, 5.0
#: After a look that took too long, what the instances report meanwhile is heard first.
_GRACE_S = 0.02
#: Looks through many messages at one time, those that wait included; and those that do not wait.
LOOKS_MAX, _LOOKS_AT_ONCE = 32, 2


class Backend:
    """One app's settings and stores."""

    def __init__(
        self, settings: Settings, stores: Stores, processes: Processes, canaries: Callable[[], Sequence[CanaryState]]
    ) -> None:
        self.settings = settings
        self.stores = stores
        self.processes = processes
        processes.follow = self.follow
        self.canaries = canaries
        self.look = Look(stores)
        self.operations = Operations(stores.desk, self._bulk_ended, logs=True)
        self.events = Events()
        self.rates = Rate()
        self.route_rates: dict[str, Rate] = {}
        #: By route and running instance: when it last took something in (Unix ms), less than ``_RATE_S`` too late.
        self.taken_ms: dict[str, dict[str, int]] = {}
        self.kept = Kept()
        #: The routes of the last overview with new numbers.
        self.last_routes: Sequence[RouteFacts] = ()
        self._looks = 0
        self._places = asyncio.Semaphore(_LOOKS_AT_ONCE)

    def follow(self, settings: Settings) -> None:
        """Judge by the settings of a reload: the rates of routes change while this process runs."""
        self.settings = settings

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Wait until a look through many messages may begin: together they would hold up all other answers.

        Raises ``Problem`` where too many wait.
        """
        if self._looks >= LOOKS_MAX:
            raise Problem(503, "Too many lists are read at once. Try again.", {"Retry-After": "2"})
        self._looks += 1
        try:
            async with self._places:
                yield
        finally:
            self._looks -= 1

    def operator(self, caller: Caller) -> LocalOperator:
        return LocalOperator(
            self.stores,
            self.settings,
            caller.by,
            sight=self.sight_of(caller),
            look=self.look,
            operations=self.operations,
            write=self.note,
            judged=self.judged,
        )

    def sight_of(self, caller: Caller) -> Sight:
        """Return what of messages' contents a caller sees."""
        ui = self.settings.ui
        return Sight(sees_all(ui.bodies, caller.role is Role.ADMIN), ui.bodies, ui.mask)

    async def judged(self, within_s: float = _PATIENCE_S, known_s: float = 0.0) -> tuple[Stats | None, Overall]:
        """Return the numbers of the store, None where it is away or no route has one, and the verdict on all that is
        known ``within_s``. Those of the last look count for ``known_s``."""
        store = await self._look(min(within_s, max(_SOON_S, _PATIENCE_S - self.look.unanswered_s())), known_s)
        known = replace(
            store,
            stored=self.settings.uses_store,
            local=[
                LocalReport(
                    frame.process,
                    frame.broker,
                    self.processes.silent_s(frame),
                    rendered(frame.troubles),
                    "redis" in frame.peers,
                )
                for frame in self.processes.frames()
            ],
            unready=self._unready(),
            answers_s=self.look.answers_s(),
            rates=rate_limits(self.settings),
            cure=loss_cure(self.settings),
            reload=self.processes.reloading.failure,
        )
        return known.stats, judge(known)

    async def _look(self, within_s: float, known_s: float) -> Known:
        """Return what is known of the store: its numbers, those of the last look with their age, or why it is away."""
        try:
            return Known(await self.look.stats(within_s))
        except Refused:  # no route has a store, and none is left over
            return Known()
        except (TimeoutError, StoreSilent):
            await asyncio.sleep(_GRACE_S)
        except PostdateError as error:
            return Known(away=str(error))
        answers, unanswered_s = self.processes.store_answers(), self.look.unanswered_s()
        found, age_s = self.look.last(math.inf if answers else known_s)
        asked = found is None and (answers or max(within_s, unanswered_s) < _PATIENCE_S)
        silent = f"Redis does not answer at {mask_url(self.settings.redis.url.get_secret_value())}"
        if not answers and (away := self.look.error() or ("" if asked or found else silent)):
            return Known(away=away)
        since = answers and self.processes.store_answers(unanswered_s)
        return Known(found, asked=asked, age_s=age_s, answered_since=since)

    async def judged_soon(self) -> Overall:
        """Return the verdict for a probe, which has no patience."""
        return (await self.judged(_SOON_S, _KNOWN_S))[1]

    def _unready(self) -> list[tuple[str, str]]:
        """Return what /readyz reports as missing, and each missing canary at once: /readyz waits for three."""
        found = [part for part in self.processes.not_ready() if part[0] != "canary"] if len(self.processes) else []
        lost = ((state, state.missing(self.settings.canary, time.monotonic())) for state in self.canaries())
        return found + [
            ("canary", f"no canary of {TITLES[state.broker]} came back{self._tried(state)}: {why}")
            for state, why in lost
            if why
        ]

    def _tried(self, state: CanaryState) -> str:
        """Return when the last canary failed: what it met may be over."""
        return "" if state.tried_s is None else f" at {write_moment(self.processes.moment_ms(state.tried_s))}"

    def _bulk_ended(self, operation: OperationFacts) -> None:
        self.processes.verbs[operation.verb] += operation.done

    async def note(self, entry: AuditEntry) -> None:
        """Write an entry of the audit log, after something was done. A store that is away now does not undo it."""
        self.processes.verbs[entry.verb] += entry.messages
        entry = logged(replace(entry, what=entry.what[:500]))
        try:
            await (await self.stores.desk()).note(entry)
        except PostdateError as error:
            log.warning("the audit log was not written", because=str(error))
        self.events.audited()


def backend_of(request: Request) -> Backend:
    found: Backend = request.app.state.backend
    return found


Here = Annotated[Backend, Depends(backend_of)]
Who = Annotated[Caller, Depends(caller_of)]


def reply(value: Document | Mapping[str, Any], status: int = 200) -> Response:
    content = value.as_dict() if isinstance(value, Document) else value
    return Response(json.dumps(content, separators=(",", ":"), default=str), status, media_type="application/json")
