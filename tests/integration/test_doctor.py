"""`postdate doctor` on real servers: with an instance, a dead letter, a narrow Redis user, no Redis."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from bridge.cli import run_command
from tests.delay_line import Line, delay
from tests.devstack.service import free_ports
from tests.parsed import ROOT
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.redis, pytest.mark.rabbitmq]

OFF = {"http": {"enabled": False}}


def doctor(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and by level the facts with their advice."""
    capsys.readouterr()
    code = run_command(["doctor", "--config", str(file), "-o", "json"])
    found: dict[str, list[str]] = {"OK": [], "WARN": [], "FAIL": []}
    for load in json.loads(capsys.readouterr().out):
        found[load["level"]].append(f"{load['subject']}: {load['text']}. {load['advice']}")
    return code, found


def test_it_judges_a_running_installation_and_names_a_dead_letter_with_the_command(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line, line.start():
        code, found = doctor(line.file(OFF), capsys)
        assert (code, found["WARN"], found["FAIL"]) == (0, [], [])
        assert any(text.startswith("instance ") and "All well" in text for text in found["OK"])
        assert any("may call every command" in text for text in found["OK"])
        line.publish(Props([(b"x-delay", "S", b"\0\0\0\4soon")]), b"unreadable")
        line.wait_dead()
        code, found = doctor(line.file(OFF), capsys)
        assert (code, len(found["WARN"])) == (1, 1)
        assert "dead letters: 1. See `postdate list --state dead`" in found["WARN"][0]


def test_a_redis_user_without_a_right_fails_with_the_command_to_type(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = urlsplit(redis_url)
    with redis.Redis.from_url(redis_url) as client, Line(rabbitmq_vhost, redis_url, tmp_path) as line:
        client.execute_command("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "&*", "+@all", "-zadd")
        try:
            url = f"redis://narrow:pw@{address.hostname}:{address.port}/0"
            code, found = doctor(line.file({"redis": {"url": url}}), capsys)
        finally:
            client.execute_command("ACL", "DELUSER", "narrow")
    assert code == 2
    assert [text for text in found["FAIL"] if "ACL SETUSER name +zadd" in text]


def test_the_least_rights_of_the_manual_are_enough(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manual = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    (command,) = [line for line in manual.splitlines() if line.startswith("ACL SETUSER postdate ")]
    url = redis_url.replace("redis://", "redis://postdate:PASSWORD@")
    with redis.Redis.from_url(redis_url) as client, Line(rabbitmq_vhost, url, tmp_path) as line:
        client.execute_command(*command.replace("{postdate", "{" + line.name).split(), "+config|get")
        try:
            with line.start():
                line.publish(Props([delay(200)]), b"later")
                assert [message.body for message in line.receive()] == [b"later"]
                code, found = doctor(line.file(OFF), capsys)
        finally:
            client.execute_command("ACL", "DELUSER", "postdate")
    assert (code, found["WARN"], found["FAIL"]) == (0, [], [])


def test_a_redis_that_is_away_fails_and_the_broker_is_still_judged(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line:
        away = line.file({"redis": {"url": f"redis://127.0.0.1:{free_ports(1)[0]}/0"}})
        code, found = doctor(away, capsys)
    assert code == 2
    assert any(text.startswith("store: ") for text in found["FAIL"])
    assert any(text.startswith("route orders: exists") for text in found["OK"])


def test_wrong_settings_are_a_failure_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "postdate.toml"
    file.write_text("[redis]\nshard = 3\n")
    code, found = doctor(file, capsys)
    assert code == 2
    assert 'unknown setting "redis.shard"' in found["FAIL"][0]
