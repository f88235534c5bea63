"""``postdate run``: the daemon, in one process or several."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from bridge.app.daemon import run_daemon
from bridge.cli.options import ConfigOption
from bridge.settings import settings_with_routes


def run(
    config: ConfigOption = None,
    workers: Annotated[
        int | None, typer.Option("--workers", help="Number of processes. Overrides bridge.workers.")
    ] = None,
    setup: Annotated[
        bool | None,
        typer.Option(
            "--setup/--no-setup", help="Create missing queues, exchanges and topics at start. Overrides bridge.setup."
        ),
    ] = None,
    log_level: Annotated[
        str | None,
        typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error. Overrides log.level."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", metavar="FORMAT", help="auto, text or json. Overrides log.format.")
    ] = None,
) -> None:
    """Run the bridge until SIGTERM or SIGINT.

    The first signal stops it gracefully: it finishes what it has claimed, within bridge.shutdown_grace. A second signal
    stops it at once. SIGHUP reloads the settings that can change live, and logs which ones need a restart. Closing the
    terminal of a foreground run stops it as SIGTERM does.
    """
    overrides = {"bridge.workers": workers, "bridge.setup": setup, "log.level": log_level, "log.format": log_format}
    read = partial(settings_with_routes, config, overrides, listening=True)
    raise typer.Exit(run_daemon(read(), read))
