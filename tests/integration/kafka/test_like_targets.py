"""Topics from ``setup`` are as safe as their targets and accept equally large records; ``check`` compares existing
ones."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from bridge.cli import run_command
from tests.bridge_process import toml
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_cluster import KafkaCluster
from tests.devstack.service import wait_for

pytestmark = pytest.mark.kafka

WEEK_MS = str(7 * 24 * 3600 * 1000)
LARGE = "5000000"
NO_STORE = "redis://127.0.0.1:1/0"


class Commands:
    """``setup`` and ``check`` for a route from ``<name>.delay`` to ``<name>``, without a store or with one."""

    def __init__(self, url: str, folder: Path, output: pytest.CaptureFixture[str]) -> None:
        self.url, self._file, self._output = url, folder / "postdate.toml", output
        self.target = f"t{secrets.token_hex(6)}"
        self.intake = f"{self.target}.delay"

    def make(self, name: str, partitions: int = 2, replicas: int = -1, **config: str) -> None:
        """A topic with settings of its own."""
        admin = kafka_admin.client(self.url)
        wanted = NewTopic(
            name, partitions, replicas, config={key.replace("_", "."): value for key, value in config.items()}
        )
        admin.create_topics([wanted])[name].result(kafka_admin.TIMEOUT_S)
        wait_for(lambda: name in kafka_admin.topics(self.url), "every broker knows it")

    def __call__(self, *words: str, mode: str = "redis", code: int = 0) -> list[dict[str, Any]]:
        """The rows of a command."""
        route = {"broker": "kafka", "intercept": self.intake, "deliver_to": self.target, "mode": mode}
        kafka = {"bootstrap_servers": self.url, "group": self.target}
        levels = {"levels": ["1s"]}
        self._file.write_text(
            toml({"kafka": kafka, "redis": {"url": NO_STORE}, "headers": levels, "routes": {"pay": route}})
        )
        ended = run_command([*words, "-o", "json", "--config", str(self._file)])
        out, said = self._output.readouterr()
        assert ended == code, f"{words} ended with {ended} and said {said}{out}"
        rows: list[dict[str, Any]] = json.loads(out)
        return rows

    def made(self, mode: str = "redis") -> dict[str, Mapping[str, str]]:
        """The settings of what ``setup`` makes."""
        rows = self("setup", mode=mode)
        assert {row["state"] for row in rows} == {"made"}
        names = {row["name"] for row in rows}
        wait_for(lambda: names <= kafka_admin.topics(self.url), "every broker knows them")
        return {row["name"]: kafka_admin.topic_config(self.url, row["name"]) for row in rows}

    def warned(self, mode: str = "levels") -> list[str]:
        """What ``check`` says of topics that are not like where they lead."""
        rows = self("check", mode=mode)
        return [row["text"] for row in rows if row["level"] == "WARN" and "differs from" in row["text"]]

    def replicas(self, name: str) -> set[int]:
        return {len(partition.replicas) for partition in kafka_admin.partitions(self.url, name).values()}

    def remove(self) -> None:
        ours = [name for name in kafka_admin.topics(self.url) if name.startswith(self.target)]
        kafka_admin.delete_topics(self.url, ours)


@pytest.fixture
def commands(kafka: Kafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    commands = Commands(kafka.url, tmp_path, capsys)
    yield commands
    commands.remove()


@pytest.fixture
def on_cluster(kafka_cluster: KafkaCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    commands = Commands(kafka_cluster.url, tmp_path, capsys)
    yield commands
    commands.remove()  # before the cluster is asked whether all topics are on all nodes


def send(url: str, topic: str, size: int) -> str:
    """One record; Kafka's word for why the topic does not take it, or nothing."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": url, "message.max.bytes": 20_000_000, "log_level": 0})
    producer.produce(topic, value=bytes(size), on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(kafka_admin.TIMEOUT_S) == 0
    return failed[0].name() if failed[0] else ""


def test_an_intake_takes_records_as_large_as_its_target_and_keeps_them_for_a_week(commands: Commands) -> None:
    commands.make(commands.target, max_message_bytes=LARGE)
    made = commands.made()[commands.intake]
    assert (made["max.message.bytes"], made["retention.ms"], made["cleanup.policy"]) == (LARGE, WEEK_MS, "delete")
    assert send(commands.url, commands.intake, 3_000_000) == ""
    assert send(commands.url, commands.intake, 5_000_000) == "MSG_SIZE_TOO_LARGE"


def test_an_intake_uses_the_clusters_default_where_its_target_does(commands: Commands) -> None:
    commands.make(commands.target)
    commands.made()
    kafka_admin.set_topic_config(commands.url, commands.target, "max.message.bytes", "2000000")
    (said,) = commands.warned("levels")
    assert said.startswith(
        f"topic '{commands.intake}' of route pay differs from its target '{commands.target}': max.message.bytes: "
        "1048588, there: 2000000, so producers cannot send larger records. Change it with "
    )


def test_check_compares_an_existing_intake_with_its_target(commands: Commands) -> None:
    commands.make(commands.target, max_message_bytes=LARGE)
    commands.make(commands.intake, max_message_bytes="9000000", cleanup_policy="compact", retention_ms="3600000")
    (said,) = commands.warned("levels")
    assert "max.message.bytes: 9000000, there: 5000000, so larger records become dead letters" in said
    assert "cleanup.policy is compact, so Kafka may remove records before postdate reads them" in said
    assert f"retention.ms: 3600000, shorter than kafka.intake_retention ({WEEK_MS})" in said


@pytest.mark.long
@pytest.mark.parametrize("mode", ["redis", "levels"])
def test_topics_from_setup_have_the_replicas_and_in_sync_replicas_of_their_target(
    on_cluster: Commands, mode: str
) -> None:
    on_cluster.make(on_cluster.target, replicas=2, min_insync_replicas="1")
    made = on_cluster.made(mode)
    assert len(made) == (1 if mode == "redis" else 3)
    for name, config in made.items():
        assert on_cluster.replicas(name) == {2}, name
        assert config["min.insync.replicas"] == "1", name
    assert on_cluster.warned("levels") == []


@pytest.mark.long
def test_check_names_own_topics_with_fewer_replicas_than_their_target(on_cluster: Commands) -> None:
    on_cluster.make(on_cluster.target, replicas=3, min_insync_replicas="2")
    on_cluster.make(on_cluster.intake, replicas=1, min_insync_replicas="1")
    (said,) = on_cluster.warned("levels")
    assert "replicas: 1, there: 3" in said
    levels = [row["name"] for row in on_cluster("setup", mode="levels") if row["state"] == "made"]
    assert len(levels) == 2
    wait_for(lambda: set(levels) <= kafka_admin.topics(on_cluster.url), "every broker knows them")
    assert [on_cluster.replicas(name) for name in levels] == [{3}, {3}]
