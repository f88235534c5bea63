"""``postdate check`` names the policies that reach postdate's queues, where RabbitMQ's management API answers."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adapters.rabbitmq.declarations import Queue
from adapters.rabbitmq.management import Governed
from adapters.rabbitmq.topology.declaring import declare
from adapters.rabbitmq.topology.findings import Effect, Harm
from adapters.rabbitmq.topology.policies import harms_of
from bridge.cli.commands import app
from bridge.settings import load
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports, wait_for

INTAKE = Queue("postdate.orders", {"x-queue-type": "quorum"})
LEVEL = Queue("level", {"x-queue-type": "quorum", "x-message-ttl": 60_000, "x-dead-letter-exchange": "due"})


def harms(queue: Queue, rules: Mapping[str, Any], **arguments: str) -> list[Harm]:
    return list(harms_of(queue, Governed({**queue.arguments, **arguments}, "users", "", rules)))


@pytest.mark.parametrize(
    ("queue", "rules", "harm"),
    [
        (INTAKE, {"message-ttl": 60000}, Harm("message-ttl", 60000, Effect.DELETES)),
        (LEVEL, {"message-ttl": 5000}, Harm("message-ttl", 5000, Effect.SENDS_EARLY)),
        (INTAKE, {"expires": 3_600_000}, Harm("expires", 3_600_000, Effect.DELETES_QUEUE)),
        (INTAKE, {"max-length": 5}, Harm("max-length", 5, Effect.DROPS_OLDEST)),
        (LEVEL, {"max-length-bytes": 5}, Harm("max-length-bytes", 5, Effect.SENDS_OLDEST_EARLY)),
        (INTAKE, {"max-length": 5, "overflow": "reject-publish"}, Harm("max-length", 5, Effect.REFUSES)),
    ],
)
def test_each_harm_has_its_effect_on_messages(queue: Queue, rules: dict[str, Any], harm: Harm) -> None:
    assert harms(queue, rules) == [harm]


def test_a_time_to_live_as_long_as_that_of_a_level_does_no_harm() -> None:
    assert harms(LEVEL, {"message-ttl": 60_000, "ha-mode": "all", "overflow": "drop-head"}) == []


def test_a_policy_overrules_the_argument_of_a_quorum_queue_and_not_that_of_a_classic_one() -> None:
    rules = {"max-length": 5, "overflow": "drop-head"}
    classic = Queue("postdate.orders", {"x-queue-type": "classic"})
    assert harms(INTAKE, rules, **{"x-overflow": "reject-publish"})[0].effect is Effect.DROPS_OLDEST
    assert harms(classic, rules, **{"x-overflow": "reject-publish"})[0].effect is Effect.REFUSES


class Check:
    """``postdate check`` with the settings of one route."""

    def __init__(self, broker: RabbitMQ, redis_url: str, folder: Path) -> None:
        self.broker = broker
        self._file = folder / "postdate.toml"
        self._redis = redis_url
        self.api = broker.management_url
        self.more = ""

    def warnings(self) -> list[str]:
        """Return its warnings about the route and about policies."""
        self._file.write_text(
            f'[redis]\nurl = "{self._redis}"\ndurability = "none"\n'
            f'[rabbitmq]\nurl = "{self.broker.url}"\nmanagement_url = "{self.api}"\n'
            f'[routes.orders]\nintercept = "orders.delay"\ndeliver_to = "orders"\n{self.more}'
        )
        done = CliRunner().invoke(app, ["check", "--config", str(self._file), "-o", "json"])
        assert done.exit_code == 0, done.output
        rows = json.loads(done.stdout)
        return [
            row["text"] for row in rows if row["level"] == "WARN" and row["subject"] in ("route orders", "policies")
        ]

    def declare(self) -> None:
        self.warnings()
        declare(load(self._file, {}))

    def policy(self, definition: dict[str, object], operator: bool = False) -> None:
        kind = "set_operator_policy" if operator else "set_policy"
        self.broker.ctl(kind, "users", "^postdate", json.dumps(definition), "--apply-to", "queues")


@pytest.fixture
def check(managed_rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    for name in [name for name in os.environ if name.startswith("POSTDATE_")]:
        monkeypatch.delenv(name)
    managed_rabbitmq.wipe()
    with managed_rabbitmq.connect() as connection:
        connection.channel().exchange_declare("orders", durable=True)
    return Check(managed_rabbitmq, redis_url, tmp_path)


pytestmark = pytest.mark.rabbitmq


@pytest.mark.long
class TestCheck:
    def test_check_names_a_policy_with_a_time_to_live_and_its_command_ends_the_harm(self, check: Check) -> None:
        check.policy({"message-ttl": 60_000, "max-length": 5})
        check.declare()
        # RabbitMQ publishes the effective policy with a queue's statistics, every five seconds.
        wait_for(lambda: len(check.warnings()) == 2, "both are named")
        ttl, length = check.warnings()
        assert ttl.startswith(
            "policy 'users' gives 'postdate.orders' message-ttl 60000: RabbitMQ deletes confirmed messages after 1m"
        )
        assert length.startswith(
            "policy 'users' gives 'postdate.orders' max-length 5: RabbitMQ refuses further messages"
        )
        check.broker.ctl(*shlex.split(ttl.split("`")[1])[1:])
        wait_for(lambda: check.warnings() == [], "nothing is left to warn of")

    def test_check_says_that_no_policy_overrules_an_operator_policy(self, check: Check) -> None:
        check.policy({"expires": 3_600_000}, operator=True)
        check.declare()
        wait_for(lambda: len(check.warnings()) == 1, "it is named")
        assert re.search(r"operator policy 'users' gives .* narrow the pattern of operator policy", check.warnings()[0])

    def test_an_api_that_does_not_answer_is_a_warning_only_where_it_was_named(self, check: Check) -> None:
        check.declare()
        check.api = f"http://127.0.0.1:{free_ports(1)[0]}"
        (warning,) = check.warnings()
        assert warning.startswith(
            "the broker's policies could not be read: the management API does not answer at 127.0.0.1"
        )
        for silent in ("", "off"):
            check.api = silent
            assert check.warnings() == []
