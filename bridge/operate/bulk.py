"""Bulk operations: a verb for many messages, done in small batches with pauses, in the background.

Progress is kept in the store, so that every instance shows it, and can ask to stop it. The ids are read first: a
message that a batch moves is not met again. What is done stays done, however an operation ends.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

import structlog

from bridge.core.errors import FINE, PostdateError, Refused, StoreUnavailable
from bridge.core.orders import Actor
from bridge.core.state import State
from bridge.desk.past import AuditEntry
from bridge.desk.protocol import Desk
from bridge.desk.rows import Cursor, Row
from bridge.operate.describe import message_of
from bridge.operate.documents import DryRun, OperationFacts
from bridge.operate.find import Criteria, matching, write_cursor
from bridge.operate.verbs import Verb
from bridge.parking.identity import ID_BYTES
from bridge.pipeline.putback import patiently

T = TypeVar("T")
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
#: How often an order to stop is looked for.
_REPORT_S = 0.5
#: How often a process gives a sign of life, and after how long without one its operation counts as dead.
_BEAT_S, DEAD_MS = 2.0, 60_000
#: How long one instance may take to write the end of a dead operation before another does.
_CLOSING_MS = 10_000
#: How often a batch is repeated while the store is away, once a second.
_TRIES = 120
_STOP = "/stop"
_DIED = f"The process that ran it ended. What was done stays done; up to {BATCH} more may be done. Start it again."


class Selection(NamedTuple):
    """Which messages an operation acts on: ids, or those in a state that match; at most ``most``. ``what`` is how the
    audit log calls them."""

    ids: Sequence[bytes] | None = None
    state: State = State.PARKED
    wanted: Criteria = Criteria()
    most: int = OPERATOR_MAX
    what: str = ""
    #: Their keys are looked up first.
    routes: Sequence[str] = ()


def read_operation(document: str, now_ms: int) -> OperationFacts:
    """Return an operation as it is kept. One whose process has died has failed. Pure."""
    found = OperationFacts.model_validate_json(document)
    if not _is_dead(found, now_ms):
        return found
    return found.model_copy(update={"state": "failed", "text": _DIED, "ended_ms": found.beat_ms})


def _kept(operation: OperationFacts) -> str:
    return json.dumps(operation.as_dict())


def _is_dead(found: OperationFacts, now_ms: int) -> bool:
    return found.state == "running" and now_ms - (found.beat_ms or 0) > DEAD_MS


def end_entry(ended: OperationFacts) -> AuditEntry:
    """Return the entry of the audit log for an operation that has ended. Pure."""
    what = f"operation {ended.id}: {ended.state}. {ended.text}".rstrip(". ")
    return AuditEntry(Actor(ended.who, ended.via), f"bulk {ended.verb}", what, ended.done, ended.reason)


def logged(entry: AuditEntry) -> AuditEntry:
    """Log an entry of the audit log, and return it. The store keeps a bounded number, the process's log all."""
    log.info("audit", **entry.content())
    return entry


def _died(document: str, now_ms: int) -> bool:
    return _is_dead(OperationFacts.model_validate_json(document), now_ms)


async def dry_run(desk: Desk, verb: Verb, chosen: Selection, after: Cursor | None = None) -> DryRun:
    """Return how many messages the verb would change, with a sample. A count that takes too long is cut; the next one
    goes on ``after`` its last message."""
    if chosen.ids is not None:
        rows = list(filter(verb.changes, await desk.look(list(dict.fromkeys(chosen.ids)), 256)))
        return _counted(len(rows), None, rows[:SAMPLE], await desk.now_ms())
    count, last, until_s = 0, None, 0.0
    sample: list[Row] = []
    async for row, fits in matching(desk, chosen.routes, chosen.state, chosen.wanted, after):
        if last is None:
            until_s = time.monotonic() + _COUNT_S
        elif time.monotonic() > until_s:
            return _counted(count, last, sample, await desk.now_ms())
        last = Cursor(row.at_ms, row.id)
        if not fits or not verb.changes(row):
            continue
        count += 1
        if len(sample) < SAMPLE:
            sample.append(row)
    return _counted(count, None, sample, await desk.now_ms())


def _counted(count: int, after: Cursor | None, sample: Sequence[Row], now_ms: int) -> DryRun:
    shown = [message_of(row) for row in sample]
    return DryRun(count=count, complete=after is None, sample=shown, next=write_cursor(after), now_ms=now_ms)


class Work(Protocol):
    """What an operation does. ``what`` is how the audit log calls it."""

    verb: str
    what: str

    async def run(self, run: RunningOperation) -> None:
        """Do the work batch by batch. Keep ``run.facts`` up to date, and report between batches."""


class Operations:
    """The operations that this process runs, and those that the store knows."""

    def __init__(
        self, desk: Callable[[], Awaitable[Desk]], ended: Callable[[OperationFacts], None], logs: bool
    ) -> None:
        """``ended`` is called with each operation of this process that has ended. ``logs``: the process has a log, and
        what the audit log gets is a line there, too."""
        self._desk = desk
        self.logs = logs
        self._ended = ended
        self._running: dict[str, tuple[RunningOperation, asyncio.Task[None]]] = {}

    async def all(self) -> list[OperationFacts]:
        """Return the latest operations, the newest first."""
        desk = await self.close_dead()
        found, now_ms = await desk.operations(), await desk.now_ms()
        names = [name for name in sorted(found, reverse=True) if not name.endswith(_STOP)]
        return [self.own(name) or read_operation(found[name], now_ms) for name in names]

    def own(self, name: str) -> OperationFacts | None:
        """Return an operation that this process runs now, which needs no store."""
        return self._running[name][0].facts if name in self._running else None

    async def close_dead(self) -> Desk:
        """Write what operations did whose process died, to the audit log and to their documents. Return the desk.

        Whatever reads the audit log or the operations calls this first, so no reader misses an end. A lease lets one of
        several readers write it; if that one dies between its two writes, the entry is there twice.
        """
        desk = await self._desk()
        now_ms, reader = await desk.now_ms(), secrets.token_hex(8)
        for name, document in (await desk.operations()).items():
            if name.endswith(_STOP) or name in self._running or not _died(document, now_ms):
                continue
            if not await desk.lead(f"end of {name}", reader, _CLOSING_MS):
                continue
            latest = (await desk.operations()).get(name, document)
            if _died(latest, now_ms):
                ended = read_operation(latest, now_ms)
                entry = end_entry(ended)
                await desk.note(logged(entry) if self.logs else entry)
                await desk.put_operation(name, _kept(ended))
        return desk

    async def stop(self, name: str, by: Actor) -> None:
        """Ask the process that runs an operation to stop it."""
        await (await self._desk()).put_operation(name + _STOP, str(by))

    async def start(self, work: Work, by: Actor, reason: str) -> OperationFacts:
        """Start an operation. Raises ``Refused`` where too many run."""
        if len(self._running) >= AT_ONCE:
            raise Refused(f"{AT_ONCE} operations are running. Wait until one has ended, or stop one")
        desk = await self.close_dead()
        now_ms = await desk.now_ms()
        operation = OperationFacts(
            id=f"{now_ms:011x}{secrets.token_hex(3)}",
            verb=work.verb,
            what=work.what,
            who=by.who,
            via=by.via,
            by=str(by),
            reason=reason,
            started_ms=now_ms,
            beat_ms=now_ms,
            state="running",
            done=0,
            skipped=0,
            total=None,
            ended_ms=None,
            text="",
        )
        await desk.put_operation(operation.id, _kept(operation))
        run = RunningOperation(desk, operation, work, self.logs)
        task = asyncio.create_task(run.run())
        self._running[operation.id] = run, task
        task.add_done_callback(lambda _: self._running.pop(operation.id, None))
        task.add_done_callback(lambda _: self._ended(run.facts))
        return operation

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


class RunningOperation:
    """An operation of this process: its facts as the store keeps them, and whether someone asked to stop it."""

    def __init__(self, desk: Desk, facts: OperationFacts, work: Work, logs: bool) -> None:
        self.desk = desk
        self.facts = facts
        self._work = work
        self._logs = logs
        self._begun_s = self._read_s = time.monotonic()
        self._writing = asyncio.Lock()

    async def run(self) -> None:
        """Do the work, and give signs of life beside it, however long a batch takes."""
        beats = asyncio.create_task(self._beat())
        try:
            await self._do()
        finally:
            beats.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT_S)
            with suppress(StoreUnavailable):
                self.set(beat_ms=await self.desk.now_ms())
            await self.write()

    async def _do(self) -> None:
        """Do the work, and write how it ended."""
        state, text = "done", ""
        try:
            await self._work.run(self)
        except _Stopped as stopped:
            state, text = "stopped", f"Stopped by {stopped}. What was done stays done."
        except PostdateError as error:
            stays = " What was done stays done." if self.facts.done else ""
            state, text = "failed", f"{error}.{stays}"
        except Exception:
            log.exception("a bulk operation failed", operation=self.facts.id)
            state, text = "failed", "postdate failed. Its log says why."
        with suppress(PostdateError):
            await self._end(state, text, _TRIES)

    async def died(self) -> None:
        """Write that its process ends, unless it has ended itself."""
        if self.facts.state == "running":
            with suppress(PostdateError):
                await self._end("failed", _DIED)

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that is safe to repeat, again while the store or the journal is away."""
        for _ in range(_TRIES):
            try:
                result = await call()
            except StoreUnavailable as error:
                self.set(text=f"Waiting: {error}.")
                await self.report()
                await asyncio.sleep(1)
            else:
                self.set(text="")
                return result
        return await call()

    async def report_in_time(self) -> None:
        """Report, if the last report is old."""
        if time.monotonic() - self._read_s >= _REPORT_S:
            await self.report()

    async def report(self) -> None:
        """Write the progress. Raises ``_Stopped`` if someone asked for it."""
        await self.write()
        self._read_s = time.monotonic()
        with suppress(StoreUnavailable):
            if who := (await self.desk.operations()).get(self.facts.id + _STOP):
                raise _Stopped(who)

    async def write(self) -> None:
        """Write the progress. If this process dies, the audit log lacks one batch at most."""
        async with self._writing:
            if self.facts.state == "running":
                with suppress(StoreUnavailable):
                    await self.desk.put_operation(self.facts.id, _kept(self.facts))

    async def _end(self, state: str, text: str, tries: int = 0) -> None:
        """Write how it ended, ``tries`` times again while the store is away."""
        # The store's clock, by how long the operation has run.
        now_ms = self.facts.started_ms + int((time.monotonic() - self._begun_s) * 1000)
        self.set(state=state, text=text, ended_ms=now_ms)
        entry = logged(end_entry(self.facts)) if self._logs else end_entry(self.facts)
        await patiently(lambda: self.desk.note(entry), tries)
        async with self._writing:
            await patiently(lambda: self.desk.put_operation(self.facts.id, _kept(self.facts)), tries)

    def set(self, **changed: Any) -> None:
        """Change what is known of the operation."""
        self.facts = self.facts.model_copy(update=changed)


class VerbWork:
    """A verb for all messages of a selection."""

    def __init__(self, verb: Verb, chosen: Selection, due_ms: int, rate: int | None, reason: str) -> None:
        self.verb: str = verb.name
        self.what = chosen.what
        self._effect = verb
        self._chosen = chosen
        self._due_ms = due_ms
        self._rate = rate or RATE
        self._reason = reason

    async def run(self, run: RunningOperation) -> None:
        """Read the ids, then act on them batch by batch. No batch takes longer than a second of the rate."""
        ids = await self._ids(run)
        run.set(total=len(ids) // ID_BYTES + run.facts.skipped)
        await run.report()
        step = min(BATCH, self._rate) * ID_BYTES
        for at in range(0, len(ids), step):
            await self._batch(run, ids[at : at + step])

    async def _ids(self, run: RunningOperation) -> bytes:
        """Read the ids of the messages. Raises ``Refused`` for too many."""
        chosen = self._chosen
        if chosen.ids is not None:
            return b"".join(dict.fromkeys(chosen.ids))
        found = bytearray()
        async for row, fits in matching(run.desk, chosen.routes, chosen.state, chosen.wanted):
            if not fits:
                await run.report_in_time()
                continue
            if self._effect.spares(row.state.value, row.reason):
                run.set(skipped=run.facts.skipped + 1)
                continue
            found += row.id
            if len(found) > chosen.most * ID_BYTES:
                raise Refused(f"Nothing was done: {too_many(chosen.most)}")
            if len(found) % (500 * ID_BYTES) == 0:
                await run.report_in_time()
        return bytes(found)

    async def _batch(self, run: RunningOperation, raw: bytes) -> None:
        ids = [raw[at : at + ID_BYTES] for at in range(0, len(raw), ID_BYTES)]
        began = time.monotonic()
        results = await run.patiently(lambda: self._effect.act(run.desk, ids, self._due_ms, self._reason))
        fine = sum(result.code == FINE for result in results)
        run.set(done=run.facts.done + fine, skipped=run.facts.skipped + len(results) - fine)
        await run.write()
        await run.report_in_time()
        # A pause even at the highest rate: the store serves deliveries first.
        await asyncio.sleep(max(0.005, len(ids) / self._rate - (time.monotonic() - began)))


def too_many(most: int) -> str:
    """Return why an operation is refused that more than ``most`` messages match. Pure."""
    hint = "An admin token allows more. " if most == OPERATOR_MAX else ""
    return f"more than {most} messages match. {hint}Narrow the filter"
