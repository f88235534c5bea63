"""`postdate setup` and `check` of a retry route, where RabbitMQ's management API answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from adapters.rabbitmq.topology.rejections import redelivery_troubles
from bridge.cli import run_command
from bridge.settings import Settings, settings_from
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long]


class Setup:
    """The commands on the settings of one retry route."""

    def __init__(self, broker: RabbitMQ, redis_url: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._file = folder / "postdate.toml"
        self._file.write_text(
            f'[redis]\nurl = "{redis_url}"\ndurability = "none"\n'
            f'[rabbitmq]\nurl = "{broker.url}"\nmanagement_url = "{broker.management_url}"\n'
            '[routes.again]\nkind = "retry"\nqueue = "work"\nschedule = ["1s"]\n'
        )

    def settings(self) -> Settings:
        return settings_from(self._file)

    def run(self, *words: str) -> list[dict[str, Any]]:
        self._capsys.readouterr()
        assert run_command([*words, "--config", str(self._file), "-o", "json"]) == 0
        found: list[dict[str, Any]] = json.loads(self._capsys.readouterr().out)
        return found

    def states(self, *words: str) -> dict[str, str]:
        """The states of the consumers' queue and of postdate's policy."""
        ours = {("queue", "work"), ("policy", "postdate.again")}
        return {row["kind"]: row["state"] for row in self.run(*words) if (row["kind"], row["name"]) in ours}

    def said(self) -> list[tuple[str, str]]:
        """What `check` says of the consumers' queue."""
        return [(row["level"], row["text"]) for row in self.run("check") if row["text"].startswith("queue 'work'")]


@pytest.fixture
def setup(managed_rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Setup:
    managed_rabbitmq.wipe()
    return Setup(managed_rabbitmq, redis_url, tmp_path, capsys)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_setup_sets_a_policy_by_which_a_rejected_message_reaches_postdate(
    setup: Setup, managed_rabbitmq: RabbitMQ, kind: str
) -> None:
    with managed_rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("work", durable=True, arguments={"x-queue-type": kind})
        assert setup.states("setup", "--dry-run") == {"queue": "planned", "policy": "planned"}
        assert setup.states("setup") == {"queue": "there", "policy": "made"}
        assert setup.states("setup") == {"queue": "there"}
        assert setup.said() == [("OK", "queue 'work' dead-letters to postdate by policy 'postdate.again'")]

        def reaches() -> bool:
            """Nothing tells when a policy reaches a queue that exists."""
            channel.basic_publish("", "work", b"one")
            message = None
            while message is None:
                message, _, _ = channel.basic_get("work")
            channel.basic_reject(message.delivery_tag, requeue=False)
            return bool(channel.queue_declare("postdate.again", passive=True).method.message_count)

        wait_for(reaches, "a dead letter in the intake queue")


def test_a_queue_under_another_policy_is_left_alone_and_the_warning_says_what_to_add(
    setup: Setup, managed_rabbitmq: RabbitMQ
) -> None:
    managed_rabbitmq.ctl("set_policy", "theirs", "^w", '{"max-length":100000}', "--apply-to", "queues")
    with managed_rabbitmq.connect() as connection:
        connection.channel().queue_declare("work", durable=True)
    assert setup.states("setup") == {"queue": "asked", "policy": "asked"}
    ((level, text),) = setup.said()
    assert level == "WARN"
    assert "Policy 'theirs' governs it" in text
    assert "add dead-letter-exchange and dead-letter-routing-key to that policy" in text


def test_check_names_a_queue_whose_consumers_requeue_what_fails(setup: Setup, managed_rabbitmq: RabbitMQ) -> None:
    with managed_rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.queue_declare("work", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "work", b"one")

        def is_named() -> bool:
            """RabbitMQ computes its rates from samples of several seconds."""
            until = time.monotonic() + 2
            while time.monotonic() < until:
                message, _, _ = channel.basic_get("work")
                if message is not None:
                    channel.basic_nack(message.delivery_tag, requeue=True)
            return any(level == "WARN" and "redelivers" in text for level, text in setup.said())

        wait_for(is_named, "a warning", 60)
        assert list(map(str, redelivery_troubles(setup.settings()))) == ["rabbitmq consumers of again"], (
            "what a bridge reports"
        )
