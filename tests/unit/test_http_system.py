"""The API's answers about levels and findings."""

from __future__ import annotations

import pytest

from bridge.core.errors import BrokerUnavailable
from bridge.desk.severity import CheckResult, Severity
from bridge.http import system
from bridge.http.access import Role
from bridge.http.line import Processes
from bridge.process.http_child import Reloading
from bridge.settings import Settings
from tests.api import api


async def test_doctor_answers_each_finding_with_level_subject_text_and_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        CheckResult(Severity.OK, "redis", "answers in 1 ms"),
        CheckResult(Severity.FAIL, "orders", "the intake queue is missing", advice="Run `postdate setup`."),
    ]
    monkeypatch.setattr(system, "examine_all", lambda settings: found)
    async with api(Role.VIEWER) as client:
        assert await client.get("/doctor") == {
            "findings": [
                {"level": "ok", "subject": "redis", "text": "answers in 1 ms", "advice": ""},
                {
                    "level": "fail",
                    "subject": "orders",
                    "text": "the intake queue is missing",
                    "advice": "Run `postdate setup`.",
                },
            ]
        }


async def test_a_second_look_at_doctor_soon_after_asks_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Settings] = []

    def examine(settings: Settings) -> list[CheckResult]:
        asked.append(settings)
        return []

    monkeypatch.setattr(system, "examine_all", examine)
    async with api(Role.VIEWER) as client:
        assert await client.get("/doctor") == await client.get("/doctor") == {"findings": []}
    assert len(asked) == 1


async def test_doctor_warns_of_a_reload_that_failed_until_another_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "examine_all", lambda settings: [])
    processes = Processes(1)
    async with api(Role.VIEWER, processes=processes) as client:
        processes.reloaded(Reloading(False, 5.0, "./postdate.toml is not TOML.\nSee [a]."))
        (finding,) = (await client.get("/doctor"))["findings"]
        assert (finding["level"], finding["subject"]) == ("warn", "settings")
        assert (
            finding["text"] == "the last reload failed, and nothing was changed: ./postdate.toml is not TOML; See [a]"
        )
        assert "The next start would fail" in finding["advice"]
        processes.reloaded(Reloading(True, 6.0, "No live setting changed."))
        assert await client.get("/doctor") == {"findings": []}


@pytest.mark.parametrize(("worked", "what"), [(False, "settings. Nothing was changed. Bad file."), (True, "settings")])
async def test_the_audit_log_says_that_a_refused_reload_changed_nothing(worked: bool, what: str) -> None:
    processes = Processes(1)
    processes.ask_reload = lambda: processes.reloaded(Reloading(worked, 5.0, "Bad file."))
    async with api(processes=processes) as client:
        answer = await client.client.post("/-/reload", headers={"Content-Type": "application/json"})
        assert answer.status_code == (200 if worked else 409)
        (entry,) = (await client.get("/audit"))["audit"]
        assert (entry["verb"], entry["what"]) == ("reload", what)


async def test_levels_answers_warnings_of_brokers_that_could_not_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "survey_levels", lambda settings: ([], ["RabbitMQ does not answer."]))
    monkeypatch.setattr(system, "count_intakes", lambda settings: [])
    async with api(Role.VIEWER) as client:
        assert await client.get("/levels") == {"levels": [], "warnings": ["RabbitMQ does not answer."]}


async def test_levels_says_that_the_broker_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(settings: Settings) -> None:
        raise BrokerUnavailable("RabbitMQ does not answer")

    monkeypatch.setattr(system, "survey_levels", away)
    async with api(Role.VIEWER) as client:
        assert "RabbitMQ does not answer" in (await client.get("/levels", 503))["detail"]


@pytest.mark.parametrize("path", ["/doctor", "/levels"])
async def test_no_token_sees_neither_levels_nor_findings(path: str) -> None:
    async with api(None) as client:
        await client.get(path, 401)
