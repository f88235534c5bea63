"""Bulk operations: a verb for many messages, done in small batches with pauses, in the background.

Progress is kept in the store, so that every instance shows it, and can ask to stop it. The ids are read first: a
message that a batch moves is not met again. What is done stays done, however an operation ends.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import structlog

from bridge.admin import verbs
from bridge.admin.desk import Desk, Row
from bridge.admin.past import AuditEntry
from bridge.admin.verbs import MessageResult
from bridge.app import lists, views
from bridge.app.lists import Wanted
from bridge.core.errors import FINE, PostdateError, Refused, StoreUnavailable
from bridge.core.state import State
from bridge.parking.identity import ID_BYTES

log = structlog.get_logger("postdate")

BATCH = 250
#: Messages per second where a request does not say.
RATE = 10_000
#: What a request may act on: without the role admin, and at all. Ids take 20 bytes of memory each.
OPERATOR_MAX, MESSAGES_MAX = 10_000, 2_000_000
#: Operations of one process at a time.
AT_ONCE = 4
SAMPLE = 5
_COUNT_S = 2.0
#: How often progress is written, and when an operation that writes none counts as dead.
_TELL_S, DEAD_MS = 0.5, 15_000
#: How often a batch is repeated while the store is away, once a second.
_TRIES = 120
_STOP = "/stop"
_DIED = "The process that ran it ended. What was done stays done; the count may lack the last moment. Start it again."

Act = Callable[[Desk, Sequence[bytes]], Awaitable[list[MessageResult]]]


class Selection(NamedTuple):
    """Which messages an operation acts on: ids, or those in a state that match."""

    ids: Sequence[bytes] | None
    state: State
    wanted: Wanted
    routes: Sequence[str]
    most: int


@dataclass
class Operation:
    """One operation as it is kept. ``beat_ms`` is when its process wrote it last."""

    id: str
    verb: str
    what: str
    by: str
    reason: str
    started_ms: int
    beat_ms: int
    state: str = "running"
    done: int = 0
    skipped: int = 0
    total: int | None = None
    ended_ms: int | None = None
    text: str = ""
    #: By the monotonic clock of the process that runs it; not kept.
    begun_s: float = field(default_factory=time.monotonic)

    def document(self) -> str:
        """Return it as JSON for the store."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "begun_s"})


def act_of(verb: str, due_ms: int, reason: str) -> Act:
    """Return what a verb does to a batch."""
    acts: dict[str, Act] = {
        "cancel": partial(verbs.cancel, reason=reason),
        "reschedule": partial(verbs.reschedule, due_ms=due_ms),
        "deliver": verbs.deliver,
        "retry": verbs.retry,
    }
    return acts[verb]


def shown(document: str, now_ms: int) -> dict[str, Any]:
    """Return an operation as the API answers it. Pure."""
    found: dict[str, Any] = json.loads(document)
    if found["state"] == "running" and now_ms - found["beat_ms"] > DEAD_MS:
        found |= {"state": "failed", "text": _DIED, "ended_ms": found["beat_ms"]}
    return found


async def matching(desk: Desk, chosen: Selection) -> AsyncIterator[Row]:
    """Iterate over the messages that match."""
    page = await lists.with_key(desk, chosen.routes, chosen.state, chosen.wanted)
    if page is not None:
        for row in page.rows:
            yield row
        return
    async for row in desk.rows(chosen.state, chosen.wanted.base.narrow):
        if await lists.takes(desk, row, chosen.wanted):
            yield row


async def dry_run(desk: Desk, verb: str, chosen: Selection, states: Sequence[str]) -> dict[str, Any]:
    """Return how many messages the verb would change, with a sample. A count that takes too long is cut.

    ``states`` are those in which the verb changes a message.
    """
    until = time.monotonic() + _COUNT_S

    def changes(row: Row) -> bool:
        return row.state.value in states and not (verb == "retry" and verbs.is_dead_cancellation(row))

    if chosen.ids is not None:
        rows = list(filter(changes, await desk.look(list(dict.fromkeys(chosen.ids)), 256)))
        return {"count": len(rows), "complete": True, "sample": [views.message(row) for row in rows[:SAMPLE]]}
    count, complete = 0, True
    sample: list[Row] = []
    async for row in matching(desk, chosen):
        if not changes(row):
            continue
        count += 1
        if len(sample) < SAMPLE:
            sample.append(row)
        if count % 100 == 0 and time.monotonic() > until:
            complete = False
            break
    return {"count": count, "complete": complete, "sample": [views.message(row) for row in sample]}


class Operations:
    """The operations that this process runs, and those that the store knows."""

    def __init__(self, desk: Callable[[], Awaitable[Desk]], ended: Callable[[Operation], None]) -> None:
        """``ended`` is called with each operation of this process that has ended."""
        self._desk = desk
        self._ended = ended
        self._running: dict[str, tuple[_Run, asyncio.Task[None]]] = {}

    async def all(self) -> list[dict[str, Any]]:
        """Return the latest operations, the newest first."""
        desk = await self._desk()
        found, now_ms = await desk.operations(), await desk.now_ms()
        return [shown(found[one], now_ms) for one in sorted(found, reverse=True) if not one.endswith(_STOP)]

    async def one(self, one: str) -> dict[str, Any] | None:
        """Return one operation; None for an unknown id."""
        return next((found for found in await self.all() if found["id"] == one), None)

    async def stop(self, one: str, who: str) -> None:
        """Ask the process that runs an operation to stop it."""
        await (await self._desk()).put_operation(one + _STOP, who)

    async def start(
        self, verb: str, chosen: Selection, due_ms: int, rate: int | None, by: str, what: str, reason: str
    ) -> dict[str, Any]:
        """Start an operation. Raises ``Refused`` where too many run."""
        if len(self._running) >= AT_ONCE:
            raise Refused(f"{AT_ONCE} operations are running. Wait until one has ended, or stop one")
        desk = await self._desk()
        now_ms = await desk.now_ms()
        operation = Operation(f"{now_ms:011x}{secrets.token_hex(3)}", verb, what, by, reason, now_ms, now_ms)
        await desk.put_operation(operation.id, operation.document())
        run = _Run(desk, operation, chosen, act_of(verb, due_ms, reason), rate or RATE)
        task = asyncio.create_task(run.run())
        self._running[operation.id] = run, task
        task.add_done_callback(lambda _: self._running.pop(operation.id, None))
        task.add_done_callback(lambda _: self._ended(operation))
        return shown(operation.document(), now_ms)

    async def close(self) -> None:
        """Stop all operations of this process."""
        running = list(self._running.values())
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)
        for run, _ in running:
            await run.died()


class _Stopped(Exception):
    """Someone asked to stop the operation."""


class _Run:
    """The work of one operation."""

    def __init__(self, desk: Desk, operation: Operation, chosen: Selection, act: Act, rate: int) -> None:
        self._desk = desk
        self._operation = operation
        self._chosen = chosen
        self._act = act
        self._rate = rate
        self._told_s = time.monotonic()

    async def run(self) -> None:
        """Read the ids, then act on them batch by batch."""
        operation = self._operation
        try:
            ids = await self._ids()
            operation.total = len(ids) // ID_BYTES + operation.skipped
            await self._tell()
            for at in range(0, len(ids), BATCH * ID_BYTES):
                await self._batch(ids[at : at + BATCH * ID_BYTES])
            await self._end("done")
        except _Stopped as stopped:
            await self._end("stopped", f"Stopped by {stopped}. What was done stays done.")
        except PostdateError as error:
            stays = " What was done stays done." if operation.done else ""
            with suppress(PostdateError):
                await self._end("failed", f"{error}.{stays}")
        except Exception:
            log.exception("a bulk operation failed", operation=operation.id)
            with suppress(PostdateError):
                await self._end("failed", "postdate failed. Its log says why.")

    async def died(self) -> None:
        """Write that its process ends, unless it has ended itself."""
        if self._operation.state == "running":
            with suppress(PostdateError):
                await self._end("failed", _DIED)

    async def _ids(self) -> bytes:
        """Read the ids of the messages. Raises ``Refused`` for too many."""
        chosen = self._chosen
        if chosen.ids is not None:
            return b"".join(dict.fromkeys(chosen.ids))
        found = bytearray()
        async for row in matching(self._desk, chosen):
            if self._operation.verb == "retry" and verbs.is_dead_cancellation(row):
                self._operation.skipped += 1
                continue
            found += row.id
            if len(found) > chosen.most * ID_BYTES:
                hint = "An admin token allows more. " if chosen.most == OPERATOR_MAX else ""
                raise Refused(f"Nothing was done: more than {chosen.most} messages match. {hint}Narrow the filter")
            if len(found) % (500 * ID_BYTES) == 0:
                await self._tell_in_time()
        return bytes(found)

    async def _batch(self, raw: bytes) -> None:
        ids = [raw[at : at + ID_BYTES] for at in range(0, len(raw), ID_BYTES)]
        began = time.monotonic()
        results = await self._patiently(ids)
        fine = sum(one.code == FINE for one in results)
        self._operation.done += fine
        self._operation.skipped += len(results) - fine
        await self._tell_in_time()
        # A pause even at the highest rate: the store serves deliveries first.
        await asyncio.sleep(max(0.005, len(ids) / self._rate - (time.monotonic() - began)))

    async def _patiently(self, ids: Sequence[bytes]) -> list[MessageResult]:
        """Act on a batch, again while the store is away. Every verb is safe to repeat."""
        for _ in range(_TRIES):
            try:
                results = await self._act(self._desk, ids)
            except StoreUnavailable as error:
                self._operation.text = f"Waiting: {error}."
                await asyncio.sleep(1)
            else:
                self._operation.text = ""
                return results
        return await self._act(self._desk, ids)

    async def _tell_in_time(self) -> None:
        if time.monotonic() - self._told_s >= _TELL_S:
            await self._tell()

    async def _tell(self) -> None:
        """Write the progress. Raises ``_Stopped`` if someone asked for it."""
        operation = self._operation
        operation.beat_ms = self._now_ms()
        self._told_s = time.monotonic()
        with suppress(StoreUnavailable):
            await self._desk.put_operation(operation.id, operation.document())
            if who := (await self._desk.operations()).get(operation.id + _STOP):
                raise _Stopped(who)

    async def _end(self, state: str, text: str = "") -> None:
        operation = self._operation
        operation.state, operation.text = state, text
        operation.ended_ms = operation.beat_ms = self._now_ms()
        await self._desk.put_operation(operation.id, operation.document())
        who, _, via = operation.by.partition(" (")
        what = f"operation {operation.id}: {state}"
        entry = AuditEntry(who, via.removesuffix(")"), f"bulk {operation.verb}", what, operation.done, operation.reason)
        await self._desk.note(entry)
        log.info("bulk operation", id=operation.id, verb=operation.verb, state=state, done=operation.done)

    def _now_ms(self) -> int:
        """Return the store's clock, by how long the operation has run."""
        return self._operation.started_ms + int((time.monotonic() - self._operation.begun_s) * 1000)
