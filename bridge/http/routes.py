"""Routes: what they are, how much waits on them, and pause, resume, drain."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from starlette.responses import Response

from bridge.admin.desk import Stats
from bridge.admin.select import refuse_without_store, unknown_route
from bridge.app import views
from bridge.core.errors import Refused
from bridge.core.orders import RouteOrders, RouteState
from bridge.http.access import Caller, Role, router
from bridge.http.backend import Backend, Here, Rate, Who, reply
from bridge.http.problems import Problem
from bridge.http.schemas import RouteFacts, Routes, WithReason, problems

reads = router(Role.VIEWER, "routes")
admin = router(Role.ADMIN, "routes")

_ORDERED: dict[int | str, Any] = {202: {"model": RouteFacts}, **problems(404, 409)}


@reads.get("/routes", summary="List routes", responses={200: {"model": Routes}, **problems()})
async def list_routes(here: Here) -> Response:
    """List the configured routes with their state and counts."""
    return reply({"routes": await _all(here)})


@reads.get("/routes/{route}", summary="Show a route", responses={200: {"model": RouteFacts}, **problems(404)})
async def show_route(route: str, here: Here) -> Response:
    """Show one route."""
    name = _known(here, route)
    return reply(next(one for one in await _all(here) if one["name"] == name))


@admin.put("/routes/{route}/pause", summary="Pause a route", status_code=202, responses=_ORDERED)
async def pause(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """Deliver nothing of this route until it is resumed. Messages go on being parked."""
    return await _order(here, who, route, "pause", RouteState.PAUSED, why)


@admin.put("/routes/{route}/resume", summary="Resume a route", status_code=202, responses=_ORDERED)
async def resume(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """End a pause or a drain. Held messages are delivered now, in their order."""
    return await _order(here, who, route, "resume", RouteState.RUNNING, why)


@admin.put("/routes/{route}/drain", summary="Drain a route", status_code=202, responses=_ORDERED)
async def drain(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """Take nothing more in, and deliver what is parked when it is due."""
    return await _order(here, who, route, "drain", RouteState.DRAINING, why)


async def _order(
    here: Backend, who: Caller, name: str, verb: str, state: RouteState, why: WithReason | None
) -> Response:
    """Order a state. All instances follow within about a second. A route that left the settings can be resumed."""
    desk = await here.desk()
    if not (state is RouteState.RUNNING and name in await desk.orders()):
        refuse_without_store(here.settings, _known(here, name))
    reason = why.reason if why else ""
    await desk.order(name, state, f"{who.who} ({who.via})", reason)
    await here.note(who, verb, f"route {name}", 0, reason)
    here.look.forget()
    return reply(next((one for one in await _all(here) if one["name"] == name), {"name": name, "state": state}), 202)


def _known(here: Backend, route: str) -> str:
    if route not in here.settings.routes:
        raise Problem(404, unknown_route(here.settings, route))
    return route


async def _all(here: Backend) -> list[dict[str, Any]]:
    """Return all routes. A route without a store has no counts, and always runs."""
    found = Stats(0, 0, 0, 0, 0, None, {}, {}, ())
    orders: RouteOrders = {}
    with suppress(Refused):  # no route has a store
        found, orders = await here.look.stats(), await (await here.desk()).orders()
    return [_facts(here, name, views.route(name, found, orders)) for name in here.settings.routes]


def _facts(here: Backend, name: str, counted: dict[str, Any]) -> dict[str, Any]:
    route = here.settings.routes[name]
    if not route.stored:
        counted = dict.fromkeys(counted) | {"name": name, "state": RouteState.RUNNING.value}
    returns_to = route.queue if route.retries else ""  # of RabbitMQ; empty on Kafka
    return {
        **counted,
        "kind": route.kind,
        "broker": route.broker,
        "intercept": returns_to or route.intercept,
        "deliver_to": returns_to or (list(route.targets) if len(route.targets) > 1 else route.target),
        "mode": route.mode,
        **_rates(here, name),
    }


def _rates(here: Backend, name: str) -> dict[str, float | None]:
    """Return what the processes on this machine received and delivered per second, None where none reports."""
    told = [one.metrics.get("routes", {}).get(name) for one in here.processes.frames()]
    counted = [one for one in told if one]
    if not counted:
        return {"received_per_s": None, "delivered_per_s": None}
    totals = {what: sum(one[what] for one in counted) for what in ("received", "confirmed")}
    per_s = here.route_rates.setdefault(name, Rate()).per_second(totals, time.monotonic())
    return {"received_per_s": per_s["received"], "delivered_per_s": per_s["confirmed"]}
