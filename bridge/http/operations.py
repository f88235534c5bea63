"""Bulk: a verb for many messages, by ids or by a filter, as an operation with progress and stop."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.http.access import Caller, Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.messages import NAMES, criteria, judge_header
from bridge.http.problems import Problem
from bridge.http.schemas import Bulk, BulkFilter, Restore, problems
from bridge.operate.bulk import MESSAGES_MAX, OPERATOR_MAX, Selection
from bridge.operate.documents import DryRun, OperationFacts, OperationList, RestorePreview
from bridge.operate.moments import read_due
from bridge.operate.operator import Due
from bridge.operate.restoring import read_order
from bridge.operate.select import judge_reason, read_ids
from bridge.operate.verbs import RESTORE, Verb, verb_of

#: A dry run of a restore that takes longer is cut. It waits 2 s for young messages to be parked.
_COUNT_S = 5.0

reads = router(Role.VIEWER, "operations")
writes = router(Role.OPERATOR, "operations")

_BULK: dict[int | str, Any] = {200: {"model": DryRun}, 202: {"model": OperationFacts}, **problems(409)}
_RESTORE: dict[int | str, Any] = {200: {"model": RestorePreview}, 202: {"model": OperationFacts}, **problems(409)}
_ONE: dict[int | str, Any] = {200: {"model": OperationFacts}, **problems(404)}


@writes.post("/bulk", summary="Act on many messages", status_code=202, responses=_BULK)
async def bulk(asked: Bulk, here: Here, who: Who) -> Response:
    """Act on all messages with these ids, or on all that match a filter. The work is done in the background.

    With dry_run nothing is done; the answer counts the messages and shows a few. A count of more than about two seconds
    is cut, and the cursor next goes on. More than 10,000 messages need the role admin.
    """
    operator, verb = here.operator(who), verb_of(asked.verb)
    chosen = _chosen(here, who, asked, verb, await operator.now_ms())
    due = _due(asked, verb)
    if asked.dry_run:
        async with here.looking():
            return reply(await operator.preview(verb, chosen, due, asked.cursor))
    if asked.cursor:
        raise SettingsError("Only a dry run takes a cursor. Leave out cursor.")
    return reply(await operator.bulk(verb, chosen, due, asked.max_rate, asked.reason), 202)


def _chosen(here: Backend, who: Caller, asked: Bulk, verb: Verb, now_ms: int) -> Selection:
    most = MESSAGES_MAX if who.role is Role.ADMIN else OPERATOR_MAX
    if (asked.ids is None) == (asked.filter is None):
        raise SettingsError("Give one of ids and filter.")
    if asked.ids is not None:
        return Selection(read_ids(asked.ids), most=most, what=f"ids: {len(asked.ids)}")
    given = asked.filter or BulkFilter.model_validate({})
    if not any(given.model_dump().values()):
        raise SettingsError("An empty filter matches everything. Narrow it. If you mean all, set filter.state.")
    state = State(given.state) if given.state else verb.state_meant(given.reason)
    if state not in verb.states:
        fit = " or ".join(state.value for state in verb.states)
        raise SettingsError(f"The verb {verb.name} needs messages in the state {fit}. Set filter.state.")
    judge_reason(given.reason)
    wanted = criteria(now_ms, given)
    judge_header(here, who, wanted)
    what = json.dumps({"state": state.value, **given.model_dump(exclude_defaults=True)})
    return Selection(None, state, wanted, most, what)


def _due(asked: Bulk, verb: Verb) -> Due | None:
    if verb.takes_due:
        return read_due(asked.after, asked.at, NAMES)
    if asked.after is not None or asked.at is not None:
        raise SettingsError(f"The verb {verb.name} has no due time. Leave out in and at.")
    return None


@writes.post(f"/{RESTORE}", summary="Restore from the journal", status_code=202, responses=_RESTORE)
async def restore(asked: Restore, here: Here, who: Who) -> Response:
    """Bring back what Redis has lost; with cancelled also what was cancelled or replaced. It needs journal.url.

    The work is done in the background, and may be stopped and repeated. With dry_run nothing is done; the answer counts
    the messages. More than 10,000 cancelled or replaced messages need the role admin.
    """
    operator = here.operator(who)
    asks = asked.model_dump(exclude={"dry_run", "reason"})
    asks["key"] = asked.key.encode() if asked.key else None
    order = read_order(await operator.now_ms(), str, **asks)
    if asked.dry_run:
        async with here.looking():
            return reply(await operator.preview_restore(order, _COUNT_S))
    most = None if who.role is Role.ADMIN else OPERATOR_MAX
    return reply(await operator.restore(order, asked.reason, most), 202)


@reads.get("/operations", summary="List bulk operations", responses={200: {"model": OperationList}, **problems()})
async def list_operations(here: Here, who: Who) -> Response:
    """List the latest bulk operations of all instances, the newest first."""
    return reply(OperationList(operations=await here.operator(who).operations()))


@reads.get("/operations/{operation}", summary="Show a bulk operation", responses=_ONE)
async def show_operation(operation: str, here: Here, who: Who) -> Response:
    """Show one bulk operation with its progress."""
    return reply(await here.operator(who).operation(operation))


@writes.delete(
    "/operations/{operation}", summary="Stop a bulk operation", status_code=202, responses=problems(404, 409)
)
async def stop_operation(operation: str, here: Here, who: Who) -> Response:
    """Ask the instance that runs an operation to stop it, within a second. What was done stays done."""
    operator = here.operator(who)
    found = await operator.operation(operation)
    if found.state != "running":
        raise Problem(409, f"This operation is {found.state} already.", state=found.state)
    return reply(await operator.stop(operation), 202)
