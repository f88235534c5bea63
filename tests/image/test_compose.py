"""`docker compose up`: the demo comes up, and its consumers print delayed messages, also over a kill of postdate."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from tests.devstack import images
from tests.devstack.compose import find_compose
from tests.devstack.engine import Engine
from tests.devstack.fixtures import need
from tests.devstack.service import wait_for
from tests.image.compose_project import ComposeProject

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

SERVERS = ("redis:8", "rabbitmq:4.3", "apache/kafka:4.4.0", "prom/prometheus:v3.5.0")
#: The longest delay of the examples, a lease of a killed postdate, and some.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def compose() -> tuple[str, ...]:
    need(lambda: images.provide(SERVERS))
    return need(find_compose)


@pytest.fixture
def project(compose: tuple[str, ...], walled_engine: Engine) -> Iterator[ComposeProject]:
    with (
        walled_engine.health_checks(),
        ComposeProject(walled_engine, compose, f"postdate-{secrets.token_hex(4)}") as project,
    ):
        yield project


def judge(project: ComposeProject, suffix: str) -> None:
    """The producer stops; everything that it sent arrives, and nothing was early."""
    project.run("--profile", "kafka", "stop", f"producer{suffix}")
    sent = project.sent(f"producer{suffix}")
    wait_for(
        lambda: sent <= {number for number, _ in project.arrived(f"consumer{suffix}")},
        f"all {len(sent)} messages arrive",
        PATIENCE_S,
    )
    arrived = project.arrived(f"consumer{suffix}")
    numbers = [number for number, _ in arrived]
    late = sorted(late for _, late in arrived)
    copies = len(numbers) - len(set(numbers))
    print(f"sent {len(sent)}, copies {copies}, late {late[0]} to {late[-1]} ms")
    assert late[0] >= 0
    assert copies <= 1, "one message a second: a kill finds at most one on its way"
    assert numbers != sorted(numbers), "messages with different delays overtake each other"


def test_up_brings_delayed_messages_to_the_consumer_and_a_kill_loses_none(
    project: ComposeProject, walled_engine: Engine
) -> None:
    project.up()
    project.wait_arrivals("consumer", 8)
    print(project.log("consumer")[:600])
    walled_engine.run("kill", "--signal", "KILL", project.container("postdate"))
    seen = len(project.arrived("consumer"))
    project.run("start", "postdate")
    project.wait_arrivals("consumer", seen + 5)
    judge(project, "")


def test_the_containers_of_postdate_have_no_rights_and_stop_in_good_order(
    project: ComposeProject, walled_engine: Engine
) -> None:
    project.up()
    project.wait_arrivals("consumer", 1)
    for service in ("postdate", "producer", "consumer"):
        host = walled_engine.inspect(project.container(service))["HostConfig"]
        assert host["ReadonlyRootfs"] is True, service
        assert host["Memory"] > 0, service
        status = walled_engine.run("exec", project.container(service), "cat", "/proc/1/status")
        assert "CapBnd:\t0000000000000000" in status, service
        assert "NoNewPrivs:\t1" in status, service
    ended = project.container("postdate")
    project.run("stop", "postdate", deadline_s=90)
    assert walled_engine.inspect(ended)["State"]["ExitCode"] == 0


def test_the_profile_kafka_brings_the_same_for_kafka(project: ComposeProject, walled_engine: Engine) -> None:
    project.up("kafka")
    project.wait_arrivals("consumer-kafka", 8)
    project.wait_arrivals("consumer", 3)
    print(project.log("consumer-kafka")[:600])
    walled_engine.run("kill", "--signal", "KILL", project.container("postdate-kafka"))
    seen = len(project.arrived("consumer-kafka"))
    project.run("--profile", "kafka", "start", "postdate-kafka")
    project.wait_arrivals("consumer-kafka", seen + 5)
    judge(project, "-kafka")
    judge(project, "")


def test_the_profile_monitoring_watches_postdate(project: ComposeProject, walled_engine: Engine) -> None:
    """Without Grafana, for which there is no stand-in."""
    project.up("monitoring", only=("postdate", "prometheus"))
    prometheus = project.container("prometheus")

    def asked(query: str) -> str:
        return walled_engine.run("exec", prometheus, "promtool", "query", "instant", "http://127.0.0.1:9090", query)

    wait_for(lambda: "=> 1 @" in asked('up{job="postdate"}'), "Prometheus reads the metrics of postdate")
    wait_for(lambda: "=> 1 @" in asked("postdate_connection_up"), "postdate's connections are known")
    rules = walled_engine.run("exec", prometheus, "promtool", "check", "rules", "/etc/prometheus/rules/postdate.yaml")
    assert "rules found" in rules
