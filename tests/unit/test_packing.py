"""A message of a route without a store on each of its hops, and its expiration. No broker."""

from __future__ import annotations

import struct
from contextlib import suppress
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.rabbitmq.levels.packing import RabbitPacking, RoutePacking, places
from adapters.rabbitmq.levels.waits import plan_waits
from adapters.rabbitmq.outgoing import Out
from adapters.rabbitmq.raw.expiration import (
    expiration_of,
    is_expiration,
    put_aside,
    with_expiration,
    without_expiration,
)
from adapters.rabbitmq.raw.payload import pack, unpack
from adapters.rabbitmq.raw.properties import edit
from bridge.core.message import Delivery, HeaderValue
from bridge.core.reasons import bad_headers
from bridge.delay.levels import Bury, Deliver, Hold, Move
from bridge.pipeline.relay import Owed, Parcel
from bridge.settings import Settings, load
from tests.unit.raw_properties import HEADERS, VALUES, Entry, Props, encode_entry, every_property, short, sized

DUE_MS = 1_790_000_000_000
KEPT: list[Entry] = [(b"a", "f", struct.pack(">f", 1.5)), (b"z", "V", b"")]
DELAY: Entry = (b"x-delay", "I", struct.pack(">i", 1000))
DEATH: Entry = (b"x-death", "A", sized(b""))


def settings(mode: str) -> Settings:
    route = {"intercept": "orders.delay", "deliver_to": "orders", "mode": mode}
    return load(None, {}, {"routes.orders": route})


pytestmark = pytest.mark.usefixtures("empty_directory")


def parcel(
    mode: str, move: Move, properties: Props, lane: str = "orders", headers: dict[str, HeaderValue] | None = None
) -> Parcel:
    drop = frozenset({b"x-delay", b"x-delay-level", b"x-death", b"CC"})
    packing = RoutePacking(plan_waits(settings(mode), "orders"), Out("orders", drop, True, True, False))
    payload = pack(b"the.key", properties.encode(), b"body")
    delivery = Delivery(None, lane, payload, b"the.key", headers or {}, DUE_MS)
    return RabbitPacking({"orders": packing}, {"orders.due": "orders"}).parcel(delivery, move, DUE_MS)


def out(parcel: Parcel) -> bytes:
    routing_key, properties, body = unpack(parcel.payload)
    assert (routing_key, body) == (b"the.key", b"body")
    return properties


def due(value: int = DUE_MS) -> Entry:
    return (b"x-delay-due", "l", struct.pack(">q", value))


def test_a_waiting_message_has_neither_delay_nor_expiration() -> None:
    held = parcel("levels", Hold(5000), Props([KEPT[0], DELAY, DEATH, KEPT[1]], {"expiration": short(b"60000")}))
    assert held.place == plan_waits(settings("levels"), "orders").levels[5000]
    wanted = Props([*KEPT, due(), (b"x-delay-expiration", "S", sized(b"60000"))], {})
    assert sorted(out(held)) == sorted(wanted.encode())
    assert expiration_of(out(held)) is None


def test_a_message_arrives_as_written_with_its_due_moment() -> None:
    before = Props([*KEPT, DELAY], {"expiration": short(b"60000"), "type": short(b"t")})
    held = parcel("levels", Hold(5000), before)
    waited = Delivery(None, "orders.due", held.payload, b"the.key", {}, DUE_MS)
    packing = RoutePacking(
        plan_waits(settings("levels"), "orders"), Out("orders", frozenset({b"x-delay"}), True, True, False)
    )
    last = RabbitPacking({"orders": packing}, {"orders.due": "orders"}).parcel(waited, Deliver(), 0)
    others = {"expiration": short(b"60000"), "type": short(b"t")}
    assert out(last) == Props([*KEPT, due()], others).encode()
    assert places({"orders": packing})[last.place].exchange == "orders"


def test_ladder_headers_name_the_steps_and_are_dropped_at_delivery() -> None:
    held = parcel("ladder", Hold(5000), Props([*KEPT, DELAY], {}))
    assert held.place == plan_waits(settings("ladder"), "orders").ladder[2]
    steps: list[Entry] = [(b"x-delay-step-02", "V", b""), (b"x-delay-step-00", "V", b"")]
    assert out(held) == Props([*KEPT, *steps, due()], {}).encode()
    last = parcel("ladder", Deliver(), Props([*KEPT, *steps, due()], {}), lane="orders.due")
    assert out(last) == Props([*KEPT, due()], {}).encode()


def native(moment_ms: int) -> Entry:
    return (b"x-opt-delivery-time", "l", struct.pack(">q", moment_ms))


def test_where_rabbitmq_delays_by_itself_one_header_names_the_moment_and_is_dropped_at_delivery() -> None:
    held = parcel("native", Hold(5000), Props([KEPT[0], DELAY, KEPT[1]], {"expiration": short(b"60000")}))
    assert held.place == plan_waits(settings("native"), "orders").native
    aside: Entry = (b"x-delay-expiration", "S", sized(b"60000"))
    assert sorted(out(held)) == sorted(Props([*KEPT, native(DUE_MS), due(), aside], {}).encode())


@pytest.mark.parametrize(("left_ms", "owed"), [(-1, None), (0, None), (1000, None), (1001, Owed(1001, True))])
def test_what_rabbitmq_did_not_hold_waits_again(left_ms: int, owed: Owed | None) -> None:
    """A cluster of which a node is older than 4.4 passes messages on at once. Clocks may differ by a second."""
    packing = RoutePacking(plan_waits(settings("native"), "orders"), Out("orders", frozenset(), True, True, False))
    came = Delivery(None, "orders.due", b"", b"k", {"x-opt-delivery-time": DUE_MS + left_ms}, DUE_MS)
    assert RabbitPacking({"orders": packing}, {"orders.due": "orders"}).owed(came) == owed


def test_a_producers_moment_that_its_route_does_not_read_holds_no_message_of_a_level_again() -> None:
    """RabbitMQ alone brought it to its level, with all of its headers. Held again it would wait in no level."""
    for ahead_ms in (1001, 864_000_000):
        assert owed([native(DUE_MS + ahead_ms)], {"x-delay-level": 2, "x-opt-delivery-time": DUE_MS + ahead_ms}) is None


def test_a_message_that_rabbitmq_brought_to_its_level_keeps_no_due_moment_of_an_earlier_delivery() -> None:
    level: Entry = (b"x-delay-level", "I", b"\0\0\0\3")
    came = Props([*KEPT, level, due(5), DEATH], {})
    assert out(parcel("levels", Deliver(), came, "orders.due", {"x-delay-level": 3})) == Props(KEPT, {}).encode()


def test_a_message_due_on_arrival_has_its_due_moment() -> None:
    assert out(parcel("levels", Deliver(), Props([*KEPT, DELAY], {}))) == Props([*KEPT, due()], {}).encode()


def test_a_dead_letter_is_the_message_with_its_reason_and_without_a_user_id() -> None:
    dead = parcel("levels", Bury(bad_headers("soon")), Props([*KEPT, DELAY], {"user_id": short(b"somebody")}))
    assert dead.place == "postdate.orders.dead"
    assert out(dead) == Props([*KEPT, DELAY, (b"x-delay-reason", "S", sized(b"bad_header: soon"))], {}).encode()


def test_a_dead_letter_does_not_expire() -> None:
    dead = parcel("levels", Bury(bad_headers("why")), Props(KEPT, {"expiration": short(b"5"), "type": short(b"t")}))
    headers: list[Entry] = [
        *KEPT,
        (b"x-delay-reason", "S", sized(b"bad_header: why")),
        (b"x-delay-expiration", "S", sized(b"5")),
    ]
    assert out(dead) == Props(headers, {"type": short(b"t")}).encode()


#: A level of settings of before, whose messages may come to the due queue of today.
LEVEL = b"postdate.orders.level.5s.0123ab"


def death(*noted: Entry, queue: bytes = LEVEL, reason: bytes = b"expired") -> bytes:
    """One entry of x-death as RabbitMQ writes it."""
    count: Entry = (b"count", "l", struct.pack(">q", 1))
    entries = (count, *noted, (b"queue", "S", sized(queue)), (b"reason", "S", sized(reason)))
    return b"F" + sized(b"".join(map(encode_entry, entries)))


def original(text: bytes) -> Entry:
    return (b"original-expiration", "S", sized(text))


def deaths(*entries: bytes) -> Entry:
    return (b"x-death", "A", sized(b"".join(entries)))


def expired(text: bytes) -> Entry:
    """x-death of a message that had an expiration when RabbitMQ alone brought it to its level."""
    return deaths(death(original(text)))


def owed(headers: list[Entry], found: dict[str, HeaderValue]) -> Owed | None:
    packing = RoutePacking(plan_waits(settings("levels"), "orders"), Out("orders", frozenset(), True, True, False))
    delivery = Delivery(None, "orders.due", pack(b"k", Props(headers, {}).encode(), b""), b"k", found, DUE_MS)
    return RabbitPacking({"orders": packing}, {"orders.due": "orders"}).owed(delivery)


@pytest.mark.parametrize(
    ("text", "level_ms", "headers", "wait_ms"),
    [
        (b"4999", 5000, {"x-delay-level": 2}, 5000),
        (b"4999", 5000, {"x-delay-level": "2"}, 5000),
        (b"5000", 5000, {"x-delay-level": 2}, None),
        (b"4999", 5000, {}, None),
        (b"4999", 1000, {"x-delay-level": 2}, None),
    ],
)
def test_the_queue_in_x_death_tells_which_level_an_expiration_cut_short(
    text: bytes, level_ms: int, headers: dict[str, HeaderValue], wait_ms: int | None
) -> None:
    queue = plan_waits(settings("levels"), "orders").levels[level_ms].encode()
    assert owed([deaths(death(original(text), queue=queue))], headers) == (
        None if wait_ms is None else Owed(wait_ms, queue_gone=False)
    )


@pytest.mark.parametrize("level", ["abc", "", "٣", "9" * 5000, nan, inf, -inf, 0, -1, 10**30, True, None, b"\xff"])
def test_an_unreadable_level_does_not_hold_a_message_again(level: HeaderValue) -> None:
    assert owed([expired(b"5")], {"x-delay-level": level}) is None


@given(HEADERS, st.lists(VALUES, max_size=3), st.sampled_from(["A", "F"]))
def test_a_foreign_message_in_the_due_queue_stops_nothing(
    headers: list[Entry], values: list[tuple[str, bytes]], tag: str
) -> None:
    inside = b"".join(kind.encode() + raw for kind, raw in values) + encode_entry(original(b"5"))
    came = [*headers, (b"x-death", tag, sized(inside))]
    assert owed(came, {"x-delay-level": 2}) is None
    with suppress(ValueError):
        parcel("levels", Deliver(), Props(came, {}), "orders.due", {"x-delay-level": 2})


def test_an_expiration_that_rabbitmq_took_off_is_restored() -> None:
    level: Entry = (b"x-delay-level", "I", b"\0\0\0\2")
    came = Props([*KEPT, level, expired(b"60000")], {})
    last = parcel("levels", Deliver(), came, "orders.due", {"x-delay-level": 2})
    assert out(last) == Props(KEPT, {"expiration": short(b"60000")}).encode()


OTHERS: list[Entry] = [
    original(b"1000"),
    (b"x-history", "A", sized(death(original(b"1000")))),
    (b"x-history", "F", sized(encode_entry(expired(b"1000")))),
    deaths(death(), death(original(b"1000"))),
    deaths(death(original(b"1000"), queue=b"a.consumers.queue"), death()),
    deaths(death(original(b"1000"), reason=b"rejected")),
    deaths(death((b"original-expiration", "I", b"\0\0\0\1"))),
    deaths(death(original(b"9" * 30))),
    deaths(death(original(b"9" * 5000))),
    deaths(death(original(b"soon"))),
    deaths(death(original("٣".encode()))),
    deaths(b"S" + sized(death(original(b"1000")))),
    deaths(),
    (b"x-death", "S", sized(death(original(b"1000")))),
    (b"x-death", "F", sized(encode_entry(original(b"1000")))),
]


@pytest.mark.parametrize("other", OTHERS)
def test_only_the_x_death_entry_of_the_last_level_restores_an_expiration(other: Entry) -> None:
    level: Entry = (b"x-delay-level", "I", b"\0\0\0\2")
    came = Props([*KEPT, level, other], {})
    last = parcel("levels", Deliver(), came, "orders.due", {"x-delay-level": 2})
    assert expiration_of(out(last)) is None


@pytest.mark.parametrize("other", OTHERS)
def test_only_the_x_death_entry_of_the_last_level_tells_that_it_was_cut_short(other: Entry) -> None:
    name, tag, value = other
    of_today = plan_waits(settings("levels"), "orders").levels[5000].encode()
    assert len(of_today) == len(LEVEL)
    assert owed([(name, tag, value.replace(LEVEL, of_today))], {"x-delay-level": 2}) is None


@pytest.mark.parametrize("text", [b"0", b"-0", b"+7", b"007", b"4294967296", b"315360000000", b"0" * 250 + b"5"])
def test_every_expiration_that_rabbitmq_accepts_is_restored_unchanged(text: bytes) -> None:
    level: Entry = (b"x-delay-level", "I", b"\0\0\0\2")
    last = parcel("levels", Deliver(), Props([level, expired(text)], {}), "orders.due", {"x-delay-level": 2})
    assert expiration_of(out(last)) == text


@pytest.mark.parametrize("text", [b"", b"-1", b" 5", b"5 ", b"5.0", b"0x5", b"315360000001", b"9" * 255, b"+" * 3])
def test_a_text_over_which_rabbitmq_closes_the_channel_is_no_expiration(text: bytes) -> None:
    assert not is_expiration(text)


@pytest.mark.parametrize("text", [b"junk", b"", b"-1", b"9" * 30, b"9" * 5000])
def test_a_producers_own_x_delay_expiration_is_not_restored(text: bytes) -> None:
    aside: Entry = (b"x-delay-expiration", "S", sized(text))
    assert out(parcel("levels", Deliver(), Props([*KEPT, aside], {}))) == Props([*KEPT, due()], {}).encode()


def test_a_message_whose_headers_cannot_be_read_is_kept_as_it_came() -> None:
    packing = RoutePacking(plan_waits(settings("levels"), "orders"), Out("orders", frozenset(), True, True, False))
    broken = Props([(b"a", "?", b"")], {"type": short(b"t")}).encode()
    delivery = Delivery(None, "orders.due", pack(b"the.key", broken, b"body"), b"", {}, DUE_MS)
    relay = RabbitPacking({"orders": packing}, {"orders.due": "orders"})
    with pytest.raises(ValueError, match="unknown type"):
        relay.parcel(delivery, Bury(bad_headers("a reason")), 0)
    plain = relay.parcel(delivery, Bury(None), 0)
    assert (plain.place, plain.payload) == ("postdate.orders.dead", delivery.payload)


@pytest.mark.parametrize("properties", [Props(KEPT, {}), every_property(KEPT), Props(None, {"app_id": short(b"x")})])
def test_an_expiration_is_removed_and_restored_at_the_same_position(properties: Props) -> None:
    before = without_expiration(properties.encode())
    assert expiration_of(before) is None
    with_it = with_expiration(before, b"1234")
    assert expiration_of(with_it) == b"1234"
    assert without_expiration(with_it) == before
    if expiration_of(properties.encode()) is not None:
        assert with_expiration(before, expiration_of(properties.encode()) or b"") == properties.encode()


@given(st.integers(0, 315_360_000_000))
def test_every_expiration_that_was_put_aside_is_found(ms: int) -> None:
    text = b"%d" % ms
    entry = Props([*KEPT, (b"x-delay-expiration", "S", sized(text))], {}).encode()
    assert put_aside(entry) == text
    assert put_aside(edit(entry, frozenset({b"x-delay-expiration"}), False, b"")) is None


def test_steps_missing_in_x_death_are_still_owed_and_an_unknown_step_stops_nothing() -> None:
    waits = plan_waits(settings("ladder"), "orders")
    packing = RoutePacking(waits, Out("orders", frozenset(), True, True, False))
    named: list[Entry] = [(b"x-delay-step-%02d" % step, "V", b"") for step in (0, 2, 28, 99)]
    noted = deaths(death(queue=waits.ladder[2].encode()))
    payload = pack(b"k", Props([*named, noted], {}).encode(), b"")
    delivery = Delivery(None, "orders.due", payload, b"k", {}, DUE_MS)
    assert RabbitPacking({"orders": packing}, {"orders.due": "orders"}).owed(delivery) == Owed(1000, queue_gone=True)
