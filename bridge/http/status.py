"""The overview: status, timeline, instances, events, and who the caller is."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bridge import __version__
from bridge.admin.desk import Desk, Stats
from bridge.admin.past import coarse, percentile_ms, summed
from bridge.app import views
from bridge.app.canary import CanaryState
from bridge.core.errors import Refused
from bridge.delay.duration import write_duration
from bridge.http.access import Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.problems import Problem
from bridge.http.schemas import Anything, Me, StatusFacts, Timeline, problems

reads = router(Role.VIEWER, "status")

#: Lateness is that of the last quarter of an hour.
WINDOW_S = 900
_SOON_MS = 300_000
#: How long the timeline of each span is kept, and the lateness.
_FRESH_S = 2.0
#: A page that listens for events gets the status this often. More pages than the limit poll instead.
_EVERY_S, _LISTENERS_MAX = 2.0, 100
#: Overdue by less than this is usual under load.
_LATE_MS = 1000
_SPANS: dict[str, tuple[int, int]] = {
    "1h": (3_600_000, 60_000),
    "6h": (6 * 3_600_000, 360_000),
    "24h": (24 * 3_600_000, 900_000),
    "7d": (7 * 24 * 3_600_000, 2 * 3_600_000),
}


@reads.get("/status", summary="Read the overview", responses={200: {"model": StatusFacts}, **problems()})
async def status(here: Here, who: Who) -> Response:
    """Return the numbers of the overview, and one sentence that says whether all is well."""
    return reply(await facts(here, who.role))


async def facts(here: Backend, role: Role) -> dict[str, Any]:
    """Return the overview as JSON values. Raises as the desk."""
    try:
        found = await here.look.stats()
    except Refused:  # no route has a store, and none is left over
        now_ms = int(time.time() * 1000)
        found = Stats(now_ms, 0, 0, 0, 0, None, {}, {}, ())
        more: dict[str, Any] = {"due_5m": 0, "lateness": _no_lateness()}
    else:
        more = await here.kept.get("recent", _FRESH_S, lambda: _recent(here, found.now_ms))
    troubles = _troubles(here, found)
    late_ms = views.overdue_ms(found) if found.overdue else 0
    well = not troubles and late_ms < _LATE_MS and not found.warnings
    per_s = here.rates.per_second(found.ever, time.monotonic())
    messages = found.parked + found.claimed + found.dead
    return {
        "now_ms": found.now_ms,
        "well": well,
        "sentence": _sentence(here, found, troubles, late_ms),
        "troubles": troubles,
        "parked": found.parked,
        "held": found.held,
        "claimed": found.claimed,
        "dead": found.dead,
        "overdue": found.overdue,
        "oldest_overdue_ms": late_ms,
        "next_due_ms": found.next_due_ms,
        "parked_bytes": None if found.bytes_each is None else found.bytes_each * messages,
        **more,
        "memory": [{"server": one.server, "used": one.used, "max": one.most or None} for one in found.memory],
        "ever": dict(found.ever),
        "received_per_s": round(per_s.get("parked", 0.0) + per_s.get("rejected", 0.0), 2),
        "delivered_per_s": per_s.get("delivered", 0.0),
        "instances": len(found.instances),
        "canary": [_canary(one) for one in here.canaries()],
        "version": __version__,
        "role": role.title,
        "bodies": here.settings.ui.bodies,
    }


async def _recent(here: Backend, now_ms: int) -> dict[str, Any]:
    desk = await here.desk()
    (soon,) = await desk.density([now_ms, now_ms + _SOON_MS])
    slots = await desk.past(now_ms - WINDOW_S * 1000, now_ms, 30_000)
    late = summed(slots)
    numbers = {"p50_ms": percentile_ms(late, 0.5), "p99_ms": percentile_ms(late, 0.99)}
    return {"due_5m": soon, "lateness": {**numbers, "count": sum(late), "window_s": WINDOW_S}}


def _no_lateness() -> dict[str, Any]:
    return {"p50_ms": None, "p99_ms": None, "count": 0, "window_s": WINDOW_S}


def _troubles(here: Backend, found: Stats) -> list[dict[str, str]]:
    """Return what instances cannot do: those on this machine by themselves, the others by their reports."""
    told = {one.process: one for one in here.processes.frames()}
    troubles = [
        {"instance": name, "subject": subject, "text": text}
        for name, one in told.items()
        for subject, text in one.troubles.items()
    ]
    for one in views.instances(found):
        if not one.get("able") and str(one["name"]) not in told:
            troubles.append({"instance": str(one["name"]), "subject": "", "text": str(one.get("health") or "unable")})
    return troubles


def _canary(one: CanaryState) -> dict[str, Any]:
    """Return the latest canary of a broker."""
    return {
        "broker": one.broker,
        "ok": not one.trouble and one.success_ms is not None,
        "lateness_ms": None if one.late_s is None else round(one.late_s * 1000, 1),
        "last_success_ms": one.success_ms,
        "text": one.trouble,
    }


def _sentence(here: Backend, found: Stats, troubles: list[dict[str, str]], late_ms: int) -> str:
    if troubles:
        first = troubles[0]["text"].removesuffix(".")
        more = f" Troubles: {len(troubles)}." if len(troubles) > 1 else ""
        return f"Trouble: {first}.{more}"
    if late_ms >= _LATE_MS:
        missing = "" if found.instances else " No instance is running: start one with `postdate run`."
        return f"Overdue: {found.overdue}, the oldest by {write_duration(late_ms // 1000 * 1000)}.{missing}"
    if found.warnings:
        return f"Warning: {found.warnings[0]}."
    if not here.settings.uses_store and not found.parked:
        return "No route has a store. Messages wait in the broker: see Levels."
    due = "none due"
    if found.next_due_ms is not None:
        away_ms = max(0, found.next_due_ms - found.now_ms)
        due = f"next in {write_duration(away_ms if away_ms < 1000 else away_ms // 1000 * 1000)}"
    return f"All well: {found.parked} parked, {due}, nothing overdue."


@reads.get("/timeline", summary="Read the timeline", responses={200: {"model": Timeline}, **problems()})
async def timeline(here: Here, span: Literal["1h", "6h", "24h", "7d"] = "1h") -> Response:
    """Return what was delivered in the span before now, by lateness, and what is due in the span after it.

    `late` counts deliveries up to 100 ms late, up to 1 s, up to 10 s, and later ones.
    """
    return reply(await here.kept.get(f"timeline {span}", _FRESH_S, lambda: _timeline(here, *_SPANS[span])))


async def _timeline(here: Backend, span_ms: int, step_ms: int) -> dict[str, Any]:
    desk = await here.desk()
    found = await here.look.stats()
    now_ms = found.now_ms
    return {
        "now_ms": now_ms,
        "span_ms": span_ms,
        "step_ms": step_ms,
        "past": await _past(desk, now_ms, span_ms, step_ms),
        "due": await _due(desk, now_ms, span_ms, step_ms),
        "overdue": found.overdue,
        "held": found.held,
    }


async def _past(desk: Desk, now_ms: int, span_ms: int, step_ms: int) -> list[dict[str, Any]]:
    by_slot: dict[int, list[int]] = {}
    for slot in await desk.past(now_ms - span_ms, now_ms, step_ms):
        counts = by_slot.setdefault(slot.at_ms, [0] * 4)
        for place, count in enumerate(coarse(slot.late)):
            counts[place] += count
    return [{"at_ms": at_ms, "count": sum(late), "late": late} for at_ms, late in sorted(by_slot.items())]


async def _due(desk: Desk, now_ms: int, span_ms: int, step_ms: int) -> list[dict[str, Any]]:
    """Return what is due, in steps that begin at multiples of the step; the first one begins now."""
    first = (now_ms // step_ms + 1) * step_ms
    bounds = [now_ms, *range(first, now_ms + span_ms + step_ms, step_ms)]
    counts = await desk.density(bounds)
    return [{"at_ms": at, "count": count} for (at, _), count in zip(pairwise(bounds), counts, strict=True)]


@reads.get("/instances", summary="List instances", responses={200: {"model": Anything}, **problems()})
async def instances(here: Here) -> Response:
    """List the running instances with their reports."""
    return reply({"instances": views.instances(await here.look.stats())})


@reads.get("/stats", summary="Read the numbers of `postdate stats`", responses={200: {"model": Anything}, **problems()})
async def stats(here: Here) -> Response:
    """Return the numbers of the store as `postdate stats` prints them."""
    others = [name for name, route in here.settings.routes.items() if not route.stored]
    orders = await (await here.desk()).orders()
    return reply({**views.stats(await here.look.stats(), orders), "without_store": others})


@reads.get("/me", summary="Read your role", responses={200: {"model": Me}, **problems()})
async def me(who: Who) -> Response:
    """Return the role of the token."""
    return reply({"role": who.role.title})


@reads.get(
    "/events",
    summary="Listen for events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}, "description": "events"}, **problems()},
)
async def events(request: Request, here: Here, who: Who) -> Response:
    """Send the event `status` every 2 seconds, and `audit` when someone did something (server-sent events)."""
    if here.events.listeners >= _LISTENERS_MAX:
        raise Problem(503, "Too many pages listen for events. Poll /status instead.", {"Retry-After": "30"})
    return StreamingResponse(stream(here, who.role), media_type="text/event-stream")


async def stream(here: Backend, role: Role) -> AsyncGenerator[str]:
    """Yield events until the listener goes."""
    here.events.listeners += 1
    seen = here.events.number
    try:
        while True:
            try:
                told = await facts(here, role)
            except Exception as error:  # the store is away: the page shows why, and goes on listening
                told = {"well": False, "sentence": str(error)}
            yield f"event: status\ndata: {json.dumps(told, default=str)}\n\n"
            await here.events.news(seen, _EVERY_S)
            if here.events.number != seen:
                seen = here.events.number
                yield "event: audit\ndata: {}\n\n"
                await asyncio.sleep(0.2)  # bundles what a script does in a row
    finally:
        here.events.listeners -= 1
