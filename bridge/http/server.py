"""The HTTP process of `postdate run`, and `postdate serve`: uvicorn in an event loop of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from socket import socket
from typing import Any

import structlog
import uvicorn

from bridge.app.build import instance_name
from bridge.app.canaries import Canaries
from bridge.core.errors import FAILED, FINE, SettingsError, Unreachable
from bridge.http.access import HEAD_MAX, Tokens
from bridge.http.app import create_app
from bridge.http.line import Processes
from bridge.http.patience import PatientProtocol
from bridge.operate.stores import KeptStores, Look
from bridge.operate.webhook import WebhookReporter
from bridge.process.handover import Handover
from bridge.process.http_child import BUILT, SERVING, Hearing, Reloading, Start, bind
from bridge.process.workers import end_with_parent
from bridge.settings import Settings
from bridge.settings.process_plan import canary_brokers
from bridge.settings.urls import is_loopback
from bridge.telemetry import logs

log = structlog.get_logger("postdate")

_KEEP_ALIVE_S = 30
#: How long requests may take to end at a stop.
_GRACE_S = 2
#: How long a process that was replaced answers on open connections.
_LINGER_S = 1.0
#: How long to wait for the first report of each bridge process, which comes once a second; and between two looks.
_FRAMES_S, _TURN_S = 5.0, 0.05


class Uvicorn(uvicorn.Server):
    """A server that leaves signals alone."""

    on_started: Callable[[], None] = staticmethod(lambda: None)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to serve, and say so."""
        await super().startup(sockets)
        self.on_started()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def end(self, linger: bool = False) -> None:
        """End after the requests. ``linger``: another process serves already, and clients have time to change.

        A connection that was accepted a moment ago gets its answer, and an idle one learns of the end by an answer.
        """
        if not linger:
            self.should_exit = True
            return
        loop = asyncio.get_running_loop()
        for listening in (each for server in self.servers for each in server.sockets):
            # Not closed yet: asyncio drops a connection whose server closes right after it was accepted.
            loop.remove_reader(listening.fileno())
        closing = (b"connection", b"close")
        self.config.encoded_headers.append(closing)  # uvicorn copies them once a second
        self.server_state.default_headers.append(closing)
        loop.call_later(_LINGER_S, self.end)


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
            h11_max_incomplete_event_size=HEAD_MAX,
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
    lines = _Lines(processes, start.hearing)

    def take(value: Settings | Reloading | Hearing) -> None:
        if isinstance(value, Settings):
            processes.follow(value)
        elif isinstance(value, Reloading):
            processes.reloaded(value)
        else:
            lines.hear(value.on)

    works: list[asyncio.Future[None]] = []

    def started() -> None:
        log.info("http is served", pid=os.getpid())
        os.write(start.telling, SERVING)
        for name, work in {"canary": canaries.run(), "webhook": _report_to_webhook(start.settings, stores)}.items():
            works.append(asyncio.ensure_future(_logged(name, work)))

    def end() -> None:
        for work in works:
            work.cancel()
        server.end(linger=server.started and not lines.heard)

    server.on_started = started
    handover.follow(take, end)
    os.write(start.telling, BUILT)
    if start.replaces:
        await lines.all_heard(lambda: server.should_exit)
    try:
        await server.serve([socket(fileno=number) for number in start.listening])
    finally:
        lines.hear(False)
        for work in works:
            work.cancel()


class _Lines:
    """The lines from the bridge processes: read by this process, or by the one that replaces it."""

    def __init__(self, processes: Processes, hearing: Sequence[int]) -> None:
        self._processes = processes
        self._hearing = hearing
        self._task: asyncio.Future[None] | None = None

    @property
    def heard(self) -> bool:
        """Whether this process reads them."""
        return self._task is not None

    def hear(self, on: bool) -> None:
        """Begin to read them, or stop."""
        if self._task is not None:
            self._task.cancel()
        # Duplicates: the end of the reading closes what it reads.
        lines = [socket(fileno=os.dup(line)) for line in self._hearing] if on else []
        self._task = asyncio.ensure_future(self._processes.hear(lines)) if on else None

    async def all_heard(self, ended: Callable[[], bool]) -> None:
        """Wait until all processes have reported, so that the first answers are true; not for ever, nor after the
        end."""
        waited_s = 0.0
        while len(self._processes.frames()) < len(self._processes) and waited_s < _FRAMES_S and not ended():
            await asyncio.sleep(_TURN_S)
            waited_s += _TURN_S if self.heard else 0.0


async def _logged(name: str, work: Coroutine[Any, Any, None]) -> None:
    """Do what runs beside the server. Its failure ends nothing else."""
    try:
        await work
    except Exception:
        log.critical("a mistake in postdate", part=name, exc_info=True)


async def _report_to_webhook(settings: Settings, stores: KeptStores) -> None:
    if settings.webhook.url.get_secret_value():
        name = instance_name(settings, "http")
        await WebhookReporter(settings.webhook, stores.desk, Look(stores).stats, name).run()


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
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.end)
    log.info("http is served", listen=listen, pid=os.getpid())
    await server.serve(listening)
