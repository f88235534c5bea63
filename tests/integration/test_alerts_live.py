"""Each alert rule fires on the metrics of a postdate that is in trouble, and on none that is not."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from tests import preloaded
from tests.alert_line import Page, check_firing, scraped
from tests.bridge_line import QUICK, merged
from tests.delay_line import Line, delay
from tests.devstack.databases import DATABASES
from tests.devstack.fixtures import StartRedis, need
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.http_line import FRESH_PAGE, HttpLine
from tests.unit.raw_properties import Props

pytestmark = pytest.mark.rabbitmq

RUNNING_HTTP = HttpLine()
CANARY = 'postdate_canary_last_success_timestamp_seconds{instance="a",broker="rabbitmq"}'


@pytest.fixture(scope="module")
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Line]:
    """A running bridge, in which one test after the other makes trouble and ends it."""
    own = {**RUNNING_HTTP.settings, "canary": {"enabled": True, "every": "2s", "delay": "100ms"}}
    settings = merged(QUICK, {**own, "redis": {"timeout": "1s"}})
    line = Line(rabbitmq.url, redis_server.url, tmp_path_factory.mktemp("alerts"), settings)
    line.command = FRESH_PAGE
    line.add_route("second")
    with line:
        line.declare_exchange(f"{line.name}.second.target")
        line.start()
        yield line


@pytest.fixture
def calm(line: Line) -> Page:
    """A page of the running bridge while all is well."""
    RUNNING_HTTP.wait("/readyz", 200, 60)
    wait_for(lambda: scraped(RUNNING_HTTP)[0].get(CANARY, 0) > time.time() - 30, "a canary comes back", 60)
    wait_for(lambda: not _held(scraped(RUNNING_HTTP)), "what another test paused goes on", 60)
    return scraped(RUNNING_HTTP)


def _held(page: Page) -> bool:
    names = ("postdate_route_paused", "postdate_held_messages")
    return any(value for name, value in page[0].items() if name.startswith(names))


@contextmanager
def started(
    rabbitmq: RabbitMQ, redis: Redis, folder: Path, more: Mapping[str, object] = MappingProxyType({})
) -> Iterator[tuple[Line, HttpLine, Page]]:
    """A line of its own with a bridge that is ready, and its page."""
    http = HttpLine()
    with Line(rabbitmq.url, redis.url, folder, {**http.settings, **more}) as line:
        line.command = FRESH_PAGE
        line.start()
        http.wait("/readyz", 200)
        yield line, http, scraped(http)


def page_with(name: str, value: float, canary: bool = True) -> Page:
    """Wait until a sample of the running bridge has this value, and until its next canary. Return the page."""
    began_s = time.time() if canary else 0
    wait_for(lambda: scraped(RUNNING_HTTP)[0].get(name) == value, f"{name} is {value}", 60)
    wait_for(lambda: scraped(RUNNING_HTTP)[0][CANARY] >= began_s, "a canary comes back", 60)
    return scraped(RUNNING_HTTP)


def wait_page(http: HttpLine, name: str, least: float, route: str = "orders") -> Page:
    """Wait until a metric of the route is so high. Return the page."""
    sample = f'{name}{{instance="a",route="{route}"}}'
    wait_for(lambda: scraped(http)[0][sample] >= least, f"{sample} is {least} or more", 30)
    return scraped(http)


def test_refused_messages_are_overdue_and_their_alert_fires(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    http = HttpLine()
    patient = {"retry": {"attempts": 1000, "first": "10m", "max": "10m"}}
    line = Line(rabbitmq.url, redis_server.url, tmp_path, {**http.settings, **patient})
    front = line.add_route("narrow")
    with line:
        line.declare_exchange(f"{line.name}.narrow.target")
        line.command = FRESH_PAGE
        line.start()
        http.wait("/readyz", 200)
        before = scraped(http)
        check_firing(set(), before, before, tmp_path)
        for number in range(5):
            line.publish(Props([delay(10)]), b"lost %d" % number, exchange=front)
        after = wait_page(http, "postdate_refused_messages", 5, "narrow")
        after = wait_page(http, "postdate_oldest_overdue_seconds", 1, "narrow")
        assert after[0]['postdate_overdue_messages{instance="a",route="narrow"}'] == 5
        assert after[0]['postdate_overdue_messages{instance="a",route="orders"}'] == 0
        check_firing({"PostdateOverdue", "PostdateRefused"}, before, after, tmp_path)


def test_neither_a_pause_nor_a_rate_makes_messages_overdue_or_late(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    http = HttpLine()
    line = Line(rabbitmq.url, redis_server.url, tmp_path, http.settings)
    slow = line.add_route("slow", max_rate=4)
    with line:
        line.declare_exchange(f"{line.name}.slow.target")
        line.declare_queue(f"{line.name}.slow.queue")
        line.bind(f"{line.name}.slow.queue", f"{line.name}.slow.target")
        line.command = FRESH_PAGE
        line.start()
        http.wait("/readyz", 200)
        line.order("pause", "orders")
        line.follow("orders", "paused")
        before = scraped(http)
        for number in range(40):
            line.publish(Props([delay(10)]), b"%d" % number)
            line.publish(Props([delay(10)]), b"%d" % number, exchange=slow)
        held = wait_page(http, "postdate_held_messages", 40)
        check_firing({"PostdateRoutePaused", "PostdateRateTooLow"}, before, held, tmp_path, minutes=17)
        assert held[0]['postdate_overdue_messages{instance="a",route="orders"}'] == 0
        line.receive(40, 60, f"{line.name}.slow.queue")
        line.order("resume", "orders")
        line.receive(40)
        paused = 'postdate_route_paused{instance="a",route="orders"}'
        wait_for(lambda: scraped(http)[0][paused] == 0, "the gauge has seen the resume", 30)
        after = wait_page(http, "postdate_held_seconds_count", 40)
        check_firing(set(), before, after, tmp_path)
        for route in ("orders", "slow"):
            late = {name: value for name, value in after[0].items() if "lateness_seconds" in name and route in name}
            assert late[f'postdate_lateness_seconds_count{{instance="a",route="{route}"}}'] == 40
            assert late[f'postdate_lateness_seconds_bucket{{instance="a",le="2.5",route="{route}"}}'] == 40, late
            assert after[0][f'postdate_held_seconds_sum{{instance="a",route="{route}"}}'] > 30
        status = json.loads(http.get("/api/v1/status").text)
        assert status["lateness"]["p99_ms"] < 2500


def test_an_instance_that_dies_fires_its_alert_and_one_that_leaves_does_not(
    line: Line, calm: Page, tmp_path: Path
) -> None:
    running, lost = 'postdate_instances{instance="a"}', 'postdate_instances_lost_total{instance="a"}'
    there = line.bridge({"http": {"enabled": False}}).start().wait_ready()
    both = page_with(running, 2)
    assert there.terminate() == 0
    left = page_with(running, 1)
    check_firing(set(), both, left, tmp_path)
    there = line.bridge({"http": {"enabled": False}}).start().wait_ready()
    both = page_with(running, 2)
    there.kill()
    dead = page_with(lost, both[0][lost] + 1)
    check_firing({"PostdateInstanceLost"}, both, dead, tmp_path)
    there = line.bridge({"http": {"enabled": False}}).start().wait_ready()
    check_firing(set(), both, page_with(running, 2), tmp_path)
    assert there.terminate() == 0


def test_a_route_that_an_operator_forgot_fires_its_alert(line: Line, calm: Page, tmp_path: Path) -> None:
    line.order("pause", "orders")
    line.order("drain", "second")
    try:
        line.follow("orders", "paused")
        line.publish(Props([delay(10)]), b"held")
        page_with('postdate_held_messages{instance="a",route="orders"}', 1)
        after = page_with('postdate_route_draining{instance="a",route="second"}', 1)
    finally:
        line.order("resume", "orders", "second")
        line.receive(1)
    check_firing(set(), calm, after, tmp_path, minutes=10)
    check_firing({"PostdateRoutePaused"}, calm, after, tmp_path, minutes=30)
    check_firing({"PostdateRoutePaused", "PostdateRouteDraining"}, calm, after, tmp_path, minutes=70)


def test_new_dead_letters_fire_their_alert(line: Line, calm: Page, tmp_path: Path) -> None:
    line.publish(Props([(b"x-delay", "S", b"\0\0\0\4soon")]), b"bad")
    after = page_with('postdate_dead_total{instance="a",reason="bad_header",route="orders"}', 1)
    check_firing({"PostdateDeadLetters"}, calm, after, tmp_path)


def test_a_reload_of_broken_settings_fires_its_alert(line: Line, calm: Page, tmp_path: Path) -> None:
    bridge = line.bridges[0]
    whole = bridge.settings_file.read_text()
    bridge.settings_file.write_text("[redis\n")
    bridge.signal(signal.SIGHUP)
    try:
        after = page_with('postdate_config_last_reload_successful{instance="a"}', 0)
    finally:
        bridge.settings_file.write_text(whole)
        bridge.signal(signal.SIGHUP)
    check_firing({"PostdateReloadFailed"}, calm, after, tmp_path)
    page_with('postdate_config_last_reload_successful{instance="a"}', 1)


def test_a_redis_that_is_nearly_full_fires_its_alert(
    line: Line, calm: Page, redis_server: Redis, tmp_path: Path
) -> None:
    limit = int(calm[0]['postdate_store_memory_bytes{instance="a"}'] * 1.1)
    redis_server.command("CONFIG", "SET", "maxmemory", limit)
    try:
        after = page_with('postdate_store_memory_limit_bytes{instance="a"}', limit)
    finally:
        redis_server.command("CONFIG", "SET", "maxmemory", 0)
    page_with('postdate_store_memory_limit_bytes{instance="a"}', 0)
    check_firing({"PostdateStoreMemory"}, calm, after, tmp_path)


def test_a_frozen_broker_that_keeps_its_connection_fires_its_alerts(
    own_rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    waits = 'postdate_unconfirmed_seconds{instance="a"}'
    up = 'postdate_connection_up{instance="a",peer="rabbitmq"}'
    with started(own_rabbitmq, redis_server, tmp_path) as (line, http, before):
        assert before[0][waits] == 0
        line.publish(Props([delay(3000)]), b"unconfirmed")
        wait_for(lambda: line.stored() == 1, "it is parked")
        own_rabbitmq.pause()
        try:
            wait_for(lambda: scraped(http)[0][waits] > 1, "it waits for the answer", 30)
            wait_for(lambda: scraped(http)[0][up] == 0, "it answers no question", 30)
            after = scraped(http)
        finally:
            own_rabbitmq.resume()
        check_firing({"PostdateUnconfirmed", "PostdateConnectionDown", "PostdateNotReady"}, before, after, tmp_path)
        line.receive(1)


def test_an_intake_queue_that_is_deleted_fires_its_alert(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    lost = 'postdate_troubles{instance="a",part="recreated",peer="rabbitmq"}'
    with started(rabbitmq, redis_server, tmp_path) as (line, http, before):
        assert lost not in before[0]
        check_firing(set(), before, before, tmp_path)
        line.delete_queue(line.intake)
        wait_for(lambda: scraped(http)[0].get(lost) == 1, "the loss is on /metrics", 30)
        http.wait("/readyz", 200)
        check_firing({"PostdateIntake"}, before, scraped(http), tmp_path)


def test_a_redis_that_is_emptied_fires_its_alert(rabbitmq: RabbitMQ, start_redis: StartRedis, tmp_path: Path) -> None:
    redis, lost = start_redis(), 'postdate_store_loss_timestamp_seconds{instance="a"}'
    with started(rabbitmq, redis, tmp_path) as (line, http, _):
        line.publish(Props([delay(3_600_000)]), b"lost")
        before = wait_page(http, "postdate_parked_messages", 1)
        assert before[0][lost] == 0
        check_firing(set(), before, before, tmp_path)
        began_s = time.time()
        redis.command("FLUSHALL")
        wait_for(lambda: scraped(http)[0][lost] >= began_s - 1, "the loss is on /metrics", 30)
        check_firing({"PostdateStoreLost"}, before, scraped(http), tmp_path)


def test_a_redis_that_is_away_fires_the_alerts_of_connection_readiness_and_canary(
    line: Line, calm: Page, redis_server: Redis, tmp_path: Path
) -> None:
    redis_server.pause()
    try:
        page_with('postdate_connection_up{instance="a",peer="redis"}', 0, canary=False)
        began = page_with('postdate_ready{instance="a"}', 0, canary=False)
        time.sleep(5)  # two canaries do not come back meanwhile
        after = scraped(RUNNING_HTTP)
    finally:
        redis_server.resume()
    check_firing({"PostdateConnectionDown", "PostdateNotReady", "PostdateCanarySilent"}, began, after, tmp_path)
    check_firing({"PostdateAbsent"}, calm, ({}, time.time()), tmp_path)


def test_a_journal_whose_database_is_away_fires_its_alerts(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with ExitStack() as opened:
        database = opened.enter_context(need(DATABASES["postgresql"]))
        journal = {"journal": {"url": database.url, "cold_after": "1m"}}
        line, http, before = opened.enter_context(started(rabbitmq, redis_server, tmp_path, journal))
        check_firing(set(), before, before, tmp_path)
        database.kill()
        line.publish(Props([delay(3_600_000)]), b"no row")
        sample = 'postdate_journal_unwritten_age_seconds{instance="a"}'
        wait_for(lambda: scraped(http)[0][sample] > 1, "a message without a row", 30)
        late = 'postdate_journal_loader_behind_seconds{instance="a"}'
        wait_for(lambda: scraped(http)[0][late] > 0, "cold messages may be late", 45)
        after = scraped(http)
        database.start()
        check_firing({"PostdateJournalBehind", "PostdateColdLate"}, before, after, tmp_path)
        wait_for(lambda: scraped(http)[0][sample] == scraped(http)[0][late] == 0, "its row, and the loader", 30)


@pytest.mark.long
def test_messages_that_leave_seconds_late_fire_their_alert(
    line: Line, calm: Page, redis_server: Redis, tmp_path: Path
) -> None:
    for number in range(20):
        line.publish(Props([delay(2000)]), b"%d" % number)
    redis_server.pause()
    time.sleep(9)  # the freeze itself: the messages come due and wait for Redis
    redis_server.resume()
    line.receive(20, 60)
    late = 'postdate_lateness_seconds_count{instance="a",route="orders"}'
    page_with(late, calm[0].get(late, 0) + 20)
    page_with('postdate_ready{instance="a"}', 1)
    after = scraped(RUNNING_HTTP)
    check_firing({"PostdateLate"}, calm, after, tmp_path)


@pytest.mark.long
def test_an_event_loop_that_stands_still_again_and_again_fires_its_alert(
    line: Line, calm: Page, tmp_path: Path
) -> None:
    for _ in range(6):
        line.bridges[0].pause()
        time.sleep(1)  # the trouble itself
        line.bridges[0].resume()
        time.sleep(1)
    lag = 'postdate_loop_lag_seconds_bucket{instance="a",le="0.5"}'
    total = 'postdate_loop_lag_seconds_count{instance="a"}'
    seen = [page[total] - page[lag] for page in (calm[0], scraped(RUNNING_HTTP)[0])]
    assert seen[1] - seen[0] >= 5
    RUNNING_HTTP.wait("/readyz", 200, 60)
    check_firing({"PostdateLoopSlow"}, calm, scraped(RUNNING_HTTP), tmp_path)


@pytest.mark.long
def test_a_machine_whose_clock_is_wrong_fires_its_alert(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\nright = time.time\ntime.time = lambda: right() + 5\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    http = HttpLine()
    with Line(rabbitmq.url, redis_server.url, tmp_path, http.settings) as own:
        monkeypatch.setattr(preloaded, "start", preloaded.start_new)
        own.start()
        http.wait("/readyz", 200, 60)
        offset = 'postdate_clock_offset_seconds{instance="a"}'
        wait_for(lambda: scraped(http)[0][offset] < -4, "the offset is known", 30)
        after = scraped(http)
        check_firing({"PostdateClockOffset"}, after, after, tmp_path)
