"""Routes without a store on a real broker: fixed levels, with and without a bridge; no Redis anywhere."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_line import Line, blocking, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.level_line import ALONE, LevelLine
from tests.raw_amqp import Message, parts
from tests.unit.raw_properties import Entry, Props, encode_entry, short, sized

pytestmark = pytest.mark.rabbitmq

#: A refused message becomes a dead letter within half a second.
IMPATIENT = {"retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 3}}
PERSISTENT = {"delivery_mode": b"\2"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("levels")


@pytest.fixture(scope="module")
def alone(rabbitmq: RabbitMQ, folder: Path) -> Iterator[LevelLine]:
    """Set up, and no bridge runs."""
    with LevelLine(rabbitmq.url, folder, ALONE) as line:
        yield line


@pytest.fixture(scope="module")
def line(rabbitmq: RabbitMQ, folder: Path) -> Iterator[LevelLine]:
    """With a bridge."""
    with LevelLine(rabbitmq.url, folder, IMPATIENT) as line:
        line.run()
        yield line


def level(value: bytes, tag: str = "I") -> Entry:
    return (b"x-delay-level", tag, value)


def number(value: int) -> Entry:
    return level(struct.pack(">i", value))


def put(line: LevelLine, body: bytes, *headers: Entry, key: bytes = b"some.key", **properties: bytes) -> float:
    """Publish; when."""
    sent = time.time()
    line.publish(Props(list(headers), {**PERSISTENT, **properties}), body, key)
    return sent


#: By this RabbitMQ 4.4 delays. The moment is past, so that not even that one holds the message in the intake.
NATIVE: Entry = (b"x-opt-delivery-time", "l", struct.pack(">q", 1_600_000_000_000))


def died(queue: bytes, noted: Entry) -> Entry:
    """x-death with one entry, as RabbitMQ writes it of what expired."""
    entries: tuple[Entry, ...] = (noted, (b"queue", "S", sized(queue)), (b"reason", "S", sized(b"expired")))
    return (b"x-death", "A", sized(b"F" + sized(b"".join(map(encode_entry, entries)))))


def waited(sent: float, message: Message) -> float:
    return message.at - sent


class TestWithoutABridge:
    TYPES = (
        ("b", b"\1"),
        ("B", b"\1"),
        ("s", b"\0\1"),
        ("u", b"\0\1"),
        ("I", b"\0\0\0\1"),
        ("i", b"\0\0\0\1"),
        ("l", b"\0" * 7 + b"\1"),
        ("S", sized(b"1")),
    )

    def test_rabbitmq_alone_delays_by_every_integer_type_and_decimal_text(self, alone: LevelLine) -> None:
        sent = {tag.encode(): put(alone, tag.encode(), level(value, tag)) for tag, value in self.TYPES}
        got = alone.receive(len(self.TYPES))
        assert sorted(message.body for message in got) == sorted(sent)
        for message in got:
            assert waited(sent[message.body], message) >= 0.3

    def test_the_routing_key_is_kept_and_the_level_stays_on_the_message(self, alone: LevelLine) -> None:
        put(alone, b"kept", number(1), key=b"a.key.of.its.own")
        (got,) = alone.receive()
        assert got.routing_key == b"a.key.of.its.own"
        assert any(b"x-delay-level" in header for header in parts(got.properties).headers)

    def test_a_message_without_a_delay_does_not_wait(self, alone: LevelLine) -> None:
        put(alone, b"plain", (b"a header", "V", b""))
        (got,) = alone.receive()
        assert parts(got.properties).headers == [b"\x08a headerV"]  # no x-death

    def test_what_rabbitmq_cannot_do_alone_waits_in_the_intake_queue_for_a_bridge(self, alone: LevelLine) -> None:
        put(alone, b"no such level", number(9))
        put(alone, b"any delay", delay(10))
        put(alone, b"a moment wins over a level", number(1), delay(700))
        put(alone, b"died before", number(1), (b"x-death", "A", sized(b"")))
        assert alone.receive_until(1, 1.0) == []
        wait_for(lambda: alone.depth(alone.intake) == 4, "they are counted")
        bridge = alone.run()
        got = alone.receive(3)
        assert {message.body for message in got} == {b"any delay", b"a moment wins over a level", b"died before"}
        ((dead, reason),) = alone.dead_letters()
        assert dead.body == b"no such level"
        assert "not a level from 1 to 3" in reason
        bridge.terminate()


class TestWithABridge:
    def test_a_delay_waits_for_a_level_and_is_never_early(self, line: LevelLine) -> None:
        """301 ms are a second, or 300 where a millisecond of them has passed on the way in."""
        asked = {b"10": 10, b"300": 300, b"301": 301, b"1000": 1000}
        sent = {body: put(line, body, delay(ms)) for body, ms in asked.items()}
        for message in line.receive(len(asked)):
            assert (
                max(0.3, asked[message.body] / 1000)
                <= waited(sent[message.body], message)
                < asked[message.body] / 1000 + 5
            )

    def test_a_moment_is_never_early(self, line: LevelLine) -> None:
        due_ms = int(time.time() * 1000) + 900
        put(line, b"at", (b"x-deliver-at", "l", struct.pack(">q", due_ms)))
        (got,) = line.receive()
        assert due_ms / 1000 <= got.at < due_ms / 1000 + 5

    @pytest.mark.parametrize("header", [delay(-5), delay(0), (b"x-deliver-at", "l", struct.pack(">q", 5))])
    def test_what_is_due_already_comes_at_once(self, line: LevelLine, header: Entry) -> None:
        put(line, b"now", header)
        headers = parts(line.receive()[0].properties).headers
        assert [header[1:12] for header in headers] == [b"x-delay-due"]  # no x-death

    @pytest.mark.parametrize("header", [delay(100), number(1)], ids=["x-delay", "x-delay-level"])
    def test_every_property_and_header_arrives_as_it_was_written(self, line: LevelLine, header: Entry) -> None:
        kept: list[Entry] = [
            (b"text", "S", sized(b"\xff\0")),
            (b"milliseconds", "T", struct.pack(">Q", 1_790_000_000_123)),
            (b"float", "f", struct.pack(">f", 1.5)),
            (b"inner", "F", sized(b"")),
        ]
        others = {"type": short(b"a type"), "message_id": short(b"an id"), "priority": b"\3"}
        put(line, b"\0body\xff", *kept[:2], header, NATIVE, *kept[2:], key=b"key.\xc3\xa4", **others)
        (got,) = line.receive()
        wanted = parts(Props(kept, {**PERSISTENT, **others}).encode())
        found = parts(got.properties).without(b"x-delay-due")
        assert (got.body, got.routing_key) == (b"\0body\xff", b"key.\xc3\xa4")
        assert (found.before, sorted(found.headers), found.behind) == (
            wanted.before,
            sorted(wanted.headers),
            wanted.behind,
        )

    def test_an_expiration_makes_nothing_early_and_is_there_again_at_the_consumer(self, line: LevelLine) -> None:
        sent = put(line, b"expires", delay(900), expiration=short(b"60000"))
        sent_quick = put(line, b"expires before it is due", delay(900), expiration=short(b"400"))
        got = {message.body: message for message in line.receive(2)}
        assert waited(sent, got[b"expires"]) >= 0.9
        assert waited(sent_quick, got[b"expires before it is due"]) >= 0.9
        assert short(b"60000") in parts(got[b"expires"].properties).behind

    def test_a_level_that_an_expiration_has_cut_short_is_waited_again(self, line: LevelLine) -> None:
        sent = put(line, b"expires in its level", number(2), expiration=short(b"100"))
        (got,) = line.receive()
        assert waited(sent, got) >= 1.0
        assert short(b"100") in parts(got.properties).behind

    def test_a_producers_own_header_and_an_earlier_life_give_no_message_an_expiration(self, line: LevelLine) -> None:
        noted: Entry = (b"original-expiration", "S", sized(b"1000"))
        retried = died(b"a queue", noted)
        put(line, b"its own", number(1), noted)
        put(line, b"saved", number(1), (b"x-history", *retried[1:]))
        put(line, b"retried", number(1), retried)
        put(line, b"retried and due", delay(0), retried)
        got = line.receive(4)
        assert {message.body for message in got} == {b"its own", b"saved", b"retried", b"retried and due"}
        for message in got:
            assert short(b"1000") not in parts(message.properties).behind

    def test_a_stranger_in_the_due_queue_stops_nobody(self, line: LevelLine) -> None:
        noted = died(f"{line.intake}.level.9s.000000".encode(), (b"original-expiration", "S", sized(b"60000")))
        stranger = Props([level(sized(b"abc"), "S"), noted], PERSISTENT)
        line.publish(stranger, b"a stranger", b"a.key", exchange=line.places().due)
        put(line, b"behind it", delay(300))
        assert {message.body for message in line.receive(2)} == {b"a stranger", b"behind it"}

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            (delay(2001), "bad_header: the delay of 2.001s is longer than the longest level of the route, 2s"),
            ((b"x-delay", "S", sized(b"soon")), "bad_header: header x-delay: 'soon' is not a duration"),
            (number(4), "bad_header: header x-delay-level: 4 is not a level from 1 to 3"),
            ((b"x-delay-cancel", "S", sized(b"a key")), "not_possible: a route without a store cannot cancel"),
        ],
    )
    def test_what_cannot_be_done_becomes_a_dead_letter_with_the_reason(
        self, line: LevelLine, header: Entry, words: str
    ) -> None:
        put(line, b"dead", NATIVE, header, key=b"its.key", type=short(b"a type"))
        ((dead, reason),) = line.dead_letters()
        assert reason.startswith(words)
        assert NATIVE[0] not in dead.properties
        assert (dead.body, dead.routing_key) == (b"dead", b"its.key")
        assert short(b"a type") in parts(dead.properties).behind

    def test_a_deleted_target_blocks_nobody_behind_it(self, rabbitmq: RabbitMQ, folder: Path) -> None:
        """Many more than the 32 that would stop a level's queue, by level alone and by delay, are before it."""
        with LevelLine(rabbitmq.url, folder, {**IMPATIENT, "rabbitmq": {"prefetch": 40}}) as line:
            line.run()
            line.declare_queue(f"{line.name}.gone")
            line.bind(f"{line.name}.gone", line.target, "gone.#")
            with_target_only(line)
            line.delete_queue(f"{line.name}.gone")
            for n in range(50):
                put(line, b"by level %d" % n, number(1), key=b"gone.1")
                put(line, b"by delay %d" % n, delay(200), key=b"gone.2")
            sent = put(line, b"behind them", number(1), key=b"kept.1")
            sent_too = put(line, b"behind them, too", delay(200), key=b"kept.1")
            got = {message.body: message for message in line.receive(2)}
            assert 0.3 <= waited(sent, got[b"behind them"]) < 5
            assert 0.3 <= waited(sent_too, got[b"behind them, too"]) < 5
            dead = line.dead_letters(100)
            assert len({message.body for message, _ in dead}) == 100
            assert all(reason.startswith("unroutable: no queue was bound to exchange") for _, reason in dead)

    def test_a_stop_makes_dead_letters_of_what_nobody_took_and_hides_none_of_it(
        self, rabbitmq: RabbitMQ, folder: Path
    ) -> None:
        """Given back, they would be expired: RabbitMQ would keep them from everybody, and 32 stop what is behind."""
        with LevelLine(rabbitmq.url, folder, {"levels": {"alone_after": "3s"}}) as line:
            bridge = line.run()
            with_target_only(line)
            for n in range(40):
                put(line, b"%d" % n, number(1), key=b"gone.1")
            bridge.wait_log("] refused ")
            queues = (*line.places().levels.values(), line.places().due)
            wait_for(lambda: not any(map(line.depth, queues)), "all of them are in its hands")
            time.sleep(3.1)  # so old they may not go back
            assert bridge.terminate() == 0
            sent = put(line, b"behind them", number(1), key=b"kept.1")
            line.run()
            (behind,) = line.receive()
            assert 0.3 <= waited(sent, behind) < 10
            dead = line.dead_letters(40)
            assert {message.body for message, _ in dead} == {b"%d" % n for n in range(40)}
            assert all(reason.startswith("unroutable: no queue was bound to exchange") for _, reason in dead)

    def test_a_deleted_queue_for_dead_letters_is_made_again_and_stops_nobody(
        self, rabbitmq: RabbitMQ, folder: Path
    ) -> None:
        with LevelLine(rabbitmq.url, folder, {"rabbitmq": {"prefetch": 20}}) as line:
            line.run()
            line.delete_queue(line.places().dead)
            for n in range(30):
                put(line, b"bad %d" % n, (b"x-delay", "S", sized(b"soon")))
            put(line, b"good", delay(200))
            assert [message.body for message in line.receive()] == [b"good"]
            assert len(line.dead_letters(30)) == 30

    def test_classic_queues_and_rabbitmq_alone_on_the_last_hop(self, rabbitmq: RabbitMQ, folder: Path) -> None:
        settings = {"levels": {"queue_type": "classic", "last_hop": "broker", "rounding": "nearest"}}
        with LevelLine(rabbitmq.url, folder, settings) as line:
            bridge = line.run()
            sent = {b"level": put(line, b"level", number(1)), b"rounded": put(line, b"rounded", delay(600))}
            got = line.receive(2)
            assert all(0.3 <= waited(sent[message.body], message) < 5 for message in got)
            assert all(message.routing_key == b"some.key" for message in got)
            bridge.terminate()

    def test_a_target_that_comes_back_in_time_gets_what_it_refused(self, rabbitmq: RabbitMQ, folder: Path) -> None:
        with LevelLine(rabbitmq.url, folder) as line:
            bridge = line.run()
            line.delete_exchange(line.target)
            put(line, b"patience", number(1))
            time.sleep(0.8)
            line.declare_exchange(line.target)
            line.bind(line.queue, line.target, "#")
            assert line.receive()[0].body == b"patience"
            assert bridge.terminate() == 0

    def test_a_removed_binding_is_declared_again(self, line: LevelLine) -> None:
        """Without it a message with a level would be delivered at once."""
        plain, level = f"{line.intake}.plain", f"{line.intake}.level"
        arguments = {"x-match": "all-with-x", "x-delay-level": None}
        with blocking(line.broker_url) as connection:
            connection.channel().exchange_unbind(level, plain, "", arguments)

        def waits_again() -> bool:
            sent = put(line, b"waits", number(1))
            return waited(sent, line.receive()[0]) >= 0.3

        wait_for(waits_again, "levels are waited again", 15)

    def test_one_postdate_has_routes_with_a_store_and_without(
        self, rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path
    ) -> None:
        line = Line(rabbitmq.url, redis_server.url, tmp_path)
        front = line.add_route("stairs", mode="ladder", deliver_to=line.target)
        with line:
            bridge = line.bridge().start()
            for exchange in (front, line.front):
                line.publish(Props([delay(1000)], PERSISTENT), exchange.encode(), exchange=exchange)
            assert {message.body for message in line.receive(2, 30)} == {front.encode(), line.front.encode()}
            assert bridge.terminate() == 0


def with_target_only(line: LevelLine) -> None:
    """Its consumers' queue takes ``kept.#`` and nothing else."""
    with blocking(line.broker_url) as connection:
        channel = connection.channel()
        channel.queue_bind(line.queue, line.target, "kept.#")
        channel.queue_unbind(line.queue, line.target, "#")


@pytest.mark.parametrize("mode", ["levels", "ladder"])
def test_a_routing_key_that_names_a_queue_of_the_route_is_a_loop(rabbitmq: RabbitMQ, folder: Path, mode: str) -> None:
    with LevelLine(rabbitmq.url, folder, {"routes": {"orders": {"deliver_to": ""}}}, mode) as line:
        places = line.places()
        waiting = [*places.levels.values(), *places.ladder][0]
        keys = [line.intake, places.due, places.dead, waiting, f"{line.intake}.level.9s.000000"]
        line.run()
        for key in keys:
            put(line, b"loops", delay(200), key=key.encode())
        dead = line.dead_letters(len(keys))
        assert sorted(message.routing_key.decode() for message, _ in dead) == sorted(keys)
        assert all(reason.startswith("loop: ") for _, reason in dead)
