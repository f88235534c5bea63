"""Routes: what they are, how much waits on them, and pause, resume, drain."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from starlette.responses import Response

from bridge.admin.desk import RouteStats
from bridge.admin.select import unknown_route
from bridge.core.errors import Refused
from bridge.http.access import Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.problems import Problem
from bridge.http.schemas import RouteFacts, Routes, WithReason, problems

reads = router(Role.VIEWER, "routes")
admin = router(Role.ADMIN, "routes")


@reads.get("/routes", summary="List routes", responses={200: {"model": Routes}, **problems()})
async def list_routes(here: Here) -> Response:
    """List the configured routes with their state and counts."""
    return reply({"routes": await _all(here)})


@reads.get("/routes/{route}", summary="Show a route", responses={200: {"model": RouteFacts}, **problems(404)})
async def show_route(route: str, here: Here) -> Response:
    """Show one route."""
    name = _known(here, route)
    return reply(next(one for one in await _all(here) if one["name"] == name))


@admin.put("/routes/{route}/pause", summary="Pause a route", status_code=202, responses=problems(404, 409, 501))
async def pause(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """Deliver nothing of this route until it is resumed. Messages go on being parked."""
    return await _order(here, _known(here, route))


@admin.put("/routes/{route}/resume", summary="Resume a route", status_code=202, responses=problems(404, 409, 501))
async def resume(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """End a pause or a drain."""
    return await _order(here, _known(here, route))


@admin.put("/routes/{route}/drain", summary="Drain a route", status_code=202, responses=problems(404, 409, 501))
async def drain(route: str, here: Here, who: Who, why: WithReason | None = None) -> Response:
    """Take nothing more in, and deliver what is parked when it is due."""
    return await _order(here, _known(here, route))


async def _order(here: Backend, route: str) -> Response:
    raise Problem(501, "Pause, resume and drain are not available in this version.")


def _known(here: Backend, route: str) -> str:
    if route not in here.settings.routes:
        raise Problem(404, unknown_route(here.settings, route))
    return route


async def _all(here: Backend) -> list[dict[str, Any]]:
    """Return all routes. A route without a store has no counts."""
    by_route: Mapping[str, RouteStats] = {}
    with suppress(Refused):  # no route has a store
        by_route = (await here.look.stats()).by_route
    return [_facts(here, name, by_route.get(name)) for name in here.settings.routes]


def _facts(here: Backend, name: str, counts: RouteStats | None) -> dict[str, Any]:
    route = here.settings.routes[name]
    numbers = asdict(counts or RouteStats())
    return {
        "name": name,
        "broker": route.broker,
        "intercept": route.intercept,
        "deliver_to": route.deliver_to,
        "mode": route.mode,
        "state": "running",
        **(numbers if route.stored else dict.fromkeys(numbers)),
    }
