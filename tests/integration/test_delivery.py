"""When messages arrive, and what becomes of those that cannot: seen at the consumer's queue and in the dead letters."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.cli import run_command
from bridge.delay.header import KNOWN_DIALECTS
from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Entry, Props, short, sized
from tests.unit.test_amqp10 import CAPTURED

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

#: A refused message becomes a dead letter within half a second.
IMPATIENT = {"retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 4}}
LEVELS = {"headers": {"levels": ["200ms", "400ms"]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("delivery")


@pytest.fixture(scope="module")
def line(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    line = Line(rabbitmq.url, redis_server.url, folder, {**IMPATIENT, **LEVELS})
    line.add_route("tasks", deliver_to=line.target, id_from="correlation_id")
    with line:
        line.start()
        yield line


def text(name: str, value: str | bytes) -> Entry:
    return (name.encode(), "S", sized(value if isinstance(value, bytes) else value.encode()))


def long(name: str, value: int) -> Entry:
    return (name.encode(), "l", struct.pack(">q", value))


def put(line: Line, body: bytes, *headers: Entry, key: bytes = b"some.key", exchange: str | None = None) -> None:
    line.publish(Props(list(headers), {"delivery_mode": b"\2"}), body, key, exchange)


def put_and_receive(line: Line, messages: Mapping[bytes, Entry]) -> tuple[dict[bytes, float], list[Message]]:
    """When each was sent, and what came. Read while they are sent: else a slow producer would make all of them late."""
    sent: dict[bytes, float] = {}
    got: list[Message] = []
    for body, header in messages.items():
        sent[body] = time.time()
        put(line, body, header)
        got += line.receive_until(len(messages) - len(got), 0.001)
    return sent, got + line.receive(len(messages) - len(got))


def due_ms(message: Message) -> int:
    """What x-delay-due says."""
    due = next(entry for entry in parts(message.properties).headers if entry[1:12] == b"x-delay-due")
    return int.from_bytes(due[-8:], "big")


def bodies(messages: list[Message]) -> set[bytes]:
    return {message.body for message in messages}


def nothing_but(line: Line, body: bytes) -> None:
    """This message comes, and no other."""
    assert [message.body for message in line.receive()] == [body]
    assert line.receive_until(1, 0.5) == []


# Moments


def test_nothing_is_early_and_nothing_is_seconds_late(line: Line) -> None:
    seeded = random.Random(1)
    waits_ms = {b"%d" % n: seeded.randint(0, 1500) for n in range(300)}
    sent, got = put_and_receive(line, {body: delay(wait_ms) for body, wait_ms in waits_ms.items()})
    late_ms = [(message.at - sent[message.body]) * 1000 - waits_ms[message.body] for message in got]
    assert min(late_ms) >= -1
    assert max(late_ms) < SLOW_S * 1000


@pytest.mark.parametrize("wait_ms", [0, -1, -(2**31)])
def test_a_delay_of_zero_or_less_is_now(line: Line, wait_ms: int) -> None:
    put(line, b"now", delay(wait_ms))
    assert line.receive()[0].body == b"now"


def test_a_moment_that_has_passed_is_now(line: Line) -> None:
    put(line, b"now", text("x-deliver-at", "2001-01-01T00:00:00Z"))
    put(line, b"now", long("x-deliver-at", 0))
    assert len(line.receive(2)) == 2


def test_a_timestamp_header_that_came_along_from_an_earlier_message_shortens_no_delay(line: Line) -> None:
    sent = time.time()
    put(
        line,
        b"sent again with the headers it came with",
        long("timestamp_in_ms", int(sent * 1000) - 60_000),
        delay(300),
    )
    (message,) = line.receive()
    assert message.at >= sent + 0.3


def test_a_delay_counts_from_the_brokers_own_timestamp_where_the_settings_say_so(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, folder, {"rabbitmq": {"delay_from": "broker"}}) as line:
        line.start()
        taken = int(time.time() * 1000) - 60_000
        put(line, b"as if no postdate had run for a minute", long("timestamp_in_ms", taken), delay(60_500))
        put(line, b"no timestamp, on a route on which the broker writes one", delay(300))
        stamped, unstamped = sorted(line.receive(2), key=lambda message: message.body)
        assert due_ms(stamped) == taken + 60_500 + 1, "what the broker has cut off is less than a millisecond"
        assert stamped.at * 1000 >= taken + 60_500
        assert unstamped.body.startswith(b"no timestamp")


WAIT_MS = 300
DELAYS: dict[str, Entry] = {
    "int8": (b"x-delay", "b", b"\x64"),
    "uint8": (b"x-delay", "B", b"\xff"),
    "int16": (b"x-delay", "s", struct.pack(">h", WAIT_MS)),
    "uint16": (b"x-delay", "u", struct.pack(">H", WAIT_MS)),
    "int32": delay(WAIT_MS),
    "uint32": (b"x-delay", "i", struct.pack(">I", WAIT_MS)),
    "int64": long("x-delay", WAIT_MS),
    "another int64": (b"x-delay", "L", struct.pack(">q", WAIT_MS)),
    "float": (b"x-delay", "f", struct.pack(">f", WAIT_MS)),
    "double": (b"x-delay", "d", struct.pack(">d", WAIT_MS)),
    "decimal": (b"x-delay", "D", b"\1" + struct.pack(">i", WAIT_MS * 10)),
    "text": text("x-delay", "300"),
    "byte array": (b"x-delay", "x", sized(b"300")),
    "text with a unit": text("x-delay", "300ms"),
    "a fraction of a unit": text("x-delay", "0.3s"),
    "ISO 8601": text("x-delay", "PT0.3S"),
    "level 1": (b"x-delay-level", "I", struct.pack(">i", 1)),
    "level 2 as text": text("x-delay-level", "2"),
}
#: A busy machine may deliver this much later. Another reading of the header would not come in this time, or too early.
SLOW_S = 5
EXPECTED_MS = {"int8": 100, "uint8": 255, "level 1": 200, "level 2 as text": 400}


@pytest.fixture(scope="module")
def delayed(line: Line) -> dict[str, float]:
    """For each kind of delay header, after how many milliseconds its message came."""
    sent, got = put_and_receive(line, {name.encode(): header for name, header in DELAYS.items()})
    return {message.body.decode(): (message.at - sent[message.body]) * 1000 for message in got}


@pytest.mark.parametrize("kind", DELAYS)
def test_a_delay_of_this_kind_is_understood(delayed: dict[str, float], kind: str) -> None:
    expected = EXPECTED_MS.get(kind, WAIT_MS)
    assert expected - 1 <= delayed[kind] < expected + SLOW_S * 1000


def moments(at_s: int) -> dict[str, Entry]:
    """One moment, a whole second, in every form."""
    return {
        "Unix ms": long("x-deliver-at", at_s * 1000),
        "a double": (b"x-deliver-at", "d", struct.pack(">d", at_s * 1000)),
        "text": text("x-deliver-at", str(at_s * 1000)),
        "RFC 3339": text("x-deliver-at", datetime.fromtimestamp(at_s, UTC).isoformat()),
        "AMQP timestamp": (b"x-deliver-at", "T", struct.pack(">Q", at_s)),
    }


def test_a_moment_in_any_form_is_kept_to_the_millisecond(line: Line) -> None:
    at_s = int(time.time()) + 2
    for name, header in moments(at_s).items():
        put(line, name.encode(), header, delay(10_000))
    got = line.receive(5)
    assert bodies(got) == {name.encode() for name in moments(at_s)}
    assert {due_ms(message) for message in got} == {at_s * 1000}
    assert all(0 <= message.at - at_s < SLOW_S for message in got), "and not after ten seconds, as x-delay says"


def dialects(at_ms: int, wait_ms: int) -> dict[str, Entry]:
    """Each dialect's header for one moment."""
    return {
        "x-opt-delivery-time": long("x-opt-delivery-time", at_ms),
        "x-opt-scheduled-enqueue-time": (b"x-opt-scheduled-enqueue-time", "T", struct.pack(">Q", at_ms // 1000)),
        "TIMER_DELIVER_MS": text("TIMER_DELIVER_MS", str(at_ms)),
        "__STARTDELIVERTIME": text("__STARTDELIVERTIME", str(at_ms)),
        "scheduler-epoch": text("scheduler-epoch", str(at_ms // 1000)),
        "eta": text("eta", datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()),
        "x-opt-delivery-delay": long("x-opt-delivery-delay", wait_ms),
        "TIMER_DELAY_MS": text("TIMER_DELAY_MS", str(wait_ms)),
        "TIMER_DELAY_SEC": text("TIMER_DELAY_SEC", str(wait_ms // 1000)),
        "DELAY": text("DELAY", "1"),
    }


def test_every_dialect_is_understood_where_it_is_switched_on(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    settings = {"routes": {"orders": {"dialects": list(KNOWN_DIALECTS)}}, "headers": {"levels": ["2s"]}}
    with Line(rabbitmq.url, redis_server.url, folder, settings) as line:
        line.start()
        at_ms = (int(time.time()) + 3) * 1000
        assert set(dialects(at_ms, 2000)) == set(KNOWN_DIALECTS)
        put(line, b"not delayed", (b"eta", "V", b""))
        for name, header in dialects(at_ms, 2000).items():
            put(line, name.encode(), header)
        assert line.receive()[0].body == b"not delayed"
        got = line.receive(len(KNOWN_DIALECTS))
        assert bodies(got) == {name.encode() for name in KNOWN_DIALECTS}
        assert all(-1.5 < message.at - at_ms / 1000 < SLOW_S for message in got)
        assert all(len(parts(message.properties).headers) == 2 for message in got), "the dialect's header is taken out"


def test_a_dialect_that_is_not_switched_on_is_a_header_like_any_other(line: Line) -> None:
    put(line, b"at once", text("TIMER_DELAY_SEC", "60"))
    assert parts(line.receive()[0].properties).headers == [b"\x0fTIMER_DELAY_SECS\x00\x00\x00\x0260"]


# Bad headers


BAD: dict[str, Entry] = {
    "no number": text("x-delay", "soon"),
    "a fraction of a millisecond with a unit": text("x-delay", "1.5ms"),
    "too long": text("x-delay", "400d"),
    "a boolean": (b"x-delay", "t", b"\1"),
    "a table": (b"x-delay", "F", sized(b"")),
    "a point without a fraction": text("x-delay", "5000."),
    "no UTF-8": text("x-delay", b"\xff\xfe"),
    "no level": (b"x-delay-level", "I", struct.pack(">i", 99)),
    "no moment": text("x-deliver-at", "tomorrow"),
    "a timestamp beyond all calendars": (b"x-deliver-at", "T", struct.pack(">Q", 1_790_000_000_000)),
    "a key that is none": text("x-delay-key", ""),
}


def test_a_bad_header_is_a_dead_letter_with_a_reason_and_its_neighbours_arrive(line: Line) -> None:
    before = line.dead()
    for name, header in BAD.items():
        put(line, b"neighbour", delay(10))
        put(line, name.encode(), header, *([delay(10)] if header[0] == b"x-delay-key" else []))
    assert bodies(line.receive(len(BAD))) == {b"neighbour"}
    line.wait_dead(len(before) + len(BAD))
    reasons = [why for name, why in line.dead().items() if name not in before]
    assert len(reasons) == len(BAD)
    assert all(why.startswith("bad_header: header x-de") for why in reasons), reasons
    assert line.receive_until(1, 0.3) == []


FRACTIONS: list[Entry] = [
    (b"x-delay", "d", struct.pack(">d", 300.7)),
    (b"x-delay", "f", struct.pack(">f", 300.5)),
    (b"x-delay", "D", struct.pack(">Bi", 1, 3007)),
    text("x-delay", "300.7"),
]


@pytest.mark.parametrize("header", FRACTIONS, ids=lambda header: header[1])
def test_a_fraction_of_a_millisecond_is_rounded_up(line: Line, header: Entry) -> None:
    sent = time.time()
    put(line, b"rounded", header)
    message = line.receive()[0]
    assert (message.body, message.at - sent >= 0.301) == (b"rounded", True)


def test_a_null_value_is_no_delay_header(line: Line) -> None:
    put(line, b"null", (b"x-delay", "V", b""), text("tenant", "acme"))
    message = line.receive()[0]
    left = parts(message.properties).without(b"x-delay-id", b"x-delay-due").headers
    assert (message.body, left) == (b"null", [b"\x06tenantS\x00\x00\x00\x04acme"])


def test_a_delay_header_that_comes_twice_is_a_dead_letter_or_the_one_that_rabbitmq_left(line: Line) -> None:
    """RabbitMQ 4 puts headers in order and lets one of two of a name go, before anybody sees them."""
    before = len(line.dead())
    put(line, b"twice", delay(50), delay(5000))
    wait_for(lambda: len(line.dead()) > before or line.receive_until(1, 0.1), "a dead letter or a message")


def test_a_bad_header_is_delivered_at_once_where_the_settings_say_so(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, folder, {"headers": {"on_bad": "deliver"}}) as line:
        line.start()
        for name, header in BAD.items():
            put(line, name.encode(), header, *([delay(10)] if header[0] == b"x-delay-key" else []))
        assert bodies(line.receive(len(BAD))) == {name.encode() for name in BAD}
        assert line.dead() == {}


# Keys


KEYS = [(b"one.%d" % n, b"two.%d" % n) for n in range(4)]  # routing keys in different shards, and in the same


def twice_under_one_key(line: Line, first_key: bytes, second_key: bytes) -> None:
    put(line, b"first", delay(2000), text("x-delay-key", b"k" + first_key), key=first_key)
    put(line, b"second", delay(1000), text("x-delay-key", b"k" + first_key), key=second_key)


@pytest.mark.parametrize(("mode", "winner"), [("replace", b"second"), ("keep", b"first"), ("reject", b"first")])
def test_the_same_key_again(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path, mode: str, winner: bytes) -> None:
    with Line(rabbitmq.url, redis_server.url, folder, {"headers": {"on_same_key": mode}}) as line:
        line.start()
        pairs = [*KEYS, (b"same.key", b"same.key")]
        for pair in pairs:
            twice_under_one_key(line, *pair)
        got = line.receive(len(pairs))
        assert bodies(got) == {winner}
        assert line.receive_until(1, 1.5) == [], "one of the two only"
        reasons = list(line.dead().values())
        assert len(reasons) == (len(pairs) if mode == "reject" else 0)
        assert all(why.startswith("same_key: ") for why in reasons)


def test_a_key_is_free_again_when_its_message_has_been_delivered(line: Line) -> None:
    for _ in range(2):
        put(line, b"again", delay(10), text("x-delay-key", "used again"))
        assert line.receive()[0].body == b"again"


def test_cancel_in_band_takes_back_what_is_parked_under_the_key_and_is_not_delivered_itself(line: Line) -> None:
    put(line, b"wanted", delay(1300), text("x-delay-key", "other"))
    put(line, b"unwanted", delay(1200), text("x-delay-key", "this one"))
    put(line, b"the order to cancel", text("x-delay-cancel", "this one"), key=b"another.key")
    put(line, b"cancels nothing", text("x-delay-cancel", "no such key"))
    nothing_but(line, b"wanted")


def test_a_message_can_be_cancelled_by_its_message_id(line: Line) -> None:
    for body in (b"unwanted", b"wanted"):
        line.publish(Props([delay(1200)], {"message_id": short(b"id of " + body)}), body)
    put(line, b"", text("x-delay-cancel", b"id of unwanted"))
    nothing_but(line, b"wanted")


def test_commands_find_a_message_by_its_correlation_id_where_the_route_says_so(
    line: Line, capsys: pytest.CaptureFixture[str]
) -> None:
    def order(verb: str, task: str) -> Any:
        assert run_command([verb, "--key", task, "--route", "tasks", "--config", str(line.file()), "-o", "json"]) == 0
        return json.loads(capsys.readouterr().out)

    for task in ("task-1", "task-2"):
        ids = {"correlation_id": short(task.encode()), "message_id": short(b"not this")}
        line.publish(Props([delay(60_000)], ids), task.encode(), exchange=f"{line.name}.tasks.delay")
    wait_for(lambda: line.waiting() == 2, "both wait", 20)
    (listed,) = order("list", "task-1")
    assert listed["key"] == "task-1"
    assert order("show", "task-1")["body"] == "task-1"
    (cancelled,) = order("cancel", "task-1")
    assert (cancelled["id"], cancelled["state"]) == (listed["id"], "cancelled")
    assert order("list", "not this") == []
    order("deliver", "task-2")
    nothing_but(line, b"task-2")


def test_messages_with_one_message_id_do_not_replace_each_other(line: Line) -> None:
    for n in range(5):
        line.publish(Props([delay(100)], {"message_id": short(b"the same")}), b"%d" % n)
    assert len(bodies(line.receive(5))) == 5


# Ways


def test_a_message_without_a_delay_header_arrives_although_no_bridge_is_running(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, folder) as line:
        put(line, b"plain", text("tenant", "acme"))
        put(line, b"parked", delay(10))
        nothing_but(line, b"plain")
        wait_for(lambda: line.depth(line.intake) == 1, "the other one waits")


@pytest.fixture(scope="module")
def to_queues(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    """deliver_to = "": the routing key is the name of a queue."""
    settings = {**IMPATIENT, "routes": {"orders": {"deliver_to": ""}}}
    with Line(rabbitmq.url, redis_server.url, folder, settings) as line:
        line.start()
        yield line


def test_with_the_default_exchange_the_routing_key_is_the_queue(to_queues: Line) -> None:
    line = to_queues
    put(line, b"delayed", delay(300), key=line.queue.encode())
    put(line, b"plain", key=line.queue.encode())
    got = line.receive(2)
    assert [message.body for message in got] == [b"plain", b"delayed"]
    assert {message.exchange for message in got} == {b""}


def test_with_the_default_exchange_a_header_is_read_that_rabbitmq_3_packs_for_amqp_1_0(to_queues: Line) -> None:
    line, key = to_queues, to_queues.queue.encode()
    packed = (b"x-amqp-1.0-app-properties", "x", sized(CAPTURED["int"][0]))
    sent = time.time()
    put(line, b"delayed", packed, key=key)
    put(line, b"unreadable", (packed[0], "x", sized(CAPTURED["int"][0][:-1])), key=key)
    (message,) = line.receive()
    assert message.body == b"delayed"
    assert message.at >= sent + 2
    assert packed[0] in message.properties, "they belong to the producer"
    wait_for(lambda: any(why.startswith("bad_header") for why in line.dead().values()), "a dead letter")


def test_a_message_to_the_intake_queue_itself_does_not_go_round_for_ever(to_queues: Line) -> None:
    line = to_queues
    put(line, b"round and round", delay(10), key=line.intake.encode())
    put(line, b"neighbour", delay(10), key=line.queue.encode())
    assert line.receive()[0].body == b"neighbour"
    wait_for(lambda: any(why.startswith("loop: ") for why in line.dead().values()), "a dead letter")
    assert line.depth(line.intake) == 0


def test_a_target_that_is_bound_back_to_the_front_exchange_gets_the_message_once(
    rabbitmq: RabbitMQ, redis_server: Redis, folder: Path
) -> None:
    with Line(rabbitmq.url, redis_server.url, folder) as line:
        with rabbitmq.connect() as connection:
            connection.channel().exchange_bind(line.front, line.target, "#")
        line.start()
        put(line, b"once", delay(50))
        assert line.receive()[0].body == b"once"
        assert line.receive_until(1, 0.5) == []


def test_a_consumer_can_delay_a_message_again_by_sending_it_back(line: Line) -> None:
    put(line, b"again", delay(50))
    first = line.receive()[0]
    sent = time.time()
    put(line, first.body, delay(400))
    assert line.receive()[0].at - sent >= 0.399
