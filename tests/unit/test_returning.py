"""How a rejected message leaves: what is dropped, added and restored, and where it goes after its last attempt."""

from __future__ import annotations

import struct

import pytest

from adapters.rabbitmq.broker_ends import out_of_retry
from adapters.rabbitmq.outgoing import Encoder, Out, chosen
from adapters.rabbitmq.raw.expiration import expiration_of
from adapters.rabbitmq.raw.payload import pack
from adapters.rabbitmq.raw.properties import locate, read
from bridge.core.message import Claim
from bridge.settings import Settings, load
from tests.unit.raw_properties import Entry, Props, encode_entry, short, sized

FRAME_MAX = 4096
NAMES = frozenset(
    {b"x-retry-attempt", b"x-retry-reason", b"x-retry-first-failed", b"x-death", b"x-first-death-queue", b"x-delay"}
    | {b"x-delay-id", b"x-last-death-reason", b"x-delivery-count"}
)


def settings(**more: object) -> Settings:
    retry = {"kind": "retry", "queue": "work", "schedule": ["1s", "1s"], **more}
    return load(None, {}, {"routes.orders": retry, "headers.compat": "plugin"})


pytestmark = pytest.mark.usefixtures("empty_directory")


def long(name: bytes, value: int) -> Entry:
    return (name, "l", struct.pack(">q", value))


def rejected(returns: int = 0, more: int = 0, expiration: bytes = b"") -> Claim:
    """A parked message that its consumer rejected after this number of returns."""
    texts = [(b"queue", b"work"), (b"reason", b"rejected"), (b"original-expiration", b"60000")]
    texts.append((b"exchange", b"postdate.orders.back" if returns else b"shop"))
    death = sized(b"F" + sized(b"".join(encode_entry((name, "S", sized(text))) for name, text in texts)))
    headers: list[Entry] = [(b"x-death", "A", death), (b"x-first-death-queue", "S", sized(b"work"))]
    headers += [(b"x-last-death-reason", "S", sized(b"rejected")), long(b"x-delivery-count", 1)]
    headers += [long(b"x-delay", 5000), (b"more", "S", sized(b"m" * more))]
    if returns:
        headers += [long(b"x-retry-attempt", returns), long(b"x-retry-first-failed", 77)]
    props = Props(headers, {"expiration": short(expiration)} if expiration else {}).encode()
    payload = pack(b"order.new", props, b"body")
    return Claim(b"i" * 20, 0, b"t" * 8, 2000, 1000, 0, "orders", b"", payload, b"i" * 20, 0.0)


def sent(letter: Claim, out: Out) -> bytes:
    """The properties that are published."""
    encoded = Encoder(1, FRAME_MAX).encode(letter, out)
    assert isinstance(encoded, bytes)
    head = encoded.index(b"\x02\x00\x01", 8)  # the content header frame behind the method's
    size = int.from_bytes(encoded[head + 3 : head + 7], "big")
    props = encoded[head + 7 + 12 : head + 7 + size]
    locate(props)
    return props


def test_a_first_failure_gets_its_headers_and_its_expiration_and_loses_those_of_rabbitmq() -> None:
    props = sent(rejected(), out_of_retry(settings(), "orders"))
    assert read(props, NAMES).headers == {
        "x-delay": 5000,
        "x-delay-id": "i" * 20,
        "x-retry-attempt": 1,
        "x-retry-reason": "rejected",
        "x-retry-first-failed": 1000,
    }
    assert expiration_of(props) == b"60000"


def test_a_later_failure_replaces_the_headers_and_keeps_the_first_moment() -> None:
    found = read(sent(rejected(2), out_of_retry(settings(), "orders")), NAMES).headers
    assert (found["x-retry-attempt"], found["x-retry-first-failed"]) == (3, 77)


def test_an_expiration_of_its_own_is_left_alone() -> None:
    assert expiration_of(sent(rejected(expiration=b"5"), out_of_retry(settings(), "orders"))) == b"5"


def test_where_a_frame_has_no_room_the_attempt_is_kept_and_the_audit_headers_are_not() -> None:
    out = out_of_retry(settings(), "orders")
    room = FRAME_MAX - len(sent(rejected(1, 1), out))
    found = read(sent(rejected(1, room - 10), out), NAMES).headers
    assert found["x-retry-attempt"] == 2
    assert "x-delay-id" not in found


@pytest.mark.parametrize(
    ("returns", "exchange"), [(0, "postdate.orders.back"), (1, "postdate.orders.back"), (2, "grave")]
)
def test_only_a_message_past_its_last_attempt_goes_to_the_exchange_in_then(returns: int, exchange: str) -> None:
    out = chosen(rejected(returns), out_of_retry(settings(then="exchange:grave"), "orders"))
    assert out.exchange == exchange
    props = sent(rejected(returns), out)
    assert expiration_of(props) == (None if exchange == "grave" else b"60000")
    assert read(props, NAMES).headers["x-retry-attempt"] == returns + 1


def test_without_then_an_operators_retry_returns_it_once_more() -> None:
    out = chosen(rejected(7), out_of_retry(settings(), "orders"))
    assert out.exchange == "postdate.orders.back"
