"""Routes in files that come and go at SIGHUP, while the others deliver: nothing is lost or early, and none waits.

The long tests have 200 routes in 50 files. Run with ``-s`` to see how late the messages of another route are before
the reloads and during them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.bridge_process import Bridge, Tables, toml
from tests.chaos.accountant import Accountant
from tests.chaos.kafka_ledger import KafkaLedger
from tests.chaos.ledger import Ledger
from tests.delay_line import Line, blocking, delay
from tests.devstack import kafka_admin
from tests.devstack.kafka import Kafka
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.kafka_line import ROUTE, KafkaLine
from tests.unit.raw_properties import Props

FILES = {"include": "routes.d/*.toml"}
ROUTES, ROUTES_A_FILE = 200, 4
#: Messages a second of the route that is measured, their delays, and how long they are watched before each reload and
#: after it.
RATE, DELAYS_MS, WINDOW_S = 200.0, (3000, 6000), 6.0
#: How much later the 99th of a hundred messages may be. A machine that is busy with something else delays everybody, so
#: a good round of these suffices.
P99_MORE_S, ROUNDS = 0.03, 8


class Team:
    """A file with routes, and the reloads of a bridge that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "routes.d"
        self.folder.mkdir(exist_ok=True)

    def write(self, team: str, routes: Tables) -> None:
        """Replace the file of a team."""
        file = self.folder / f"{team}.toml"
        file.write_text(toml({"routes": routes}))
        file.chmod(0o600)

    def reload(self, bridge: Bridge, words: str) -> float:
        """Send SIGHUP, and wait for the log line of the reload; returns how long it took (s)."""
        pid, began, before = bridge.pid, time.monotonic(), len(bridge.log())
        bridge.signal(signal.SIGHUP)
        wait_for(lambda: "reload" in bridge.log()[before:], f"it reloads: {bridge.log_tail()}", 30)
        assert words in bridge.log()[before:], bridge.log_tail()
        assert (bridge.running(), bridge.pid) == (True, pid)
        return time.monotonic() - began


@pytest.fixture
def team(tmp_path: Path) -> Team:
    return Team(tmp_path)


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, team: Team) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, FILES) as made:
        made.declare_exchange(f"{made.name}.bills")
        made.declare_queue(f"{made.name}.bills.consumers")
        made.bind(f"{made.name}.bills.consumers", f"{made.name}.bills")
        made._delete += [("exchange", f"{made.name}.bills.delay"), ("queue", f"{made.name}.bills.intake")]
        yield made


def bills(line: Line, **more: object) -> dict[str, Tables]:
    name = f"{line.name}.bills"
    return {"bills": {"intercept": f"{name}.delay", "deliver_to": name, "queue": f"{name}.intake", **more}}


def publish(line: Line, front: str, bodies: Sequence[bytes], delay_ms: int) -> None:
    for body in bodies:
        line.publish(Props([delay(delay_ms)], {"delivery_mode": b"\2"}), body, b"key", front)


def consumers(line: Line, queue: str) -> int:
    with blocking(line.broker_url) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.consumer_count)


@pytest.mark.rabbitmq
@pytest.mark.redis
@pytest.mark.parametrize("workers", [1, 2])
def test_a_route_comes_and_goes_and_comes_back_while_another_delivers(line: Line, team: Team, workers: int) -> None:
    bridge = line.bridge({"bridge": {"workers": workers}}).start()
    wait_for(lambda: bridge.log().count("] started") == workers, "all workers run")
    front, queue = f"{line.name}.bills.delay", f"{line.name}.bills.consumers"
    intake = f"{line.name}.bills.intake"
    with Ledger(line.broker_url, line.front, line.queue) as ledger:
        ledger.produce(50, (0, 1000))
        ledger.wait_arrivals(20)
        team.write("a", bills(line))
        team.reload(bridge, "routes.bills (new)")
        publish(line, front, [b"first"], 300)
        assert [message.body for message in line.receive(1, queue=queue)] == [b"first"]

        publish(line, front, [b"second"], 5000)
        due_s = time.monotonic() + 5
        wait_for(lambda: line.depth(intake) == 0 and line.waiting() > 0, "it is parked")
        team.write("a", {})
        team.reload(bridge, "routes.bills (removed)")
        wait_for(lambda: consumers(line, intake) == 0, "its intake is let go")
        publish(line, front, [b"third"], 0)
        assert time.monotonic() < due_s, "the machine is too slow: it was due before its route was removed"
        late = line.receive_until(1, due_s + 1 - time.monotonic(), queue)
        assert late == [], "a removed route takes nothing in and delivers nothing"
        wait_for(lambda: line.depth(intake) == 1, "it waits in the intake")
        assert line.dead() == {}

        team.write("a", bills(line))
        team.reload(bridge, "routes.bills (new)")
        assert {message.body for message in line.receive(2, 30, queue)} == {b"second", b"third"}
        ledger.wait_arrivals(20)
        ledger.stop_producing()
        ledger.settle().assert_kept(copies_max=0)


@pytest.mark.rabbitmq
@pytest.mark.redis
def test_what_a_reload_does_not_take_over_is_named_and_changes_nothing(line: Line, team: Team) -> None:
    bridge = line.start()
    team.write("a", bills(line, mode="levels"))
    team.reload(bridge, "needs_restart=routes.bills")
    team.write("a", bills(line))
    with blocking(line.broker_url) as connection:
        connection.channel().queue_declare(f"{line.name}.bills.intake", auto_delete=True)
    team.reload(bridge, f"{line.name}.bills.intake")
    assert "failed, and nothing was changed" in bridge.log()
    line.delete_queue(f"{line.name}.bills.intake")
    team.reload(bridge, "routes.bills (new)")


@pytest.mark.kafka
@pytest.mark.redis
def test_on_kafka_a_route_comes_and_goes_and_comes_back_while_another_delivers(
    kafka: Kafka, redis_server: Redis, tmp_path: Path, team: Team
) -> None:
    line = KafkaLine(kafka.url, tmp_path, FILES, redis_server.url, partitions=2)
    target = kafka_admin.create_topic(kafka.url, 2, name=f"{line.topic}.bills")
    intake = f"{target}.delay"
    routes: Tables = {"bills": {"broker": "kafka", "intercept": intake, "deliver_to": target}}
    try:
        bridge = line.run().wait_ready()
        with KafkaLedger(kafka.url, line.intake, line.topic, 2) as ledger:
            ledger.produce(50, (0, 2000))
            ledger.wait_arrivals(20)
            team.write("a", routes)
            team.reload(bridge, "routes.bills (new)")
            line.produce(b"first", [("x-delay", b"300")], topic=intake)
            assert [came.value for came in line.consume(1, target)] == [b"first"]

            line.produce(b"second", [("x-delay", b"6s")], topic=intake)
            line.produced()
            wait_for(lambda: bridge.report()["by_route"]["bills"]["received"] == 2, "it is taken in")
            team.write("a", {})
            team.reload(bridge, "routes.bills (removed)")
            line.produce(b"third", [], topic=intake)
            line.produced()
            ledger.wait_arrivals(300)  # six seconds of traffic
            assert line._poll(target, 0.5) == [], "a removed route takes nothing in and delivers nothing"

            team.write("a", routes)
            team.reload(bridge, "routes.bills (new)")
            assert {came.value for came in line.consume(2, target)} == {b"second", b"third"}
            ledger.wait_arrivals(20)
            ledger.stop_producing()
            ledger.settle().assert_kept(copies_max=0)
    finally:
        line.close()


def measured(team: Team, bridge: Bridge, ledger: Ledger | KafkaLedger, added: dict[str, Tables]) -> None:
    """Let messages flow, let routes come and go, and compare how late another route's messages are meanwhile.

    In one file a route is added and removed again; another file loses its routes and gets them back.
    """
    (name,), file = added, (team.folder / "49.toml").read_text()
    ledger.produce(RATE, DELAYS_MS)
    time.sleep(DELAYS_MS[1] / 1000)
    slower_s = []
    for _ in range(ROUNDS):
        began_at = time.time()
        time.sleep(WINDOW_S)
        changed_at = time.time()
        team.write("new", added)
        took = [team.reload(bridge, f"{name} (new)")]
        team.write("49", {})
        took.append(team.reload(bridge, "(removed)"))
        time.sleep(max(0.0, changed_at + WINDOW_S - time.time()))
        until = time.time()
        team.write("new", {})
        (team.folder / "49.toml").write_text(file)
        team.reload(bridge, f"{name} (removed)")
        time.sleep(1)  # for the receipts of what was due until now
        before, during = _late(ledger, began_at, changed_at), _late(ledger, changed_at, until)
        print(f"reloads took {', '.join(f'{seconds:.2f} s' for seconds in took)}; late p50, p99, max:", end=" ")
        print(f"before {_figures(before)}; during {_figures(during)}")
        slower_s.append(_percentile(during, 0.99) - _percentile(before, 0.99))
        if slower_s[-1] < P99_MORE_S:
            break
    ledger.stop_producing()
    ledger.settle().assert_kept(copies_max=0)
    assert min(slower_s) < P99_MORE_S


def _late(ledger: Accountant, since: float, until: float) -> list[float]:
    """How late (s) the messages were that were due in this time."""
    first = [receipts[0] for receipts in ledger._receipts.values()]
    return sorted(receipt.at - receipt.due for receipt in first if since <= receipt.due < until)


def _percentile(late: Sequence[float], part: float) -> float:
    return late[int(len(late) * part)]


def _figures(late: Sequence[float]) -> str:
    figures = [_percentile(late, 0.5), _percentile(late, 0.99), late[-1]]
    return f"{', '.join(f'{seconds * 1000:.1f} ms' for seconds in figures)} of {len(late)}"


def write_all(team: Team, routes: dict[str, Tables]) -> None:
    names = list(routes)
    for number in range(ROUTES // ROUTES_A_FILE):
        mine = names[number * ROUTES_A_FILE : (number + 1) * ROUTES_A_FILE]
        team.write(f"{number:02}", {name: routes[name] for name in mine})


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.rabbitmq
@pytest.mark.redis
def test_of_200_routes_on_rabbitmq_one_comes_and_one_goes_and_no_other_waits(
    own_rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, team: Team
) -> None:
    line = Line(own_rabbitmq.url, redis_server.url, tmp_path, {**FILES, "rabbitmq": {"queue_type": "classic"}})
    names = [f"r{number:03}" for number in range(ROUTES + 1)]
    routes: dict[str, Tables] = {
        name: {"intercept": f"{line.name}.{name}.delay", "deliver_to": line.target, "queue": f"{line.name}.{name}"}
        for name in names
    }
    added = {names[-1]: routes.pop(names[-1])}
    write_all(team, routes)
    with line:
        bridge = line.start()
        with Ledger(line.broker_url, line.front, line.queue) as ledger:
            measured(team, bridge, ledger, added)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.kafka
@pytest.mark.redis
def test_of_200_routes_on_kafka_one_comes_and_one_goes_and_no_other_waits(
    kafka: Kafka, redis_server: Redis, tmp_path: Path, team: Team
) -> None:
    line = KafkaLine(kafka.url, tmp_path, FILES, redis_server.url, partitions=1)
    names = [f"r{number:03}" for number in range(ROUTES)]
    routes: dict[str, Tables] = {
        name: {"broker": "kafka", "intercept": f"{line.topic}.{name}.delay", "deliver_to": line.topic} for name in names
    }
    added = {names[-1]: routes.pop(names[-1])}
    routes["more"] = {"broker": "kafka", "intercept": f"{line.topic}.more.delay", "deliver_to": line.topic}
    write_all(team, routes)
    try:
        bridge = line.run()
        bridge.wait_ready(90)
        with KafkaLedger(kafka.url, line.settings["routes"][ROUTE]["intercept"], line.topic, 1) as ledger:
            measured(team, bridge, ledger, added)
    finally:
        line.close()
