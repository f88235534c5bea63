"""The webhook: a JSON report to a URL when messages become dead letters or are overdue for too long, and when a server
is away or full, an instance or messages are lost, or the store's clock steps.

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
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import structlog

from bridge.core.errors import PostdateError, StoreFull, StoreUnavailable
from bridge.core.reasons import MISSING_TARGET
from bridge.core.state import State
from bridge.delay.duration import write_age, write_duration, write_moment
from bridge.desk.numbers import SAME_LOSS_MS, Stats
from bridge.desk.protocol import Desk
from bridge.desk.rows import Cursor, Filter, Row
from bridge.operate.faults import SAME_EVENT_MS, newest_ms
from bridge.operate.verdict import LATE_MS, Known, few, judge
from bridge.settings import Webhook
from bridge.telemetry.printable import as_sentence
from bridge.telemetry.subject import STORE_CLOCK, STORE_FULL, Subject

log = structlog.get_logger("postdate")

#: Seconds between two looks at the store, and after one that it did not answer.
_LOOK_S, _AGAIN_S = 1.0, 0.5
#: The most and the least that a look may take. It ends when the store's silence becomes an alarm.
_PATIENCE_S, _SOON_S = 3.0, 0.5
_TIMEOUT_S = 5.0
#: After this time another instance takes over from one that died. It is longer than a look and a report together:
#: an instance that gets the lease has looked after the report of the one before it was noted.
_LEASE_S = 10.0
#: For how long a loss of messages is an alarm, as it is for the alert PostdateStoreLost.
_LOSS_MS = 3_600_000
#: For how long a broker or the journal is in trouble before it is reported: most restarts take less. For how long
#: messages are late before they are reported as overdue. For how long a full store takes each lease before it has room:
#: at its limit, small writes succeed now and then.
_LASTS_S = 5.0
#: A report names the routes and reasons of as many new dead letters. For how long a look counts, at most.
_DEAD_MAX, _COUNTING_MS = 500, 1000
#: The instances of one process die together, and each store removes its own: they are one report.
_TOGETHER_S = 3.0
#: Parts of a server without which nothing passes. Other subjects are warnings, or have a report of their own.
_PARTS = frozenset({"", "intake", "publish", "alarm", "leader", "write", "moves"})
#: The servers beside the store, and kinds of troubles by which messages pass postdate, are lost or leave early. With
#: the report when none of the kind is left; "" for what has happened and does not end.
_KINDS = {
    "rabbitmq": "RabbitMQ is well again.",
    "kafka": "Kafka is well again.",
    "journal": "The journal is well again.",
    "rabbitmq front": "Only postdate is bound to the front exchanges.",
    "rabbitmq deleted": "The intake queue that was deleted exists again.",
    **dict.fromkeys(("rabbitmq recreated", "kafka recreated", "kafka removed", "kafka lost", str(STORE_CLOCK)), ""),
}
#: What is news each time, also for the same queue or topic.
_EVENTS = frozenset({"rabbitmq deleted", "rabbitmq recreated", "kafka recreated"})

Post = Callable[[dict[str, Any]], Awaitable[str]]


class LastReport(NamedTuple):
    """What has been reported: the total of dead letters ever (None: not known yet), whether one was overdue, whether
    the store was away, and when it lost messages (0: not within ``_LOSS_MS``); how many instances were lost ever, the
    troubles as ``troubles_in`` names them with their moments, and whether the store was full."""

    dead_ever: int | None = None
    overdue: bool = False
    away: bool = False
    lost_ms: int = 0
    instances_lost: int = 0
    troubles: Mapping[str, int] = MappingProxyType({})
    full: bool = False

    def noted(self) -> dict[str, int]:
        """Return what the store keeps of it, for the instance that reports next."""
        return {
            "dead": self.dead_ever or 0,
            "overdue": int(self.overdue),
            "lost_ms": self.lost_ms,
            "instances_lost": self.instances_lost,
            **self.troubles,
        }

    def with_noted(self, numbers: Mapping[str, int]) -> LastReport:
        """Return it with what the store keeps, which is empty if nothing was reported yet."""
        if not numbers:
            return self
        return self._replace(
            dead_ever=numbers["dead"],
            overdue=bool(numbers["overdue"]),
            lost_ms=numbers["lost_ms"],
            instances_lost=numbers["instances_lost"],
            troubles={name: at_ms for name, at_ms in numbers.items() if at_ms and _kind(name) in _KINDS},
        )


class News(NamedTuple):
    """A sentence of a report, and its kind: a kind that was not reported a moment ago does not wait."""

    kind: str
    text: str


class Reportable(NamedTuple):
    """A sentence of the verdict, and when that happened (Unix ms); 1 for a state that lasts."""

    text: str
    at_ms: int


def troubles_in(found: Stats) -> dict[str, Reportable]:
    """Return the troubles of ``_KINDS``: by server, and what a server has several of by its subject. Pure."""
    troubles: dict[str, Reportable] = {}
    for fault in judge(Known(found)).faults:
        server, part, *_ = *fault.subject.split(" "), ""
        if server == "confirms":
            server = str(found.instances.get(fault.instance.split(", ")[0], {}).get("broker", ""))
        name = server if part in _PARTS else fault.subject
        at_ms = newest_ms(fault.text) if _kind(name) in _EVENTS else 1
        if name == str(STORE_CLOCK) and found.step is not None:
            at_ms = found.step.at_ms
        if _kind(name) in _KINDS:
            troubles.setdefault(name, Reportable(fault.text, at_ms or 1))
    return troubles


def _kind(name: str) -> str:
    return " ".join(name.split(" ")[:2])


def _is_same(at_ms: int, other_ms: int | None) -> bool:
    """Return whether two moments are of one event. A clock that stepped back shows an earlier moment later."""
    return other_ms is not None and abs(at_ms - other_ms) <= SAME_EVENT_MS


def news_of(
    before: LastReport,
    now: LastReport,
    found: Stats,
    troubles: Mapping[str, Reportable],
    full: str,
    after_ms: int,
    dead: str = "",
) -> list[News]:
    """Return what changed since ``before``, for the instance that leads. ``troubles`` are those of ``found``, ``full``
    is that of a full store, ``dead`` the routes and reasons of new dead letters. Overdue are routes with messages that
    were due ``after_ms`` ago. Pure."""
    news = [*_of_store(before, now, full), *_of_loss(before, now, found)]
    for name, at_ms in sorted(now.troubles.items()):
        if not _is_same(at_ms, before.troubles.get(name)):
            news.append(News(name, as_sentence(troubles[name].text)))
    for kind in sorted(set(map(_kind, before.troubles)) - set(map(_kind, now.troubles))):
        if _KINDS[kind]:
            news.append(News(kind, _KINDS[kind]))
    if now.instances_lost > before.instances_lost and before.dead_ever is not None and found.lost:
        news.append(News("instances", as_sentence(found.lost_warning)))
    return [*news, *_of_messages(before, now, found, after_ms, dead)]


def report_on(
    news: list[News], before: LastReport, now: LastReport, found: Stats, instance: str
) -> dict[str, Any] | None:
    """Return the report with ``news``; None if there are none. Pure."""
    if not news:
        return None
    # The instance that does not lead knows of the same dead letters. Only their own sentence counts them.
    new_dead = _new_dead(before, now) if any(kind == "dead" for kind, _ in news) else 0
    return {
        "source": "postdate",
        "instance": instance,
        "at": write_moment(found.now_ms),
        "text": f"postdate: {' '.join(text for _, text in news)}",
        "dead_letters": {"new": new_dead, "total": found.dead},
        "overdue": {"messages": found.late, "oldest_ms": found.oldest_overdue_ms, "alarm": now.overdue},
        "store": {"away": False, "lost_at": write_moment(now.lost_ms) if now.lost_ms else None},
    }


def _of_store(before: LastReport, now: LastReport, full: str = "") -> Iterator[News]:
    """Yield what each instance reports for itself: without a place to write, instances cannot choose one."""
    if before.away:
        yield News("away", "The store answers again.")
    if now.full and not before.full:
        yield News("full", f"Nothing is parked: {as_sentence(full)}")
    if before.full and not now.full:
        yield News("full", "The store has room again.")


def _of_loss(before: LastReport, now: LastReport, found: Stats) -> Iterator[News]:
    # Of two stores, one notices a loss later, and one may be restored first.
    if now.lost_ms >= before.lost_ms + SAME_LOSS_MS and before.dead_ever is not None:
        yield News("loss", f"The store lost messages, noticed at {write_moment(now.lost_ms)}. Run `postdate doctor`.")
    if not before.lost_ms or now.lost_ms:
        return
    if found.lost_ms:
        yield News("loss", "The loss is an hour old, so this alarm ends. No restore has ended it: `postdate doctor`.")
    elif found.restored_ms >= before.lost_ms:  # else the store was emptied again, and no instance has noted that yet
        yield News("loss", "The loss is over: a restore brought back all that the journal has.")


def _new_dead(before: LastReport, now: LastReport) -> int:
    return now.dead_ever - before.dead_ever if now.dead_ever and before.dead_ever is not None else 0


def _reason_of(row: Row) -> str:
    """Return the word of a reason; all of it where the target is missing, because that names the target."""
    word = row.reason.partition(":")[0]
    return row.reason if word in MISSING_TARGET else word or "unknown"


def by_route_and_reason(counts: Counter[tuple[str, str]], new_dead: int) -> str:
    """Return the routes and reasons of new dead letters; "" if none is known. Pure."""
    words = [f"{route} {reason} ({count})" for (route, reason), count in counts.most_common()]
    label = "By route and reason" if counts.total() == new_dead else "Among them"
    return f" {label}: {few(words)}." if words else ""


def _of_messages(before: LastReport, now: LastReport, found: Stats, after_ms: int, dead: str) -> Iterator[News]:
    if (new_dead := _new_dead(before, now)) > 0:
        yield News(
            "dead", f"New dead letters: {new_dead}, {found.dead} in all.{dead} See `postdate list --state dead`."
        )
    if now.overdue and not before.overdue:
        oldest = write_age(found.oldest_overdue_ms)
        late = sorted(
            name for name, route in found.by_route.items() if route.overdue and route.oldest_overdue_ms > after_ms
        )
        of = f" Routes: {few(late)}." if late else ""
        subjects = {str(Subject("route", name)) for name in late}
        if causes := [fault.text for fault in judge(Known(found)).faults if fault.subject in subjects]:
            of += f" {as_sentence(few(causes))}"
        yield News("overdue", f"Overdue messages: {found.late}, the oldest by {oldest}.{of} Run `postdate doctor`.")
    if before.overdue and not now.overdue:
        by = f" by {write_duration(after_ms)}" if found.late else ""
        lost = " Lost messages are not counted: run `postdate doctor`." if found.loss and found.lost_ms else ""
        yield News("overdue", f"No message is overdue{by} any more.{lost}")


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


def reported(
    found: Stats, overdue_after_ms: int, troubles: Mapping[str, int] = MappingProxyType({}), full: bool = False
) -> LastReport:
    """Return the state that a report on ``found`` leaves. Pure."""
    lost_ms = found.lost_ms if found.now_ms - found.lost_ms < _LOSS_MS else 0
    late = found.oldest_overdue_ms > overdue_after_ms
    return LastReport(found.ever.get("dead", 0), late, False, lost_ms, found.instances_lost, troubles, full)


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
        #: By kind: when it was last reported.
        self._sent_at: dict[str, float] = {}
        #: The troubles with their moments, and since when each look has found them.
        self._since: dict[str, tuple[int, float]] = {}
        #: The store's moment of the last look after which nothing was left to report.
        self._done_ms: int | None = None
        #: How many instances were lost at the last look, and when that number last changed.
        self._lost: tuple[int, float] | None = None
        #: Since when each look has found messages that are late.
        self._late_s = math.inf
        #: When the store last had no room for the lease.
        self._full_s = -math.inf
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
            leads, full = await self._lead(desk)
        except (StoreUnavailable, TimeoutError) as error:
            await self._away(str(error), self._now_s() - asked_s)
            return False
        except PostdateError:  # no route has a store, or it is not for this postdate: the instances report that
            self._asked_s = None
            return False
        self._asked_s = None
        before = self._reported.with_noted(found.reported) if leads else self._reported
        troubles = troubles_in(found)
        now = reported(found, after_ms, self._lasting(troubles, before), self._is_full(full, before, found))
        lasts = self._late_for_seconds(found)
        if not (before.overdue or lasts):
            now = now._replace(overdue=False)
        if self._more_may_be_lost(found):
            now = now._replace(instances_lost=before.instances_lost)
        dead = await self._dead(desk, _new_dead(before, now)) if leads else ""
        own = list(_of_store(before, now, full))
        news = news_of(before, now, found, troubles, full, after_ms, dead) if leads else own
        report = report_on(news, before, now, found, self._instance)
        if report is None or await self._sent(report, {kind for kind, _ in news}):
            self._reported, self._done_ms = now, found.now_ms
            noted = {**dict.fromkeys(found.reported, 0), **now.noted()}  # the store forgets no name
            if leads and noted != found.reported:
                with suppress(StoreUnavailable):
                    await desk.note_reported(noted)
        return True

    async def _dead(self, desk: Desk, new_dead: int) -> str:
        """Return the routes and reasons of the dead letters since the last look that left nothing to report.

        That look had counted a shard before its end, so a message that died meanwhile is new, too."""
        most = max(0, min(new_dead, _DEAD_MAX))
        later, meanwhile = list[Row](), deque[Row](maxlen=most)
        if most and self._done_ms is not None:
            with suppress(StoreUnavailable, TimeoutError):  # then the report has their number alone
                async with asyncio.timeout(_SOON_S):
                    async for row in desk.rows(State.DEAD, Filter(), Cursor(self._done_ms - _COUNTING_MS, b"")):
                        (later if row.at_ms > self._done_ms else meanwhile).append(row)
                        if len(later) == most:
                            break
        rows = [*meanwhile, *later][-most:]
        return by_route_and_reason(Counter((row.route, _reason_of(row)) for row in rows), new_dead)

    async def _lead(self, desk: Desk) -> tuple[bool, str]:
        """Return whether this instance reports what is stored, and why the store has no room even for its lease."""
        try:
            return await desk.lead("webhook", self._instance, int(_LEASE_S * 1000)), ""
        except StoreFull as error:
            return False, str(error)

    def _is_full(self, full: str, before: LastReport, found: Stats) -> bool:
        """Return whether the store is full, or may be yet: it refused a lease lately, or an instance parks nothing."""
        self._full_s = self._now_s() if full else self._full_s
        if not before.full or self._now_s() - self._full_s < _LASTS_S:
            return before.full or bool(full)
        return any(fault.subject == str(STORE_FULL) for fault in judge(Known(found)).faults)

    def _lasting(self, troubles: Mapping[str, Reportable], before: LastReport) -> dict[str, int]:
        """Return the troubles that each look has found for some seconds, or that were reported."""
        last, self._since = self._since, {}
        for name, (_, at_ms) in troubles.items():
            seen_ms, since = last.get(name, (None, 0.0))
            self._since[name] = at_ms, since if _is_same(at_ms, seen_ms) else self._now_s()
        return {
            name: at_ms
            for name, (at_ms, since) in self._since.items()
            if self._now_s() - since >= _LASTS_S or _is_same(at_ms, before.troubles.get(name))
        }

    def _late_for_seconds(self, found: Stats) -> bool:
        """Return whether messages have been late for some seconds. What a step of the clock makes overdue leaves at
        once."""
        self._late_s = min(self._late_s, self._now_s()) if found.oldest_overdue_ms >= LATE_MS else math.inf
        return self._now_s() - self._late_s >= _LASTS_S

    def _more_may_be_lost(self, found: Stats) -> bool:
        """Return whether an instance was lost a moment ago. What was lost before the first look is no news."""
        if self._lost is None or self._lost[0] != found.instances_lost:
            self._lost = found.instances_lost, -math.inf if self._lost is None else self._now_s()
        return self._now_s() - self._lost[1] < _TOGETHER_S

    async def _away(self, why: str, silent_s: float) -> None:
        """Report once that the store does not answer, after the time that a message may be overdue."""
        if self._reported.away or silent_s < self._settings.overdue_after / 1000:
            return
        report = report_away(why, silent_s, self._instance, time.time_ns() // 1_000_000)
        if await self._sent(report, {"away"}):
            self._reported = self._reported._replace(away=True)

    async def _sent(self, report: dict[str, Any], kinds: AbstractSet[str]) -> bool:
        """Send a report, unless each of its kinds was reported a moment ago. Return whether it was accepted."""
        since_s = self._now_s() - self._settings.every / 1000
        if all(self._sent_at.get(kind, -math.inf) > since_s for kind in kinds):
            return False
        trouble = await self._post(report)
        if trouble and trouble != self.trouble:
            log.warning("webhook", what=f"a report was not accepted: {trouble}. It is sent again")
        self.trouble = trouble
        if not trouble:
            self._sent_at.update(dict.fromkeys(kinds, self._now_s()))
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
