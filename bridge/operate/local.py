"""``Operator`` at the stores: for the commands where Redis can be reached, and for the endpoints of the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, cast

from bridge.core.errors import FINE, NotFound, PostdateError, Refused, SettingsError, StoreUnavailable
from bridge.core.orders import Actor, RouteState
from bridge.core.state import State
from bridge.delay.duration import write_moment
from bridge.desk.numbers import Stats
from bridge.desk.past import AuditEntry, PastFilter, Remembered
from bridge.desk.payload import Draft
from bridge.desk.protocol import Desk
from bridge.desk.rows import Row
from bridge.operate import describe, find
from bridge.operate import documents as doc
from bridge.operate.bulk import Operations, Selection, VerbWork, dry_run
from bridge.operate.find import Criteria
from bridge.operate.masking import EVERYTHING, MASKED_MAX, Sight, masked_body
from bridge.operate.moments import due_ms
from bridge.operate.operator import Due, Progress, silent
from bridge.operate.restoring import RestoreWork, preview
from bridge.operate.select import ids_of_key, no_store, refuse_without_store, unknown_route
from bridge.operate.send import prepare
from bridge.operate.stores import Look, Stores
from bridge.operate.verbs import RESTORE, NotThere, Verb, explained, missing, ordering
from bridge.operate.verdict import Known, Overall, few, judge
from bridge.operate.where import ends, not_seen, where_is
from bridge.parking.history import HistoryRow
from bridge.pipeline.derive import loss_cure, rate_limits
from bridge.pipeline.restore import RestoreOrder
from bridge.settings import Settings
from bridge.telemetry.printable import complain

#: Messages of one call of a verb.
_BATCH = 500
#: For how long the id for an Idempotency-Key is remembered, and how late the history may be.
_REMEMBERED_MS, _HISTORY_S = 24 * 3_600_000, 1.2

#: Writes an entry of the audit log.
Write = Callable[[AuditEntry], Awaitable[None]]
#: Returns the numbers, None where no route has a store or it is away, and the verdict.
Judged = Callable[[], Awaitable[tuple[Stats | None, Overall]]]


class LocalOperator:
    """``Operator`` at the stores, for one actor with its sight."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        by: Actor,
        *,
        sight: Sight = EVERYTHING,
        look: Look | None = None,
        operations: Operations | None = None,
        write: Write | None = None,
        judged: Judged | None = None,
    ) -> None:
        """``look`` reads the numbers, ``operations`` runs bulk operations, ``write`` writes the audit log, and
        ``judged`` makes the verdict; by default none is shared with other operators."""
        self._stores = stores
        self._settings = settings
        self._by = by
        self._sight = sight
        self._look = look or Look(stores, settles=True)
        self._operations = operations or Operations(stores.desk, lambda _: None, logs=False)
        self._write = write or self._write_or_warn
        self._judged = judged or self._judge

    async def close(self) -> None:
        """Close the stores. Bulk operations of this operator end."""
        await self._operations.close()
        await self._stores.close()

    async def now_ms(self) -> int:
        return await (await self._stores.desk()).now_ms()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def page(self, state: State, wanted: Criteria, cursor: str | None, limit: int) -> doc.MessageList:
        """Return a page; through the key index where a key is given that it lists."""
        desk, wanted, after = await self._stores.desk(), self._seen(wanted), find.read_cursor(cursor)
        now_ms = await desk.now_ms()
        page = await find.with_key(desk, await self._with_key(wanted), state, wanted, after, limit)
        if page is None:
            page = await find.page(desk, state, wanted, after, limit)
        if not (page.rows or page.after or cursor):
            await self.judge_empty(wanted.base.route)
        return doc.MessageList(
            messages=[describe.message_of(row) for row in page.rows],
            next=find.write_cursor(page.after),
            looked_at=page.looked_at,
            now_ms=now_ms,
        )

    async def judge_empty(self, route: str | None) -> None:
        """Raise ``SettingsError`` for a route that neither the settings nor the store know."""
        if not route or route in self._settings.routes:
            return
        if route not in (await self._look.stats()).by_route:
            raise SettingsError(unknown_route(self._settings.routes, route))

    async def messages(
        self, state: State, wanted: Criteria, progress: Progress = silent
    ) -> AsyncIterator[doc.MessageFacts]:
        """Iterate over all; through the key index where a route and a key are given."""
        looked_at = 0
        async for row, fits in find.matching(await self._stores.desk(), (), state, self._seen(wanted)):
            progress(looked_at := looked_at + 1)
            if fits:
                yield describe.message_of(row)

    async def past_page(self, wanted: PastFilter, cursor: str | None, limit: int) -> doc.PastList:
        """Return a page, and how far the history reaches."""
        desk = await self._stores.desk()
        now_ms = await desk.now_ms()
        page = await find.past_page(desk, wanted, find.read_cursor(cursor), limit)
        if not (page.rows or page.after or cursor):
            await self.judge_empty(wanted.route)
        reach = doc.HistoryFacts(
            keep_ms=desk.limits.keep_ms, max=desk.limits.most, since_ms=await desk.history_since_ms()
        )
        return doc.PastList(
            messages=[describe.past_of(entry) for entry in page.rows],
            next=find.write_cursor(page.after),
            looked_at=page.looked_at,
            now_ms=now_ms,
            text="" if page.rows or page.after else await not_seen(desk),
            history=reach,
        )

    async def history(self, wanted: PastFilter, progress: Progress = silent) -> AsyncIterator[doc.PastMessage]:
        async for entry in (await self._stores.desk()).history(wanted):
            yield describe.past_of(entry)

    async def ids_of_key(self, key: bytes, route: str | None) -> list[str]:
        found = await ids_of_key(await self._stores.desk(), self._settings, key, route)
        return [message_id.decode() for message_id in found]

    async def search(self, text: str, route: str | None) -> doc.SearchResult:
        desk = await self._stores.desk()
        found = await where_is(desk, [route] if route else await self._known_routes(), text.encode())
        rows = [describe.message_of(row) for row in found.rows if not route or row.route == route]
        past = [describe.past_of(entry) for entry in found.past if not route or entry.route == route]
        if not (rows or past):
            await self.judge_empty(route)
        return doc.SearchResult(found=[*rows, *past], text=found.text, now_ms=await desk.now_ms())

    async def show(self, message_id: str, whole: bool = False) -> doc.MessageDetails:
        desk = await self._stores.desk()
        row, past = await self._known(desk, message_id, -1 if whole else describe.SHOWN_BYTES)
        flow = await desk.flow(message_id.encode())
        if row is None:
            return describe.departed(cast("HistoryRow", past), flow)
        opened = describe.open_payload(row)
        headers, properties = describe.headers_of(opened.properties)
        details = doc.MessageDetails(
            message=describe.message_of(row, self._settings),
            properties=properties,
            headers=dict(self._sight.headers(headers)),
            origin=dict(opened.origin),
            body=await self._body(desk, row, whole),
            life=describe.with_flow(describe.life_in_store(row, past), flow),
            commands=describe.commands_for(row),
            now_ms=await desk.now_ms(),
        )
        if not self._sight.whole:
            return details
        every = doc.OpenedFacts(properties=dict(opened.properties), other=dict(opened.other))
        return details.model_copy(update={"opened": every})

    async def body(self, message_id: str) -> bytes:
        """Read the whole payload. The caller's sight does not matter: who calls this may see it."""
        desk = await self._stores.desk()
        rows = await desk.look([message_id.encode()], -1)
        if rows:
            return describe.open_payload(rows[0]).body
        raise await _not_there(desk, message_id)

    def _seen(self, wanted: Criteria) -> Criteria:
        return wanted if self._sight.whole else replace(wanted, seen=self._sight.headers)

    async def _known(self, desk: Desk, message_id: str, payload_bytes: int) -> tuple[Row | None, HistoryRow | None]:
        """Return a message of the store whose payload can be opened, and its entry of the history. Raises ``NotFound``
        where neither is there."""
        ids = [message_id.encode()]
        rows = await desk.look(ids, payload_bytes)
        try:
            for row in rows:
                describe.open_payload(row)
        except ValueError:  # properties larger than a frame: read all of it
            rows = await desk.look(ids, -1)
        past = (await ends(desk, ids)).get(ids[0])
        if not rows and past is None:
            raise await _not_there(desk, message_id)
        return rows[0] if rows else None, past

    async def _body(self, desk: Desk, row: Row, whole: bool) -> doc.Body:
        """Return the start of a body, or all of it, as the caller sees it."""
        opened, sight = describe.open_payload(row), self._sight
        if sight.whole:
            return describe.body_of(opened.body if whole else opened.body[: describe.BODY_BYTES], opened.body_size)
        if sight.bodies == "masked" and len(opened.body) < opened.body_size <= MASKED_MAX:
            rows = await desk.look([row.id], -1)
            opened = describe.open_payload(rows[0]) if rows else opened
        text, why = masked_body(sight.bodies, sight.mask, opened.body, opened.body_size)
        cut = text is not None and len(text) > describe.BODY_BYTES
        part = text[: describe.BODY_BYTES] if text is not None else None
        return doc.Body(size=opened.body_size, text=part, base64=None, truncated=cut, hidden=why)

    # -- verbs --------------------------------------------------------------------------------------------------------

    async def act(
        self, verb: Verb, ids: Sequence[str], due: Due | None = None, reason: str = "", *, what: str = ""
    ) -> list[doc.VerbResult]:
        """Act in batches; write one entry for all."""
        desk = await self._stores.desk()
        moment_ms = await self._moment_ms(desk, due)
        results: list[doc.VerbResult] = []
        for at in range(0, len(ids), _BATCH):
            batch = [message_id.encode() for message_id in ids[at : at + _BATCH]]
            results += await verb.act(desk, batch, moment_ms, reason)
        changed = [result.id for result in results if result.code == FINE]
        if changed:
            await self._note(verb.name, what or few(changed), len(changed), reason)
        return results

    async def preview(
        self, verb: Verb, chosen: Selection, due: Due | None = None, cursor: str | None = None
    ) -> doc.DryRun:
        desk = await self._stores.desk()
        await self._moment_ms(desk, due)
        return await dry_run(desk, verb, await self._chosen(chosen), find.read_cursor(cursor))

    async def bulk(
        self, verb: Verb, chosen: Selection, due: Due | None = None, rate: int | None = None, reason: str = ""
    ) -> doc.OperationFacts:
        moment_ms = await self._moment_ms(await self._stores.desk(), due)
        work = VerbWork(verb, await self._chosen(chosen), moment_ms, rate, reason)
        found = await self._operations.start(work, self._by, reason)
        await self._note(f"bulk {verb.name}", f"operation {found.id}: {chosen.what}", 0, reason)
        return found

    async def preview_restore(
        self, order: RestoreOrder, limit_s: float | None = None, progress: Progress = silent
    ) -> doc.RestorePreview:
        self._judge_route(order.wanted.route)
        return await preview(self._stores, order, limit_s, progress)

    async def restore(self, order: RestoreOrder, reason: str = "", most: int | None = None) -> doc.OperationFacts:
        """Check that it can begin, then begin."""
        self._judge_route(order.wanted.route)
        work = RestoreWork(self._stores, replace(order, by=str(self._by)), most)
        await work.check()
        found = await self._operations.start(work, self._by, reason)
        await self._note(f"bulk {RESTORE}", f"operation {found.id}: {work.what}", 0, reason)
        return found

    def _judge_route(self, route: str | None) -> None:
        if route is not None:
            if route not in self._settings.routes:
                raise SettingsError(unknown_route(self._settings.routes, route))
            refuse_without_store(self._settings, route)

    async def operations(self) -> list[doc.OperationFacts]:
        return await self._operations.all()

    async def operation(self, name: str) -> doc.OperationFacts:
        found = self._operations.own(name)
        found = found or next((known for known in await self._operations.all() if known.id == name), None)
        if found is None:
            raise NotFound("There is no such operation. GET /operations lists the latest ones")
        return found

    async def stop(self, operation: str) -> doc.OperationFacts:
        """Write the order to stop, which the process reads twice a second."""
        found = await self.operation(operation)
        if found.state != "running":
            raise Refused(f"This operation is {found.state} already")
        await self._operations.stop(operation, self._by)
        await self._note("stop", f"operation {operation}", 0)
        return found

    async def _chosen(self, chosen: Selection) -> Selection:
        return chosen._replace(wanted=self._seen(chosen.wanted), routes=await self._with_key(chosen.wanted))

    async def _with_key(self, wanted: Criteria) -> list[str]:
        """Return the routes to look for a key in; none where the criteria have no key, or name its route."""
        return [] if wanted.base.key is None or wanted.base.route is not None else await self._known_routes()

    async def _known_routes(self) -> list[str]:
        """Return the configured routes, and removed ones that the store still has."""
        return list(dict.fromkeys([*self._settings.routes, *(await self._look.stats()).by_route]))

    async def _moment_ms(self, desk: Desk, due: Due | None) -> int:
        return due_ms(due, await desk.now_ms(), self._settings.limits.max_delay) if due else 0

    async def send(
        self, route: str, draft: Draft, key: str, due: Due, once: str | None = None
    ) -> tuple[doc.Scheduled, bool]:
        make = prepare(self._settings, route, draft, key, due)
        reserve, digest = None, b""
        if once is not None:
            digest = sha256(repr((route, draft, key, due)).encode()).digest()
            reserve = partial(_reserve, await self._stores.desk(), once.encode(), digest)
        try:
            raw, message = await self._stores.park(self._settings.routes[route].broker, make, reserve)
        except _SentBefore as before:
            return _scheduled(before.message_id, before.due_ms), False
        if once is not None:
            request = Remembered(digest, raw, message.due_ms)
            with suppress(StoreUnavailable):  # a repeated request then looks for the message
                await (await self._stores.desk()).remember_parked(once.encode(), request, _REMEMBERED_MS)
        await self._note("send", raw.decode(), 1)
        return _scheduled(raw, message.due_ms), True

    # -- routes -------------------------------------------------------------------------------------------------------

    async def routes(self) -> list[doc.RouteFacts]:
        """Return the configured routes. One without a store has no counts, and always runs; whether it is served is not
        known here."""
        found = Stats(0, 0, 0, 0, 0, None, {}, {}, ())
        with suppress(Refused):  # no route has a store
            found = await self._look.stats()
        return [self._route(name, found) for name in self._settings.routes]

    def _route(self, name: str, found: Stats) -> doc.RouteFacts:
        route = self._settings.routes[name]
        counted: Mapping[str, Any] = describe.counts_of(name, found).as_dict()
        if not route.stored:
            counted = dict.fromkeys(counted) | {"name": name, "state": RouteState.RUNNING.value}
        returns_to = route.queue if route.retries else ""  # of RabbitMQ; empty on Kafka
        return doc.RouteFacts(
            **counted,
            kind=route.kind,
            broker=route.broker,
            intercept=returns_to or route.intercept,
            deliver_to=returns_to or (list(route.targets) if len(route.targets) > 1 else route.target),
            mode=route.mode,
            max_rate=route.max_rate or None,
            received_per_s=None,
            delivered_per_s=None,
            served=bool(found.serving(name)) if route.stored else None,
            broker_away=False,
        )

    async def routes_for(self, state: RouteState, names: Sequence[str] | None) -> list[str]:
        """Judge names by the settings. A route that has left them can be resumed, so that no order is stuck."""
        orders = await (await self._stores.desk()).orders()
        ordered = orders.keys() if state is RouteState.RUNNING else set[str]()
        if not names:
            stored = [name for name in self._settings.routes if not no_store(self._settings, name)]
            if not stored and not ordered:
                raise Refused(no_store(self._settings))
            return [*stored, *sorted(ordered - set(stored))]
        for name in names:
            if name not in ordered and name not in self._settings.routes:
                raise SettingsError(unknown_route(self._settings.routes, name))
            if name not in ordered:
                refuse_without_store(self._settings, name)
        return list(dict.fromkeys(names))

    async def order(self, names: Sequence[str], state: RouteState, reason: str = "") -> list[doc.RouteCounts]:
        desk = await self._stores.desk()
        for name in names:
            if not (state is RouteState.RUNNING and name in await desk.orders()):
                if name not in self._settings.routes:
                    raise NotFound(unknown_route(self._settings.routes, name))
                refuse_without_store(self._settings, name)
            await desk.order(name, state, self._by, reason)
            await self._note(ordering(state).name, f"route {name}", 0, reason)
        self._look.forget()
        found = await self._look.stats()
        return [describe.counts_of(name, found) for name in names]

    # -- the system ---------------------------------------------------------------------------------------------------

    async def stats(self) -> doc.StatsFacts:
        found, overall = await self._judged()
        others = [name for name, route in self._settings.routes.items() if not route.stored]
        numbers, rates = found or await self._look.stats(), rate_limits(self._settings)
        return describe.stats_of(numbers, overall.well, overall.sentence, others, rates)

    async def _judge(self) -> tuple[Stats, Overall]:
        found = await self._look.stats()
        used = self._settings.uses_store or not self._settings.routes
        return found, judge(
            Known(found, stored=used, rates=rate_limits(self._settings), cure=loss_cure(self._settings))
        )

    async def audit(self, limit: int, before: str = "") -> doc.AuditList:
        """Read the audit log, after the ends of operations whose process died were written."""
        desk = await self._operations.close_dead()
        found = await desk.audit(limit, before)
        return doc.AuditList(
            audit=[describe.audit_of(entry) for entry in found], next=found[-1].id if len(found) == limit else None
        )

    async def _note(self, verb: str, what: str, messages: int, reason: str = "") -> None:
        await self._write(AuditEntry(self._by, verb, what, messages, reason))

    async def _write_or_warn(self, entry: AuditEntry) -> None:
        """Write an entry. What was done is done, so a failure is only a warning."""
        try:
            await (await self._stores.desk()).note(entry)
        except PostdateError as error:
            complain(f"Warning: the audit log has no entry for this: {error}.")


async def _not_there(desk: Desk, message_id: str) -> NotThere:
    (result,) = await explained(desk, [missing(message_id.encode())])
    return NotThere(result)


def _scheduled(message_id: bytes, due_ms: int) -> doc.Scheduled:
    return doc.Scheduled(id=message_id.decode(), due=write_moment(due_ms), due_ms=due_ms)


class _SentBefore(Exception):
    """A request that was carried out before."""

    def __init__(self, message_id: bytes, due_ms: int) -> None:
        super().__init__()
        self.message_id = message_id
        self.due_ms = due_ms


async def _reserve(desk: Desk, key: bytes, digest: bytes, message_id: bytes) -> bytes:
    """Return the id for a request with an Idempotency-Key: the same one each time.

    It is remembered before the message is parked, and once more after that. So a repeated request finds that, or the
    message, or what became of it, or it parks the message under the same id: the first request failed. Raises
    ``_SentBefore``.
    """
    known = await desk.remember(key, digest, message_id, _REMEMBERED_MS)
    if known is None:
        return message_id
    if known.digest != digest:
        raise SettingsError("This Idempotency-Key was used for another message. Use a new key.")
    if known.due_ms is not None:
        raise _SentBefore(known.id, known.due_ms)
    for last in (False, True):
        if rows := await desk.look([known.id], 0):
            raise _SentBefore(known.id, rows[0].due_ms)
        if entry := (await ends(desk, [known.id])).get(known.id):
            raise _SentBefore(known.id, entry.due_ms)
        if not last:  # the history is written once a second
            await asyncio.sleep(_HISTORY_S)
    return known.id
