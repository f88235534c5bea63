"""The overview: status, timeline, instances, events, and who the caller is."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from bridge import __version__
from bridge.app.canaries import CanaryState
from bridge.core.errors import StoreUnavailable, Unreachable
from bridge.desk.numbers import Stats
from bridge.desk.past import coarse, percentile_class_ms, percentile_ms, summed
from bridge.desk.protocol import Desk
from bridge.http.access import Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.problems import Problem
from bridge.http.routes import all_routes
from bridge.http.schemas import Anything, Me, StatusFacts, Timeline, problems
from bridge.operate.describe import instances_of, memory_of
from bridge.operate.documents import StatsFacts
from bridge.operate.verdict import InstanceVerdict, Known, judge, shown_overdue
from bridge.settings.process_plan import is_canary
from bridge.telemetry.printable import as_sentence

reads = router(Role.VIEWER, "status")

#: Lateness is that of the last quarter of an hour.
WINDOW_S = 900
_SOON_MS = 300_000
#: How long the timeline of each span is kept, and the lateness.
_FRESH_S = 2.0
#: No longer does an overview wait for them.
_RECENT_S = 1.0
#: A page that listens for events gets the status this often. More pages than the limit poll instead.
_EVERY_S, _LISTENERS_MAX = 2.0, 100
_SPANS: dict[str, tuple[int, int]] = {
    "1h": (3_600_000, 60_000),
    "6h": (6 * 3_600_000, 360_000),
    "24h": (24 * 3_600_000, 900_000),
    "7d": (7 * 24 * 3_600_000, 2 * 3_600_000),
}


@reads.get("/status", summary="Read the overview", responses={200: {"model": StatusFacts}, **problems()})
async def status(here: Here, who: Who, routes: bool = False) -> Response:
    """Return the numbers of the overview, and one sentence that says whether all is well. With `routes`, those as in
    GET /routes, from the same look at the store."""
    shown = await facts(here, who.role)
    if routes:
        if not (shown["age_s"] and here.last_routes):
            try:
                here.last_routes = await all_routes(here, who)
            except Unreachable as error:  # it fell silent after the numbers
                away = judge(Known(away=str(error)))
                verdict = {"well": away.well, "level": away.level.value, "sentence": away.sentence}
                raise Problem(503, away.sentence, {"Retry-After": "2"}, **shown | verdict) from error
        shown["routes"] = [route.as_dict() for route in here.last_routes]
    return reply(shown)


async def facts(here: Backend, role: Role) -> dict[str, Any]:
    """Return the overview as JSON values. Raises ``Problem`` with the verdict while the store is away."""
    shown = {
        "version": __version__,
        "role": role.title,
        "bodies": here.settings.ui.bodies,
        "journal": bool(here.settings.journal.url.get_secret_value()),
    }
    found, overall = await here.judged()
    verdict = {
        "well": overall.well,
        "level": overall.level.value,
        "sentence": overall.sentence,
        "troubles": [fault._asdict() for fault in overall.faults],
        "instance_states": [_instance(instance, found) for instance in overall.instances],
        "canary": _canaries(here, found is None and here.settings.uses_store),
    }
    more: dict[str, Any] = {"due_5m": 0, "lateness": _no_lateness()}
    if found is None and here.settings.uses_store:
        raise Problem(503, overall.sentence, {"Retry-After": "2"}, **verdict, **shown)
    if found is None:
        found = Stats(int(time.time() * 1000), 0, 0, 0, 0, None, {}, {}, ())
    else:
        fresh_s = math.inf if overall.age_s else _FRESH_S  # a process that is busy does not ask for more
        with suppress(TimeoutError, StoreUnavailable):  # a store that has just fallen silent: the next overview says so
            more = await here.kept.get("recent", fresh_s, partial(_recent, here, found), _RECENT_S)
    more["due_5m"] = min(more["due_5m"], found.waiting)  # it was counted a moment later
    per_s = here.rates.per_second(found.ever, time.monotonic())
    messages = found.waiting + found.dead - found.cold
    late, oldest_ms = shown_overdue(found)
    return {
        "now_ms": found.now_ms,
        "age_s": round(overall.age_s, 1),
        **verdict,
        "parked": found.waiting,
        "cold": found.cold,
        "held": found.held,
        "claimed": found.claimed,
        "dead": found.dead,
        "refused": found.refused,
        "overdue": late,
        "oldest_overdue_ms": oldest_ms,
        "next_due_ms": found.next_ms,
        "parked_bytes": None if found.bytes_each is None else found.bytes_each * messages,
        **more,
        "memory": [memory.as_dict() for memory in memory_of(found)],
        "ever": dict(found.ever),
        "received_per_s": _sum(per_s, "parked", "rejected"),
        "delivered_per_s": _sum(per_s, "delivered"),
        "instances": len(found.instances),
        **shown,
    }


def _instance(instance: InstanceVerdict, found: Stats | None) -> dict[str, Any]:
    """Return how an instance is, in a few words."""
    shards = found.instances.get(instance.name, {}).get("shards") if found is not None else None
    return {
        "name": instance.name,
        "state": instance.state.value,
        "text": as_sentence("; ".join(fault.text for fault in instance.faults)) if instance.faults else "",
        "shards": len(shards) if isinstance(shards, list) else None,
    }


def _sum(per_s: Mapping[str, float], *names: str) -> float | None:
    """Return a sum of rates; None while there is nothing to compare with."""
    return round(sum(per_s.get(name, 0.0) for name in names), 2) if per_s else None


async def _recent(here: Backend, found: Stats) -> dict[str, Any]:
    desk, now_ms = await here.stores.desk(), found.now_ms
    (soon,) = await desk.density([now_ms, now_ms + _SOON_MS])
    slots = await desk.past(now_ms - WINDOW_S * 1000, now_ms, 30_000)
    soon -= sum(  # postdate sends canaries itself
        counts.parked
        for route, counts in found.by_route.items()
        if is_canary(route) and now_ms <= (counts.next_due_ms or 0) < now_ms + _SOON_MS
    )
    late = summed(slots)
    numbers = {f"p{share}_ms": percentile_ms(late, share / 100) for share in (50, 99)}
    classes = {f"p{share}_class_ms": percentile_class_ms(late, share / 100) for share in (50, 99)}
    return {"due_5m": max(0, soon), "lateness": {**numbers, **classes, "count": sum(late), "window_s": WINDOW_S}}


def _no_lateness() -> dict[str, Any]:
    unknown = dict.fromkeys(("p50_ms", "p99_ms", "p50_class_ms", "p99_class_ms"))
    return {**unknown, "count": 0, "window_s": WINDOW_S}


def _canaries(here: Backend, away: bool) -> list[dict[str, Any]] | None:
    """Return the latest canary of each broker; None where they are on and no process beside this API sends them."""
    found = [_canary(here, state, away) for state in here.canaries()]
    return found if found or len(here.processes) or not here.settings.canary.enabled else None


def _canary(here: Backend, canary: CanaryState, away: bool) -> dict[str, Any]:
    """Return the latest canary of a broker. ``ok`` is None while one is under way and the last success is old or there
    is none, and while the store is ``away``: then none can come back."""
    rules, now_s = here.settings.canary, time.monotonic()
    why = canary.missing(rules, now_s)
    return {
        "broker": canary.broker,
        "ok": False if why else None if away or not canary.arrives(rules, now_s) else True,
        "lateness_ms": None if canary.late_s is None else round(canary.late_s * 1000, 1),
        "last_success_ms": None if canary.success_s is None else here.processes.moment_ms(canary.success_s),
        "text": why,
    }


@reads.get("/timeline", summary="Read the timeline", responses={200: {"model": Timeline}, **problems()})
async def timeline(here: Here, span: Literal["1h", "6h", "24h", "7d"] = "1h") -> Response:
    """Return what was delivered in the span before now, by lateness, and what is due in the span after it.

    `late` counts deliveries up to 100 ms late, up to 1 s, up to 10 s, and later ones.
    """
    return reply(await here.kept.get(f"timeline {span}", _FRESH_S, lambda: _timeline(here, *_SPANS[span])))


async def _timeline(here: Backend, span_ms: int, step_ms: int) -> dict[str, Any]:
    desk = await here.stores.desk()
    found = await here.look.stats()
    now_ms = found.now_ms
    return {
        "now_ms": now_ms,
        "span_ms": span_ms,
        "step_ms": step_ms,
        "past": await _past(desk, now_ms, span_ms, step_ms),
        "due": await _due(desk, now_ms, span_ms, step_ms),
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
    """List the instances with their reports and states. One that went silent has no report: it is stale."""
    found, overall = await here.judged()
    if found is None:
        found = await here.look.stats()
    reports = {str(report["name"]): report for report in instances_of(found)}
    return reply(
        {
            "instances": [
                {**_instance(instance, found), **reports.get(instance.name, {})} for instance in overall.instances
            ]
        }
    )


@reads.get(
    "/stats", summary="Read the numbers of `postdate stats`", responses={200: {"model": StatsFacts}, **problems()}
)
async def stats(here: Here, who: Who) -> Response:
    """Return the numbers of the store as `postdate stats` prints them."""
    return reply(await here.operator(who).stats())


@reads.get("/me", summary="Read your role", responses={200: {"model": Me}, **problems()})
async def me(who: Who) -> Response:
    """Return the role of the token, and the name that the audit log gives it."""
    return reply({"role": who.role.title, "name": who.by.who})


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
                shown = await facts(here, role)
            except Problem as problem:  # the store is away: the page shows why, and goes on listening
                shown = dict(problem.more)
            except Exception as error:
                shown = {"well": False, "sentence": str(error)}
            yield f"event: status\ndata: {json.dumps(shown, default=str)}\n\n"
            await here.events.news(seen, _EVERY_S)
            if here.events.number != seen:
                seen = here.events.number
                yield "event: audit\ndata: {}\n\n"
                await asyncio.sleep(0.2)  # bundles what a script does in a row
    finally:
        here.events.listeners -= 1
