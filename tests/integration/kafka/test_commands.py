"""The commands on a route of many topics: what they print, create and park."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.cli import run_command
from tests.bridge_process import toml
from tests.devstack.kafka import Kafka
from tests.devstack.kafka_admin import create_topic, delete_topics, partitions, topics
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.kafka, pytest.mark.redis]


class Commands:
    """Runs commands in this process on two routes: ``all`` with a rule, ``some`` with a list."""

    def __init__(self, url: str, store_url: str, name: str, file: Path, output: pytest.CaptureFixture[str]) -> None:
        self.name = name
        self._file = file
        self._output = output
        routes = {
            "all": {"intercept": f"{name}.*.delay", "deliver_to": f"{name}.*", "allow_to": [f"{name}.bills"]},
            "some": {
                "intercept": f"{name}.x.later",
                "deliver_to": f"{name}.x",
                "also": [f"{name}.y.later -> {name}.y"],
            },
        }
        settings = {
            "redis": {"url": store_url, "key_prefix": name, "durability": "none"},
            "kafka": {"bootstrap_servers": url, "group": name},
            "routes": {route: {"broker": "kafka", **rest} for route, rest in routes.items()},
        }
        file.write_text(toml(settings))

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run a command; return its standard output, or its standard error where it must fail."""
        ended = run_command([*words, "--config", str(self._file)])
        out, said = self._output.readouterr()
        assert ended == code, f"{words} ended with {ended} and said {said}{out}"
        self._said = said.replace(self.name, "t")
        return (out or said).replace(self.name, "t")

    def said(self, *words: str, code: int = 0) -> str:
        """Run a command; return its standard error."""
        self(*words, code=code)
        return self._said

    def rows(self, *words: str, code: int = 0) -> Any:
        return json.loads(self(*words, "-o", "json", code=code))


@pytest.fixture
def commands(
    kafka: Kafka, redis_url: str, key_prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Iterator[Commands]:
    name = key_prefix.removesuffix(":")
    yield Commands(kafka.url, redis_url, name, tmp_path / "postdate.toml", capsys)
    delete_topics(kafka.url, [topic for topic in topics(kafka.url) if topic.startswith(f"{name}.")])


def test_check_and_setup_list_every_existing_topic_and_setup_creates_the_named_ones(
    commands: Commands, kafka: Kafka
) -> None:
    for word in ("x", "y", "bills"):
        create_topic(kafka.url, 3, name=f"{commands.name}.{word}")
    found = [(row["level"], row["text"]) for row in commands.rows("check") if row["subject"].startswith("route")]
    assert found == [
        ("OK", "exists: topic 't.x', topic 't.y'"),
        (
            "WARN",
            "missing: topic 't.x.later', topic 't.y.later'. `postdate run` or `postdate setup` creates what is missing",
        ),
        ("OK", "exists: topic 't.bills'"),
        ("WARN", "no topic matches 't.*.delay' of route all yet. postdate reads a new one within 30s"),
    ]
    planned = commands.rows("setup", "--dry-run")
    assert [(row["name"], row["state"]) for row in planned] == [("t.x.later", "planned"), ("t.y.later", "planned")]
    made = [(row["name"], row["state"]) for row in commands.rows("setup")]
    assert made == [("t.x.later", "made"), ("t.y.later", "made")]
    wait_for(lambda: len(partitions(kafka.url, f"{commands.name}.y.later")) == 3, "every broker knows it")

    dry = {row["name"]: row["state"] for row in commands.rows("setup", "--dry-run")}
    assert dry == {"t.x.later": "there", "t.y.later": "there"}

    for word in ("a", "a.delay", "b.delay", "a.delay.delay"):
        create_topic(kafka.url, name=f"{commands.name}.{word}")
    said = [row["text"] for row in commands.rows("check", code=1) if row["level"] == "FAIL"]
    assert said == [
        "topic 't.a.delay.delay' leads to 't.a.delay', which route all intercepts. It would loop for ever",
        "topic 't.b', to which route all delivers, does not exist, so due records are refused. Create it as its "
        "consumers need it, or correct routes.all",
    ]
    assert [row["state"] for row in commands.rows("setup")] == ["there"] * 5
    assert f"{commands.name}.b" not in topics(kafka.url)


def test_send_needs_the_intake_topic_of_a_route_with_several_and_show_prints_it(commands: Commands) -> None:
    assert "Name one with --topic" in commands("send", "all", "body", "--in", "1h", code=2)
    assert "Name one with --topic" in commands("send", "some", "body", "--in", "1h", code=2)
    said = commands("send", "all", "body", "--in", "1h", "--topic", f"{commands.name}.x", code=2)
    assert said.endswith("Its intake topics: t.*.delay.\n")
    topic = f"{commands.name}.a.delay"
    sent = commands.rows("send", "all", "body", "--in", "1h", "--topic", topic, "--record-key", "k")
    (listed,) = commands.rows("list", "--route", "all")
    assert (listed["id"], listed["topic"], listed["partition"], listed["record_key"]) == (
        sent["id"],
        "t.a.delay",
        -1,
        "k",
    )
    assert "routing_key" not in listed
    assert "\trecord_key\t" in commands("list").splitlines()[0]
    shown = commands.rows("show", sent["id"])
    assert (shown["properties"]["topic"], shown["properties"]["key"], shown["body"]) == ("t.a.delay", "k", "body")
    keyed = commands.rows("send", "all", "body", "--in", "1h", "--topic", topic, "--record-key", "r", "--key", "d")
    lines = [line.split(maxsplit=2) for line in commands("show", keyed["id"]).splitlines() if " key " in line]
    assert sorted(lines) == [["delay", "key", "d"], ["record", "key", "r"]]


def test_an_intake_with_fewer_partitions_than_its_destination_causes_a_warning(
    commands: Commands, kafka: Kafka
) -> None:
    for word, number in (("x", 3), ("x.later", 2), ("y", 3), ("y.later", 3), ("bills", 1)):
        create_topic(kafka.url, number, name=f"{commands.name}.{word}")
    warned = [row["text"] for row in commands.rows("check") if row["level"] == "WARN" and "later" in row["text"]]
    assert len(warned) == 1
    assert warned[0].startswith("topic 't.x.later' of route some has partitions: 2, and its target 't.x' has 3. ")
    assert f"Warning: {warned[0]}." in commands.said("setup", "--dry-run")
    assert f"Warning: {warned[0]}." in commands.said("setup")


def test_a_dry_run_without_kafka_warns_and_exits_as_setup_would(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTDATE_KAFKA__BOOTSTRAP_SERVERS", "127.0.0.1:1")
    assert [row["state"] for row in commands.rows("setup", "--dry-run", code=4)] == ["planned"] * 2
    said = commands.said("setup", "--dry-run", code=4)
    assert said == "Warning: what exists already is not known: no broker of 127.0.0.1:1 answers.\n"


def test_an_intake_waits_for_its_destination_and_gets_as_many_partitions(kafka: Kafka, commands: Commands) -> None:
    create_topic(kafka.url, 1, name=f"{commands.name}.y")
    words = (
        "topic 't.x', to which route some delivers, does not exist, so 't.x.later' is not created. Create 't.x' as its "
    )
    assert words in commands("check", code=1)
    assert commands.rows("setup", "--dry-run", code=1)[0]["state"] == "waits"
    assert [(row["name"], row["state"]) for row in commands.rows("setup", code=1)] == [
        ("t.x.later", "waits"),
        ("t.y.later", "made"),
    ]
    assert f"{commands.name}.x.later" not in topics(kafka.url)
    create_topic(kafka.url, 5, name=f"{commands.name}.x")
    assert [row["state"] for row in commands.rows("setup")] == ["made", "there"]
    wait_for(lambda: len(partitions(kafka.url, f"{commands.name}.x.later")) == 5, "every broker knows it")
