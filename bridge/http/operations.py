"""Bulk: a verb for many messages, by ids or by a filter, as an operation with progress and stop."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from bridge.admin.moments import due_ms, read_due
from bridge.admin.select import read_ids
from bridge.app.lists import Wanted
from bridge.app.operations import MESSAGES_MAX, OPERATOR_MAX, Selection, dry_run
from bridge.core.errors import SettingsError
from bridge.core.state import State
from bridge.http.access import Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.messages import NAMES, judge_header, read_filter
from bridge.http.problems import Problem
from bridge.http.schemas import Bulk, BulkFilter, DryRun, OperationFacts, OperationList, problems

reads = router(Role.VIEWER, "operations")
writes = router(Role.OPERATOR, "operations")

#: The states that a verb can change.
_STATES = {"cancel": ("parked", "dead"), "reschedule": ("parked",), "deliver": ("parked",), "retry": ("dead",)}
_BULK: dict[int | str, Any] = {200: {"model": DryRun}, 202: {"model": OperationFacts}, **problems(409)}
_ONE: dict[int | str, Any] = {200: {"model": OperationFacts}, **problems(404)}


@writes.post("/bulk", summary="Act on many messages", status_code=202, responses=_BULK)
async def bulk(asked: Bulk, here: Here, who: Who) -> Response:
    """Act on all messages with these ids, or on all that match a filter. The work is done in the background.

    With dry_run nothing is done; the answer counts the messages and shows a few. More than 10,000 need the role admin.
    """
    desk = await here.desk()
    now_ms = await desk.now_ms()
    judge_header(here, who, asked.filter.header if asked.filter else None)
    chosen = _chosen(here, asked, now_ms, MESSAGES_MAX if who.role is Role.ADMIN else OPERATOR_MAX)
    moment_ms = _moment_ms(here, asked, now_ms)
    if asked.dry_run:
        return reply(await dry_run(desk, asked.verb, chosen, _STATES[asked.verb]))
    by = f"{who.who} ({who.via})"
    what = (
        json.dumps(asked.filter.model_dump(exclude_defaults=True)) if asked.filter else f"ids: {len(asked.ids or ())}"
    )
    found = await here.operations.start(asked.verb, chosen, moment_ms, asked.max_rate, by, what, asked.reason)
    await here.note(who, f"bulk {asked.verb}", f"operation {found['id']}: {what}", 0, asked.reason)
    return reply(found, 202)


def _chosen(here: Backend, asked: Bulk, now_ms: int, most: int) -> Selection:
    if (asked.ids is None) == (asked.filter is None):
        raise SettingsError("Give one of ids and filter.")
    if asked.ids is not None:
        return Selection(read_ids(asked.ids), State.PARKED, Wanted(), (), most)
    criteria = asked.filter or BulkFilter.model_validate({})
    if criteria.state not in _STATES[asked.verb]:
        fit = " or ".join(_STATES[asked.verb])
        raise SettingsError(f"The verb {asked.verb} needs messages in the state {fit}. Set filter.state.")
    wanted = read_filter(now_ms, **criteria.model_dump(exclude={"state"}))
    return Selection(None, State(criteria.state), wanted, list(here.settings.routes), most)


def _moment_ms(here: Backend, asked: Bulk, now_ms: int) -> int:
    if asked.verb != "reschedule":
        if asked.after is not None or asked.at is not None:
            raise SettingsError(f"The verb {asked.verb} has no due time. Leave out in and at.")
        return 0
    return due_ms(read_due(asked.after, asked.at, NAMES), now_ms, here.settings.limits.max_delay)


@reads.get("/operations", summary="List bulk operations", responses={200: {"model": OperationList}, **problems()})
async def list_operations(here: Here) -> Response:
    """List the latest bulk operations of all instances, the newest first."""
    return reply({"operations": await here.operations.all()})


@reads.get(
    "/operations/{operation}",
    summary="Show a bulk operation",
    responses=_ONE,
)
async def show_operation(operation: str, here: Here) -> Response:
    """Show one bulk operation with its progress."""
    return reply(await _known(here, operation))


@writes.delete(
    "/operations/{operation}", summary="Stop a bulk operation", status_code=202, responses=problems(404, 409)
)
async def stop_operation(operation: str, here: Here, who: Who) -> Response:
    """Ask the instance that runs an operation to stop it, within a second. What was done stays done."""
    found = await _known(here, operation)
    if found["state"] != "running":
        raise Problem(409, f"This operation is {found['state']} already.", state=found["state"])
    await here.operations.stop(operation, f"{who.who} ({who.via})")
    await here.note(who, "stop", f"operation {operation}", 0)
    return reply(found, 202)


async def _known(here: Backend, operation: str) -> dict[str, Any]:
    found = await here.operations.one(operation)
    if found is None:
        raise Problem(404, "There is no such operation. GET /operations lists the latest ones.")
    return found
