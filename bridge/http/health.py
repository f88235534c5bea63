"""The health paths. They need no token, and name nothing to a caller without one. A route that does not exist is 404
to every caller: a typo in a probe would look like a route that is ready.

/livez is judged by progress alone: a server that is away must not make a supervisor restart the bridge. /readyz asks
for every connection. One judgement makes its status and its sentence, and the page has the same sentence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from bridge.http.line import Processes
from bridge.operate.verdict import Overall
from bridge.settings import Settings

#: Judges by all that is known now. It waits a moment for the store, and not as long as a probe waits for the answer.
Judge = Callable[[], Awaitable[Overall]]
#: Lines of /readyz for what its sentence does not name.
_OTHERS_MAX = 10


def health_routes(settings: Settings, processes: Processes, judge: Judge) -> APIRouter:
    """Return /livez, /readyz, /startupz and /version. Without processes the store alone is asked."""
    routes = APIRouter(tags=["health"])

    tokens = bool(settings.auth.known())

    def known(request: Request) -> bool:
        """Whether the request has a valid token, or needs none because only this machine is served."""
        return not tokens or request.scope.get("postdate.caller") is not None

    def asked(request: Request, verbose: str | None) -> bool:
        return verbose is not None and verbose not in ("0", "false") and known(request)

    def unready(overall: Overall, route: str | None) -> list[tuple[str, str]]:
        """What keeps all routes, or one, from being ready."""
        found = processes.not_ready()
        if overall.away and "redis" not in dict(found):
            found.append(("redis", overall.away))
        if route is None or route not in settings.routes:
            return found
        broker = settings.routes[route].broker
        needed = {broker, *(["redis", "journal"] if settings.routes[route].stored else [])}
        others = {*processes.peers(), "redis"} - needed
        return [(subject, text) for subject, text in found if subject not in others]

    @routes.get("/livez", summary="Whether the bridge makes progress", response_class=PlainTextResponse)
    async def livez(request: Request, verbose: Annotated[str | None, Query()] = None) -> Response:
        why = processes.not_alive()
        return _answer(asked(request, verbose), not why, [("loops", why)])

    @routes.get("/readyz", summary="Whether every route is served", response_class=PlainTextResponse)
    async def readyz(
        request: Request, verbose: Annotated[str | None, Query()] = None, route: Annotated[str | None, Query()] = None
    ) -> Response:
        if route is not None and route not in settings.routes:
            return PlainTextResponse("There is no such route.\n", 404)
        overall = await judge()
        found = unready(overall, route)
        well = [(peer, "") for peer, there in processes.peers().items() if there and peer not in dict(found)]
        sentences = [overall.sentence, *_others(overall)] if known(request) else []
        return _answer(asked(request, verbose), not found, [*well, *found], sentences)

    @routes.get("/startupz", summary="Whether the bridge was ready once", response_class=PlainTextResponse)
    async def startupz(request: Request, verbose: Annotated[str | None, Query()] = None) -> Response:
        started = processes.started() or not (found := unready(await judge(), None))
        return _answer(asked(request, verbose), started, [("start", "")] if started else found)

    @routes.get("/version", summary="The version of postdate")
    async def read_version() -> JSONResponse:
        return JSONResponse({"version": version("postdate")})

    return routes


def _others(overall: Overall) -> list[str]:
    """Return a line for each trouble or warning that the sentence does not have, the worst first."""
    others = [
        fault.text if fault.instance in fault.text else f"{fault.text} ({fault.instance})"
        for fault in overall.faults
        if fault.text not in overall.sentence
    ]
    more = [f"and {len(others) - _OTHERS_MAX} more"] if len(others) > _OTHERS_MAX else []
    return [f"- {text}" for text in [*others[:_OTHERS_MAX], *more]]


def _answer(named: bool, well: bool, lines: list[tuple[str, str]], sentences: Sequence[str] = ()) -> Response:
    """Return 200 or 503, with ``named`` a line for each part, and the verdict for those who may know it."""
    parts = [f"[-]{subject} {why}" if why else f"[+]{subject} ok" for subject, why in lines if named]
    text = "\n".join([*parts, "ok" if well else "not ok", *sentences])
    return PlainTextResponse(f"{text}\n", 200 if well else 503)
