"""The app: all paths of the HTTP process."""

from __future__ import annotations

from fastapi import FastAPI

from bridge.http.health import OpenDesk, health_routes
from bridge.http.line import Processes
from bridge.settings import Settings


def create_app(settings: Settings, processes: Processes, open_desk: OpenDesk) -> FastAPI:
    """Return the app."""
    app = FastAPI(title="postdate", docs_url=None, redoc_url=None)
    app.include_router(health_routes(settings, processes, open_desk))
    return app
