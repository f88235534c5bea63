"""Routes whose messages wait in one quorum queue of RabbitMQ 4.4, which delays by itself; no Redis."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.rabbitmq.native_guard import delays_natively
from adapters.rabbitmq.topology.declaring import declare
from bridge.cli import run_command
from bridge.core.errors import REFUSED, TopologyMismatch
from bridge.delay.header import NATIVE
from tests.delay_line import delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.level_line import LevelLine, require_native
from tests.raw_amqp import parts
from tests.unit.raw_properties import Entry, Props, short, sized
from tests.verdicts import answers, has

pytestmark = pytest.mark.rabbitmq

YEAR_MS = 365 * 86_400_000
#: A refused message becomes a dead letter within half a second; a delay may be as long as any setting allows.
SETTINGS = {
    "retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 3},
    "limits": {"max_delay": "36500d"},
}


@pytest.fixture(scope="module")
def native_rabbitmq(rabbitmq: RabbitMQ) -> RabbitMQ:
    require_native(rabbitmq)
    return rabbitmq


@pytest.fixture(scope="module")
def line(native_rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LevelLine]:
    with LevelLine(native_rabbitmq.url, tmp_path_factory.mktemp("native"), SETTINGS, mode="native") as line:
        line.run()
        yield line


def put(line: LevelLine, body: bytes, *headers: Entry, key: bytes = b"some.key", **properties: bytes) -> float:
    sent = time.time()
    line.publish(Props(list(headers), {"delivery_mode": b"\2", **properties}), body, key)
    return sent


def at(moment_ms: int) -> Entry:
    return (NATIVE.encode(), "l", struct.pack(">q", moment_ms))


def test_before_4_4_it_is_refused_by_setup_check_and_run(
    rabbitmq: RabbitMQ, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if delays_natively(rabbitmq.version):
        pytest.skip("this RabbitMQ delays by itself")
    line = LevelLine(rabbitmq.url, tmp_path, mode="native")
    words = f"RabbitMQ {rabbitmq.version} does not delay by itself, as mode native of route orders needs"
    with pytest.raises(TopologyMismatch, match=words):
        declare(line.loaded())
    assert has(answers("check", line.file({"http": {"enabled": False}}), capsys)["FAIL"], words)
    with line.bridge() as bridge:
        assert bridge.start().wait_end() == REFUSED
        assert words in bridge.log()


def test_any_wait_to_the_millisecond_and_never_early(line: LevelLine) -> None:
    asked = {b"%d" % ms: ms for ms in (1, 250, 1001, 2500)}
    sent = {body: put(line, body, delay(ms)) for body, ms in asked.items()}
    moment_ms = int(time.time() * 1000) + 1300
    put(line, b"by its own header", at(moment_ms))
    for got in line.receive(len(asked) + 1):
        due_s = sent[got.body] + asked[got.body] / 1000 if got.body in asked else moment_ms / 1000
        assert 0 <= got.at - due_s < 5, got.body
        assert [header[1:12] for header in parts(got.properties).headers] == [b"x-delay-due"]


def test_messages_due_at_one_moment_come_in_their_order(line: LevelLine) -> None:
    moment_ms = int(time.time() * 1000) + 2500
    for number in range(200):
        put(line, b"%d" % number, (b"x-deliver-at", "l", struct.pack(">q", moment_ms)))
    assert [int(got.body) for got in line.receive(200)] == list(range(200))


def test_every_property_and_header_arrives_and_an_expiration_does_not_end_the_wait(line: LevelLine) -> None:
    kept: list[Entry] = [(b"at", "T", struct.pack(">Q", 1_790_000_000_123)), (b"x", "f", struct.pack(">f", 1))]
    others = {"type": short(b"a type"), "expiration": short(b"500"), "reply_to": short(b"somebody")}
    put(line, b"\0\xff", kept[0], delay(2000), *kept[1:], **others)
    (got,) = line.receive()
    wanted, found = parts(Props(kept, {"delivery_mode": b"\2", **others}).encode()), parts(got.properties)
    assert (found.before, found.behind) == (wanted.before, wanted.behind)
    assert sorted(found.without(b"x-delay-due").headers) == sorted(wanted.headers)


def test_a_moment_beyond_the_timers_is_a_dead_letter_and_the_queue_lives_on(line: LevelLine) -> None:
    now_ms = int(time.time() * 1000)
    put(line, b"101 years", at(now_ms + 101 * YEAR_MS))
    put(line, b"2**53", at(2**53), (b"unused", "V", b""))
    put(line, b"100 years", at(now_ms + 100 * YEAR_MS - 60_000))
    put(line, b"soon", (b"x-delay", "S", sized(b"soon")))
    dead = {message.body: reason for message, reason in line.dead_letters(3)}
    assert dead.keys() == {b"101 years", b"2**53", b"soon"}
    assert "goes beyond limits.max_delay" in dead[b"101 years"]
    put(line, b"after", delay(300))
    assert line.receive()[0].body == b"after"


def test_an_unroutable_message_is_a_dead_letter_and_delays_no_other(line: LevelLine) -> None:
    line.unbind(line.queue, line.target)
    put(line, b"unroutable", delay(200))
    dead, reason = line.dead_letters()[0]
    line.bind(line.queue, line.target)
    assert (dead.body, reason.partition(":")[0]) == (b"unroutable", "unroutable")
    put(line, b"after", delay(200))
    assert line.receive()[0].body == b"after"


def test_a_stopped_postdate_loses_nothing_and_rabbitmq_delivers_alone(
    native_rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    with LevelLine(native_rabbitmq.url, tmp_path, {"levels": {"alone_after": "300ms"}}, mode="native") as line:
        bridge = line.run()
        sent = put(line, b"alone", delay(2000))
        put(line, b"waits", delay(600_000))
        put(line, b"now", delay(1))
        assert line.receive()[0].body == b"now"
        bridge.terminate()
        (got,) = line.receive()
        assert (got.body, got.at - sent >= 2) == (b"alone", True)
        code = run_command(["levels", "remove", "--all", "--config", str(line.file())])
        assert code == REFUSED, "the queue that delays is kept: AMQP does not count what waits in it"


def test_a_route_that_has_a_store_now_delivers_what_waits(
    native_rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
) -> None:
    with LevelLine(native_rabbitmq.url, tmp_path, {"levels": {"alone_after": "300ms"}}, mode="native") as line:
        bridge = line.run()
        put(line, b"waits", delay(3000))
        put(line, b"now", delay(1))
        assert line.receive()[0].body == b"now"
        bridge.terminate()
        line.delete_exchange(line.front)
        stored = {"redis": {"url": redis_server.url}, "routes": {"orders": {"mode": "redis"}}}
        line.setup(stored)
        line.bridge(stored).start().wait_ready()
        put(line, b"parked", delay(3500))
        assert [message.body for message in line.receive(2)] == [b"waits", b"parked"]
