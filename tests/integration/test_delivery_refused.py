"""Messages that RabbitMQ does not take: tried again, then kept as dead letters, and never at the cost of others."""

from __future__ import annotations

import random
import secrets
import string
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Entry, Props, short

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

#: Dead after 4 tries and half a second.
IMPATIENT = {"retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 4}}
#: 100 tries, a fifth of a second apart.
PATIENT = {"retry": {"first": "200ms", "factor": 1, "max": "200ms", "attempts": 100}}
NEIGHBOURS = 40


def together() -> Entry:
    """One moment, half a second from now: what bears it is claimed in one batch."""
    return (b"x-deliver-at", "l", struct.pack(">q", int(time.time() * 1000) + 500))


def put(line: Line, body: bytes, at: Entry, key: bytes = b"some.key", route: str | None = None) -> None:
    front = line.settings["routes"][route]["intercept"] if route else None
    line.publish(Props([at], {"delivery_mode": b"\2"}), body, key, front)


def put_among_neighbours(line: Line, guilty: list[bytes], route: str | None, key: bytes = b"some.key") -> None:
    """Guilty ones among innocent ones, due at one moment, on routing keys of all shards."""
    at = together()
    step = max(1, NEIGHBOURS // len(guilty))
    for n in range(NEIGHBOURS):
        put(line, b"neighbour %d" % n, at, b"key.%d" % n)
        if n % step == step - 1 and n // step < len(guilty):
            put(line, guilty[n // step], at, key, route)


def neighbours_of(line: Line) -> list[Message]:
    """All the innocent ones; copies of one, where there are any, bear the same id."""
    wanted = {b"neighbour %d" % n for n in range(NEIGHBOURS)}
    got: list[Message] = []
    give_up = time.monotonic() + 15
    while {message.body for message in got} < wanted and time.monotonic() < give_up:
        got += line.receive_until(NEIGHBOURS, 0.3)
    assert {message.body for message in got} == wanted
    assert len({(message.body, id_of(message)) for message in got}) == NEIGHBOURS
    return got


def id_of(message: Message) -> bytes:
    return next(entry for entry in parts(message.properties).headers if entry[1:11] == b"x-delay-id")[-20:]


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Line:
    """Not entered yet: a test adds its routes first."""
    return Line(rabbitmq.url, redis_server.url, tmp_path, IMPATIENT)


@contextmanager
def user_of(rabbitmq: RabbitMQ, write: str) -> Iterator[str]:
    """The URL of a user who may read and configure all, and write where the pattern says."""
    if not rabbitmq.owned:
        pytest.skip("needs a broker of our own: it makes a user")
    with rabbitmq.user(f"u{secrets.token_hex(4)}", "secret", rights=(".*", write, ".*")) as url:
        yield url.replace("@", ":secret@")


# Nobody is there to take it


def test_an_unroutable_message_is_tried_again_and_then_a_dead_letter(line: Line) -> None:
    line.add_route("narrow")
    with line:
        line.declare_exchange(f"{line.name}.narrow.target")
        line.start()
        put_among_neighbours(line, [b"lost %d" % n for n in range(5)], "narrow")
        assert len(neighbours_of(line)) == NEIGHBOURS, "no copies"
        reasons = line.wait_dead(5)
        assert len(reasons) == 5
        assert all(why.startswith("unroutable: ") for why in reasons), reasons


def test_unroutable_messages_of_endless_routing_keys_write_one_line_a_second_and_each_is_short(line: Line) -> None:
    line.add_route("narrow")
    with line:
        line.declare_exchange(f"{line.name}.narrow.target")
        bridge = line.start()
        began = time.monotonic()
        for n in range(400):
            key = "".join(random.choices(string.ascii_letters, k=250)).encode()
            put(line, b"lost %d" % n, delay(1), key, "narrow")
        line.wait_dead(400)
        seconds = time.monotonic() - began
        bridge.terminate()
        log = bridge.log().splitlines()
        troubles = [text for text in log if "trouble" in text and "unroutable" in text]
        assert 1 <= len(troubles) <= seconds + 2
        assert len([text for text in log if "unroutable" in text]) <= 30 * (seconds + 2)
        assert max(map(len, log)) < 1000


def test_an_unroutable_message_arrives_when_a_queue_is_bound_in_time(line: Line) -> None:
    line.settings |= PATIENT
    line.add_route("narrow")
    with line:
        line.declare_exchange(f"{line.name}.narrow.target")
        line.declare_queue(f"{line.name}.late")
        bridge = line.start()
        put(line, b"patient", delay(10), route="narrow")
        bridge.wait_log("unroutable")
        line.bind(f"{line.name}.late", f"{line.name}.narrow.target")
        assert line.receive(queue=f"{line.name}.late")[0].body == b"patient"
        assert line.dead() == {}


@pytest.mark.parametrize("audit", [True, False])
def test_of_two_messages_with_one_body_the_right_one_is_the_unroutable_one(line: Line, audit: bool) -> None:
    """Without x-delay-id only the properties tell them apart, as the headers exchange behind does."""
    line.settings |= {"headers": {"audit": audit}}
    line.add_route("by_header")
    target, queue = f"{line.name}.by_header.target", f"{line.name}.red"
    with line:
        line.declare_exchange(target, "headers")
        line.declare_queue(queue)
        line.bind(queue, target, "", {"x-match": "all", "colour": "red"})
        line.start()
        at = together()
        for colour in ("red", "blue", "blue", "red") * 5:
            raw = colour.encode()
            header = (b"colour", "S", struct.pack(">I", len(raw)) + raw)
            line.publish(Props([at, header]), b"the same body", b"k", line.settings["routes"]["by_header"]["intercept"])
        got = line.receive(10, queue=queue)
        assert all(b"red" in message.properties for message in got)
        assert len(line.wait_dead(10)) == 10
        assert line.receive_until(1, 0.3, queue) == [], "no copies"
        wait_for(lambda: line.stored() == 10, "nothing but the dead letters is stored")


# The broker closes the channel


@pytest.mark.long
def test_a_missing_exchange_costs_only_the_messages_that_go_there(line: Line) -> None:
    line.add_route("missing")
    with line:
        bridge = line.start()
        put_among_neighbours(line, [b"lost %d" % n for n in range(5)], "missing")
        copies = neighbours_of(line)
        print("copies of neighbours:", len(copies) - NEIGHBOURS)
        reasons = line.wait_dead(5)
        assert len(reasons) == 5
        assert all(why.startswith("missing_exchange: ") for why in reasons), reasons
        assert bridge.running()


def test_a_missing_exchange_that_is_declared_in_time_gets_its_messages_while_others_flow(line: Line) -> None:
    line.settings |= PATIENT
    line.add_route("missing")
    target = f"{line.name}.missing.target"
    with line:
        bridge = line.start()
        put(line, b"patient", delay(10), route="missing")
        bridge.wait_log("missing_exchange")
        line.declare_exchange(target)
        line.declare_queue(f"{line.name}.late")
        line.bind(f"{line.name}.late", target)
        give_up = time.monotonic() + 8
        got: list[Message] = []
        while not got and time.monotonic() < give_up:
            for _ in range(20):  # the other route is never quiet
                put(line, b"other", delay(1))
            got = line.receive_until(1, 0.01, f"{line.name}.late")
        assert got, bridge.log_tail()
        assert line.dead() == {}


@pytest.mark.long
def test_a_forbidden_exchange_costs_only_the_messages_that_go_there(rabbitmq: RabbitMQ, line: Line) -> None:
    with user_of(rabbitmq, f"^(?!{line.name}.secret.target$).*") as url:
        line.add_route("secret")
        with line:
            line.declare_exchange(f"{line.name}.secret.target")
            line.bridge({"rabbitmq": {"url": url}, "bridge": {"setup": False}}).start()
            put_among_neighbours(line, [b"lost %d" % n for n in range(5)], "secret")
            neighbours_of(line)
            reasons = line.wait_dead(5)
            assert len(reasons) == 5
            assert all(why.startswith("forbidden: ") for why in reasons), reasons


def test_a_message_over_which_the_broker_closes_the_channel_is_found_among_its_neighbours(
    rabbitmq: RabbitMQ, line: Line
) -> None:
    """RabbitMQ names no exchange and no message when it refuses a user_id."""
    line.settings["headers"] = {"keep_user_id": True}
    with user_of(rabbitmq, ".*") as url, line:
        line.bridge({"rabbitmq": {"url": url}}).start().wait_ready()
        at = together()
        for n in range(NEIGHBOURS):
            put(line, b"neighbour %d" % n, at, b"key.%d" % n)
            if n in (5, 20, 39):
                line.publish(Props([at], {"user_id": short(b"guest")}), b"guilty")
        copies = Counter(message.body for message in neighbours_of(line))
        print("copies of neighbours:", sum(copies.values()) - NEIGHBOURS)
        reasons = line.wait_dead(3)
        assert len(reasons) == 3
        assert all(why.startswith("rejected: ") and "user_id" in why for why in reasons), reasons


def test_a_message_that_is_too_large_for_the_broker_is_a_dead_letter_at_once(rabbitmq: RabbitMQ, line: Line) -> None:
    """Messages that were parked before the limit was lowered, as it was from RabbitMQ 3 to 4."""
    if not rabbitmq.owned:
        pytest.skip("needs a broker of our own: it lowers max_message_size")
    line.settings |= PATIENT
    with line:
        bridge = line.bridge().start()
        at = (b"x-deliver-at", "l", struct.pack(">q", int(time.time() * 1000) + 8000))
        for n in range(NEIGHBOURS):
            put(line, b"neighbour %d" % n, at, b"key.%d" % n)
            if n in (10, 30):
                put(line, b"x" * 100_000, at)
        wait_for(lambda: line.waiting() == NEIGHBOURS + 2, "all are parked")
        bridge.terminate()
        with max_message_size(rabbitmq, 50_000):
            bridge.start()
            neighbours_of(line)
            reasons = line.wait_dead(2)
            assert all(why.startswith("too_large: ") for why in reasons), reasons


@contextmanager
def max_message_size(rabbitmq: RabbitMQ, size: int) -> Iterator[None]:
    """For channels that are opened meanwhile. RabbitMQ 4 keeps a copy of the setting in a term."""
    before = rabbitmq.evaluate("{ok, Size} = application:get_env(rabbit, max_message_size), Size")
    order = "application:set_env(rabbit, max_message_size, {0}), persistent_term:put(max_message_size, {0})"
    rabbitmq.evaluate(order.format(size))
    try:
        yield
    finally:
        rabbitmq.evaluate(order.format(before))


# The queue has no room


def test_a_full_queue_gets_the_rest_when_it_has_room_again(line: Line) -> None:
    line.settings |= PATIENT
    line.add_route("full")
    target, queue = f"{line.name}.full.target", f"{line.name}.full.queue"
    with line:
        line.declare_exchange(target)
        line.declare_queue(queue, {"x-max-length": 3, "x-overflow": "reject-publish"})
        line.bind(queue, target)
        bridge = line.start()
        put_among_neighbours(line, [b"%d" % n for n in range(10)], "full")
        assert len(neighbours_of(line)) == NEIGHBOURS, "no copies"
        bridge.wait_log("nacked")
        wait_for(lambda: line.depth(queue) >= 3, "the queue is full")
        assert line.stored() >= 6
        got = line.receive(10, queue=queue)
        assert {message.body for message in got} == {b"%d" % n for n in range(10)}
        assert line.dead() == {}
