"""``postdate run`` from outside: what it waits for, what it refuses, how it stops, and its workers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import psutil
import pytest
import redis

from tests.bridge_process import RUN, Bridge
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import free_ports, wait_for

pytestmark = [pytest.mark.redis, pytest.mark.rabbitmq]

BODY = b"the body of a message"


class Stage:
    """A bridge on a broker and a store, and the consumers' exchange and queue."""

    def __init__(self, broker_url: str, store_url: str, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.settings: dict[str, Any] = {
            "redis": {"url": store_url, "key_prefix": name, "durability": "none"},
            "rabbitmq": {"url": broker_url},
            "dispatch": {"lease": "3s", "takeover": "2s"},
            "log": {"format": "json"},
            "routes": {"orders": {"intercept": f"{name}.delay", "deliver_to": name, "queue": f"{name}.intake"}},
        }
        self.store = redis.Redis.from_url(store_url)
        self.connection = pika.BlockingConnection(pika.URLParameters(broker_url))
        self.channel = self.connection.channel()
        self.channel.exchange_declare(name, "fanout")
        self.channel.queue_declare(f"{name}.consumers")
        self.channel.queue_bind(f"{name}.consumers", name)

    def bridge(self, *more: str) -> Bridge:
        return Bridge(self.folder, self.settings, (*RUN, *more), new_interpreter=True)

    def publish(self, delay_ms: int) -> None:
        self.channel.basic_publish(
            f"{self.name}.delay", "k", BODY, pika.BasicProperties(headers={"x-delay": delay_ms}, delivery_mode=2)
        )

    def delivered(self) -> bytes:
        """The next message; it must come."""
        for method, _, body in self.channel.consume(f"{self.name}.consumers", auto_ack=True, inactivity_timeout=10):
            assert method is not None, "nothing was delivered"
            self.channel.cancel()
            found: bytes = body
            return found
        raise AssertionError

    def instances(self) -> dict[int, dict[str, Any]]:
        """The processes that say that they are there, by pid, and what they say."""
        rows: Any = self.store.hgetall(f"{{{self.name}}}:health")
        return {int(name.decode().split("-")[-2]): json.loads(said[1:]) for name, said in rows.items()}

    def ready(self, count: int) -> set[int]:
        """Until so many processes drain all shards between them; their pids."""

        def are_there() -> bool:
            found = self.instances().values()
            return len(found) == count and sum(len(report["shards"]) for report in found) == 8

        wait_for(are_there, f"{count} instances are there", 20)
        return set(self.instances())

    def close(self) -> None:
        channel = self.connection.channel()
        for queue in (f"{self.name}.consumers", f"{self.name}.intake"):
            channel.queue_delete(queue)
        for exchange in (self.name, f"{self.name}.delay"):
            channel.exchange_delete(exchange)
        self.connection.close()
        self.store.close()


@pytest.fixture
def stage(rabbitmq: RabbitMQ, redis_url: str, key_prefix: str, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(rabbitmq.url, redis_url, key_prefix.rstrip(":"), tmp_path)
    yield stage
    stage.close()


def events(bridge: Bridge) -> list[dict[str, Any]]:
    """Its log, line by line; every line must be JSON."""
    return [json.loads(line) for line in bridge.log().splitlines()]


class TestOneProcess:
    def test_it_delivers_and_a_signal_ends_it_with_0(self, stage: Stage) -> None:
        with stage.bridge().start() as bridge:
            stage.ready(1)
            stage.publish(50)
            assert stage.delivered() == BODY
            assert bridge.terminate() == 0
        assert stage.instances() == {}

    def test_its_log_is_a_line_an_event_without_bodies_and_credentials(self, stage: Stage) -> None:
        with stage.bridge().start() as bridge:
            stage.ready(1)
            stage.publish(1)
            stage.delivered()
            bridge.signal(signal.SIGINT)
            assert bridge.wait_end() == 0
        log = bridge.log()
        assert [event["event"] for event in events(bridge)][-1] == "stopped"
        assert BODY.decode() not in log
        assert "guest:guest" not in log

    @pytest.mark.long
    def test_a_signal_ends_it_while_it_is_still_connecting(self, stage: Stage) -> None:
        for place in range(5):
            with Bridge(stage.folder, stage.settings, RUN, f"early{place}", True).start() as bridge:
                bridge.wait_log('"started"')
                assert bridge.terminate(15) == 0

    def test_it_waits_for_a_store_that_is_not_there_and_says_so_once(self, stage: Stage) -> None:
        stage.settings["redis"]["url"] = f"redis://127.0.0.1:{free_ports(1)[0]}/0"
        with stage.bridge().start() as bridge:
            bridge.wait_log('"waiting"')
            time.sleep(0.5)  # several attempts, of which nothing may be said
            assert [event["event"] for event in events(bridge)] == ["starting", "waiting"]
            assert bridge.terminate() == 0

    def test_it_waits_for_a_broker_that_is_not_there(self, stage: Stage) -> None:
        stage.settings["rabbitmq"]["url"] = f"amqp://guest:guest@127.0.0.1:{free_ports(1)[0]}/%2F"
        with stage.bridge().start() as bridge:
            bridge.wait_log("RabbitMQ does not answer")
            assert bridge.running()
            assert bridge.terminate() == 0

    @pytest.mark.parametrize("workers", ["1", "2"])
    def test_another_topology_ends_it_at_once_with_5_and_one_sentence(self, stage: Stage, workers: str) -> None:
        stage.channel.queue_declare(f"{stage.name}.intake", durable=True)
        with stage.bridge("--workers", workers).start() as bridge:
            assert bridge.wait_end() == 5
        (last,) = [event for event in events(bridge) if event["level"] == "critical"]
        assert f"queue '{stage.name}.intake'" in last["because"]
        assert "Traceback" not in bridge.log()

    def test_an_unfit_store_ends_it_at_once_with_1(self, stage: Stage) -> None:
        stage.store.hset(f"{{{stage.name}}}:store", mapping={"format": 1, "shards": 3})
        with stage.bridge().start() as bridge:
            assert bridge.wait_end() == 1
        assert "redis.shards = 3" in events(bridge)[-1]["because"]

    def test_without_setup_nothing_is_declared(self, stage: Stage) -> None:
        with stage.bridge("--no-setup").start() as bridge:
            bridge.wait_log('"started"')
            assert bridge.terminate() == 0
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no exchange"):
            stage.connection.channel().exchange_declare(f"{stage.name}.delay", passive=True)


class TestWorkers:
    def test_they_share_the_shards_and_a_signal_ends_all_with_0(self, stage: Stage) -> None:
        with stage.bridge("--workers", "2").start() as bridge:
            pids = stage.ready(2)
            stage.publish(50)
            assert stage.delivered() == BODY
            assert bridge.terminate() == 0
        assert not any(map(psutil.pid_exists, pids))
        assert stage.instances() == {}

    def test_a_killed_one_is_started_anew(self, stage: Stage) -> None:
        with stage.bridge("--workers", "2").start() as bridge:
            before = stage.ready(2)
            os.kill(min(before), signal.SIGKILL)
            wait_for(lambda: len(set(stage.instances()) - before) == 1, "there is a new worker", 20)
            stage.publish(50)
            assert stage.delivered() == BODY
            assert bridge.terminate() == 0
        assert [event["how"] for event in events(bridge) if event["event"] == "a worker died"] == ["signal SIGKILL"]

    def test_when_their_parent_is_killed_they_stop_in_good_order_and_are_missed(self, stage: Stage) -> None:
        with stage.bridge("--workers", "2").start() as bridge:
            pids = stage.ready(2)
            bridge.kill()
        wait_for(lambda: not any(map(psutil.pid_exists, pids)), "no worker is left", 20)
        # The second one counts the first as lost where it needs longer to stop.
        lost = int(stage.store.hget(f"{{{stage.name}}}:store", "instances_lost") or 0)
        assert len(stage.instances()) + lost == 2, "no operator stopped them"
        assert bridge.log().count('"stopped"') == 2
        with stage.bridge().start():
            wait_for(lambda: len(stage.instances()) == 1, "they count as lost", 20)
            assert stage.store.hget(f"{{{stage.name}}}:store", "instances_lost") == b"2"
