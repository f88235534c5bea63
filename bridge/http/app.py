"""Puts the app together: endpoints, errors, access, and its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

from bridge import __version__
from bridge.app.canaries import CanaryState
from bridge.http import messages, operations, reload, routes, search, status, system
from bridge.http.access import Gate, GuardedRoute
from bridge.http.backend import Backend
from bridge.http.health import health_routes
from bridge.http.line import Processes
from bridge.http.metrics import metrics_routes
from bridge.http.page import page_routes
from bridge.http.problems import add_handlers
from bridge.http.schemas import ProblemDetails, problems
from bridge.operate.stores import Stores
from bridge.settings import Settings

_ROUTERS = (
    messages.reads,
    messages.writes,
    operations.reads,
    operations.writes,
    routes.reads,
    routes.admin,
    search.reads,
    status.reads,
    reload.admin,
    system.reads,
    system.admin,
)


def create_app(
    settings: Settings, stores: Stores, processes: Processes, canaries: Callable[[], Sequence[CanaryState]] = tuple
) -> FastAPI:
    """Return the app. ``canaries`` returns the state of each broker's canary."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await backend.operations.close()
        await stores.close()

    app = FastAPI(
        title="postdate",
        version=__version__,
        summary="See what waits, and act on it.",
        docs_url=None,  # FastAPI's pages load scripts from another host
        redoc_url=None,
        openapi_url=None,  # served below, with the role of each endpoint
        redirect_slashes=False,
        lifespan=lifespan,
        generate_unique_id_function=lambda route: route.name,
    )
    backend = app.state.backend = Backend(settings, stores, processes, canaries)

    add_handlers(app)
    for router in _ROUTERS:
        app.include_router(router)
    app.include_router(health_routes(settings, processes, backend.judged_soon), responses=problems(503))
    app.include_router(metrics_routes(settings, processes, stores.desk, canaries), responses=problems(503))
    if settings.ui.enabled:
        app.include_router(page_routes())
    app.add_middleware(Gate, settings=settings)
    app.get("/openapi.json", include_in_schema=False)(_document_of(app))
    return app


def guarded_routes() -> Iterator[GuardedRoute]:
    """Iterate over the endpoints of the API. Raises ``TypeError`` for one without a role."""
    for router in _ROUTERS:
        for route in router.routes:
            if not isinstance(route, GuardedRoute):
                raise TypeError(f"{route} has no role: make its router with access.router")
            yield route


def _document_of(app: FastAPI) -> Callable[[], Awaitable[Response]]:
    """Return the endpoint of the OpenAPI document. It needs no token, so the document is written only once."""
    document = cache(lambda: json.dumps(_document(app), separators=(",", ":")).encode())

    async def answer() -> Response:
        return Response(document(), media_type="application/json")

    return answer


def _document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, with the errors' schema and the role of each endpoint."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    schemas["ProblemDetails"] = ProblemDetails.model_json_schema()
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for route in guarded_routes():
        for method in route.methods or ():
            operation = document["paths"][route.path_format][method.lower()]
            operation["security"] = [{"token": []}]
            operation["x-role"] = route.role.title
    return document
