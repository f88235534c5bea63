"""`postdate migrate plugin` moves exchanges under traffic: nothing is lost, nothing is early, kills change nothing.

With the real plugin where ``POSTDATE_TEST_DELAYED_PLUGIN`` names it, else with the stand-in of ``tests/devstack``.
"""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from adapters.rabbitmq.declarations import Exchange
from adapters.rabbitmq.migration import apply
from adapters.rabbitmq.migration.move_plan import PluginMove, names_of
from bridge.desk.migration import Means
from bridge.settings import load
from tests.bridge_process import Bridge, Tables
from tests.chaos.plugin_traffic import BINDINGS, PLUGIN, PluginTraffic, kind_name
from tests.delay_line import blocking
from tests.devstack.delayed_plugin import find_plugin, is_real
from tests.devstack.fixtures import need
from tests.devstack.rabbitmq import RabbitMQ, launch
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.long, pytest.mark.timeout(400)]

OpenTraffic = Callable[..., PluginTraffic]

OLDS = [kind_name(kind) for kind in BINDINGS]


@pytest.fixture
def broker() -> Iterator[RabbitMQ]:
    with need(lambda: launch(management=True, plugin=find_plugin())) as server:
        print("plugin:", "the real one" if is_real() else "the stand-in")
        yield server


class Moving:
    """The settings, the bridge and the command for one broker."""

    def __init__(self, broker: RabbitMQ, redis_url: str, prefix: str, folder: Path) -> None:
        routes = {
            name.replace(".", "_"): {
                "broker": "rabbitmq",
                "intercept": names_of(name).front,
                "deliver_to": names_of(name).target,
            }
            for name in OLDS
        }
        settings: Tables = {
            "redis": {"url": redis_url, "key_prefix": prefix},
            "rabbitmq": {"url": broker.url, "management_url": broker.management_url},
            "log": {"format": "text"},
            "routes": routes,
        }
        self.bridge = Bridge(folder, settings)
        self.broker = broker

    @property
    def settings(self) -> Any:
        return load(self.bridge.settings_file, {})

    @property
    def tool(self) -> str:
        """A rabbitmqctl for this broker, as an operator has one."""
        runner: Any = self.broker._runner
        env = [f"{name}={value}" for name, value in runner._launch.env.items()]
        return shlex.join(["env", *env, self.broker._ctl, "-q"])

    def command(self, *more: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "bridge.cli", "migrate", "plugin", "--config", str(self.bridge.settings_file)]
        pipe = subprocess.PIPE
        return subprocess.Popen([*words, "-o", "json", *more], stdout=pipe, stderr=pipe, text=True)

    def run(self, *more: str) -> tuple[int, list[dict[str, Any]]]:
        ran = self.command(*more)
        out, err = ran.communicate(timeout=120)
        print(err)
        return ran.returncode, json.loads(out) if out.strip() else []


@pytest.fixture
def moving(broker: RabbitMQ, redis_server: Redis, key_prefix: str, tmp_path: Path) -> Iterator[Moving]:
    moving = Moving(broker, redis_server.url, key_prefix, tmp_path)
    with moving.bridge:
        yield moving


@pytest.fixture
def open_traffic(broker: RabbitMQ) -> Iterator[OpenTraffic]:
    with ExitStack() as opened:
        yield lambda *types: opened.enter_context(PluginTraffic(broker.url, types or tuple(BINDINGS)))


def exchange_types(moving: Moving) -> dict[str, str]:
    lines = moving.broker.ctl("list_exchanges", "name", "type", "--no-table-headers").splitlines()
    return dict(line.split("\t") for line in lines)


def finish(moving: Moving, deadline_s: float = 60) -> None:
    """Run the command until nothing is left of the plugin."""
    until = time.monotonic() + deadline_s
    while PLUGIN in exchange_types(moving).values() and time.monotonic() < until:
        assert moving.run("--apply", "--rabbitmqctl", moving.tool)[0] == 0
        time.sleep(1)
    assert PLUGIN not in exchange_types(moving).values()


def test_ten_thousand_waiting_messages_move_under_traffic_with_kills(moving: Moving, open_traffic: OpenTraffic) -> None:
    traffic, seeded = open_traffic(), Random(3)
    traffic.fill(2500, (15, 50))
    traffic.produce(500, (0.05, 20))
    code, found = moving.run("--apply", "--rabbitmqctl", moving.tool)
    assert code == 1  # the route is the operator's step
    assert sum(exchange["waiting"] for exchange in found) > 9000
    moving.bridge.start().wait_ready()
    kills = 0
    for _ in range(8):
        ran = moving.command("--apply", "--rabbitmqctl", moving.tool)
        time.sleep(seeded.uniform(0.8, 4.0))
        if ran.poll() is None:
            ran.send_signal(signal.SIGKILL)
            kills += 1
        ran.communicate()
    code, found = moving.run("--apply", "--rabbitmqctl", moving.tool)
    print(
        "kills:", kills, "waiting after the move:", [(exchange["exchange"], exchange["waiting"]) for exchange in found]
    )
    assert code == 0
    types = exchange_types(moving)
    assert {name: types[name] for name in OLDS} == {kind_name(kind): kind for kind in BINDINGS}
    time.sleep(5)
    traffic.stop_producing()
    book = traffic.settle(90)
    finish(moving)
    assert not book.lost
    assert not book.early
    assert book.copies == 0


def test_an_exchange_that_a_kill_left_missing_is_declared_by_the_next_run(
    moving: Moving, open_traffic: OpenTraffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = open_traffic()
    traffic.fill(250, (1, 8))
    traffic.produce(500, (0.05, 5))
    moving.run("--apply")
    moving.bridge.start().wait_ready()

    def killed(broker: apply.MigratingBroker, move: PluginMove) -> float:
        broker.delete(Exchange(move.names.old))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(apply.MigratingBroker, "replace", killed)
        for name in OLDS:
            with pytest.raises(KeyboardInterrupt):
                apply.advance(moving.settings, name, Means(moving.tool), print)
    assert not set(OLDS) & set(exchange_types(moving))
    time.sleep(2)
    assert moving.run("--apply", "--rabbitmqctl", moving.tool)[0] == 0
    time.sleep(2)
    traffic.stop_producing()
    book = traffic.settle(30)
    finish(moving)
    assert not book.lost
    assert not book.early
    assert book.copies == 0
    assert book.closed  # the producers were refused meanwhile


def test_without_rabbitmqctl_only_a_paused_and_empty_exchange_is_replaced(
    moving: Moving, open_traffic: OpenTraffic
) -> None:
    traffic = open_traffic("topic")
    traffic.fill(50, (30, 31))
    moving.run("--apply")
    moving.bridge.start().wait_ready()
    assert moving.run("--apply")[0] == 5
    assert moving.run("--apply", "--paused")[0] == 5
    assert exchange_types(moving)["moved.topic"] == PLUGIN
    wait_for(lambda: not traffic.book.lost, "all messages that waited have arrived", 40)
    assert moving.run("--apply", "--paused")[0] == 0
    assert exchange_types(moving)["moved.topic"] == "topic"
    traffic.fill(50, (0.2, 1))
    book = traffic.settle(10)
    assert (book.lost, book.early, book.copies) == ([], [], 0)


def test_what_would_be_lost_is_refused_with_its_reason(moving: Moving) -> None:
    with blocking(moving.broker.url) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", PLUGIN, durable=True, arguments={"x-delayed-type": "direct"})
        channel.exchange_declare("events", "topic", durable=True)
        channel.exchange_bind("orders", "events", "#")
        channel.queue_declare("failing", arguments={"x-dead-letter-exchange": "orders"})
        mine = channel.queue_declare("", exclusive=True).method.queue
        channel.queue_bind(mine, "orders", "a")
        code, found = moving.run("--exchange", "orders")
        assert code == 5
        assert "exclusive" in str(found)
        channel.queue_unbind(mine, "orders", "a")
        found = moving.run("--exchange", "orders", "--rabbitmqctl", "rabbitmqctl")[1]
        assert "exchange 'events' is bound to it" in str(found)
        assert "queue 'failing' dead-letters to it" in str(found)
    assert moving.run("--exchange", "other")[0] == 3


def test_a_tool_that_reaches_another_broker_replaces_nothing(moving: Moving, open_traffic: OpenTraffic) -> None:
    open_traffic("direct")
    moving.run("--apply")
    moving.bridge.start().wait_ready()
    assert moving.run("--apply", "--rabbitmqctl", "false")[0] == 4
    assert moving.run("--apply", "--rabbitmqctl", "echo {refused,unknown_plugin}")[0] == 5
    assert moving.run("--apply", "--rabbitmqctl", "no-such-command-here")[0] == 2
    assert exchange_types(moving)["moved.direct"] == PLUGIN
