"""Routes: what they are, how much waits on them, and pause, resume, drain."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from starlette.responses import Response

from bridge.core.errors import NotFound, Refused
from bridge.desk.numbers import Stats
from bridge.http.access import Caller, Role, router
from bridge.http.backend import Backend, Here, Rate, Who, reply
from bridge.http.line import Frame
from bridge.http.schemas import WithReason, problems
from bridge.operate.documents import RouteFacts, Routes
from bridge.operate.select import unknown_route
from bridge.operate.verbs import ROUTE_VERBS, RouteVerb
from bridge.operate.verdict import STALE_S
from bridge.telemetry.subject import Subject

reads = router(Role.VIEWER, "routes")
admin = router(Role.ADMIN, "routes")

_ORDERED: dict[int | str, Any] = {202: {"model": RouteFacts}, **problems(404, 409)}


@reads.get("/routes", summary="List routes", responses={200: {"model": Routes}, **problems()})
async def list_routes(here: Here, who: Who) -> Response:
    """List the configured routes with their state and counts."""
    return reply(Routes(routes=await all_routes(here, who)))


@reads.get("/routes/{route}", summary="Show a route", responses={200: {"model": RouteFacts}, **problems(404)})
async def show_route(route: str, here: Here, who: Who) -> Response:
    """Show one route."""
    found = [facts for facts in await all_routes(here, who) if facts.name == route]
    if not found:
        raise NotFound(unknown_route(here.settings.routes, route))
    return reply(found[0])


def _endpoint(verb: RouteVerb) -> Callable[..., Any]:
    async def order(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
        (counted,) = await here.operator(who).order([route], verb.state, why.reason if why else "")
        known = [facts for facts in await all_routes(here, who) if facts.name == route]
        return reply(known[0] if known else {"name": counted.name, "state": verb.state.value}, 202)

    return order


for _verb in ROUTE_VERBS:
    admin.add_api_route(
        f"/routes/{{route}}/{_verb.name}",
        _endpoint(_verb),
        methods=["PUT"],
        name=_verb.name,
        status_code=202,
        summary=_verb.summary,
        description=_verb.help,
        responses=_ORDERED,
    )


async def all_routes(here: Backend, who: Caller) -> list[RouteFacts]:
    """Return all routes, with what the processes on this machine report of them."""
    found = Stats(0, 0, 0, 0, 0, None, {}, {}, ())
    with suppress(Refused):  # no route has a store
        found = await here.look.stats()
    return [
        facts.model_copy(
            update={
                **_rates(here, facts.name, found),
                "served": _beside(here, facts) if facts.served is None else facts.served,
                "broker_away": _broker_away(here, facts.name, found),
                "unconfirmed": _unconfirmed(facts.name, found),
            }
        )
        for facts in await here.operator(who).routes()
    ]


def _rates(here: Backend, name: str, found: Stats) -> dict[str, float | None]:
    """Return what all instances received and delivered per second, None where none reports; and since when none takes
    anything in. Of a route without a store the processes on this machine report alone."""
    frames = here.processes.frames()
    local = {frame.process for frame in frames}
    totals: dict[str, int] = {}
    for frame in frames:
        counted = frame.metrics.get("routes", {}).get(name)
        if counted and here.processes.silent_s(frame) < STALE_S:
            totals |= {f"in {frame.process}": counted["received"], f"out {frame.process}": counted["confirmed"]}
    for instance, report in found.instances.items():
        counted = cast("Mapping[str, Mapping[str, int]]", report.get("by_route", {})).get(name)
        if counted and instance not in local:
            totals |= {f"in {instance}": counted["received"], f"out {instance}": counted["delivered"]}
    if not totals:
        return {"received_per_s": None, "delivered_per_s": None}
    per_s = here.route_rates.setdefault(name, Rate()).per_second(totals, time.monotonic())
    before = here.taken_ms.get(name, {})
    here.taken_ms[name] = taken_ms = {
        total: found.now_ms if per_s.get(total) else before.get(total, 0) for total in totals if total.startswith("in ")
    }
    since_ms = _silent_since_ms(here, name, found)
    nothing = bool(per_s) and max(taken_ms.values()) < since_ms
    return {
        "received_per_s": 0.0 if nothing else _sum(per_s, "in "),
        "delivered_per_s": _sum(per_s, "out "),
        "idle_since_ms": since_ms if nothing else None,
    }


def _silent_since_ms(here: Backend, name: str, found: Stats) -> int:
    """Return since when an instance is silent that may still hold the intake of a route; 0 where there is none."""
    settings, broker = here.settings, here.settings.routes[name].broker
    mute = found.refuses_writes or here.look.answers_s() < STALE_S  # instances that run cannot report
    if mute or not settings.routes[name].stored:
        return 0
    dropped_ms = {"rabbitmq": 4 * settings.rabbitmq.heartbeat, "kafka": 2 * settings.kafka.session_timeout}[broker]
    others = {frame.process for frame in here.processes.frames() if frame.broker != broker}
    since_ms = [found.now_ms - ms for instance, ms in found.silent.items() if instance not in others]
    lost = (at_ms for instance, at_ms in found.lost.items() if instance.endswith(f"({broker})"))
    since_ms += [at_ms - settings.dispatch.takeover for at_ms in lost]  # the others waited so long for its beat
    return min((at_ms for at_ms in since_ms if found.now_ms - at_ms < dropped_ms), default=0)


def _sum(per_s: Mapping[str, float], way: str) -> float | None:
    return round(sum(rate for name, rate in per_s.items() if name.startswith(way)), 2) if per_s else None


def _broker_away(here: Backend, name: str, found: Stats) -> bool:
    """Return whether no process on this machine is connected to the broker of a route, and no other instance is."""
    broker = here.settings.routes[name].broker
    frames = [frame for frame in here.processes.frames() if frame.broker == broker]
    fresh = [frame for frame in frames if here.processes.silent_s(frame) < STALE_S]
    names = {frame.process for frame in frames}
    if any(report.get("able") for instance, report in found.serving(name).items() if instance not in names):
        return False
    return bool(fresh) and all(_away(frame, broker) for frame in fresh)


def _unconfirmed(name: str, found: Stats) -> bool:
    """Return whether a route has messages, and an instance of it waits for its broker longer than is usual."""
    waits = any(report.get("unconfirmed_s") for report in found.serving(name).values())
    return waits and name in found.by_route


def _away(frame: Frame, broker: str) -> bool:
    """Return whether a process is not connected to its broker. One that only lacks an intake is connected."""
    intakes = any(subject.is_intake(broker) for subject in frame.troubles)
    return frame.peers.get(broker) is False and not (intakes and Subject(broker, "publish") not in frame.troubles)


def _beside(here: Backend, facts: RouteFacts) -> bool | None:
    """Return whether a process on this machine serves a route without a store; None where nothing reports it."""
    frames = [frame for frame in here.processes.frames() if frame.broker == facts.broker]
    return any(here.processes.silent_s(frame) < STALE_S for frame in frames) if frames else None
