"""An intake that takes no messages in is named by the log, /readyz, `check` and `doctor`; also without the management
API. AMQP tells nothing by itself: the consumer stays attached, and a passive declaration is answered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from adapters.rabbitmq import probes, stale_levels
from tests.bridge_process import shortened
from tests.delay_line import Line, blocking, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.rabbitmq_cluster import RabbitCluster
from tests.devstack.redis import Redis
from tests.devstack.service import free_ports, wait_for
from tests.level_line import LevelLine
from tests.raw_amqp import RawConnection
from tests.unit.raw_properties import Props
from tests.verdicts import answers, has

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.timeout(400)]

#: The probe comes every 20 s and asks twice, 3 s apart. Here it is quicker, so that a test need not wait for it.
QUICK_WAITS = ("adapters.rabbitmq.probes._EVERY_S=1", "adapters.rabbitmq.probes._AGAIN_S=0.5")
QUICK = shortened(*QUICK_WAITS)
#: It waits 10 s for an answer.
ANSWER_S = 4.0
IMPATIENT = shortened(*QUICK_WAITS, f"adapters.rabbitmq.probes._ANSWER_S={ANSWER_S}")
NOTICED_S = 150.0
PERSISTENT = {"delivery_mode": b"\2"}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`check` looks at an intake for 2 s before it says that nothing is taken from it."""
    monkeypatch.setattr(stale_levels, "_LOOK_S", 0.05)


def readiness(port: int) -> tuple[int, str]:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/readyz?verbose", timeout=5)
    except httpx.HTTPError:
        return 0, ""
    return answer.status_code, answer.text


class Blocker:
    """The active consumer of an intake, which takes one message and no more. Ready messages count for a limit."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._connection = RawConnection(line.broker_url)
        self._connection.consume(line.intake, prefetch=1)
        self.publish(b"held")
        assert len(self._connection.events(10)) == 1

    def publish(self, body: bytes) -> None:
        self._line.publish(Props([delay(0)], PERSISTENT), body)

    def leave(self) -> None:
        self._connection.close()


class Watched:
    """A line whose bridge serves /readyz."""

    def __init__(self, line: Line, command: Sequence[str] = QUICK) -> None:
        (self.port,) = free_ports(1)
        self.line = line
        self.settings = {"http": {"enabled": True, "listen": f"127.0.0.1:{self.port}"}, "canary": {"enabled": False}}
        self.bridge = line.bridge(self.settings, command).start()
        wait_for(lambda: readiness(self.port)[0] == 200, "the bridge is ready", 60)

    def wait_unready(self, words: str) -> None:
        def says_so() -> bool:
            code, text = readiness(self.port)
            return code == 503 and words in text

        wait_for(says_so, f"/readyz says: {words}", NOTICED_S)

    def wait_ready(self) -> None:
        wait_for(lambda: readiness(self.port)[0] == 200, "it is ready again", NOTICED_S)


def limited(broker: RabbitMQ, line: Line) -> AbstractContextManager[None]:
    return broker.policy(line.name, f"^{line.intake}$", {"max-length": 0, "overflow": "reject-publish"})


@pytest.mark.parametrize("mode", ["redis", "levels"])
def test_an_intake_at_its_limit_is_named_without_the_management_api(
    own_rabbitmq: RabbitMQ,
    redis_server: Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    url = own_rabbitmq.url
    with Line(url, redis_server.url, tmp_path) if mode == "redis" else LevelLine(url, tmp_path) as line:
        blocker = Blocker(line)
        watched = Watched(line)
        blocker.publish(b"waits")
        with limited(own_rabbitmq, line):
            watched.wait_unready(f"the queue {line.intake} refuses messages")
            watched.bridge.wait_log(f"the queue {line.intake} refuses messages")
            if mode == "redis":
                for command in ("check", "doctor"):
                    words, file = f"the queue {line.intake} refuses messages", line.file(watched.settings)

                    def named(command: str = command, file: Path = file, words: str = words) -> bool:
                        found = answers(command, file, capsys)
                        level = "WARN" if command == "check" else "FAIL"
                        return has(found[level], words) and has(found["OK"], "queues at a length limit, are not known")

                    wait_for(named, f"{command} names it", 30)  # an instance reports to the store once a second
        blocker.leave()
        watched.wait_ready()
        line.close_connections()  # RabbitMQ goes on refusing what comes over this one
        line.publish(Props([delay(50)], PERSISTENT), b"goes on")
        assert {message.body for message in line.receive(3, 30)} == {b"held", b"waits", b"goes on"}
        wait_for(lambda: line.depth(line.intake) == 0, "no probe stays")


def test_an_intake_at_its_limit_is_a_failure_by_the_management_api(
    managed_rabbitmq: RabbitMQ, redis_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"rabbitmq": {"management_url": managed_rabbitmq.management_url}}
    with Line(managed_rabbitmq.url, redis_url, tmp_path, settings) as line:
        line.publish(Props([delay(0)], PERSISTENT), b"waits")
        words = f"the queue {line.intake} refuses messages, and producers without confirms lose them: it holds 1"
        with limited(managed_rabbitmq, line):
            wait_for(lambda: has(answers("check", line.file(), capsys)["FAIL"], words), "check fails", 30)
            assert has(answers("doctor", line.file(), capsys)["FAIL"], words)
        wait_for(lambda: not answers("check", line.file(), capsys)["FAIL"], "all is well again", NOTICED_S)


@pytest.mark.long
@pytest.mark.parametrize("rabbitmq_cluster", [2], indirect=True, ids=["of two"])
def test_an_intake_whose_majority_of_nodes_is_gone_is_named_and_well_again_when_they_are_back(
    rabbitmq_cluster: RabbitCluster,
    redis_server: Redis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "_ANSWER_S", ANSWER_S)
    first, last = rabbitmq_cluster.nodes
    with Line(last.url, redis_server.url, tmp_path) as line:
        watched = Watched(line, IMPATIENT)
        assert answers("check", line.file(watched.settings), capsys)["FAIL"] == []
        first.kill()  # one of two is no majority
        words = f"the queue {line.intake} takes no messages in"
        watched.wait_unready(words)
        watched.bridge.wait_log(words)
        assert has(answers("check", line.file(watched.settings), capsys)["FAIL"], words)
        assert has(answers("doctor", line.file(watched.settings), capsys)["FAIL"], words)
        first.start()
        watched.wait_ready()
        line.publish(Props([delay(50)], PERSISTENT), b"goes on")
        assert line.receive(1, 60)[0].body == b"goes on"


def member(broker: RabbitMQ, queue: str, action: str) -> None:
    """Stop or restart the only member of a quorum queue. Its process is what a message that it cannot handle kills."""
    resource = f'rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)'
    broker.evaluate(f"{{ok, Q}} = rabbit_amqqueue:lookup({resource}), ra:{action}(quorum_queues, amqqueue:get_pid(Q))")


def test_a_crashed_intake_is_named_whether_or_not_postdate_runs(
    own_rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Line(own_rabbitmq.url, redis_server.url, tmp_path) as line:
        member(own_rabbitmq, line.intake, "stop_server")
        words = f"the queue {line.intake} takes no messages in: it has crashed"
        for command in ("check", "doctor"):
            assert has(answers(command, line.file(), capsys)["FAIL"], words), command
        member(own_rabbitmq, line.intake, "restart_server")
        watched = Watched(line)
        assert answers("check", line.file(watched.settings), capsys)["FAIL"] == []
        member(own_rabbitmq, line.intake, "stop_server")
        watched.wait_unready(f"the queue {line.intake} refuses messages")
        member(own_rabbitmq, line.intake, "restart_server")
        watched.wait_ready()
        line.publish(Props([delay(50)], PERSISTENT), b"goes on")
        assert line.receive(1, 60)[0].body == b"goes on"


def test_a_restart_of_the_broker_is_no_dead_intake(own_rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> None:
    with Line(own_rabbitmq.url, redis_server.url, tmp_path) as line:
        watched = Watched(line)
        own_rabbitmq.remember()
        own_rabbitmq.kill()
        own_rabbitmq.start()
        watched.wait_ready()
        with blocking(line.broker_url):
            pass
        assert "takes no messages in" not in watched.bridge.log_tail()
