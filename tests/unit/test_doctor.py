"""What `postdate doctor` says about each finding, and its exit code."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import NoReturn
from unittest.mock import Mock

import pytest
from pydantic import SecretStr

from adapters.kafka import broker_levels as kafka_levels
from adapters.kafka.nodes import judged
from adapters.rabbitmq import broker_levels as rabbitmq_levels
from adapters.rabbitmq.nodes import alarms_of, plugin_exchange, shortcuts
from adapters.rabbitmq.refusals import unroutable
from adapters.redis.diagnosis import clock, described, permissions, room, written
from adapters.redis.durability import Server
from bridge.cli import doctor as command
from bridge.cli import run_command
from bridge.core.errors import StoreUnavailable
from bridge.core.message import no_route
from bridge.core.orders import Actor, RouteOrder, RouteState
from bridge.desk.leftovers import Inspection, Intake
from bridge.desk.numbers import RouteStats, ServerMemory, Stats
from bridge.desk.severity import CheckResult, Severity, fail, failed, ok, warn
from bridge.operate import check, doctor
from bridge.operate.check import _journals, _stores, check_all, judged_instances, judged_orders
from bridge.operate.doctor import exit_code, judged_state, live_url
from bridge.operate.journals import set_up
from bridge.operate.verdict import Known, judge
from bridge.pipeline.derive import loss_cure
from bridge.settings import Settings, load
from bridge.settings.model import Http, JournalSection
from bridge.telemetry.health import RESTORE, RESTORES_ITSELF, WELL, Health, RefusedRoutes
from bridge.telemetry.subject import rendered
from tests.api import ROUTES

CALM = Stats(10_000, 5, 0, 0, 0, 20_000, {}, {"a-1": {"health": WELL}}, ())
LATE = {"orders": RouteStats(1, refused=1, overdue=1, oldest_overdue_ms=1500)}


def levels(found: list[CheckResult]) -> list[str]:
    return [result.level.value for result in found]


def test_the_exit_code_is_that_of_the_worst_result() -> None:
    fine, doubtful, broken = ok("a", "b"), warn("a", "b"), fail("a", "b")
    assert exit_code([]) == 0
    assert exit_code([fine, fine]) == 0
    assert exit_code([doubtful, fine]) == 1
    assert exit_code([fine, broken, doubtful]) == 2


@pytest.mark.parametrize(
    ("subject", "server"), [("store", "Redis"), ("journal", "the journal's database"), ("broker", "the broker")]
)
def test_the_advice_names_the_server_that_does_not_answer(subject: str, server: str) -> None:
    found = doctor._advised(failed(subject, StoreUnavailable("it does not answer")))
    assert found.advice.startswith(f"Start {server}, or correct its address.")


@pytest.mark.parametrize("text", ["Redis requires a password. Set redis.password", "RabbitMQ refuses the password"])
def test_a_server_that_wants_another_password_runs_already(text: str) -> None:
    assert "Start" not in doctor._advised(failed("store", StoreUnavailable(text))).advice


def test_the_advice_on_a_missing_permission_of_redis_names_the_manual() -> None:
    text = "the Redis user lacks a permission that postdate needs (no permissions to run the 'info' command). Grant it"
    advice = doctor._advised(failed("store", StoreUnavailable(text))).advice
    assert advice.startswith("deploy/README.md has the least rights")


class TestState:
    def test_an_instance_whose_machine_has_another_time_is_named(self) -> None:
        skewed = {"able": True, "health": WELL, "clock_offset_s": -119.99}
        clock, running = judged_instances(replace(CALM, instances={"pd3": skewed}))
        assert (clock.level, running.level) == (Severity.WARN, Severity.OK)
        assert clock.text.startswith("the clock of pd3 differs from Redis's by 120 s. Deliveries go by Redis's clock")

    def test_a_lost_instance_is_a_warning_beside_those_that_run(self) -> None:
        lost, running = judged_instances(replace(CALM, lost={"b-2 (rabbitmq)": 0}))
        assert (lost.level, running.level) == (Severity.WARN, Severity.OK)
        assert lost.text.startswith("lost instances: b-2 (rabbitmq) at 1970-01-01")

    def test_an_instance_whose_store_was_emptied_gets_the_commands_that_bring_messages_back(self) -> None:
        emptied = {"health": "Redis was emptied.", "troubles": {"store contents": "Redis was emptied"}}
        both = "`postdate restore ROUTE --from-intake` on Kafka, or `postdate import`"
        url = SecretStr("sqlite:////j.db")
        for journal, named in (
            (JournalSection(), f"Bring them back: {both} from a backup"),
            (JournalSection(url=url), RESTORE),  # postdate refuses the intake beside a journal
            (JournalSection(url=url, restore="auto"), RESTORES_ITSELF),
        ):
            cure = loss_cure(Settings(routes=ROUTES, journal=journal))
            (found,) = judged_instances(replace(CALM, instances={"a-1": emptied}), cure)
            assert (cure, found.advice) == (named, named)

    @pytest.mark.parametrize(
        ("subject", "advice"),
        [
            ("route orders", "Correct the destination"),
            ("rabbitmq deleted postdate.orders", "must send again what was in the queue"),
            ("rabbitmq recreated postdate.orders", "must send again what was in the queue"),
            ("kafka recreated orders.delay", "must send again what was in the topic"),
            ("rabbitmq intake", "If RabbitMQ is down, start it"),
            ("kafka publish", "If Kafka is down, start it"),
            ("store claim", "If Redis is down, start it"),
            ("rabbitmq intake probe x.q", "See the subject `rabbitmq intake probe x.q` in deploy/messages.md"),
            ("route orders full", "See the subject `route orders full` in deploy/messages.md"),
        ],
    )
    def test_a_trouble_of_an_instance_has_the_advice_of_its_subject(self, subject: str, advice: str) -> None:
        ill = {"health": "It began at noon.", "troubles": {subject: "it began at noon"}}
        (found,) = judged_instances(replace(CALM, instances={"a-1": ill}, by_route=LATE))
        assert advice in found.advice
        assert "Read its log" not in found.advice

    def test_a_refused_message_that_waits_while_its_route_delivers_again_is_no_failure(self) -> None:
        """The destination needs no correction any more: the message leaves at its next try."""
        clock = Mock(return_value=0.0)
        health = Health(clock)
        routes = RefusedRoutes(health, clock)
        routes.refused("orders", unroutable("orders", b"timeout", "NO_ROUTE").reason, wait_ms=60_000)
        for now_s, level, advice in ((1, Severity.FAIL, "Correct the destination"), (9, Severity.WARN, "Nothing")):
            clock.return_value = float(now_s)
            routes.delivered({"orders"})
            report = {"health": health.sentence(), "troubles": rendered(health.troubles())}
            waits = replace(CALM, instances={"a-1": report}, by_route={"orders": RouteStats(1, refused=1)})
            (found,) = judged_instances(waits, trouble=fail)
            assert (found.level, found.advice.partition(":")[0].partition(" that")[0]) == (level, advice)
            assert "no queue was bound to exchange 'orders'" in found.text
        assert found.text.startswith("route orders delivers again, and messages wait for their next try")

    def test_messages_of_a_route_that_no_instance_has_need_the_route(self) -> None:
        text = f"messages of route orders are refused, the last one as {no_route('orders').reason}"
        (found,) = judged_instances(
            replace(CALM, instances={"a-1": {"health": f"{text}.", "troubles": {"route orders": text}}}, by_route=LATE)
        )
        assert found.advice == "Restore [routes.orders], or start an instance that has it"

    def test_doctor_fails_for_what_the_verdict_calls_a_trouble_and_check_warns(self) -> None:
        ill = replace(CALM, instances={"a-1": {"health": "x.", "troubles": {"store claim": "x"}}})
        assert levels(list(judged_instances(ill, trouble=fail))) == ["FAIL"]
        assert levels(list(judged_instances(ill))) == ["WARN"]
        mended = {"health": "x.", "troubles": {"rabbitmq recreated postdate.orders": "x"}}
        assert levels(list(judged_instances(replace(CALM, instances={"a-1": mended}), trouble=fail))) == ["WARN"]
        lost = replace(CALM, lost={"b-2 (rabbitmq)": CALM.now_ms})
        assert levels(list(judged_instances(lost, trouble=fail))) == ["FAIL", "OK"]

    def test_that_no_instance_runs_fails_in_doctor_and_check_warns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bridge.operate.check.inspect_store", lambda _: Inspection([], "", 0))
        monkeypatch.setattr("bridge.operate.check._strays", lambda _: [])
        settings = Settings(routes=ROUTES)
        for trouble, level in ((fail, "FAIL"), (warn, "WARN")):
            assert levels(list(_stores(settings, None, trouble))) == ["OK", level]

    def test_a_loss_that_is_a_trouble_fails_in_doctor_and_check_warns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = Inspection(["a replica"], "Redis was emptied", 1)
        monkeypatch.setattr("bridge.operate.check.inspect_store", lambda _: found)
        monkeypatch.setattr("bridge.operate.check.at_desk", lambda *_: CALM)
        monkeypatch.setattr("bridge.operate.check._strays", lambda _: [])
        for trouble, level in ((fail, "FAIL"), (warn, "WARN")):
            judged = levels(list(_stores(Settings(routes=ROUTES), None, trouble)))
            assert judged == ["OK", "WARN", level, "OK", "OK"]

    def test_a_loss_of_two_stores_is_said_in_the_words_of_the_verdict(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bridge.operate.check.inspect_store", lambda _: Inspection([], "each store's own words", 1))
        monkeypatch.setattr("bridge.operate.check.at_desk", lambda *_: replace(CALM, loss="lost in all: about 12"))
        monkeypatch.setattr("bridge.operate.check._strays", lambda _: [])
        texts = [result.text for result in _stores(Settings(routes=ROUTES), None, warn)]
        assert "lost in all: about 12" in texts
        assert "each store's own words" not in texts

    def test_a_loss_that_the_store_reports_is_not_repeated_for_each_instance(self) -> None:
        emptied = {"store contents": "Redis was emptied"}
        reports = {"a-1": {"health": "x.", "troubles": emptied}}
        reports["b-2"] = {"health": "x.", "troubles": {**emptied, "store claim": "it waits"}}
        found = replace(CALM, instances=reports, loss="Redis was emptied", by_route=LATE)
        said = [(result.level, result.text) for result in judged_instances(found, "Run it", fail)]
        assert said == [(Severity.OK, "no trouble of its own"), (Severity.FAIL, "it waits")]

    def test_late_messages_of_an_outage_get_the_advice_on_the_outage_alone(self) -> None:
        for troubles, named in (({"store claim": "x", "overdue": "y"}, False), ({"overdue": "y"}, True)):
            ill = {"health": "x. y.", "troubles": troubles}
            (found,) = judged_instances(replace(CALM, instances={"a-1": ill}, by_route=LATE))
            assert ("See the subject `overdue`" in found.advice) is named
            assert ("If Redis is down" in found.advice) is not named

    def test_an_instance_is_said_to_be_as_the_verdict_beside_it_says(self) -> None:
        full = {"health": "nothing is parked: Redis is full.", "troubles": {"store full": "nothing is parked"}}
        found = replace(CALM, instances={"a-1": full}, memory=[ServerMemory("Redis", 10, 100)])
        assert levels([doctor._overall(Known(found)), *judged_instances(found)]) == ["OK", "OK"]
        found = replace(found, memory=[ServerMemory("Redis", 99, 100)])
        assert levels([doctor._overall(Known(found)), *judged_instances(found)]) == ["FAIL", "WARN"]

    def test_calm_is_ok(self) -> None:
        assert levels([*judged_instances(CALM), *judged_state(CALM)]) == ["OK", "OK"]

    def test_overdue_messages_fail_and_name_the_oldest(self) -> None:
        late = replace(CALM, overdue=3, by_route={"orders": RouteStats(overdue=3, oldest_overdue_ms=75_000)})
        found = [result for result in judged_state(late) if result.level is Severity.FAIL]
        assert [result.text for result in found] == ["overdue messages: 3, the oldest by 1m 15s"]
        assert found[0].advice

    def test_that_no_instance_runs_is_no_second_failure_of_the_messages(self) -> None:
        assert levels(list(judged_state(replace(CALM, instances={})))) == ["OK"]

    def test_a_moment_of_lateness_is_load_and_no_failure(self) -> None:
        late = replace(CALM, overdue=3, by_route={"orders": RouteStats(overdue=3, oldest_overdue_ms=1000)})
        assert levels(list(judged_state(late))) == ["OK"]

    def test_dead_letters_refusals_and_an_instance_in_trouble_are_warnings_with_advice(self) -> None:
        ill = replace(CALM, dead=2, refused=1, instances={"a-1": {"health": "the store does not answer."}})
        found = [result for result in (*judged_instances(ill), *judged_state(ill)) if result.level is Severity.WARN]
        assert [result.subject for result in found] == ["instance a-1", "messages", "messages"]
        assert all(result.advice for result in found)


class TestRedis:
    SERVER = Server("Redis", (7, 0), True, "everysec", "noeviction")

    def test_a_server_is_described_by_what_matters(self) -> None:
        assert described(self.SERVER) == (
            "Redis: Redis 7.0, append-only file, appendfsync everysec, maxmemory-policy noeviction"
        )
        hidden = described(self.SERVER._replace(aof=None, policy=None))
        assert hidden == "Redis: Redis 7.0, persistence not disclosed, maxmemory-policy not disclosed"

    def test_memory_is_given_as_a_share_of_its_limit(self) -> None:
        assert room(ServerMemory("Redis", 50 * 2**20, 100 * 2**20)).text == "Redis uses 50 MiB, 50% of its maxmemory"
        assert room(ServerMemory("Redis", 50 * 2**20, 0)).text == "Redis uses 50 MiB, and maxmemory is not set"

    def test_a_file_that_cannot_be_written_fails(self) -> None:
        assert levels(list(written({"aof_enabled": 1, "aof_last_write_status": "err"}))) == ["FAIL"]
        assert levels(list(written({"aof_last_bgrewrite_status": "err"}))) == ["WARN"]
        assert list(written({"aof_enabled": 1, "aof_last_write_status": "ok"})) == []

    def test_slow_round_trips_and_clocks_that_differ_are_warnings(self) -> None:
        assert levels(list(clock(0.001, 0.01))) == ["OK", "OK"]
        assert levels(list(clock(0.05, -3.0))) == ["WARN", "WARN"]

    def test_a_missing_permission_fails_with_the_command_to_type(self) -> None:
        assert permissions([]).level is Severity.OK
        assert permissions(None).level is Severity.OK
        found = permissions(["EVALSHA"])
        assert found.level is Severity.FAIL
        assert "ACL SETUSER name +evalsha" in found.advice


class TestBrokers:
    def test_alarms_of_a_node_are_warnings(self) -> None:
        node = {"name": "rabbit@a", "running": True, "mem_alarm": True, "disk_free_alarm": True, "fd_used": 95}
        assert len(list(alarms_of({**node, "fd_total": 100}))) == 3
        assert list(alarms_of({"name": "rabbit@a", "running": True, "mem_alarm": False, "fd_used": 5})) == []

    def test_an_exchange_of_the_plugin_says_what_waits_and_how_to_move(self) -> None:
        found = plugin_exchange({"name": "orders", "type": "x-delayed-message", "messages_delayed": 7})
        assert found.text.endswith("Messages that wait in it: 7")
        assert "postdate migrate plugin" in found.advice

    def test_a_binding_before_the_front_fails(self) -> None:
        replaced = {"name": "orders", "type": "topic", "arguments": {"alternate-exchange": "orders.delay"}}
        assert list(shortcuts(replaced, [])) == []
        [found] = shortcuts(replaced, [{"source": "orders", "destination": "work"}])
        assert found.level is Severity.FAIL
        assert "delivered at once, to 'work'" in found.text

    def test_one_replica_is_a_warning_in_a_cluster_only(self) -> None:
        topics, known = [("r", "orders"), ("r", "missing")], {"orders": (3, 1)}
        assert levels(list(judged(3, topics, known))) == ["OK", "WARN"]
        assert levels(list(judged(1, topics, known))) == ["OK"]


def test_tables_of_the_journal_that_run_creates_are_a_warning(tmp_path: Path) -> None:
    """As missing queues are: a check before the first start must not fail a deployment."""
    url = {"POSTDATE_JOURNAL__URL": f"sqlite:///{tmp_path}/journal.db"}
    url["POSTDATE_REDIS__URL"] = "redis://127.0.0.1:1"
    route = {"POSTDATE_ROUTES__A__INTERCEPT": "a.delay", "POSTDATE_ROUTES__A__DELIVER_TO": "a"}
    ours, theirs = (load(None, {**url, **route, "POSTDATE_BRIDGE__SETUP": setup}) for setup in ("true", "false"))
    (new,), (forbidden,) = _journals(ours), map(doctor._advised, _journals(theirs))
    assert (new.level, new.code, forbidden.level) == (Severity.WARN, 0, Severity.FAIL)
    assert new.text.endswith("has no tables yet. `postdate run` or `postdate setup` creates them")
    assert forbidden.text == f"the journal's file {tmp_path}/journal.db is missing"
    assert forbidden.advice.startswith("If it was moved, move it back, with its -wal and -shm files. `postdate setup`")
    assert list(tmp_path.iterdir()) == [], "a check creates nothing"
    asyncio.run(set_up(ours, dry_run=False))
    assert [(*_journals(ours),)[0].level, (*_journals(theirs),)[0].level] == [Severity.OK] * 2
    assert levels(list(_journals(Settings(routes=ROUTES)))) == []


def test_the_page_is_asked_at_an_address_that_this_machine_reaches() -> None:
    def url(listen: str, base_path: str = "") -> str:
        return live_url(Settings(http=Http(listen=listen, base_path=base_path)))

    assert url("127.0.0.1:8480") == "http://127.0.0.1:8480/livez"
    assert url("0.0.0.0:8480", "/p") == "http://127.0.0.1:8480/p/livez"
    assert url("[::]:8480") == "http://[::1]:8480/livez"


def test_a_paused_or_drained_route_is_named_with_the_command_that_ends_it() -> None:
    orders = {
        "orders": RouteOrder(RouteState.PAUSED, 0, Actor("anna", "cli"), ""),
        "bills": RouteOrder(RouteState.DRAINING, 0, Actor("anna", "cli"), ""),
    }
    found = list(judged_orders(replace(CALM, orders=orders), {"bills": 290}))
    assert [(result.subject, result.level, result.advice) for result in found] == [
        ("route bills", Severity.WARN, "postdate resume bills"),
        ("route orders", Severity.WARN, "postdate resume orders"),
    ]
    assert found[0].text.endswith("it takes nothing in; messages that wait in the broker: 290")
    assert found[1].text.endswith("it delivers nothing; messages held: 0")
    (unknown, _) = judged_orders(replace(CALM, orders=orders), {})
    assert unknown.text.endswith("messages that wait in the broker: not known")


def test_the_intake_of_a_drained_route_is_no_finding_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages wait because an operator ordered that. The order is named, also by `check`."""
    drained = replace(CALM, orders={"orders": RouteOrder(RouteState.DRAINING, 0, Actor("anna", "cli"), "")})
    settings = Settings(routes=ROUTES)

    def waiting(own: Settings) -> list[Intake]:
        return [Intake(name, "queue", f"postdate.{name}", 290, 0) for name in own.routes]

    for part in ("_stores", "_journals", "_topology", "_policies", "_stale"):
        monkeypatch.setattr(check, part, lambda *_: ())
    for part in ("judge_consumers", "open_fronts", "replay_reach", "verify_topology"):
        monkeypatch.setattr(check, part, lambda *_: ())
    monkeypatch.setattr(check, "brokers_of", lambda _: ())
    for levels in (rabbitmq_levels, kafka_levels):
        monkeypatch.setattr(levels, "count_intakes", waiting)
        monkeypatch.setattr(levels, "stalled_intakes", waiting)
    for found, named in ((CALM, "does not drain"), (drained, "messages that wait in the broker: 290")):
        monkeypatch.setattr(check, "at_desk", lambda *_, found=found: found)
        (text,) = [result.text for result in check_all(settings) if result.subject == "route orders"]
        assert named in text


def test_doctor_begins_its_look_at_the_state_with_the_sentence_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = replace(CALM, instances={}, silent={"a-1": 20_000})
    for found in (CALM, stale):
        monkeypatch.setattr(doctor, "at_desk", lambda *_, found=found: found)
        first = next(iter(doctor._state(Settings(routes=ROUTES), *doctor._look(Settings(routes=ROUTES)))))
        assert (f"{first.text}.", first.level) == (judge(Known(found)).sentence, judge(Known(found)).level)

    def away(*_: object) -> NoReturn:
        raise StoreUnavailable("Redis does not answer")

    monkeypatch.setattr(doctor, "at_desk", away)
    settings = Settings(routes=ROUTES)
    results = doctor._state(settings, *doctor._look(settings))
    assert [result.text for result in results] == ["Trouble: Redis does not answer"]


@pytest.mark.parametrize(
    ("found", "named"), [([ok("store", "it answers")], False), ([warn("store", "it is slow")], True)]
)
def test_doctor_names_the_page_of_all_sentences_where_something_is_wrong(
    found: list[CheckResult],
    named: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(command, "examine_all", lambda *_: found)
    monkeypatch.setattr(command, "settings_with_routes", lambda _: Settings(routes=ROUTES))
    run_command(["doctor", "--config", str(tmp_path / "any.toml")])
    assert ("deploy/messages.md" in capsys.readouterr().err) is named
    assert (Path(__file__).parents[2] / "deploy/messages.md").exists()
