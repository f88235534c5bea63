"""A queue that an application binds to the front exchange takes the undelayed messages away from the consumers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_line import Line
from tests.devstack.rabbitmq import RabbitMQ
from tests.unit.raw_properties import Props
from tests.verdicts import answers, has

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]


@pytest.fixture
def line(managed_rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path) -> Iterator[Line]:
    settings = {"rabbitmq": {"management_url": managed_rabbitmq.management_url}, "http": {"enabled": False}}
    with Line(managed_rabbitmq.url, redis_url, tmp_path, settings) as line:
        yield line


def test_a_foreign_binding_is_a_failure_and_a_trouble_and_names_what_it_takes(
    line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    taker = f"{line.name}.taker"
    line.declare_queue(taker)
    line.bind(taker, line.front, "order.#")
    line.publish(Props([]), b"undelayed")
    assert [message.body for message in line.receive(1, queue=taker)] == [b"undelayed"], "it is taken away"
    words = f"bound to the front exchange '{line.front}': queue '{taker}'"
    for command in ("check", "doctor"):
        assert has(answers(command, line.file(), capsys)["FAIL"], words)
    line.bridge().start().wait_log(words)


def test_the_bindings_of_postdate_itself_are_no_failure(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    line.add_route("levels", mode="levels")
    line.setup()
    found = answers("check", line.file(), capsys)
    assert not has([*found["FAIL"], *found["WARN"]], "bound to the front exchange")


def test_without_the_management_api_check_says_that_bindings_are_not_known(
    rabbitmq_vhost: str, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Line(rabbitmq_vhost, redis_url, tmp_path) as line:
        found = answers("check", line.file({"http": {"enabled": False}}), capsys)
    assert has(found["OK"], "other bindings of front exchanges, and queues at a length limit, are not known")
