"""The webhook: a JSON report to a URL when messages become dead letters, and when one is overdue for too long.

One instance of all reports. It holds a short lease in the store; another takes over when it ends. A report that the
URL does not accept is sent again with the next look, so nothing is forgotten.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import structlog

from bridge.core.errors import StoreUnavailable
from bridge.delay.duration import write_duration, write_moment
from bridge.desk.numbers import Stats
from bridge.desk.protocol import Desk
from bridge.settings import Webhook

log = structlog.get_logger("postdate")

#: Seconds between two looks at the store.
_LOOK_S = 5.0
_TIMEOUT_S = 5.0
#: The lease lasts for this many looks.
_LEASE_LOOKS = 4

Post = Callable[[dict[str, Any]], Awaitable[str]]


class LastReport(NamedTuple):
    """What has been reported: the total of dead letters ever (None: not known yet), and whether one was overdue."""

    dead_ever: int | None = None
    overdue: bool = False


def report_on(before: LastReport, found: Stats, overdue_after_ms: int, instance: str) -> dict[str, Any] | None:
    """Return the report on what changed since ``before``; None if nothing did. Pure."""
    now = reported(before, found, overdue_after_ms)
    new_dead = now.dead_ever - before.dead_ever if now.dead_ever and before.dead_ever is not None else 0
    late_ms = found.oldest_overdue_ms
    news = []
    if new_dead > 0:
        news.append(f"New dead letters: {new_dead}, {found.dead} in all. See `postdate list --state dead`.")
    if now.overdue and not before.overdue:
        oldest = write_duration(late_ms)
        news.append(f"Overdue messages: {found.overdue}, the oldest by {oldest}. Run `postdate doctor`.")
    if before.overdue and not now.overdue:
        news.append("No message is overdue any more.")
    if not news:
        return None
    return {
        "source": "postdate",
        "instance": instance,
        "at": write_moment(found.now_ms),
        "text": f"postdate: {' '.join(news)}",
        "dead_letters": {"new": max(0, new_dead), "total": found.dead},
        "overdue": {"messages": found.overdue, "oldest_ms": late_ms, "alarm": now.overdue},
    }


def signature(secret: str, body: bytes, now_s: int) -> dict[str, str]:
    """Return the headers that prove who sent a report, and when; none without a secret. Pure."""
    if not secret:
        return {}
    signed = hmac.new(secret.encode(), b"%d.%b" % (now_s, body), "sha256").hexdigest()
    return {"X-Postdate-Timestamp": str(now_s), "X-Postdate-Signature": signed}


def reported(before: LastReport, found: Stats, overdue_after_ms: int) -> LastReport:
    """Return the state that a report on ``found`` leaves. Pure."""
    return LastReport(found.ever.get("dead", 0), found.oldest_overdue_ms > overdue_after_ms)


class WebhookReporter:
    """Looks at the store and reports."""

    def __init__(
        self,
        settings: Webhook,
        desk: Desk,
        look: Callable[[], Awaitable[Stats]],
        instance: str,
        post: Post | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``look`` returns the store's numbers. ``post`` sends a report and returns why that failed, or ""."""
        self._settings = settings
        self._desk = desk
        self._look = look
        self._instance = instance
        self._post = post or self._send
        self._now_s = now_s
        self._reported = LastReport()
        self._sent_at = -math.inf
        #: Why the last report was not accepted, "" if it was.
        self.trouble = ""

    async def run(self) -> None:
        """Look and report until cancelled."""
        while True:
            with suppress(StoreUnavailable):  # the instances report it
                await self.once()
            await asyncio.sleep(_LOOK_S)

    async def once(self) -> None:
        """One look. Only the instance that holds the lease reports; the others remember what it has reported."""
        found = await self._look()
        after_ms = self._settings.overdue_after
        holds = await self._desk.lead("webhook", self._instance, int(_LEASE_LOOKS * _LOOK_S * 1000))
        report = report_on(self._reported, found, after_ms, self._instance) if holds else None
        if report is None or await self._sent(report):
            self._reported = reported(self._reported, found, after_ms)

    async def _sent(self, report: dict[str, Any]) -> bool:
        """Send a report, unless the last one was sent a moment ago. Return whether it was accepted."""
        if self._now_s() - self._sent_at < self._settings.every / 1000:
            return False
        trouble = await self._post(report)
        if trouble and trouble != self.trouble:
            log.warning("webhook", what=f"a report was not accepted: {trouble}. It is sent again")
        self.trouble = trouble
        if not trouble:
            self._sent_at = self._now_s()
        return not trouble

    async def _send(self, report: dict[str, Any]) -> str:
        url, secret = self._settings.url.get_secret_value(), self._settings.secret.get_secret_value()
        host, body = urlsplit(url).hostname, json.dumps(report).encode()
        headers = {"Content-Type": "application/json", **signature(secret, body, int(time.time()))}
        try:
            # Only the status counts: an endless body must neither fill the memory nor silence the next report.
            async with (
                asyncio.timeout(_TIMEOUT_S),
                httpx.AsyncClient(timeout=_TIMEOUT_S) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                return "" if answer.is_success else f"{host} answers {answer.status_code}"
        except (httpx.HTTPError, TimeoutError) as error:
            return f"{host} does not answer ({type(error).__name__})"
