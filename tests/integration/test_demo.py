"""`postdate demo` from outside: what it says, how it ends, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from tests.bridge_process import store_client
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports, wait_for

COMMAND = (sys.executable, "-m", "bridge.cli", "demo")
NOBODY = "127.0.0.1:1"


def environment(redis_url: str, rabbitmq_url: str, kafka_url: str = NOBODY) -> Mapping[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("POSTDATE_")}
    servers = {
        "POSTDATE_REDIS__URL": redis_url,
        "POSTDATE_RABBITMQ__URL": rabbitmq_url,
        "POSTDATE_KAFKA__BOOTSTRAP_SERVERS": kafka_url,
    }
    return {**plain, **servers, "COLUMNS": "200"}


def left_behind(redis_url: str, rabbitmq: RabbitMQ, vhost_url: str, purpose: str = "demo") -> list[str]:
    with store_client(redis_url) as client:
        found = [key.decode() for key in client.scan_iter(match=f"*postdate.{purpose}.*")]
    if rabbitmq.owned:
        found += [name for name in rabbitmq.names(vhost_url.rpartition("/")[2]) if name.startswith("postdate.")]
    return found


def left_on_kafka(kafka: Kafka, word: str) -> list[str]:
    """Topics and groups of a run."""
    admin = kafka_admin.client(kafka.url)
    groups = admin.list_consumer_groups(request_timeout=kafka_admin.TIMEOUT_S).result().valid
    names = [*kafka_admin.topics(kafka.url), *(group.group_id for group in groups)]
    return [name for name in names if name.startswith(f"postdate.{word}.")]


def ends_of(printed: str, title: str) -> dict[str, str]:
    """The lines of a broker's summary by their first word."""
    lines = printed.partition(f"\n\n{title}\n")[2].partition("\n\n")[0].splitlines()
    return {line.split("  ")[0]: line for line in lines}


@pytest.mark.redis
@pytest.mark.rabbitmq
@pytest.mark.kafka
def test_the_demo_shows_the_end_of_all_messages_on_both_brokers_and_deletes_everything(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, kafka: Kafka, tmp_path: Path
) -> None:
    done = subprocess.run(
        COMMAND,
        env=environment(redis_url, rabbitmq_vhost, kafka.url),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    for title, noun in (("RabbitMQ", "order"), ("Kafka", "payment")):
        ends = ends_of(done.stdout, title)
        for number in (1, 2, 3):
            assert re.search(rf"{noun} {number} \([\d.]+ ms late\)", ends["delivered"])
        assert f"{noun} 4 (at once)" in ends["delivered"]
        assert f"{noun} 5 (bad_header: header x-delay: 'tomorrow'" in ends["dead letter"]
        assert f"{noun} 6 (never delivered)" in ends["cancelled"]
    assert "x-delay" in done.stdout.rpartition("All it takes;")[2]
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost) == []
    assert left_on_kafka(kafka, "demo") == []


@pytest.mark.long
@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_broker_that_does_not_answer_is_left_out_with_a_message(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        COMMAND,
        env=environment(redis_url, rabbitmq_vhost),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = ["Kafka is left out: no broker of 127.0.0.1:1 answers.", "Starting a bridge."]
    *before, page = done.stderr.splitlines()
    assert before == said
    assert re.fullmatch(r"Page for RabbitMQ: http://127\.0\.0\.1:\d+/", page)
    assert "order 4 (at once)" in ends_of(done.stdout, "RabbitMQ")["delivered"]
    assert "payment" not in done.stdout
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost) == []


@pytest.mark.slow
def test_without_servers_the_demo_ends_with_4_and_says_what_to_type(tmp_path: Path) -> None:
    nobody = free_ports(1)[0]
    environ = environment(f"redis://127.0.0.1:{nobody}/0", f"amqp://127.0.0.1:{nobody}/")
    done = subprocess.run(COMMAND, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 4
    assert "does not answer" in done.stderr
    assert "make demo" in done.stderr
    assert "POSTDATE_REDIS__URL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.redis
@pytest.mark.rabbitmq
@pytest.mark.kafka
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process_no_queue_and_no_topic(
    sign: signal.Signals, redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, kafka: Kafka, tmp_path: Path
) -> None:
    environ = environment(redis_url, rabbitmq_vhost, kafka.url)
    with subprocess.Popen(
        COMMAND, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert any("parked" in line for line in demo.stdout)
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(sign)
        demo.communicate(timeout=60)
    assert demo.returncode == 130
    assert children
    wait_for(lambda: not any(child.is_running() for child in children), "no process is left")
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost) == []
    assert left_on_kafka(kafka, "demo") == []


@pytest.mark.redis
@pytest.mark.rabbitmq
def test_a_demo_that_stays_shows_its_messages_on_its_page_until_it_is_interrupted(
    redis_url: str, rabbitmq: RabbitMQ, rabbitmq_vhost: str, tmp_path: Path
) -> None:
    command = (*COMMAND, "--stay")
    environ = environment(redis_url, rabbitmq_vhost)
    with subprocess.Popen(
        command, env=environ, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stderr is not None
        address = next(line for line in demo.stderr if line.startswith("Page for RabbitMQ")).split()[-1]

        def parked() -> int:
            with urllib.request.urlopen(f"{address}api/v1/status", timeout=5) as answer:
                return int(json.load(answer)["parked"])

        wait_for(lambda: parked() >= 3, "the page shows what waits", 60)
        assert any("until Ctrl-C" in line for line in demo.stderr)
        wait_for(lambda: parked() >= 3, "the trickle is parked")
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=60)
    assert demo.returncode == 0
    assert left_behind(redis_url, rabbitmq, rabbitmq_vhost) == []
