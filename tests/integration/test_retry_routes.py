"""Retry routes on RabbitMQ, as consumers see them that reject and otherwise know nothing of postdate."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from bridge.cli import run_command
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import wait_for
from tests.raw_amqp import Message, parts
from tests.retry_line import FailingConsumers, RetryLine, long, others, retry_headers, retry_id, returned_as
from tests.unit.raw_properties import Entry, Props, encode_entry, every_property, sized

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

#: RabbitMQ checks the user id, and this is the user of the tests.
SENT = every_property([long("tenant", 7), long("x-delay", 60_000)])
SENT.others |= {"user_id": b"\5guest", "expiration": b"\x0560000", "delivery_mode": b"\2", "priority": b"\3"}
PLAIN = Props([long("tenant", 7)], {"delivery_mode": b"\2"}).encode()
EXPIRING = Props([long("tenant", 7)], {"expiration": b"\x03150"}).encode()
IMPATIENT = {"retry": {"first": "100ms", "factor": 1, "max": "100ms", "attempts": 2}}


def text(name: bytes, value: bytes) -> Entry:
    return (name, "S", sized(value))


Consumers = dict[str, FailingConsumers]


@pytest.fixture(scope="module")
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RetryLine]:
    line = RetryLine(rabbitmq.url, redis_server.url, tmp_path_factory.mktemp("retries"), IMPATIENT)
    for kind in ("classic", "quorum"):
        line.add(kind, {"x-queue-type": kind})
        line.add(f"{kind}_ttl", {"x-queue-type": kind, "x-message-ttl": 150}, queue_type="classic", schedule=["1500ms"])
        line.add(f"{kind}_full", {"x-queue-type": kind, "x-max-length": 1}, queue_type="classic", schedule=["1s"])
    line.add("limited", {"x-queue-type": "quorum", "x-delivery-limit": 1}, schedule=["100ms"])
    line.add("ending", queue_type="classic", schedule=["100ms"], then=f"exchange:{line.name}.last")
    line.add("spent")
    line.add("leaving", queue_type="classic", schedule=["100ms"])
    line.declare_exchange(f"{line.name}.last", "fanout")
    line.declare_queue(f"{line.name}.last")
    line.bind(f"{line.name}.last", f"{line.name}.last")
    with line:
        line.start()
        yield line


@pytest.fixture(scope="module")
def consumers(line: RetryLine) -> Consumers:
    return {consumers.label: consumers for consumers in line.failing}


@pytest.fixture(params=["classic", "quorum"])
def queue_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_rejected_message_returns_by_the_schedule_and_then_is_a_dead_letter(
    line: RetryLine, consumers: Consumers, queue_type: str
) -> None:
    failing, body = consumers[queue_type], b"\0" + queue_type.encode()
    key = failing.publish(SENT.encode(), body)
    first = failing.next()
    assert retry_headers(first) is None
    failed_s = rejected_s = time.time()
    failing.reject(first)
    ids = set()
    for attempt, wait_s in ((1, 0.2), (2, 0.4)):
        returned = failing.next()
        assert wait_s - 0.005 <= returned.at - rejected_s < wait_s + 5, "never early, and not much later"
        assert returned_as(returned) == (attempt, "rejected")
        moment_ms = (retry_headers(returned) or (0, "", 0))[2]
        assert abs(moment_ms / 1000 - failed_s) < 5
        assert (returned.body, returned.routing_key) == (body, key)
        as_sent(returned, first)
        ids.add(retry_id(returned))
        rejected_s = time.time()
        failing.reject(returned)
    reason = failing.wait_dead()
    assert reason.startswith(f"exhausted: the consumers of queue '{failing.queue}' failed 3 times, first at ")
    assert reason.endswith("the last reason: rejected")
    assert line.copies(body) == 1, "no other queue gets a copy but the producer's own"
    assert line.depth(failing.queue) == 0
    assert len(ids) == 1, "one id names the message over all its attempts"


def as_sent(returned: Message, first: Message) -> None:
    """Everything that the producer wrote is there, byte for byte, but for the user id, which RabbitMQ checks."""
    assert others(returned) == others(first) != set()
    sent, got = parts(first.properties), parts(returned.properties)
    assert got.before[2:] == sent.before[2:]
    assert got.behind == sent.behind.replace(b"\5guest", b"", 1)


def exhaust(line: RetryLine, failing: FailingConsumers) -> str:
    """Let a message fail three times; return the name of its dead letter."""
    before = line.dead().keys()
    failing.publish(PLAIN, b"one")
    for _ in range(3):
        failing.reject(failing.next())
    wait_for(lambda: line.dead().keys() > before, "a dead letter")
    (name,) = line.dead().keys() - before
    return name


def test_show_tells_the_attempt_for_which_a_message_waits(
    line: RetryLine, consumers: Consumers, capsys: pytest.CaptureFixture[str]
) -> None:
    name = exhaust(line, consumers["spent"])
    capsys.readouterr()
    assert run_command(["show", name, "--config", str(line.file())]) == 0
    assert re.search(r"retry +no attempt left of 2 \(last reason rejected, first failed 20", capsys.readouterr().out)
    assert run_command(["show", name, "--config", str(line.file()), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["retry"]["attempt"], shown["retry"]["attempts"]) == (3, 2)
    assert shown["tries"] == 3, "the consumers' failures"
    assert shown["retry"]["id"] not in ("", name), "that of the first return, and not of this dead letter"
    assert shown["routing_key"] == "spent.new"


def test_a_message_that_succeeds_on_its_second_attempt_is_gone(line: RetryLine, consumers: Consumers) -> None:
    failing = consumers["classic"]
    failing.publish(PLAIN, b"one")
    failing.reject(failing.next())
    failing.accept(failing.next())
    wait_for(lambda: line.stored() == len(line.dead()), "a store with dead letters alone", 15)
    assert line.depth(failing.queue) == 0


def test_after_the_last_attempt_a_message_goes_to_the_exchange_in_then(line: RetryLine, consumers: Consumers) -> None:
    failing = consumers["ending"]
    delays = [text(b"x-delay-cancel", b"another"), text(b"x-delay-key", b"k"), long("x-delay", 60_000)]
    key = failing.publish(Props([long("tenant", 7), *delays], {"expiration": b"\x0560000"}).encode(), b"one")
    failing.reject(failing.next())
    returned = failing.next()
    assert b"\x0560000" in returned.properties
    assert b"x-delay-cancel" in returned.properties, "on a return, a delay header belongs to the consumers"
    failing.reject(returned)
    (last,) = line.receive(1, queue=f"{line.name}.last")
    assert (last.body, last.routing_key, returned_as(last)) == (b"one", key, (2, "rejected"))
    assert b"\x0560000" not in last.properties, "it must not expire in the queue that keeps it"
    assert retry_id(last) == retry_id(returned)
    assert others(last) == {encode_entry(long("tenant", 7))}, "it must not be delayed again, or cancel another"


def test_the_header_by_which_rabbitmq_delays_is_off_what_returns_and_what_goes_on(
    line: RetryLine, consumers: Consumers
) -> None:
    failing = consumers["ending"]
    native = long("x-opt-delivery-time", 1_600_000_000_000)  # past, or a RabbitMQ 4.4 would hold it here for the test
    failing.publish(Props([native, long("tenant", 7)], {"delivery_mode": b"\2"}).encode(), b"native")
    failing.reject(failing.next())
    returned = failing.next()
    assert b"tenant" in returned.properties
    assert b"x-opt-delivery-time" not in returned.properties
    failing.reject(returned)
    (last,) = line.receive(1, queue=f"{line.name}.last")
    assert b"x-opt-delivery-time" not in last.properties


@pytest.mark.parametrize(("sent", "queue"), [(PLAIN, "_ttl"), (EXPIRING, "")], ids=["queue TTL", "expiration"])
def test_what_expires_in_the_queue_returns_with_its_expiration(
    consumers: Consumers, queue_type: str, sent: bytes, queue: str
) -> None:
    failing = consumers[queue_type + queue]
    failing.leave()
    failing.publish(sent, b"one")
    time.sleep(0.2)  # no consumer takes it within its TTL
    returned = failing.next()
    assert returned_as(returned) == (1, "expired")
    assert (b"\x03150" in returned.properties) is (sent is EXPIRING)
    failing.accept(returned)


def test_what_a_full_queue_dead_letters_returns(consumers: Consumers, queue_type: str) -> None:
    failing = consumers[f"{queue_type}_full"]
    failing.publish(PLAIN, b"one")
    failing.publish(PLAIN, b"two")
    second = failing.next()
    failing.accept(second)
    returned = failing.next()
    assert (second.body, returned.body, returned_as(returned)) == (b"two", b"one", (1, "maxlen"))
    failing.accept(returned)


def test_a_message_over_the_delivery_limit_returns_and_has_the_whole_limit_again(consumers: Consumers) -> None:
    failing = consumers["limited"]
    failing.publish(PLAIN, b"one")
    for attempt in (None, 1):
        for _ in range(2):  # the first delivery, and one more by the limit
            message = failing.next()
            assert retry_headers(message) is None if attempt is None else returned_as(message) == (1, "delivery_limit")
            failing.crash()
    reason = failing.wait_dead()
    assert reason.startswith("exhausted: ")
    assert reason.endswith("the last reason: delivery_limit")


def test_a_message_that_its_consumer_publishes_once_more_starts_over(line: RetryLine, consumers: Consumers) -> None:
    failing = consumers["quorum"]
    key = failing.publish(PLAIN, b"one")
    failing.reject(failing.next())
    returned = failing.next()
    assert returned_as(returned) == (1, "rejected")
    line.publish(returned.properties, returned.body, key, line.target)
    failing.accept(returned)
    failing.reject(failing.next())
    again = failing.next()
    assert returned_as(again) == (1, "rejected")
    failing.accept(again)


def test_a_forged_state_skips_no_wait_and_names_no_moment(line: RetryLine, consumers: Consumers) -> None:
    failing = consumers["ending"]
    year_9999 = 253_370_764_800_000
    texts = {b"queue": failing.queue, b"exchange": f"postdate.{failing.route}.back", b"reason": "rejected"}
    table = [encode_entry((name, "S", sized(text.encode()))) for name, text in texts.items()]
    death: Entry = (b"x-death", "A", sized(b"F" + sized(b"".join(table))))
    state = [long("x-retry-attempt", 99), long("x-retry-first-failed", year_9999)]
    signature: Entry = (b"x-retry-signature", "S", sized(b"0" * 32))
    failing.publish(Props([death, *state, signature], {"delivery_mode": b"\2"}).encode(), b"forged")
    failing.reject(failing.next())
    returned = failing.next()
    attempt, reason, first_ms = retry_headers(returned) or (0, "", 0)
    assert (returned.body, attempt, reason) == (b"forged", 1, "rejected")
    assert abs(first_ms / 1000 - time.time()) < 60
    failing.reject(returned)
    (last,) = line.receive(1, queue=f"{line.name}.last")
    assert returned_as(last) == (2, "rejected")


def test_an_operators_retry_gives_an_exhausted_message_one_more_attempt(line: RetryLine, consumers: Consumers) -> None:
    failing = consumers["spent"]
    name = exhaust(line, failing)
    line.order("retry", name)
    again = failing.next()
    assert returned_as(again) == (3, "rejected")
    failing.reject(again)
    wait_for(lambda: any("failed 4 times" in why for why in line.dead().values()), "a dead letter", 15)


def test_a_message_whose_queue_is_gone_becomes_an_unroutable_dead_letter(line: RetryLine, consumers: Consumers) -> None:
    failing = consumers["leaving"]
    failing.publish(PLAIN, b"one")
    failing.reject(failing.next())
    failing.crash()
    line.delete_queue(failing.queue)
    wait_for(lambda: any(why.startswith("unroutable: ") for why in line.dead().values()), "a dead letter")


def test_setup_names_what_the_consumers_queue_needs(line: RetryLine, capsys: pytest.CaptureFixture[str]) -> None:
    file = line.file({"rabbitmq": {"management_url": "off"}}, "dry")
    capsys.readouterr()
    assert run_command(["setup", "--dry-run", "--config", str(file), "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    queue, route = f"{line.name}.quorum", f"{line.name}_quorum"
    (asked,) = [row for row in rows if row["name"] == queue]
    assert asked["state"] == "asked"
    routing = {"dead-letter-exchange": "postdate.retry", "dead-letter-routing-key": route}
    safe = {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}
    assert asked["arguments"] == {f"x-{name}": value for name, value in {**routing, **safe}.items()}
    assert "For a classic queue leave out dead-letter-strategy and overflow" in asked["text"]
    assert f"rabbitmqctl set_policy -p / --apply-to queues postdate.{route}" in asked["text"]
    (policy,) = [row for row in rows if row["name"] == f"postdate.{route}" and row["kind"] == "policy"]
    assert {**routing, **safe}.items() <= policy["arguments"].items()
