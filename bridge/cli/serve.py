"""``postdate serve``: page, API, metrics and health alone, over the store."""

from __future__ import annotations

import typer

from bridge.cli.options import ConfigOption
from bridge.http.server import serve_alone
from bridge.settings import settings_from


def serve(config: ConfigOption = None) -> None:
    """Serve the page, the API and metrics without a bridge.

    `postdate run` serves them too, at http.listen. This command serves them on another machine, or while no bridge
    runs, until SIGTERM or SIGINT. It sees and changes messages in the store.
    """
    raise typer.Exit(serve_alone(settings_from(config, listening=True)))
