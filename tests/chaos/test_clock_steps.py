"""The store's clock steps by an hour while postdate works: a dead instance is replaced in seconds, nothing is lost."""

from __future__ import annotations

import json
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bridge.cli import run_command
from tests.bridge_process import Bridge, store_client
from tests.chaos import victim
from tests.chaos.conftest import OpenLine
from tests.delay_line import Line, delay
from tests.devstack.fixtures import need
from tests.devstack.moved_clock import MovedClock
from tests.devstack.redis import Redis, RedisSentinel, launch_sentinel
from tests.devstack.service import wait_for
from tests.proof.record import record
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis, pytest.mark.timeout(240)]

HOUR_S = 3600.0
#: How long another instance may need to deliver what a dead one would have. It is generous for a busy machine.
SECONDS = 20.0
COUNT = 60
#: What was in flight at a death may come twice.
IN_FLIGHT = COUNT


@pytest.fixture
def moved_redis(moved_clock: MovedClock) -> Iterator[Redis]:
    """A Redis whose clock is ``moved_clock``."""
    with need(lambda: Redis.launch_process(env=moved_clock.env)) as server:
        yield server


def publish(line: Line, first: int, delay_ms: int, count: int = COUNT) -> None:
    """Publish messages with the bodies ``first`` and on, each with a key of its own."""
    for number in range(first, first + count):
        line.publish(Props([delay(delay_ms)], {"delivery_mode": b"\2"}), b"%d" % number, b"key.%d" % number)


def numbers(messages: Sequence[Message]) -> list[int]:
    return sorted(int(message.body) for message in messages)


def due_s(message: Message) -> float:
    """When a message was due, by the store's clock."""
    headers = {entry[1 : 1 + entry[0]]: entry[2 + entry[0] :] for entry in parts(message.properties).headers}
    return int.from_bytes(headers[b"x-delay-due"][-8:]) / 1000


def claimed(line: Line) -> int:
    """How many messages are claimed."""
    with store_client(line.store_url) as client:
        records = [record for shard in range(8) for record in client.hvals(f"{{{line.name}:{shard}}}:claims")]
        return sum((len(record) - 8) // 20 for record in records)


def run(line: Line, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints. One that warns ends with 1, and doctor with 2: a step that delays is a trouble."""
    capsys.readouterr()
    code = run_command([*words, "--config", str(line.file())])
    assert code in ((2,) if words == ("doctor",) else (0, 1))
    return capsys.readouterr().out


def start_two(line: Line, dies: bool) -> list[Bridge]:
    """Two instances that share the shards. One that dies does so right after it claimed messages."""
    command = ("tests.chaos.victim", victim.AFTER_CLAIM, "1") if dies else ("bridge.cli", "run")
    two = [line.bridge().start(), line.bridge(command=command).start()]
    wait_for(
        lambda: all(0 < len(bridge.report().get("shards", [])) < 8 for bridge in two), f"both share: {line.log()}", 40
    )
    return two


@pytest.mark.parametrize("dies", [False, True], ids=["both live", "one dies"])
@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S], ids=["an hour back", "an hour forward"])
def test_after_a_step_of_an_hour_messages_leave_in_seconds_whether_or_not_an_instance_died(
    open_line: OpenLine, moved_redis: Redis, moved_clock: MovedClock, step_s: float, dies: bool
) -> None:
    moved_clock.set(2 * HOUR_S)
    line = open_line(store_url=moved_redis.url)
    two = start_two(line, dies)
    publish(line, 0, 1500)
    if dies:
        assert two[1].wait_end() == -signal.SIGKILL
        assert claimed(line) > 0
    publish(line, COUNT, 60_000)
    moved_clock.set(2 * HOUR_S + step_s)
    stepped = time.monotonic()
    wait_for(lambda: claimed(line) == 0, f"no lease is left of the dead one: {line.log_tails()}", SECONDS)
    print(f"no lease is left after {time.monotonic() - stepped:.1f} s")
    for living in two[: 1 if dies else 2]:  # until then it stamps arrivals by the clock before the step
        living.wait_log("clock stepped", SECONDS)
    publish(line, 2 * COUNT, 500)
    got: list[Message] = []
    while not set(range(2 * COUNT, 3 * COUNT)) <= set(numbers(got)):
        assert time.monotonic() - stepped < 2 * SECONDS, f"{numbers(got)}: {line.log()}"
        got += line.receive_until(1, 0.5)
    print(f"later messages arrived after {time.monotonic() - stepped:.1f} s")
    offset_s = moved_clock.offset_s
    assert min(message.at + offset_s - due_s(message) for message in got if int(message.body) >= 2 * COUNT) > -0.002
    moved_clock.set(3 * HOUR_S)  # what was parked before a step back waits for its moment by the store's clock
    while set(numbers(got)) != set(range(3 * COUNT)):
        more = line.receive_until(1, SECONDS)
        assert more, f"{Counter(n // COUNT for n in numbers(got))}: {line.log()}"
        got += more
    got += line.receive_until(COUNT, 1.0)
    copies = len(got) - 3 * COUNT
    print(f"messages {3 * COUNT}, lost 0, early 0, copies {copies}")
    record(messages=3 * COUNT, lost=0, early=0, copies=copies)
    assert copies <= (IN_FLIGHT if dies else 0)


def test_what_was_parked_while_the_clock_was_ahead_is_counted_listed_and_moved(
    open_line: OpenLine, moved_redis: Redis, moved_clock: MovedClock, capsys: pytest.CaptureFixture[str]
) -> None:
    line = open_line(store_url=moved_redis.url)
    bridge = line.start()
    publish(line, 0, 7_200_000, 5)
    wait_for(lambda: line.waiting() == 5, "the messages before are parked")
    time.sleep(2.5)  # the sentence gives or takes the two seconds in which instances notice a step
    moved_clock.set(HOUR_S)
    bridge.wait_log("the store's clock stepped")
    publish(line, 100, 7_200_000, 30)
    wait_for(lambda: line.waiting() == 35, "the messages meanwhile are parked")
    moved_clock.set(0)
    sentence = "about 30, may wait 1h too long where their delay counts from arrival. Until "
    bridge.wait_log("messages were parked while the store's clock was ahead")
    wait_for(lambda: sentence in run(line, capsys, "stats").replace("\n", " "), "a look later it is noted")
    publish(line, 200, 7_200_000, 5)
    wait_for(lambda: line.waiting() == 40, "the messages after it are parked")
    for command in ("stats", "check", "doctor"):
        text = run(line, capsys, command).replace("\n", " ")
        assert sentence in text, command
    listing = re.search(r"`postdate (list --parked-after \S+ --parked-before \S+)` lists them alone", text)
    assert listing is not None
    rows = [json.loads(row) for row in run(line, capsys, *listing[1].split(), "--all", "-o", "jsonl").splitlines()]
    assert len(rows) == 30
    run(line, capsys, "deliver", *(row["id"] for row in rows))
    assert numbers(line.receive(30)) == list(range(100, 130))
    assert line.waiting() == 10


@pytest.mark.parametrize("behind_s", [-HOUR_S, HOUR_S], ids=["an hour behind", "an hour ahead"])
def test_a_failover_to_a_replica_with_another_clock_keeps_no_dead_instance(
    open_line: OpenLine, tmp_path: Path, behind_s: float
) -> None:
    (tmp_path / "replica").mkdir()
    clocks = [need(lambda: MovedClock(tmp_path)), need(lambda: MovedClock(tmp_path / "replica"))]
    clocks[1].set(behind_s)
    with need(lambda: launch_sentinel(envs=[clock.env for clock in clocks])) as group:
        fail_over(open_line, group, behind_s)


def fail_over(open_line: OpenLine, group: RedisSentinel, offset_s: float) -> None:
    line = open_line({"redis": {"timeout": "1s", "durability": "replicas", "replicas": 1}}, store_url=group.url)
    two = start_two(line, dies=True)
    publish(line, 0, 1500)
    assert two[1].wait_end() == -signal.SIGKILL
    old = group.master
    group.kill_master()
    old.start()  # a new replica, without which nothing is parked
    group.wait_steady()
    wait_for(lambda: claimed(line) == 0, f"no lease is left of the dead one: {line.log_tails()}", 2 * SECONDS)
    publish(line, COUNT, 500)
    got: list[Message] = []
    began = time.monotonic()
    while not set(range(COUNT, 2 * COUNT)) <= set(numbers(got)):
        assert time.monotonic() - began < SECONDS, f"{Counter(n // COUNT for n in numbers(got))}: {line.log()}"
        got += line.receive_until(1, 0.5)
    if group.master is old:  # on a busy machine Sentinel may have changed its mind
        offset_s = 0.0
    late = [message.at + offset_s - due_s(message) for message in got if int(message.body) >= COUNT]
    assert min(late) > -0.002
