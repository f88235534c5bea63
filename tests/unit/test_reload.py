"""A reload: what it takes over, what it names, and that a broken file changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bridge.core.errors import SettingsError
from bridge.http.line import Processes
from bridge.process.http_child import Reloading
from bridge.process.reload import Reloader
from bridge.process.report import Report
from bridge.settings import Settings
from bridge.settings.live import changes, is_live, with_live
from bridge.settings.model import Dispatch, Headers, Log, Redis, Retry, Route
from tests.unit.test_report import Subject

OLD = Settings(routes={"orders": Route(intercept="orders.delay", deliver_to="orders")})


class Followed(Subject):
    """Loops that remember what they were told to follow."""

    def __init__(self) -> None:
        super().__init__()
        self.followed: list[Settings] = []

    def follow(self, settings: Settings) -> None:
        self.followed.append(settings)


class Told:
    """The HTTP process."""

    def __init__(self) -> None:
        self.reloads: list[tuple[Reloading, bool]] = []

    def reloaded(self, settings: Settings, reloading: Reloading, restart: bool) -> None:
        self.reloads.append((reloading, restart))


def house(read: Callable[[], Settings]) -> tuple[Reloader, Followed, Told]:
    subject, told, report = Followed(), Told(), Report(None, 0, 30)
    report.of(subject)
    return Reloader(OLD, read, report, told, lambda settings: None), subject, told


def test_live_settings_are_taken_over_and_all_others_are_named() -> None:
    new = OLD.model_copy(
        update={
            "retry": Retry(attempts=3),
            "dispatch": Dispatch.model_validate({"pace": "5ms", "lease": "30s"}),
            "redis": Redis(shards=16),
            "routes": {"orders": Route(intercept="elsewhere", deliver_to="orders", on_bad="deliver")},
        }
    )
    found = changes(OLD, new)
    assert found.live == ("dispatch.pace", "retry.attempts", "routes.orders.on_bad")
    assert found.restart == ("dispatch.lease", "redis.shards", "routes.orders.intercept")
    assert not found.concern_http
    live = with_live(OLD, new)
    assert changes(OLD, live).restart == ()
    assert changes(OLD, live).live == found.live
    assert changes(live, new).restart == found.restart


def test_a_new_route_and_a_removed_one_need_a_restart() -> None:
    new = OLD.model_copy(update={"routes": {"bills": Route(intercept="bills.delay", deliver_to="bills")}})
    assert changes(OLD, new).restart == ("routes.bills", "routes.orders")
    assert with_live(OLD, new).routes == OLD.routes


@pytest.mark.parametrize(
    "name", ["redis.url", "rabbitmq.url", "kafka.group", "bridge.workers", "http.listen", "history"]
)
def test_what_a_connection_or_another_instance_depends_on_is_not_live(name: str) -> None:
    assert not is_live(name)


async def test_a_reload_reaches_the_loops_and_the_http_process() -> None:
    new = OLD.model_copy(update={"log": Log(level="debug"), "headers": Headers(on_bad="deliver")})
    reloader, subject, told = house(lambda: new)
    await reloader.once()
    assert [one.headers.on_bad for one in subject.followed] == ["deliver"]
    ((reloading, restart),) = told.reloads
    assert reloading.worked
    assert reloading.text == "Changed: headers.on_bad, log.level."
    assert restart


async def test_a_broken_file_changes_nothing_and_says_so() -> None:
    def read() -> Settings:
        raise SettingsError("unknown setting")

    reloader, subject, told = house(read)
    await reloader.once()
    assert subject.followed == []
    assert reloader.settings is OLD
    ((reloading, restart),) = told.reloads
    assert (reloading.worked, reloading.text, restart) == (False, "unknown setting", False)


async def test_a_process_without_loops_yet_follows_once_it_has_them() -> None:
    report, subject = Report(None, 0, 30), Followed()
    report.follow(OLD)
    report.of(subject)
    assert subject.followed == [OLD]


async def test_a_reload_that_is_asked_for_during_another_follows_it() -> None:
    reads: list[int] = []

    def read() -> Settings:
        reads.append(1)
        return OLD

    reloader, _, told = house(read)
    reloader.ask()
    reloader.ask()
    for _ in range(500):
        if len(told.reloads) == 2:
            break
        await asyncio.sleep(0.01)
    assert len(reads) == len(told.reloads) == 2


async def test_a_request_that_waits_for_a_reload_gets_its_result() -> None:
    processes = Processes(1)
    waiting = processes.next_reload()
    processes.reloaded(Reloading(False, 5.0, "why"))
    assert (await waiting).text == "why"
    before = processes.loaded_at_s
    processes.reloaded(Reloading(True, before + 1, ""))
    assert processes.loaded_at_s == before + 1
