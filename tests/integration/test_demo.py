"""`postdate demo` from outside: what it says, how it ends, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.bridge_process import store_client
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports

COMMAND = (sys.executable, "-m", "bridge.cli", "demo")


def environment(redis_url: str, rabbitmq_url: str) -> Mapping[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("POSTDATE_")}
    return {**plain, "POSTDATE_REDIS__URL": redis_url, "POSTDATE_RABBITMQ__URL": rabbitmq_url, "COLUMNS": "200"}


def left_behind(redis_url: str, rabbitmq: RabbitMQ, vhost_url: str, purpose: str = "demo") -> list[str]:
    with store_client(redis_url) as client:
        found = [key.decode() for key in client.scan_iter(match=f"*postdate.{purpose}.*")]
    if rabbitmq.owned:
        for what in ("list_queues", "list_exchanges"):
            listed = rabbitmq.ctl(what, "-p", vhost_url.rpartition("/")[2], "--no-table-headers", "name")
            found += [name for name in listed.split() if name.startswith("postdate.")]
    return found


@pytest.mark.redis
@pytest.mark.rabbitmq
def test_the_demo_says_what_became_of_all_six_messages_and_leaves_nothing(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        COMMAND,
        env=environment(redis_url, rabbitmq_vhost),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = done.stdout.partition("\n\n")[2]
    ends = {line.split("  ")[0]: line for line in summary.splitlines()}
    for number in (1, 2, 3):
        assert f"order {number} (" in ends["delivered"]
        assert "ms late" in ends["delivered"]
    assert "order 4 (at once, past postdate)" in ends["delivered"]
    assert "order 5 (bad_header: header x-delay: 'tomorrow'" in ends["dead letter"]
    assert "order 6 (never delivered)" in ends["cancelled"]
    assert "x-delay" in summary.rpartition("What did it:")[2]
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost) == []


def test_without_servers_the_demo_ends_with_4_and_says_what_to_type(tmp_path: Path) -> None:
    nobody = free_ports(1)[0]
    environ = environment(f"redis://127.0.0.1:{nobody}/0", f"amqp://127.0.0.1:{nobody}/")
    done = subprocess.run(COMMAND, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 4
    assert "does not answer" in done.stderr
    assert "make demo" in done.stderr
    assert "POSTDATE_REDIS__URL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.redis
@pytest.mark.rabbitmq
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_and_no_queue(
    sign: signal.Signals, redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    environ = environment(redis_url, rabbitmq_vhost)
    with subprocess.Popen(
        COMMAND, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert any("parked" in line for line in demo.stdout)
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(sign)
        demo.communicate(timeout=30)
    assert demo.returncode == 130
    assert children
    assert not [child for child in children if child.is_running()]
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost) == []
