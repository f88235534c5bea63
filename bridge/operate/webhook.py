"""The webhook: a JSON report to a URL when messages become dead letters or are overdue for too long, and when the store
does not answer or has lost messages.

One instance of all reports. It holds a short lease in the store, and notes there what it has reported; another takes
over when the lease ends, and goes on from there. Without the store there is no lease, so each instance reports that it
does not answer. A report that the URL does not accept is sent again with the next look, so nothing is forgotten.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import structlog

from bridge.core.errors import PostdateError, StoreUnavailable
from bridge.delay.duration import write_duration, write_moment
from bridge.desk.numbers import Stats
from bridge.desk.protocol import Desk
from bridge.settings import Webhook

log = structlog.get_logger("postdate")

#: Seconds between two looks at the store, and after one that it did not answer.
_LOOK_S, _AGAIN_S = 1.0, 0.5
#: The most and the least that a look may take. It ends when the store's silence becomes an alarm.
_PATIENCE_S, _SOON_S = 3.0, 0.5
_TIMEOUT_S = 5.0
#: After this time another instance takes over from one that died.
_LEASE_S = 5.0
#: For how long a loss of messages is an alarm, as it is for the alert PostdateStoreLost.
_LOSS_MS = 3_600_000

Post = Callable[[dict[str, Any]], Awaitable[str]]


class LastReport(NamedTuple):
    """What has been reported: the total of dead letters ever (None: not known yet), whether one was overdue, whether
    the store was away, and when it lost messages (0: not within ``_LOSS_MS``)."""

    dead_ever: int | None = None
    overdue: bool = False
    away: bool = False
    lost_ms: int = 0

    def noted(self) -> dict[str, int]:
        """Return what the store keeps of it, for the instance that reports next."""
        return {"dead": self.dead_ever or 0, "overdue": int(self.overdue), "lost_ms": self.lost_ms}

    def with_noted(self, numbers: Mapping[str, int]) -> LastReport:
        """Return it with what the store keeps, which is empty if nothing was reported yet."""
        if not numbers:
            return self
        return LastReport(numbers["dead"], bool(numbers["overdue"]), self.away, numbers["lost_ms"])


def report_on(
    before: LastReport, found: Stats, overdue_after_ms: int, instance: str, leads: bool = True
) -> dict[str, Any] | None:
    """Return the report on what changed since ``before``; None if nothing did. Pure.

    An instance that does not lead reports the end of what it alone has reported: that the store was away.
    """
    now = reported(found, overdue_after_ms)
    new_dead = now.dead_ever - before.dead_ever if now.dead_ever and before.dead_ever is not None else 0
    news = ["The store answers again."] if before.away else []
    if leads:
        news += [*_of_loss(before, now), *_of_messages(before, now, new_dead, found)]
    if not news:
        return None
    return {
        "source": "postdate",
        "instance": instance,
        "at": write_moment(found.now_ms),
        "text": f"postdate: {' '.join(news)}",
        "dead_letters": {"new": max(0, new_dead), "total": found.dead},
        "overdue": {"messages": found.late, "oldest_ms": found.oldest_overdue_ms, "alarm": now.overdue},
        "store": {"away": False, "lost_at": write_moment(now.lost_ms) if now.lost_ms else None},
    }


def _of_loss(before: LastReport, now: LastReport) -> Iterator[str]:
    if now.lost_ms not in (0, before.lost_ms) and before.dead_ever is not None:
        yield f"The store lost messages at {write_moment(now.lost_ms)}. Run `postdate doctor`."
    if before.lost_ms and not now.lost_ms:
        yield f"The store has lost nothing more for {write_duration(_LOSS_MS)}."


def _of_messages(before: LastReport, now: LastReport, new_dead: int, found: Stats) -> Iterator[str]:
    if new_dead > 0:
        yield f"New dead letters: {new_dead}, {found.dead} in all. See `postdate list --state dead`."
    if now.overdue and not before.overdue:
        oldest = write_duration(found.oldest_overdue_ms)
        yield f"Overdue messages: {found.late}, the oldest by {oldest}. Run `postdate doctor`."
    if before.overdue and not now.overdue:
        yield "No message is overdue any more."


def report_away(why: str, silent_s: float, instance: str, now_ms: int) -> dict[str, Any]:
    """Return the report on a store that does not answer. Its numbers are not known. Pure."""
    silent, reason = write_duration(int(silent_s) * 1000), f": {why.removesuffix('.')}" if why else ""
    return {
        "source": "postdate",
        "instance": instance,
        "at": write_moment(now_ms),
        "text": f"postdate: The store has not answered for {silent}{reason}. Its messages wait.",
        "dead_letters": None,
        "overdue": None,
        "store": {"away": True, "lost_at": None},
    }


def signature(secret: str, body: bytes, now_s: int) -> dict[str, str]:
    """Return the headers that prove who sent a report, and when; none without a secret. Pure."""
    if not secret:
        return {}
    signed = hmac.new(secret.encode(), b"%d.%b" % (now_s, body), "sha256").hexdigest()
    return {"X-Postdate-Timestamp": str(now_s), "X-Postdate-Signature": signed}


def reported(found: Stats, overdue_after_ms: int) -> LastReport:
    """Return the state that a report on ``found`` leaves. Pure."""
    lost_ms = found.lost_ms if found.now_ms - found.lost_ms < _LOSS_MS else 0
    return LastReport(found.ever.get("dead", 0), found.oldest_overdue_ms > overdue_after_ms, False, lost_ms)


class WebhookReporter:
    """Looks at the store and reports."""

    def __init__(
        self,
        settings: Webhook,
        desk: Callable[[], Awaitable[Desk]],
        look: Callable[[float], Awaitable[Stats]],
        instance: str,
        post: Post | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``look`` returns the store's numbers, or raises ``TimeoutError`` after a number of seconds. ``post`` sends a
        report and returns why that failed, or ""."""
        self._settings = settings
        self._desk = desk
        self._look = look
        self._instance = instance
        self._post = post or self._send
        self._now_s = now_s
        self._reported = LastReport()
        self._sent_at = -math.inf
        #: When the store was first asked without an answer; None while it answers.
        self._asked_s: float | None = None
        #: Why the last report was not accepted, "" if it was.
        self.trouble = ""

    async def run(self) -> None:
        """Look and report until cancelled."""
        while True:
            answered = await self.once()
            await asyncio.sleep(_LOOK_S if answered else _AGAIN_S)

    async def once(self) -> bool:
        """One look. Only the instance that holds the lease reports what is stored; the others remember what it has
        reported. Return whether the store answered."""
        after_ms = self._settings.overdue_after
        asked_s = self._asked_s = self._now_s() if self._asked_s is None else self._asked_s
        left_s = asked_s + after_ms / 1000 - self._now_s()
        try:
            found = await self._look(min(_PATIENCE_S, max(_SOON_S, left_s)))
            desk = await self._desk()
            leads = await desk.lead("webhook", self._instance, int(_LEASE_S * 1000))
        except (StoreUnavailable, TimeoutError) as error:
            await self._away(str(error), self._now_s() - asked_s)
            return False
        except PostdateError:  # no route has a store, or it is not for this postdate: the instances report that
            self._asked_s = None
            return False
        self._asked_s = None
        before = self._reported.with_noted(found.reported) if leads else self._reported
        report = report_on(before, found, after_ms, self._instance, leads)
        if report is None or await self._sent(report):
            self._reported = reported(found, after_ms)
            if leads and self._reported.noted() != found.reported:
                with suppress(StoreUnavailable):
                    await desk.note_reported(self._reported.noted())
        return True

    async def _away(self, why: str, silent_s: float) -> None:
        """Report once that the store does not answer, after the time that a message may be overdue."""
        if self._reported.away or silent_s < self._settings.overdue_after / 1000:
            return
        report = report_away(why, silent_s, self._instance, time.time_ns() // 1_000_000)
        if await self._sent(report):
            self._reported = self._reported._replace(away=True)

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
