"""The HTTP process of `postdate run`, and `postdate serve`: uvicorn in an event loop of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from socket import socket
from typing import Any

import structlog
import uvicorn

from bridge.app.build import instance_name
from bridge.app.canary import Canaries
from bridge.app.open_desk import KeptStores
from bridge.app.webhook import WebhookReporter
from bridge.core.errors import FAILED, FINE, PostdateError, SettingsError, Unreachable
from bridge.http.access import Tokens
from bridge.http.app import create_app
from bridge.http.line import Processes
from bridge.http.patience import PatientProtocol
from bridge.process.handover import Handover
from bridge.process.http_child import Reloading, Start, bind
from bridge.process.workers import end_with_parent
from bridge.settings import Settings
from bridge.settings.plan import canary_brokers
from bridge.settings.urls import is_loopback
from bridge.telemetry import logs

log = structlog.get_logger("postdate")

_KEEP_ALIVE_S = 30
#: How long requests may take to end at a stop.
_GRACE_S = 2
_HEAD_MAX = 64 * 1024
#: Between two attempts to open the stores.
_AGAIN_S = 5.0


class Uvicorn(uvicorn.Server):
    """A server that leaves signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield


def make_server(
    settings: Settings, processes: Processes, canaries: Canaries | None = None, stores: KeptStores | None = None
) -> Uvicorn:
    """Return the server with the app. Raises what a wrong certificate raises."""
    http = settings.http
    tls: dict[str, Any] = {"ssl_certfile": http.cert_file, "ssl_keyfile": http.key_file} if http.cert_file else {}
    states = canaries.states if canaries is not None else tuple
    app = create_app(settings, stores or KeptStores(settings), processes, states)
    return Uvicorn(
        uvicorn.Config(
            app,
            http=PatientProtocol,
            ws="none",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
            h11_max_incomplete_event_size=_HEAD_MAX,
            **tls,
        )
    )


def run_child() -> None:
    """Run the HTTP process of `postdate run` with what its parent hands over, and exit."""
    handover = Handover()
    start: Start = handover.first()
    # A service manager may signal all processes at once. This one ends when the parent closes its input, so that
    # /readyz answers while the bridge drains.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(start.parent, signal.SIGKILL)
    logs.set_up(start.settings.log, instance_name(start.settings, "http"))
    try:
        asyncio.run(_serve(start, handover))
    except Exception:
        log.critical("HTTP cannot be served", exc_info=True)
        sys.exit(FAILED)
    sys.exit(FINE)


async def _serve(start: Start, handover: Handover) -> None:
    processes = Processes(len(start.hearing))
    processes.reloading = start.reloading
    processes.ask_reload = partial(os.kill, start.parent, signal.SIGHUP)
    canaries = Canaries(start.settings, canary_brokers(start.settings))
    processes.canary = canaries.overdue
    stores = KeptStores(start.settings)
    server = make_server(start.settings, processes, canaries, stores)

    def end() -> None:
        server.should_exit = True

    def take(value: Reloading) -> None:
        processes.reloaded(value)

    handover.follow(take, end)
    hearing = asyncio.ensure_future(processes.hear(socket(fileno=one) for one in start.hearing))
    works = {"canary": canaries.run(), "webhook": _report_dead(start.settings, stores)}
    beside = [asyncio.ensure_future(_logged(name, work)) for name, work in works.items()]
    log.info("http is served", pid=os.getpid())
    try:
        await server.serve(_sockets(start.listening))
    finally:
        hearing.cancel()
        for one in beside:
            one.cancel()


async def _logged(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Do what runs beside the server. Its failure ends nothing else."""
    try:
        await work
    except Exception:
        log.critical("a mistake in postdate", part=name, exc_info=True)


async def _report_dead(settings: Settings, stores: KeptStores) -> None:
    """Send reports to the webhook, if there is one."""
    if not settings.webhook.url.get_secret_value():
        return
    while True:
        try:
            desk = await stores.desk()
        except PostdateError:  # the instances report it
            await asyncio.sleep(_AGAIN_S)
        else:
            await WebhookReporter(settings.webhook, desk, desk.stats, instance_name(settings, "http")).run()


def serve_alone(settings: Settings) -> int:
    """Serve page, API, metrics and health without a bridge, until SIGTERM or SIGINT. Return the exit code.

    Raises ``SettingsError`` for a public address without tokens, ``Unreachable`` for an address that is taken.
    """
    http = settings.http
    if not is_loopback(http.listen) and Tokens(settings).open:
        raise SettingsError(f"http.listen {http.listen} lets other machines in, so it requires auth.admin_token.")
    try:
        listening = bind(http.listen)
    except OSError as error:
        raise Unreachable(f"cannot listen on {http.listen}: {error.strerror or error}") from error
    logs.set_up(settings.log, instance_name(settings, "http"))
    asyncio.run(_serve_alone(make_server(settings, Processes()), listening, http.listen))
    return FINE


async def _serve_alone(server: Uvicorn, listening: list[socket], listen: str) -> None:
    def end() -> None:
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    log.info("http is served", listen=listen, pid=os.getpid())
    await server.serve(listening)


def _sockets(numbers: Sequence[int]) -> list[socket]:
    return [socket(fileno=one) for one in numbers]
