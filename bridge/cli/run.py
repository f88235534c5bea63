"""``postdate run``: the daemon, in one process or several."""

from __future__ import annotations

from typing import Annotated

import typer

from bridge.cli.options import ConfigOption


def run(
    config: ConfigOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="How many processes; overrides the settings.")
    ] = None,
    setup: Annotated[
        bool | None,
        typer.Option("--setup/--no-setup", help="Make queues, exchanges, topics; overrides the settings."),
    ] = None,
    log_level: Annotated[
        str | None, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="FORMAT", help="auto, text or json.")
    ] = None,
) -> None:
    """Run the bridge until SIGTERM or SIGINT. A first signal stops it in good order, a second one at once."""
    from bridge.app.daemon import run_daemon
    from bridge.app.wiring import settings_with_routes

    overrides = {
        "bridge.workers": workers,
        "bridge.setup": setup,
        "log.level": log_level,
        "log.format": log_format,
    }
    raise typer.Exit(run_daemon(settings_with_routes(config, overrides)))
