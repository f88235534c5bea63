"""Passwords that change in their files while messages pass: nothing is lost, and nothing is restarted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis

from tests.bridge_line import BridgeLine
from tests.bridge_process import Bridge
from tests.chaos.ledger import Ledger
from tests.chaos.recovery import settled
from tests.delay_line import Line
from tests.devstack.fixtures import StartRedis
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

OLD, NEW = "correct horse; battery staple", "Tr0ub4dor&3 / @"
#: Messages in flight when connections end: each may come twice.
IN_FLIGHT = 200


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text(f"{OLD}\n")
    return file


@pytest.fixture(params=["redis", "rabbitmq"])
def secured(
    request: pytest.FixtureRequest, rabbitmq: RabbitMQ, start_redis: StartRedis, secret: Path, tmp_path: Path
) -> Iterator[tuple[Line, str]]:
    """A line whose Redis or RabbitMQ wants the password in ``secret``, and which of them."""
    which, window = request.param, {"prefetch": IN_FLIGHT, "window": IN_FLIGHT}
    store = start_redis()
    if which == "redis":
        store.command("ACL", "SETUSER", "postdate", "on", f">{OLD}", "~*", "&*", "+@all")
        login = {"username": "postdate", "password_file": str(secret), "timeout": "1s"}
        line = Line(rabbitmq.url, store.url, tmp_path, {"redis": login, "rabbitmq": window})
        with line:
            yield line, which
    else:
        with rabbitmq.user("postdate", OLD) as url:
            line = Line(rabbitmq.url, store.url, tmp_path, {"rabbitmq": window})
            with line:
                line.settings["rabbitmq"] |= {"url": url, "password_file": str(secret)}
                yield line, which


def change(line: BridgeLine, which: str, rabbitmq: RabbitMQ, secret: Path, old: str, new: str) -> None:
    """Change the password there, then in the file, and end every connection: a mistake of order heals by itself."""
    if which == "redis":
        with redis.Redis.from_url(line.store_url) as client:
            client.execute_command("ACL", "SETUSER", "postdate", f"<{old}", f">{new}")
            client.execute_command("CLIENT", "KILL", "USER", "postdate")
    else:
        rabbitmq.ctl("change_password", "postdate", new)
        rabbitmq.ctl("close_all_user_connections", "postdate", "the test closes it")
    secret.write_text(f"{new}\n")


def went_on(bridge: Bridge, pid: int) -> bool:
    return bridge.running() and bridge.pid == pid


def test_a_password_that_changes_under_traffic_loses_nothing_and_needs_no_restart(
    secured: tuple[Line, str], rabbitmq: RabbitMQ, secret: Path
) -> None:
    line, which = secured
    with Ledger(rabbitmq.url, line.front, line.queue) as ledger:
        bridge = line.bridge().start().wait_ready()
        pid = bridge.pid
        ledger.produce(100, (0, 1000), 500)
        ledger.wait_arrivals(100)
        change(line, which, rabbitmq, secret, OLD, NEW)
        wait_for(lambda: ledger.confirmed() >= 500, "all is published", 40)
        settled(line, ledger, 30).assert_kept(copies_max=3 * IN_FLIGHT)
        wait_for(bridge.is_ready, "all is well again")
        assert went_on(bridge, pid)


@pytest.mark.long
def test_passwords_that_change_again_and_again_at_500_a_second_lose_nothing(
    secured: tuple[Line, str], rabbitmq: RabbitMQ, secret: Path
) -> None:
    line, which = secured
    with Ledger(rabbitmq.url, line.front, line.queue) as ledger:
        bridge = line.bridge().start().wait_ready()
        pid = bridge.pid
        ledger.produce(500, (0, 3000))
        passwords = [OLD, *(f"{NEW} {number}" for number in range(5))]
        for old, new in pairwise(passwords):
            ledger.wait_arrivals(1500, 40)
            change(line, which, rabbitmq, secret, old, new)
        ledger.wait_arrivals(2000, 40)
        ledger.stop_producing()
        settled(line, ledger, 60).assert_kept(copies_max=5 * 3 * IN_FLIGHT)
        assert went_on(bridge, pid)
