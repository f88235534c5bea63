"""Reload at SIGHUP: reads all settings again, and takes over what may change while the process runs. All or nothing.

Routes come and go. What a new one needs is declared before any process consumes. A removed one takes nothing in from
then on, and its parked messages wait, as after a start without it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import structlog

from bridge.core.errors import PostdateError, SettingsError
from bridge.process.http_child import Reloading
from bridge.process.report import Report
from bridge.settings import Settings
from bridge.settings.conflicts import conflicts
from bridge.settings.live import Changes, changes, with_live

log = structlog.get_logger("postdate")

_TURN_S = 0.0005


class HttpSide(Protocol):
    """The part of ``HttpChild`` that a reload needs."""

    def reloaded(self, settings: Settings, reloading: Reloading, restart: bool) -> None:
        """Tell the HTTP process."""


class RouteSteps(NamedTuple):
    """What a reload does for routes besides telling the processes."""

    #: Declares what the routes of the first settings need; the second have all routes. Raises ``PostdateError``.
    set_up: Callable[[Settings, Settings], Awaitable[None]]
    #: Logs the parked messages of routes that the settings do not have.
    log_strays: Callable[[Settings], Awaitable[None]]


class Reloader:
    """Reloads the settings of one `postdate run`."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        report: Report,
        child: HttpSide | None,
        set_up_logs: Callable[[Settings], None],
        steps: RouteSteps,
    ) -> None:
        """``read`` reads all settings, blocking, and raises ``SettingsError``."""
        self.settings = settings
        self._read = read
        self._report = report
        self._child = child
        self._set_up_logs = set_up_logs
        self._steps = steps
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def ask(self) -> None:
        """Reload, in a running loop. A request during a reload starts another one after it."""
        if self._task is not None and not self._task.done():
            self._again = True
        else:
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self.once()
        while self._again:
            self._again = False
            await self.once()

    async def once(self) -> None:
        self._report.reloading(True)
        try:
            with _short_turns():
                found, live = await asyncio.to_thread(self._compared)
                if found.added and live.bridge.setup:
                    await self._steps.set_up(live.only(found.added), live)
        except PostdateError as error:
            log.error("reload failed, and nothing was changed", because=str(error))
            self._tell(Reloading(False, time.time(), str(error)), False)
        else:
            self._take(live, found)
            if found.removed:
                with _short_turns():
                    await self._steps.log_strays(live)
        finally:
            self._report.reloading(False)

    def _compared(self) -> tuple[Changes, Settings]:
        """Return what differs, and the settings after the reload. Blocking, for as long as it takes to read.

        Raises ``SettingsError``, also where a new route fits only a setting that needs a restart.
        """
        read = self._read()
        found, live = changes(self.settings, read), with_live(self.settings, read)
        if found.added and (conflict := next(conflicts(live), None)):
            text = f"{'.'.join(conflict.paths[0])} {conflict.text}"
            raise SettingsError(f"{text}, with settings that need a restart. Restart postdate")
        return found, live

    def _take(self, live: Settings, found: Changes) -> None:
        self.settings = live
        self._set_up_logs(self.settings)
        self._report.follow(self.settings)
        log.info("reloaded", changed=list(_live(found)), needs_restart=list(found.restart))
        # A certificate may have been renewed under the same name.
        self._tell(
            Reloading(True, time.time(), _result(found)), found.concern_http or bool(self.settings.http.cert_file)
        )

    def _tell(self, reloading: Reloading, restart: bool) -> None:
        if self._child is not None:
            self._child.reloaded(self.settings, reloading._replace(again=self._again), restart)


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let a thread that computes give way to the loop after half a millisecond: Python's own 5 ms, at each wait for a
    socket, would delay messages by as long as the thread works."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _result(found: Changes) -> str:
    """Return the result for a person. Pure."""
    live = f"Changed: {', '.join(_live(found))}." if found.live else "No live setting changed."
    return f"{live} Needs a restart: {', '.join(found.restart)}." if found.restart else live


def _live(found: Changes) -> Iterator[str]:
    """The names of what was taken over. Pure."""
    for name in found.live:
        route = name.removeprefix("routes.")
        yield name + " (new)" * (route in found.added) + " (removed)" * (route in found.removed)
