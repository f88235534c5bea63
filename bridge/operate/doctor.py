"""Find out what is wrong with an installation, and what to do: `postdate doctor`. Everything here blocks.

It makes all the checks of `postdate check`. Then it asks store and brokers about themselves, and looks at the running
instances. Nothing is changed, but for a message of its own if asked.
"""

from __future__ import annotations

import asyncio
import platform
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import httpx

from bridge.app.brokers import brokers_of, examine
from bridge.app.canaries import probe
from bridge.core.errors import UNREACHABLE, PostdateError
from bridge.delay.duration import write_duration
from bridge.desk.numbers import Stats
from bridge.desk.severity import CheckResult, Severity, fail, ok, warn
from bridge.operate.check import check_all
from bridge.operate.stores import at_desk, settled_stats
from bridge.operate.verdict import Known, judge, slow_routes
from bridge.pipeline.derive import loss_cure, rate_limits
from bridge.settings import Settings
from bridge.settings.process_plan import used_stores
from bridge.settings.urls import is_loopback

#: Exit codes, as monitoring systems that run plugins expect them (Nagios): fine, warning, failure.
_CODES = {Severity.OK: 0, Severity.WARN: 1, Severity.FAIL: 2}
#: Each connection is a file. Below this limit, a Kafka with many brokers or a busy API can use them up.
_FILES_LEAST = 1024
#: A message that is overdue for longer than this (ms) is trouble, and no longer load.
_OVERDUE_MS = 10_000
_TIMEOUT_S = 2.0


def examine_all(settings: Settings, with_probe: bool = False) -> list[CheckResult]:
    """Return every result, in the order settings, process, store, brokers, instances, HTTP, canary.

    ``with_probe``: send a canary through each broker.
    """
    found, away = _look(settings)  # one for all: a server may go or come back in between
    return [
        *map(_advised, check_all(settings, trouble=fail, found=found)),
        *_process(),
        *_stores(settings),
        *_brokers(settings),
        *_state(settings, found, away),
        *_http(settings),
        *(probe(settings) if with_probe else ()),
    ]


def _advised(result: CheckResult) -> CheckResult:
    """Say what to do about a server that does not answer, or refuses the login."""
    if result.code != UNREACHABLE or result.advice:
        return result
    if "password" in result.text:
        return replace(result, advice="Correct the user and the password in the settings")
    if "lacks a permission" in result.text:
        return replace(result, advice="deploy/README.md has the least rights of the user (Redis: sizing and rights)")
    server = {"store": "Redis", "journal": "the journal's database"}.get(result.subject, "the broker")
    advice = f"Start {server}, or correct its address. A running postdate waits for it, and goes on by itself"
    return replace(result, advice=advice)


def exit_code(found: Sequence[CheckResult]) -> int:
    """Return 0 if all is well, 1 if the worst result is a warning, 2 if something failed. Pure."""
    return max((_CODES[result.level] for result in found), default=0)


def _process() -> Iterator[CheckResult]:
    missing = [name for name in ("uvloop", "hiredis") if find_spec(name) is None]
    python = f"Python {platform.python_version()}"
    if missing:
        yield warn(
            "process", f"{python} without {', '.join(missing)}", f"pip install {' '.join(missing)}: it is faster"
        )
    else:
        yield ok("process", f"{python} with uvloop and hiredis")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < _FILES_LEAST:
        yield warn("process", f"it may open {soft} files", f"Raise the limit: ulimit -n {_FILES_LEAST}")
    else:
        yield ok("process", f"it may open {soft} files")


def _stores(settings: Settings) -> Iterator[CheckResult]:
    for plan in used_stores(settings)[:1]:  # every broker's keys are on the same server
        try:
            yield from asyncio.run(examine(plan.settings.redis))
        except PostdateError:
            return  # `check` has reported it


def _brokers(settings: Settings) -> Iterator[CheckResult]:
    for broker, own in brokers_of(settings):
        yield from broker.topology.diagnose(own)


def _look(settings: Settings) -> tuple[Stats | None, str]:
    """Return the numbers of the store, or why there are none."""
    try:
        return at_desk(settings, settled_stats) if settings.uses_store else None, ""
    except PostdateError as error:
        return None, str(error)


def _state(settings: Settings, found: Stats | None, away: str) -> Iterator[CheckResult]:
    if found is None:
        yield from [_overall(Known(away=away))] if away else ()
        return
    rates = rate_limits(settings)
    yield _overall(Known(found, rates=rates, cure=loss_cure(settings)))
    yield from judged_state(found)
    yield from judged_rates(found, rates)


def _overall(known: Known) -> CheckResult:
    """Return the verdict that the page and `postdate stats` show."""
    overall = judge(known)
    return CheckResult(overall.level, "verdict", overall.sentence.removesuffix("."))


def judged_state(found: Stats) -> Iterator[CheckResult]:
    """Judge what is stored. `check` has judged the instances. Pure."""
    if found.oldest_overdue_ms > _OVERDUE_MS:
        text = f"overdue messages: {found.late}, the oldest by {write_duration(found.oldest_overdue_ms)}"
        advice = "Read the results above. An instance must run, and its broker must accept messages"
        yield fail("messages", text, advice=advice)
    else:
        yield ok("messages", f"parked: {found.parked}, none is overdue by more than {write_duration(_OVERDUE_MS)}")
    if found.refused:
        text = f"messages that the broker refused and that wait for another try: {found.refused}"
        yield warn("messages", text, "postdate list shows the reasons; `postdate check` compares the topology")
    if found.dead:
        yield warn("messages", f"dead letters: {found.dead}", "See `postdate list --state dead`, then `postdate retry`")


def judged_rates(found: Stats, rates: Mapping[str, float]) -> Iterator[CheckResult]:
    """Name the routes whose ``max_rate`` is too low. Pure."""
    for text in slow_routes(found, rates):
        route, _, what = text.partition(": ")
        yield warn(route, what, "A backlog ends by itself. Else raise its max_rate, or let its producers send less")


def _http(settings: Settings) -> Iterator[CheckResult]:
    http, auth = settings.http, settings.auth
    if not http.enabled:
        yield ok("http", "it is switched off (http.enabled)")
        return
    if not is_loopback(http.listen) and not http.cert_file:
        text = f"it listens on {http.listen} without TLS, so tokens cross the network in clear text"
        yield warn("http", text, "Set http.cert_file and http.key_file, or listen on 127.0.0.1 behind a proxy with TLS")
    if is_loopback(http.listen) and not auth.known():
        yield ok("http", f"it serves this machine only, at {http.listen}, without tokens")
    url = live_url(settings)
    try:
        answer = httpx.get(url, timeout=_TIMEOUT_S, verify=False)  # noqa: S501 (our own address, no secret is sent)
    except httpx.HTTPError:
        advice = "`postdate run` or `postdate serve` serves it. On another machine, this is expected"
        yield warn("http", f"no answer from {url}", advice)
        return
    if answer.status_code == 200:
        yield ok("http", f"{url} answers")
    else:
        advice = "A loop of the process is stuck. Read its log, and restart it"
        yield fail("http", f"{url} answers {answer.status_code}", advice=advice)


def live_url(settings: Settings) -> str:
    """Return the URL of /livez as this machine reaches it. Pure."""
    host, _, port = settings.http.listen.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 (an address to ask, not to bind)
    scheme = "https" if settings.http.cert_file else "http"
    return f"{scheme}://{host}:{port}{settings.http.base_path}/livez"
