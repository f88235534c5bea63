"""A reload: what it takes over, what it names, and that a broken file changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bridge.core.errors import PostdateError, Refused, SettingsError
from bridge.http.line import Processes
from bridge.process.http_child import Reloading
from bridge.process.reload import Reloader, RouteSteps
from bridge.process.report import Report
from bridge.settings import Settings, plan
from bridge.settings.live import Changes, changes, is_live, with_live
from bridge.settings.model import Dispatch, Headers, Log, Redis, Retry, Route
from bridge.settings.process_plan import canary_name, replanned
from tests.unit.test_report import Subject

#: A front that leads back into another.
LOOP = {"intercept": "orders.delay"}
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


class Steps:
    """What a reload does for routes: the routes that were declared, and those with which strays were logged."""

    def __init__(self, refusal: PostdateError | None = None) -> None:
        self.declared: list[list[str]] = []
        self.stray_of: list[list[str]] = []
        self._refusal = refusal

    async def set_up(self, settings: Settings, whole: Settings) -> None:
        assert settings.routes.keys() <= whole.routes.keys()
        if self._refusal is not None:
            raise self._refusal
        self.declared.append(sorted(settings.routes))

    async def log_strays(self, settings: Settings) -> None:
        self.stray_of.append(sorted(settings.routes))


def house(read: Callable[[], Settings], steps: Steps | None = None) -> tuple[Reloader, Followed, Told]:
    subject, told, report = Followed(), Told(), Report(None, 0, 30)
    report.of(subject)
    steps = steps or Steps()
    route_steps = RouteSteps(steps.set_up, steps.log_strays)
    return Reloader(OLD, read, report, told, lambda settings: None, route_steps), subject, told


def with_routes(*names: str, **more: str) -> Settings:
    """``OLD`` with these routes instead."""
    settings = {"mode": "redis", **more}
    routes = {
        name: Route.model_validate({"intercept": f"{name}.delay", "deliver_to": name, **settings}) for name in names
    }
    return OLD.model_copy(update={"routes": {name: OLD.routes.get(name, route) for name, route in routes.items()}})


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


def test_a_new_route_and_a_removed_one_are_live() -> None:
    found = changes(OLD, with_routes("bills"))
    assert (found.added, found.removed, found.restart) == (("bills",), ("orders",), ())
    assert found.concern_http
    assert list(with_live(OLD, with_routes("bills")).routes) == ["bills"]


@pytest.mark.parametrize(
    "more", [{"broker": "kafka"}, {"mode": "levels"}, {"mode": "ladder"}], ids=["a broker", "levels", "ladder"]
)
def test_a_route_whose_process_does_not_run_needs_a_restart(more: dict[str, str]) -> None:
    new = with_routes("orders", "bills", **more)
    assert changes(OLD, new) == Changes((), ("routes.bills",))
    assert with_live(OLD, new).routes == OLD.routes


def test_the_last_route_with_a_store_goes_with_a_restart_only() -> None:
    both = with_routes("orders", "bills", mode="levels")
    assert changes(both, both.only(["bills"])) == Changes((), ("routes.orders",))
    moved = both.only(["bills"]).model_copy(update={"routes": {"bills": with_routes("bills").routes["bills"]}})
    assert changes(both, moved).restart == ("routes.bills.mode", "routes.orders"), "levels go on until a restart"


def test_a_process_is_planned_again_with_its_canary_and_its_routes_alone() -> None:
    (process,) = plan(OLD)
    again = replanned(process.with_canary(), with_routes("orders", "bills"))
    assert list(again.settings.routes) == ["orders", "bills", canary_name("rabbitmq")]
    assert list(replanned(process, with_routes("bills")).settings.routes) == ["bills"]


@pytest.mark.parametrize(
    "name", ["redis.url", "rabbitmq.url", "kafka.group", "bridge.workers", "http.listen", "history"]
)
def test_what_a_connection_or_another_instance_depends_on_is_not_live(name: str) -> None:
    assert not is_live(name)


async def test_a_reload_reaches_the_loops_and_the_http_process() -> None:
    new = OLD.model_copy(update={"log": Log(level="debug"), "headers": Headers(on_bad="deliver")})
    reloader, subject, told = house(lambda: new)
    await reloader.once()
    assert [settings.headers.on_bad for settings in subject.followed] == ["deliver"]
    ((reloading, restart),) = told.reloads
    assert reloading.worked
    assert reloading.text == "Changed: headers.on_bad, log.level."
    assert restart


async def test_a_new_route_is_declared_before_any_process_follows() -> None:
    steps = Steps()
    reloader, subject, told = house(lambda: with_routes("orders", "bills"), steps)
    await reloader.once()
    assert steps.declared == [["bills"]]
    assert [sorted(settings.routes) for settings in subject.followed] == [["bills", "orders"]]
    assert [reloading.text for reloading, _ in told.reloads] == ["Changed: routes.bills (new)."]
    assert steps.stray_of == []


async def test_a_route_that_cannot_be_declared_changes_nothing() -> None:
    reloader, subject, told = house(lambda: with_routes("orders", "bills"), Steps(Refused("no rights")))
    await reloader.once()
    assert subject.followed == []
    assert reloader.settings is OLD
    assert [reloading[:3:2] for reloading, _ in told.reloads] == [(False, "no rights")]


async def test_a_route_that_fits_only_settings_after_a_restart_changes_nothing() -> None:
    new = with_routes("orders", "bills")
    new = new.model_copy(update={"routes": {**new.routes, "bills": new.routes["bills"].model_copy(update=LOOP)}})
    reloader, subject, told = house(lambda: new)
    await reloader.once()
    assert subject.followed == []
    assert "with settings that need a restart. Restart postdate" in told.reloads[0][0].text


async def test_what_a_removed_route_parked_is_named() -> None:
    steps = Steps()
    reloader, _, told = house(lambda: with_routes("bills"), steps)
    await reloader.once()
    assert steps.stray_of == [["bills"]]
    assert [reloading.text for reloading, _ in told.reloads] == [
        "Changed: routes.bills (new), routes.orders (removed)."
    ]


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


async def test_a_request_during_a_reload_gets_the_result_of_the_one_that_reads_after_it() -> None:
    processes, waiting = Processes(1), list[asyncio.Future[Reloading]]()

    def read() -> Settings:
        if waiting:
            raise SettingsError("the file was broken meanwhile")
        return with_routes("orders", "bills")

    class Asking(Steps):
        async def set_up(self, settings: Settings, whole: Settings) -> None:
            waiting.append(processes.next_reload())
            reloader.ask()

    reloader, _, told = house(read, Asking())
    reloader.ask()
    for _ in range(500):
        if len(told.reloads) == 2:
            break
        await asyncio.sleep(0.01)
    for reloading, _ in told.reloads:
        processes.reloaded(reloading)
    assert (await waiting[0]).text == "the file was broken meanwhile"


async def test_a_request_that_waits_for_a_reload_gets_its_result() -> None:
    processes = Processes(1)
    waiting = processes.next_reload()
    processes.reloaded(Reloading(False, 5.0, "why"))
    assert (await waiting).text == "why"
    before = processes.loaded_at_s
    processes.reloaded(Reloading(True, before + 1, ""))
    assert processes.loaded_at_s == before + 1
