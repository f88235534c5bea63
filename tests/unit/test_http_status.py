"""The overview, the timeline, settings and events, over the memory store."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from adapters.memory import MemoryStore
from bridge.app.canaries import CanaryState
from bridge.core.errors import StoreSilent, StoreUnavailable
from bridge.desk.numbers import RouteStats, Stats
from bridge.http import metrics, status
from bridge.http.access import Role
from bridge.http.backend import Kept, Rate
from bridge.http.health import health_routes
from bridge.http.line import Frame, Processes
from bridge.http.status import facts
from bridge.operate import stores
from bridge.operate.verdict import Known, LocalReport, Overall, judge
from bridge.process.http_child import Reloading
from bridge.settings.model import Auth, Canary, Redis, Route, Settings
from bridge.settings.process_plan import canary_name
from bridge.telemetry.subject import INTAKE, Subject
from tests.api import AUTH, MemoryStores, api, settings

#: Each test builds the app, which takes a tenth of a second.
pytestmark = pytest.mark.slow
REPORT = json.dumps({"health": "All well.", "routes": ["orders"], "shards": [0]})


async def test_the_overview_says_in_a_sentence_whether_all_is_well() -> None:
    async with api(Role.VIEWER) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        assert (await client.get("/status"))["sentence"] == "All well: 0 parked, none due, nothing overdue."
        await client.stores.store_one("orders", 90_000)
        client.backend.look.forget()
        told = await client.get("/status")
        assert told["sentence"] == "All well: 1 parked, next in 1m 30s, nothing overdue."
        assert (told["well"], told["role"], told["parked"], told["due_5m"]) == (True, "viewer", 1, 0)
        client.stores.memory.clock.advance(95_000)  # type: ignore[attr-defined]
        client.backend.look._ran = {}  # as 95 s later
        client.backend.look.forget()
        told = await client.get("/status")
        assert told["well"] is False
        assert told["sentence"].startswith("Trouble: instance memory has been silent for 1m 31s: it is frozen")
        assert told["sentence"].endswith(" Overdue: 1, the oldest by 5s.")


async def test_a_canary_is_not_counted_in_what_is_due_soon() -> None:
    async with api(Role.VIEWER) as client:
        for route in ("orders", canary_name("rabbitmq")):
            await client.stores.store_one(route, 60_000, b"x")
        await client.stores.store_one("orders", 900_000)
        told = await client.get("/status")
        assert (told["parked"], told["due_5m"]) == (2, 1)


async def test_a_rate_that_a_reload_changed_is_the_one_in_the_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited(rate: float) -> Settings:
        before = settings()
        changed = before.routes["orders"].model_copy(update={"max_rate": rate})
        return before.model_copy(update={"routes": {**before.routes, "orders": changed}})

    async with api(given=limited(40)) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        found = await client.backend.look.stats()
        held = RouteStats(300, held=300, oldest_held_ms=60_000)

        async def stats(within_s: float | None = None) -> Stats:
            return replace(found, held=300, by_route={"orders": held})

        monkeypatch.setattr(client.backend.look, "stats", stats)
        for rate in (40, 5):
            client.backend.processes.follow(limited(rate))
            for sentence in ((await client.get("/status"))["sentence"], (await client.client.get("/readyz")).text):
                assert f"more is due than its max_rate of {rate}/s lets out" in sentence
            assert [route["max_rate"] for route in (await client.get("/routes"))["routes"]] == [rate, None]


async def test_a_failed_reload_is_a_warning_of_page_and_readyz_until_a_reload_works() -> None:
    processes = Processes(1)
    async with api(processes=processes) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        peers = {"redis": True, "rabbitmq": True}
        processes.take(0, Frame("memory", "rabbitmq", "running", peers=peers, heard_s=time.monotonic() + 60))
        failed = "Warning: the last reload failed, and nothing was changed: ./postdate.toml is not TOML."
        for worked, sentence in ((False, failed), (True, "All well: 0 parked, none due, nothing overdue.")):
            processes.reloaded(Reloading(worked, 5.0, "./postdate.toml is not TOML."))
            status = await client.get("/status")
            assert (status["sentence"], status["level"]) == (sentence, "OK" if worked else "WARN")
            ready = await client.client.get("/readyz")
            assert (ready.status_code, ready.text) == (200, f"ok\n{sentence}\n")


async def test_readyz_names_every_trouble_the_worst_first_up_to_a_limit() -> None:
    troubles = {
        "kafka publish": "no broker answers",
        **{f"route r{number:02}": f"refused {number}" for number in range(30)},
    }
    overall = judge(Known(local=[LocalReport("a-1", "rabbitmq", 0.1, troubles, stored=False)]))

    async def judged() -> Overall:
        return overall

    app = FastAPI()
    app.include_router(health_routes(settings().model_copy(update={"auth": Auth()}), Processes(), judged))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        lines = (await client.get("/readyz")).text.splitlines()
    assert lines[:3] == ["ok", "Trouble: no broker answers. Troubles: 31.", "- refused 0 (a-1)"]
    assert len(lines) == 13
    assert lines[-1] == "- and 20 more"


async def test_the_overview_has_the_routes_from_the_same_look() -> None:
    async with api(Role.VIEWER) as client:
        await client.stores.store_one("orders", 90_000)
        facts = await client.get("/status", 200, routes="true")
        assert (facts["parked"], facts["routes"]) == (1, (await client.get("/routes"))["routes"])
        assert "routes" not in await client.get("/status")


async def test_the_overview_says_how_many_of_the_parked_are_cold() -> None:
    async with api() as client:
        await client.stores.store_one("orders", 90_000)
        await client.stores.store.begin(0, {"orders": 7})
        facts = await client.get("/status")
        assert (facts["parked"], facts["cold"]) == (8, 7)


async def test_status_stats_and_readyz_say_the_same_sentence() -> None:
    processes = Processes(1)
    async with api(processes=processes) as client:
        for troubles in ({}, {Subject("rabbitmq"): "connection refused."}):
            await client.stores.store.meet(4_000, True, REPORT)
            heard_s = time.monotonic()
            processes.take(0, Frame("memory", "rabbitmq", "running", troubles=troubles, heard_s=heard_s))
            client.backend.look.forget()
            sentence = (await client.get("/status"))["sentence"]
            assert (await client.get("/stats"))["sentence"] == sentence
            assert (await client.client.get("/readyz?verbose")).text.splitlines()[-1] == sentence
            assert (await client.client.get("/readyz")).text == f"ok\n{sentence}\n"
        client.client.headers.clear()
        assert (await client.client.get("/readyz")).text == "ok\n"  # without a token, no facts


async def test_while_the_store_is_away_status_has_a_verdict_and_no_numbers() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        await client.get("/status")
        client.stores.memory.away = "Redis does not answer (it is frozen). Start it"
        client.backend.look.forget()
        told = await client.get("/status", 503)
        assert told["detail"] == told["sentence"] == "Trouble: Redis does not answer (it is frozen). Start it."
        assert (told["well"], told["role"]) == (False, "admin")
        assert "parked" not in told
        assert await anext(client.events()) == "status"


async def test_a_missing_canary_is_trouble_at_once_and_one_under_way_is_not() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        state = CanaryState("rabbitmq", time.monotonic())
        client.backend.canaries = lambda: [state]
        told = await client.get("/status")
        assert (told["well"], told["canary"][0]["ok"]) == (True, None)
        state.trouble = "it did not come back"
        told = await client.get("/status")
        assert (told["well"], told["canary"][0]["ok"]) == (False, False)
        assert told["sentence"] == "Trouble: no canary of RabbitMQ came back: it did not come back."
        state.tried_s = time.monotonic()
        told = await client.get("/status")
        assert "no canary of RabbitMQ came back at 20" in told["sentence"]
        client.stores.memory.away = "Redis does not answer"
        client.backend.look.forget()
        assert (await client.get("/status", 503))["canary"][0]["ok"] is False
        state.trouble, state.success_s = "", time.monotonic()
        assert (await client.get("/status", 503))["canary"][0]["ok"] is None, "none can come back"


async def test_no_more_is_due_soon_than_is_parked_by_the_same_answer() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        await client.get("/status")
        await client.stores.store_one("orders", 60_000)
        client.backend.kept = Kept()
        client.backend.look._at = time.monotonic() + 60  # the numbers are those from before it was parked
        told = await client.get("/status")
        assert (told["parked"], told["due_5m"]) == (0, 0)


async def test_a_canary_whose_last_success_is_old_arrives_no_more_though_the_next_one_is_under_way() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        now_s = time.monotonic()
        state = CanaryState("rabbitmq", now_s - 600, late_s=0.028, success_s=now_s - 353, sent_s=now_s)
        client.backend.canaries = lambda: [state]
        assert (await client.get("/status"))["canary"][0]["ok"] is None
        state.success_s = now_s - 35  # an interval and the delay
        assert (await client.get("/status"))["canary"][0]["ok"] is True


@pytest.mark.parametrize(("enabled", "known"), [(True, None), (False, [])])
async def test_without_an_instance_beside_it_the_api_does_not_know_of_canaries_that_are_on(
    enabled: bool, known: list[Any] | None
) -> None:
    async with api(given=settings(canary=Canary(enabled=enabled))) as client:
        assert (await client.get("/status"))["canary"] == known


async def test_the_moments_of_a_canary_are_the_stores_on_a_machine_whose_clock_is_ahead() -> None:
    processes = Processes(1)
    heard_s = time.monotonic()
    ahead = Frame("memory", "rabbitmq", "running", clock_offset_s=-120.0, heard_s=heard_s)
    processes.take(0, ahead)
    async with api(processes=processes) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        client.backend.canaries = lambda: [CanaryState("rabbitmq", heard_s, late_s=0.005, success_s=heard_s)]
        (canary,) = (await client.get("/status"))["canary"]
        assert canary["last_success_ms"] == pytest.approx((time.time() - 120) * 1000, abs=5_000)


async def test_a_store_that_answers_late_is_away_for_nobody_and_its_answer_is_used() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        kept, awake = client.stores.desk, asyncio.Event()

        async def desk() -> Any:
            await awake.wait()
            return await kept()

        client.stores.desk = desk  # type: ignore[method-assign]
        found, overall = await client.backend.judged(0.01)
        assert (found, overall.away) == (None, "")
        assert overall.sentence == "Not known: the store has not answered yet."
        assert not overall.well
        client.stores.desk = None  # type: ignore[assignment, method-assign]
        awake.set()
        assert (await client.backend.judged(20))[1].well, "by the look that went on"


async def test_a_store_that_does_not_answer_is_away_after_a_limit_and_until_it_answers() -> None:
    async with api(processes=Processes(1)) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        kept = client.stores.desk

        async def desk() -> Any:
            await asyncio.sleep(60)

        peers = {"redis": True, "rabbitmq": True}
        frame = Frame("memory", "rabbitmq", "running", peers=peers, heard_s=time.monotonic() + 60)
        client.backend.processes.take(0, frame)
        client.stores.desk = desk  # type: ignore[method-assign]
        asked_s = time.monotonic()
        told = await client.client.get("/readyz?verbose")
        assert time.monotonic() - asked_s < 2.5, "the store may still answer in time"
        not_yet = "Not known: the store has not answered yet."
        assert told.text.splitlines() == ["[+]rabbitmq ok", "[+]redis ok", "ok", not_yet]
        client.backend.look._asked_s = time.monotonic() - 2.5
        for path in ("/readyz?verbose", "/readyz?verbose&route=orders"):
            told = await client.client.get(path)
            away = "Redis does not answer at redis://127.0.0.1:6379/0"
            lines = ["[+]rabbitmq ok", f"[-]redis {away}", "not ok"]
            assert told.text.splitlines() == [*lines, f"Trouble: {away}."]
            assert told.status_code == 503
        client.stores.desk = kept  # type: ignore[method-assign]
        client.backend.look.forget()
        assert (await client.client.get("/readyz?verbose")).status_code == 200


async def test_an_overview_shows_the_last_lateness_while_the_store_takes_long_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Redis stood still between the numbers and the lateness: the answer took as long as ``redis.timeout``."""
    monkeypatch.setattr(status, "_FRESH_S", 0.0)
    async with api() as client:
        before = (await client.client.get("/api/v1/status")).json()
        monkeypatch.setattr(status, "_RECENT_S", 0.01)
        monkeypatch.setattr(status, "_recent", lambda here, now_ms: asyncio.sleep(60))
        after = (await client.client.get("/api/v1/status")).json()
    assert after["lateness"] == before["lateness"]


async def test_an_overview_of_a_store_that_falls_silent_meanwhile_has_the_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(*_: object) -> None:
        raise StoreUnavailable("Redis does not answer")

    async with api() as client:
        monkeypatch.setattr(status, "_recent", away)
        told = await client.client.get("/api/v1/status")
        assert (told.status_code, told.json()["lateness"]["p99_ms"]) == (200, None)
        monkeypatch.setattr(status, "all_routes", away)
        told = await client.client.get("/api/v1/status?routes=true")
        shown = told.json()
    assert (told.status_code, shown["detail"]) == (503, "Trouble: Redis does not answer.")
    assert (shown["sentence"], shown["well"], shown["level"]) == (shown["detail"], False, "FAIL")


async def test_a_probe_does_not_fail_over_looks_that_take_a_moment_longer_than_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(passed_s=0.0)
    monkeypatch.setattr(stores, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + clock.passed_s))
    async with api(processes=Processes(1)) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        peers = {"redis": True, "rabbitmq": True}
        frame = Frame("memory", "rabbitmq", "running", peers=peers, heard_s=time.monotonic() + 60)
        client.backend.processes.take(0, frame)
        numbers = "0 parked, none due, nothing overdue."
        assert (await client.client.get("/readyz")).text == f"ok\nAll well: {numbers}\n"
        kept, answers = client.stores.desk, asyncio.Event()

        async def desk() -> Any:
            await answers.wait()
            return await kept()

        client.stores.desk = desk  # type: ignore[method-assign]
        for clock.passed_s, sentence in (
            (2.0, f"{numbers} These numbers are 2s old: the store has not answered since."),
            (20.0, "Not known: the store has not answered yet."),
        ):
            told = await client.client.get("/readyz")
            assert (told.status_code, told.text) == (200, f"ok\n{sentence}\n")
            answers.set()  # the look ends when no probe waits for it any more
            await asyncio.sleep(0.01)
            answers.clear()


@pytest.mark.parametrize(
    ("silent_s", "error", "away"),
    [
        (0.8, None, ""),
        (0.8, StoreSilent("Redis does not answer (Timeout reading)"), ""),
        (0.8, StoreUnavailable("Redis refuses connections"), "Redis refuses connections"),
        (3.0, None, "Redis does not answer at redis://127.0.0.1:6379/0"),
        (3.0, StoreSilent("Redis does not answer (Timeout reading)"), "Redis does not answer (Timeout reading)"),
    ],
)
async def test_a_busy_http_process_says_that_its_numbers_are_old_and_not_that_the_store_is_away(
    silent_s: float, error: StoreUnavailable | None, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(passed_s=0.0)
    monkeypatch.setattr(stores, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + clock.passed_s))
    monkeypatch.setattr(metrics, "_WAIT_S", 0.1)
    kept = MemoryStores.desk

    async def desk(own: MemoryStores) -> Any:
        if clock.passed_s and error is not None:
            raise error
        await asyncio.sleep(60 if clock.passed_s else 0)
        return await kept(own)

    monkeypatch.setattr(MemoryStores, "desk", desk)
    async with api(processes=Processes(1)) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        peers = {"redis": True, "rabbitmq": True}

        def told() -> None:
            heard_s = time.monotonic()
            frame = Frame("memory", "rabbitmq", "running", peers=peers, store_silent_s=silent_s, heard_s=heard_s)
            client.backend.processes.take(0, frame)

        told()
        await client.get("/status", routes="true")
        client.backend.look._asked_s, clock.passed_s = time.monotonic(), 12.0
        told()
        status = await client.get("/status", 503 if away else 200, routes="true")
        told()
        shown = None if away else await client.get("/stats")
        told()
        ready = await client.client.get("/readyz?verbose")
        told()
        numbers = (await client.client.get("/metrics")).text
    busy = "These numbers are 12s old: the store answers the instances, and this page's own process is busy."
    sentence = f"Trouble: {away}." if away else f"0 parked, none due, nothing overdue. {busy}"
    assert (re.sub(r"1\ds", "12s", status["sentence"]), status["level"]) == (sentence, "FAIL")
    assert shown is None or re.sub(r"1\ds", "12s", shown["sentence"]) == sentence
    assert [route["name"] for route in status.get("routes", ())] == ([] if away else ["orders", "bills"])
    assert re.sub(r"1\ds", "12s", ready.text).splitlines()[-2:] == ["not ok" if away else "ok", sentence]
    assert ready.status_code == (503 if away else 200)
    up = 0.0 if away else 1.0
    assert f'postdate_connection_up{{peer="redis"}} {up}' in numbers
    assert f"postdate_ready {up}" in numbers


@pytest.mark.parametrize(("silent_s", "busy"), [(2.9, False), (0.0, True)])
async def test_a_process_blames_itself_once_an_instance_has_an_answer_after_its_own_question(
    silent_s: float, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen Redis has answered the instances, too, until it froze."""
    clock = SimpleNamespace(passed_s=0.0)
    monkeypatch.setattr(stores, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + clock.passed_s))
    async with api(processes=Processes(1, lambda: 50.0)) as client:
        await client.stores.store.meet(4_000, True, REPORT)
        peers = {"redis": True, "rabbitmq": True}
        frame = Frame("memory", "rabbitmq", "running", peers=peers, store_silent_s=silent_s, heard_s=50.0)
        client.backend.processes.take(0, frame)
        await client.client.get("/readyz")
        client.stores.desk = asyncio.Event().wait  # type: ignore[method-assign, assignment]
        clock.passed_s = 1.0
        told = (await client.client.get("/readyz")).text
        assert ("this page's own process is busy." in told) is busy
        assert ("nothing overdue. These numbers are 1s old: the store has not answered since." in told) is not busy


@pytest.mark.parametrize(
    ("more", "away"),
    [
        ({"peers": {"redis": True, "rabbitmq": True}}, False),
        ({"peers": {"redis": True, "rabbitmq": False}}, True),
        (
            {
                "peers": {"rabbitmq": False},
                "troubles": {Subject("rabbitmq", INTAKE, "orders.delay"): "it is not consumed"},
            },
            False,
        ),
        (
            {
                "peers": {"rabbitmq": False},
                "troubles": dict.fromkeys(
                    (Subject("rabbitmq", INTAKE), Subject("rabbitmq", "publish")), "no heartbeat"
                ),
            },
            True,
        ),
    ],
)
async def test_a_route_of_a_broker_that_is_not_connected_is_not_shown_as_running(
    more: dict[str, Any], away: bool
) -> None:
    processes = Processes(1)
    async with api(processes=processes) as client:
        await client.stores.store.meet(4_000, False, REPORT)
        frame = Frame("memory", "rabbitmq", "running", heard_s=time.monotonic(), **more)
        processes.take(0, frame)
        assert [route["broker_away"] for route in (await client.get("/routes"))["routes"]] == [away, away]


async def test_those_who_ask_while_the_store_is_away_share_one_wait() -> None:
    async with api() as client:
        asked = 0

        async def desk() -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(0.01)
            raise StoreUnavailable("it is frozen")

        client.stores.desk = desk  # type: ignore[method-assign]
        await asyncio.gather(*(client.backend.judged() for _ in range(20)))
        assert asked == 1


async def test_a_frozen_instance_is_stale_and_serves_no_route() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        (instance,) = (await client.get("/instances"))["instances"]
        assert (instance["state"], instance["health"]) == ("well", "All well.")
        assert [route["served"] for route in (await client.get("/routes"))["routes"]] == [True, False]
        client.stores.memory.clock.advance(20_000)  # type: ignore[attr-defined]
        client.backend.look._ran = {}  # as 20 s later
        client.backend.look.forget()
        (instance,) = (await client.get("/instances"))["instances"]
        assert (instance["name"], instance["state"]) == ("memory", "stale")
        assert "health" not in instance
        assert "frozen" in instance["text"]
        assert [route["served"] for route in (await client.get("/routes"))["routes"]] == [False, False]


async def test_a_store_that_is_back_has_old_reports_of_instances_that_live() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        await client.get("/status")
        client.backend.look.forget()
        client.backend.look._asked_s, client.backend.look._ran = time.monotonic() - 15, {}
        client.stores.memory.clock.advance(15_000)  # type: ignore[attr-defined]
        (state,) = (await client.get("/status"))["instance_states"]
        text = "Instance memory has not reported yet since Redis answers again."
        assert (state["state"], state["text"]) == ("trouble", text)
        client.backend.look._back_s = time.monotonic() - 5
        client.backend.look.forget()
        (state,) = (await client.get("/status"))["instance_states"]
        assert state["state"] == "stale"


async def test_the_first_answer_to_a_new_process_ends_no_outage_however_late_it_is() -> None:
    async with api() as client:
        await client.stores.store.meet(4_000, True, REPORT)
        client.backend.look._asked_s = time.monotonic() - 15
        client.stores.memory.clock.advance(20_000)  # type: ignore[attr-defined]
        status = await client.get("/status")
        assert status["sentence"].startswith("Trouble: instance memory has been silent for ")
        assert [state["state"] for state in status["instance_states"]] == ["stale"]


async def test_a_process_that_is_silent_for_some_seconds_has_no_rate() -> None:
    processes = Processes(1)
    async with api(processes=processes) as client:
        counted = {"routes": {"orders": {"received": 5, "confirmed": 5}}}
        old = Frame("memory", "rabbitmq", "running", metrics=counted, heard_s=time.monotonic() - 6)
        processes.take(0, old)
        (orders, _) = (await client.get("/routes"))["routes"]
        assert orders["received_per_s"] is None


async def test_the_rates_of_a_route_are_those_of_all_instances() -> None:
    processes = Processes(1)
    async with api(processes=processes) as client:
        for sent in (100, 160):
            counted = {"routes": {"orders": {"received": sent, "confirmed": sent}}}
            now_s = time.monotonic()
            processes.take(0, Frame("here", "rabbitmq", "running", metrics=counted, heard_s=now_s))
            report = {"by_route": {"orders": {"received": 2 * sent, "delivered": sent // 2}}}
            await client.stores.store.meet(60_000, True, json.dumps(report))
            client.backend.look.forget()
            (orders, _) = (await client.get("/routes"))["routes"]
            rate = client.backend.route_rates["orders"]
            rate._seen[0] = (now_s - 8, rate._seen[0][1])
        assert (orders["received_per_s"], orders["delivered_per_s"]) == (
            pytest.approx(22.5, 0.1),
            pytest.approx(11.25, 0.1),
        )


async def test_a_route_whose_intake_a_frozen_instance_may_hold_does_not_run_until_another_takes_in() -> None:
    async with api() as client:
        memory, frozen = client.stores.memory, client.stores.store
        other = MemoryStore(memory, instance="other")

        async def row(other_in: int, frozen_in: int = 0) -> tuple[bool, int | None]:
            """A second later: whether the row has an In-rate, and since when nothing is taken in."""
            memory.clock.advance(1_000)  # type: ignore[attr-defined]
            for store, received in ((other, other_in), (frozen, frozen_in)):
                if received:
                    counted = {"orders": {"received": received, "delivered": 0}}
                    await store.meet(4_000, True, json.dumps({"routes": ["orders"], "by_route": counted}))
            client.backend.look.forget()
            found = await client.get("/routes/orders")
            rate = client.backend.route_rates["orders"]
            for place, (at_s, totals) in enumerate(tuple(rate._seen)):
                rate._seen[place] = (at_s - 1, totals)
            return found["received_per_s"] not in (None, 0), found["idle_since_ms"]

        beats = [await row(7, frozen_in) for frozen_in in range(10, 20)]
        assert beats[-1] == (True, None)
        froze_ms = memory.now_ms()
        after = [await row(7) for _ in range(10)]
        assert not after[-1][0]
        assert after[-1][1] == pytest.approx(froze_ms, abs=4_000)
        assert [since_ms is None for _, since_ms in after].index(False) < 6, "as soon as its silence is known"
        assert await row(9) == (True, None), "the broker gave it the intake"
        quiet = [await row(9) for _ in range(20)]
        assert quiet[-1] == (False, None), "nothing comes"
        assert {since_ms for _, since_ms in quiet} == {None}


def test_what_counted_before_a_total_was_first_seen_is_no_rate() -> None:
    rate = Rate()
    rate.per_second({"a": 100}, 50.0)
    assert rate.per_second({"a": 120, "b": 9_000}, 55.0) == {"a": 4.0, "b": 0.0}
    assert rate.per_second({"b": 9_020}, 60.0) == {"a": 2.0, "b": 2.0}, "what went silent counted in these seconds"
    assert rate.per_second({"b": 9_020}, 65.5) == {"a": 0.0, "b": 0.0}


def test_a_rate_needs_some_seconds() -> None:
    rate = Rate()
    assert rate.per_second({"in": 100}, 50.0) == {}
    assert rate.per_second({"in": 160}, 51.5) == {}
    assert rate.per_second({"in": 180}, 54.0) == {"in": 20.0}


async def test_the_troubles_of_a_process_on_this_machine_are_told() -> None:
    async with api() as client:
        troubles = {Subject("rabbitmq"): "connection refused."}
        frame = Frame("a-1", "rabbitmq", "running", troubles=troubles, heard_s=time.monotonic())
        client.backend.processes = Processes(1)
        client.backend.processes.take(0, frame)
        told = await client.get("/status")
        assert told["troubles"] == [{"instance": "a-1", "subject": "rabbitmq", "text": "connection refused"}]
        assert told["sentence"] == "Trouble: connection refused."


async def test_routes_have_their_counts() -> None:
    async with api() as client:
        await client.stores.store_one("orders")
        await client.bury()
        orders, bills = (await client.get("/routes"))["routes"]
        assert (orders["name"], orders["parked"], orders["dead"]) == ("orders", 1, 1)
        assert (bills["name"], bills["parked"], bills["dead"]) == ("bills", 0, 0)
        assert (await client.get("/routes/orders"))["intercept"] == "orders.delay"
        assert "Did you mean 'orders'?" in (await client.get("/routes/order", 404))["detail"]


async def test_a_route_is_paused_drained_and_resumed_with_who_and_why() -> None:
    async with api() as client:
        paused = await client.call("PUT", "/routes/orders/pause", 202, {"reason": "the bank is down"})
        await client.stores.store.meet(4_000, True, REPORT)
        await client.stores.store_one("orders", 0)
        client.stores.memory.clock.advance(10)  # type: ignore[attr-defined]
        client.backend.look.forget()
        shown = await client.get("/status")
        assert shown["sentence"] == "Paused: orders (held: 1). 1 parked, none due, nothing overdue."
        assert (shown["level"], shown["well"], shown["troubles"]) == ("WARN", False, [])
        assert (paused["state"], paused["by"], paused["reason"]) == ("paused", "admin (api)", "the bank is down")
        assert (await client.get("/routes/orders"))["state"] == "paused"
        assert (await client.get("/routes/bills"))["state"] == "running"
        assert (await client.call("PUT", "/routes/orders/drain", 202))["state"] == "draining"
        assert (await client.call("PUT", "/routes/orders/resume", 202))["state"] == "running"
        await client.call("PUT", "/routes/nowhere/pause", 404)
        verbs = [entry["verb"] for entry in (await client.get("/audit"))["audit"]]
        assert verbs == ["resume", "drain", "pause"]


async def test_a_route_without_a_store_is_not_paused() -> None:
    routes = {"quick": Route(intercept="quick.delay", deliver_to="quick", mode="levels")}
    async with api(given=Settings(routes=routes, auth=AUTH)) as client:
        assert "no store" in (await client.call("PUT", "/routes/quick/pause", 409))["detail"]
        (route,) = (await client.get("/routes"))["routes"]
        assert (route["state"], route["parked"]) == ("running", None)


async def test_routes_of_an_instance_that_waits_for_confirms_are_unconfirmed() -> None:
    async with api() as client:
        for waited_s, unconfirmed in ((2.5, [False, True]), (0.0, [False, False])):
            report = {"health": "All well.", "routes": ["orders"], "unconfirmed_s": waited_s}
            await client.stores.store.meet(4_000, True, json.dumps(report))
            await client.stores.store_one("orders", 60_000)
            client.backend.look.forget()
            found = {route["name"]: route["unconfirmed"] for route in (await client.get("/routes"))["routes"]}
            assert [found["bills"], found["orders"]] == unconfirmed


async def test_the_timeline_has_what_is_due_in_each_step_after_now() -> None:
    async with api() as client:
        for minutes in (1, 1, 30):
            await client.stores.store_one("orders", minutes * 60_000 + 500)
        told = await client.get("/timeline", span="1h")
        assert sum(bucket["count"] for bucket in told["due"]) == 3
        assert max(bucket["count"] for bucket in told["due"]) == 2
        assert told["due"][0]["at_ms"] == told["now_ms"]
        assert "overdue" not in told, "the page shows one number, that of the status"
        await client.get("/timeline", 422, span="2h")
        await client.get("/timeline", 422, **{"from": "bad"})


async def test_settings_are_shown_with_their_source_and_no_secret() -> None:
    given = settings(redis=Redis(url=SecretStr("redis://user:hunter2@redis.example/0"), password=SecretStr("hunter3")))
    async with api(given=given) as client:
        told = await client.get("/config")
        shown = {setting["name"]: setting["value"] for setting in told["settings"]}
        assert "hunter" not in json.dumps(told)
        assert "admin-token" not in json.dumps(told)
        assert "redis.example" in shown["redis.url"]
        assert shown["bridge.shutdown_grace"] == "25s"
        assert {"routes.orders.intercept", "http.listen"} <= shown.keys()


async def test_instances_and_stats_are_those_of_the_command() -> None:
    async with api() as client:
        await client.stores.store.meet(10_000, True, '{"health": "well"}')
        (instance,) = (await client.get("/instances"))["instances"]
        assert (instance["name"], instance["able"], instance["health"], instance["state"]) == (
            "memory",
            True,
            "well",
            "trouble",
        )
        assert {"parked", "ever", "instances", "without_store"} <= (await client.get("/stats")).keys()


async def test_events_tell_the_status_and_that_someone_did_something() -> None:
    async with api() as client:
        stream = client.events()
        assert await anext(stream) == "status"
        await client.call("POST", "/messages", 201, {"route": "orders", "routing_key": "", "body": "", "in": "1h"})
        assert await anext(stream) == "audit"
        assert await anext(stream) == "status"
        assert client.backend.events.listeners == 1
        await stream.aclose()
        assert client.backend.events.listeners == 0
        client.backend.events.listeners = 1000
        await client.get("/events", 503)


async def test_many_who_ask_at_once_cause_one_look_at_the_store() -> None:
    async with api() as client:
        looks = 0
        kept = client.stores.kept.stats

        async def stats() -> Any:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0)
            return await kept()

        client.stores.kept.stats = stats  # type: ignore[method-assign]
        await asyncio.gather(*(facts(client.backend, Role.VIEWER) for _ in range(20)))
        assert looks == 1
