"""A ladder of powers of two on a real broker: any whole second, any kind of target, any routing key; no Redis."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_line import delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.service import wait_for
from tests.level_line import LevelLine
from tests.raw_amqp import parts
from tests.unit.raw_properties import Entry, Props, short, sized

pytestmark = pytest.mark.rabbitmq

YEARS_8 = 8 * 365 * 86_400_000
PATIENT = {"limits": {"max_delay": "36500d"}}
#: What a headers exchange of the consumers matches.
COLOUR: Entry = (b"colour", "S", sized(b"red"))
LONGEST_KEY = b"k" * 255


@pytest.fixture(scope="module")
def line(rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LevelLine]:
    with LevelLine(rabbitmq.url, tmp_path_factory.mktemp("ladder"), PATIENT, mode="ladder") as line:
        line.run()
        yield line


def put(line: LevelLine, body: bytes, *headers: Entry, key: bytes = b"some.key", **properties: bytes) -> float:
    sent = time.time()
    line.publish(Props(list(headers), {"delivery_mode": b"\2", **properties}), body, key)
    return sent


def test_any_wait_is_made_of_steps_and_never_early(line: LevelLine) -> None:
    """1001 ms are two seconds, or one where a millisecond has passed on the way in; of 1 ms nothing may be left."""
    asked = {b"1": 1, b"1000": 1000, b"1001": 1001, b"3000": 3000, b"2500": 2500}
    sent = {body: put(line, body, delay(ms), key=LONGEST_KEY) for body, ms in asked.items()}
    for message in line.receive(len(asked)):
        assert asked[message.body] / 1000 <= message.at - sent[message.body] < asked[message.body] / 1000 + 6
        assert message.routing_key == LONGEST_KEY
        assert [header[1:12] for header in parts(message.properties).headers] == [b"x-delay-due"]


def test_a_step_whose_queue_was_deleted_makes_nothing_early(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    with LevelLine(rabbitmq.url, tmp_path, mode="ladder") as line:
        bridge = line.run()
        line.delete_queue(line.places().ladder[1])
        sent = {b"%d" % ms: put(line, b"%d" % ms, delay(ms)) for ms in (1000, 2000, 3000)}
        for message in line.receive(3):
            asked_s = int(message.body) / 1000
            assert asked_s <= message.at - sent[message.body] < asked_s + 5
            assert [header[1:12] for header in parts(message.properties).headers] == [b"x-delay-due"]
        assert "early: a queue where it should have waited was missing" in bridge.log()


def test_every_property_and_header_arrives_as_it_was_written(line: LevelLine) -> None:
    kept: list[Entry] = [COLOUR, (b"at", "T", struct.pack(">Q", 1_790_000_000_123)), (b"x", "f", struct.pack(">f", 1))]
    others = {"type": short(b"a type"), "expiration": short(b"60000"), "reply_to": short(b"somebody")}
    native: Entry = (b"x-opt-delivery-time", "l", struct.pack(">q", 1_600_000_000_000))  # the one header that goes
    put(line, b"\0\xff", kept[0], delay(3000), native, *kept[1:], **others)
    (got,) = line.receive()
    wanted, found = parts(Props(kept, {"delivery_mode": b"\2", **others}).encode()), parts(got.properties)
    assert (found.before, found.behind) == (wanted.before, wanted.behind)
    assert sorted(found.without(b"x-delay-due").headers) == sorted(wanted.headers)


def test_eight_years_wait_in_the_highest_step_and_more_than_the_ladder_is_a_dead_letter(line: LevelLine) -> None:
    put(line, b"8 years", (b"x-delay", "l", struct.pack(">q", YEARS_8)))
    put(line, b"9 years", (b"x-delay", "l", struct.pack(">q", YEARS_8 * 9 // 8)))
    ((dead, reason),) = line.dead_letters()
    assert dead.body == b"9 years"
    assert "is longer than the ladder" in reason
    wait_for(lambda: line.depth(line.places().ladder[27]) == 1, "the other one waits there")


def test_a_level_and_a_moment_go_up_the_ladder_too(line: LevelLine) -> None:
    due_ms = int(time.time() * 1000) + 1500
    put(line, b"at", (b"x-deliver-at", "l", struct.pack(">q", due_ms)))
    sent = put(line, b"level", (b"x-delay-level", "I", struct.pack(">i", 2)))
    got = {message.body: message for message in line.receive(2)}
    assert got[b"at"].at >= due_ms / 1000
    assert got[b"level"].at >= sent + 1


@pytest.mark.parametrize("kind", ["direct", "fanout", "headers", "default"])
def test_every_kind_of_target_gets_what_is_for_it(rabbitmq: RabbitMQ, tmp_path: Path, kind: str) -> None:
    route = {"deliver_to": ""} if kind == "default" else {}
    line = LevelLine(rabbitmq.url, tmp_path, {"routes": {"orders": route}}, mode="ladder")
    if kind != "default":
        line.settings["routes"]["orders"]["deliver_to"] = f"{line.name}.{kind}"
    with line:
        key = line.queue if kind == "default" else "the.key"
        if kind != "default":
            line.declare_exchange(f"{line.name}.{kind}", kind)
            line.bind(line.queue, f"{line.name}.{kind}", key, {"x-match": "all", "colour": "red"})
        bridge = line.run()
        sent = put(line, b"delayed", COLOUR, delay(1000), key=key.encode())
        put(line, b"at once", COLOUR, key=key.encode())
        first, second = line.receive(2)
        assert (first.body, second.body) == (b"at once", b"delayed")
        assert second.at - sent >= 1
        bridge.terminate()
