"""The health paths. They need no token, and name nothing to a caller without one.

/livez is judged by progress alone: a server that is away must not make a supervisor restart the bridge. /readyz asks
for every connection. Both read what the bridge processes report, so a probe without a token costs them nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from bridge.core.errors import PostdateError
from bridge.desk.protocol import Desk
from bridge.http.line import Processes
from bridge.settings import Settings

_STORE_S = 2.0

#: Opens the desk of all stores, or returns the one that is open. Raises as a command does.
OpenDesk = Callable[[], Awaitable[Desk]]
Verdict = Callable[[], Awaitable[str]]


def health_routes(
    settings: Settings, processes: Processes, open_desk: OpenDesk, verdict: Verdict | None = None
) -> APIRouter:
    """Return /livez, /readyz, /startupz and /version. Without processes the store alone is asked.

    ``verdict`` returns the sentence that /readyz ends with: "ok" alone would hide what instances elsewhere report.
    """
    routes = APIRouter(tags=["health"])

    tokens = bool(settings.auth.known())

    def known(request: Request) -> bool:
        """Whether the request has a valid token, or needs none because only this machine is served."""
        return not tokens or request.scope.get("postdate.caller") is not None

    def asked(request: Request, verbose: str | None) -> bool:
        return verbose is not None and verbose not in ("0", "false") and known(request)

    async def unready(route: str | None) -> list[tuple[str, str]]:
        """What keeps all routes, or one, from being ready."""
        if not len(processes):
            return await _store_away(open_desk) if settings.uses_store else []
        found = processes.not_ready()
        if route is None or route not in settings.routes:
            return found
        broker = settings.routes[route].broker
        needed = {broker, *(["redis"] if settings.routes[route].stored else [])}
        others = processes.peers().keys() - needed
        return [(subject, text) for subject, text in found if subject not in others]

    @routes.get("/livez", summary="Whether the bridge makes progress", response_class=PlainTextResponse)
    async def livez(request: Request, verbose: Annotated[str | None, Query()] = None) -> Response:
        why = processes.not_alive()
        return _answer(asked(request, verbose), not why, [("loops", why)])

    @routes.get("/readyz", summary="Whether every route is served", response_class=PlainTextResponse)
    async def readyz(
        request: Request, verbose: Annotated[str | None, Query()] = None, route: Annotated[str | None, Query()] = None
    ) -> Response:
        if route is not None and route not in settings.routes and known(request):
            return PlainTextResponse("There is no such route.\n", 404)
        found = await unready(route)
        well = [(peer, "") for peer, there in processes.peers().items() if there]
        overall = await verdict() if known(request) and verdict is not None else ""
        return _answer(asked(request, verbose), not found, [*well, *found], overall)

    @routes.get("/startupz", summary="Whether the bridge was ready once", response_class=PlainTextResponse)
    async def startupz(request: Request, verbose: Annotated[str | None, Query()] = None) -> Response:
        started = processes.started() or not (found := await unready(None))
        return _answer(asked(request, verbose), started, [("start", "")] if started else found)

    @routes.get("/version", summary="The version of postdate")
    async def read_version() -> JSONResponse:
        return JSONResponse({"version": version("postdate")})

    return routes


async def _store_away(open_desk: OpenDesk) -> list[tuple[str, str]]:
    try:
        async with asyncio.timeout(_STORE_S):
            await (await open_desk()).now_ms()
    except (PostdateError, TimeoutError) as error:
        return [("redis", str(error) or f"no answer within {_STORE_S:.0f} s")]
    return []


def _answer(named: bool, well: bool, lines: list[tuple[str, str]], overall: str = "") -> Response:
    """Return 200 or 503, with ``named`` a line for each part, and the verdict for those who may know it."""
    parts = [f"[-]{subject} {why}" if why else f"[+]{subject} ok" for subject, why in lines if named]
    text = "\n".join([*parts, "ok" if well else "not ok", *filter(None, [overall])])
    return PlainTextResponse(f"{text}\n", 200 if well else 503)
