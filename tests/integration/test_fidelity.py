"""Byte for byte: what a consumer gets after a delay is what it would have got without one, less a documented list.

Every message goes twice through the same front exchange, once with a delay header and once without, so the broker's own
habits cancel out. A type tag that AMQP 0-9-1 does not have cannot be tested here: RabbitMQ closes the connection of the
producer that sends one, so none can reach the bridge.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.delay_line import Line, delay
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.raw_amqp import Message, Parts, parts
from tests.unit.raw_properties import ORDER, Entry, Props, encode_entry, every_property, short, sized

pytestmark = [pytest.mark.rabbitmq, pytest.mark.redis]

FRAME_MAX = 131_072
#: A frame's own eight bytes, and the twelve of a content header before its properties.
ROOM = FRAME_MAX - 8 - 12
AUDIT_BYTES = 57
PERSISTENT = b"\2"
MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fidelity")


@pytest.fixture(scope="module")
def line(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    """The defaults."""
    with Line(rabbitmq.url, redis_server.url, folder) as line:
        line.start()
        yield line


@pytest.fixture(scope="module")
def silent(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    """Nothing is added: headers.audit = false."""
    with Line(rabbitmq.url, redis_server.url, folder, {"headers": {"audit": False}}) as line:
        line.start()
        yield line


@pytest.fixture(scope="module")
def keeping(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    """Everything that can be kept is kept."""
    kept = dict.fromkeys(("keep_user_id", "keep_cc", "keep_bcc", "keep_x_death", "keep_delivery_count"), True)
    with Line(rabbitmq.url, redis_server.url, folder, {"headers": {**kept, "audit": False}}) as line:
        line.start()
        yield line


@pytest.fixture(scope="module")
def plugin(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> Iterator[Line]:
    """headers.compat = "plugin"."""
    with Line(rabbitmq.url, redis_server.url, folder, {"headers": {"compat": "plugin"}}) as line:
        line.start()
        yield line


def direct(line: Line, props: Props, body: bytes = b"", key: bytes = b"some.key") -> Message:
    """What a consumer gets when the producer asks for no delay."""
    line.publish(props, body, key)
    return line.receive()[0]


def delayed(line: Line, props: Props, body: bytes = b"", key: bytes = b"some.key", first: bool = False) -> Message:
    """What a consumer gets when the producer adds a delay header, behind the others or before them."""
    others = props.headers or []
    headers = [delay(20), *others] if first else [*others, delay(20)]
    line.publish(Props(headers, props.others), body, key)
    return line.receive()[0]


def without_audit(message: Message) -> Parts:
    """Its properties less the two audit headers, which must be there."""
    found = parts(message.properties)
    left = found.without(b"x-delay-id", b"x-delay-due")
    added = [entry for entry in found.headers if entry not in left.headers]
    assert sorted(entry[:12] for entry in added) == [b"\x0ax-delay-idS", b"\x0bx-delay-due"]
    return left


def as_a_quorum_queue_keeps_it(found: Parts) -> Parts:
    """A quorum queue reads the headers and writes them again, with the tag l for L; a classic one keeps the bytes."""
    headers = []
    for entry in found.headers:
        tag = 1 + entry[0]
        headers.append(
            entry[:tag] + (b"l" if entry[tag : tag + 1] == b"L" else entry[tag : tag + 1]) + entry[tag + 1 :]
        )
    return found._replace(headers=headers)


def assert_same(line: Line, props: Props, body: bytes = b"", key: bytes = b"some.key", quorum: bool = True) -> None:
    """The delayed message equals the direct one but for the audit headers; so do body and routing key.

    RabbitMQ 4 puts the headers of every message in the order of their names, of a direct one too.
    """
    plain = direct(line, props, body, key)
    for first in (False, True):
        late = delayed(line, props, body, key, first)
        expected = parts(plain.properties)
        assert without_audit(late) == (as_a_quorum_queue_keeps_it(expected) if quorum else expected)
        assert (late.body, late.routing_key) == (plain.body, plain.routing_key)


def table(*entries: Entry) -> bytes:
    return sized(b"".join(map(encode_entry, entries)))


def array(*values: tuple[str, bytes]) -> bytes:
    return sized(b"".join(tag.encode() + raw for tag, raw in values))


VALUES = {
    "double": ("d", struct.pack(">d", 1.5)),
    "negative zero": ("d", struct.pack(">d", -0.0)),
    "the smallest double": ("d", struct.pack(">d", 5e-324)),
    "float": ("f", struct.pack(">f", 0.1)),
    "int8": ("b", b"\xfb"),
    "uint8": ("B", b"\xfa"),
    "int16": ("s", b"\x80\x00"),
    "uint16": ("u", b"\xff\xff"),
    "int32": ("I", b"\x80\x00\x00\x00"),
    "uint32": ("i", b"\xff\xff\xff\xff"),
    "int64": ("l", b"\x7f" + b"\xff" * 7),
    "a small int64": ("l", b"\0" * 7 + b"\1"),
    "another int64": ("L", b"\0" * 7 + b"\1"),
    "timestamp": ("T", (1_790_000_000).to_bytes(8, "big")),
    "timestamp in ms": ("T", (1_790_000_000_000).to_bytes(8, "big")),
    "negative timestamp": ("T", b"\xff" * 8),
    "text": ("S", sized("grüße".encode())),
    "text that is not UTF-8": ("S", sized(b"\xff\xfe\x00")),
    "empty text": ("S", sized(b"")),
    "byte array": ("x", sized(b"\x00\x01\xff")),
    "decimal": ("D", b"\2" + struct.pack(">i", 150)),
    "negative decimal": ("D", b"\2" + struct.pack(">i", -150)),
    "void": ("V", b""),
    "true": ("t", b"\1"),
    "false": ("t", b"\0"),
    "table": ("F", table((b"a", "d", struct.pack(">d", 2.5)), (b"b", "F", table((b"c", "b", b"\xff"))))),
    "empty table": ("F", sized(b"")),
    "array": ("A", array(("d", struct.pack(">d", 0.5)), ("f", struct.pack(">f", 0.5)), ("A", array(("V", b""))))),
    "empty array": ("A", sized(b"")),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_header_of_this_type_arrives_as_it_was_sent(line: Line, name: str) -> None:
    tag, raw = VALUES[name]
    assert_same(line, Props([(b"before", "S", sized(b"1")), (b"value", tag, raw), (b"after", "V", b"")]))


def test_all_types_together_arrive_in_their_order(line: Line) -> None:
    assert_same(line, Props([(name.encode(), tag, raw) for name, (tag, raw) in VALUES.items()]), b"body")


def test_a_header_that_comes_twice_arrives_twice(line: Line) -> None:
    assert_same(line, Props([(b"k", "S", sized(b"1")), (b"k", "I", b"\0\0\0\2"), (b"k", "S", sized(b"1"))]))


def test_names_of_headers_may_be_empty_long_or_not_utf_8(line: Line) -> None:
    assert_same(line, Props([(b"", "S", sized(b"")), (b"n" * 255, "V", b""), (b"\xff\x00", "t", b"\1")]))


def test_the_exchange_a_consumer_sees_is_the_real_one(line: Line) -> None:
    """Without a delay it is the front exchange: the broker names the one that the producer published to."""
    assert delayed(line, Props([])).exchange == line.target.encode()
    assert direct(line, Props([])).exchange == line.front.encode()


def test_an_empty_table_of_headers_arrives_as_the_audit_headers_alone(line: Line) -> None:
    assert_same(line, Props([]))


# The other properties


@pytest.mark.parametrize("name", [name for name in ORDER if name not in ("headers", "user_id")])
def test_each_property_arrives_present_empty_or_zero_as_it_was_sent(line: Line, name: str) -> None:
    size = ORDER[name]
    values = [b"\0" * size, b"\xff" * size] if size else [short(b""), short(b"some text"), short(b"\xff" * 255)]
    if name == "expiration":
        values = [short(b"60000"), short(b"0" * 250 + b"60000")]  # RabbitMQ wants a number here
    for value in values:
        if name == "delivery_mode":
            value = PERSISTENT if value == b"\xff" else b"\1"
        assert_same(line, Props([], {name: value}))


def test_all_properties_together_arrive_as_they_were_sent(line: Line) -> None:
    props = every_property([(b"k", "d", struct.pack(">d", 1.5))])
    props.others |= {"expiration": short(b"60000"), "delivery_mode": PERSISTENT}
    del props.others["user_id"]
    assert_same(line, props, b"body")


def test_a_message_with_nothing_but_a_delay_arrives_with_the_audit_headers_alone(line: Line) -> None:
    late = delayed(line, Props(None))
    assert without_audit(late) == (b"\x20\x00", [], b"")


# Sizes


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX, 1_000_003])
def test_a_body_of_any_size_arrives_whole(line: Line, size: int) -> None:
    body = bytes(range(251)) * (size // 251 + 1)
    assert_same(line, Props([], {"delivery_mode": PERSISTENT}), body[:size])


def test_a_body_a_bit_smaller_than_16_mib_arrives_whole(line: Line) -> None:
    body = struct.pack(">I", 0xDEADBEEF) * ((16 * MIB - 1024) // 4)
    late = delayed(line, Props([], {"delivery_mode": PERSISTENT}), body)
    assert late.body == body


def test_100_kib_of_headers_arrive(line: Line) -> None:
    assert_same(line, Props([(b"h%05d" % n, "S", sized(b"v" * 91)) for n in range(990)]))


def full(size: int) -> Props:
    """Properties of this many bytes, with a delay header in front."""
    props = Props([delay(20), (b"big", "S", sized(b""))])
    return Props([delay(20), (b"big", "S", sized(b"v" * (size - len(props.encode()))))])


def test_the_audit_headers_are_added_while_they_just_fit_into_the_frame(line: Line) -> None:
    props = full(ROOM - AUDIT_BYTES + len(encode_entry(delay(20))))
    line.publish(props)
    late = line.receive()[0]
    assert len(late.properties) == ROOM
    assert without_audit(late).headers == [encode_entry((props.headers or [])[1])]


@pytest.mark.parametrize("over", [1, AUDIT_BYTES - len(encode_entry(delay(20)))])
def test_headers_that_leave_no_room_for_the_audit_headers_arrive_without_them(line: Line, over: int) -> None:
    props = full(ROOM - AUDIT_BYTES + len(encode_entry(delay(20))) + over)
    line.publish(props)
    late = line.receive()[0]
    assert parts(late.properties).headers == [encode_entry((props.headers or [])[1])]


@pytest.mark.parametrize("key", [b"", b"\xff" * 255, b"a.\x00.b", bytes(range(255, 0, -1))])
def test_any_routing_key_is_kept(line: Line, key: bytes) -> None:
    assert_same(line, Props([]), b"body", key)


# What is taken out


DROPPED: dict[str, list[Entry]] = {
    "cc": [(b"CC", "A", array(("S", sized(b"copies"))))],
    "bcc": [(b"BCC", "A", array(("S", sized(b"copies"))))],
    "x-death": [
        (b"x-death", "A", array(("F", table((b"count", "l", b"\0" * 7 + b"\1"), (b"queue", "S", sized(b"q")))))),
        (b"x-first-death-exchange", "S", sized(b"e")),
        (b"x-first-death-queue", "S", sized(b"q")),
        (b"x-first-death-reason", "S", sized(b"expired")),
        (b"x-last-death-exchange", "S", sized(b"e")),
        (b"x-last-death-queue", "S", sized(b"q")),
        (b"x-last-death-reason", "S", sized(b"expired")),
    ],
    "delivery count": [(b"x-delivery-count", "l", b"\0" * 7 + b"\1"), (b"x-acquired-count", "l", b"\0" * 7 + b"\2")],
}
KEPT: Entry = (b"mine", "S", sized(b"stays"))
#: By this RabbitMQ 4.4 delays. The moment is past, so that not even that one holds the message in the intake.
NATIVE: Entry = (b"x-opt-delivery-time", "l", struct.pack(">q", 1_600_000_000_000))


@pytest.mark.parametrize("group", DROPPED)
def test_headers_of_this_group_are_dropped(line: Line, group: str) -> None:
    late = delayed(line, Props([*DROPPED[group], KEPT]))
    assert without_audit(late).headers == [encode_entry(KEPT)]


@pytest.mark.parametrize("group", [group for group in DROPPED if group not in ("cc", "bcc")])
def test_headers_of_this_group_are_kept_where_the_settings_say_so(keeping: Line, group: str) -> None:
    plain, late = (way(keeping, Props([*DROPPED[group], KEPT])) for way in (direct, delayed))
    assert late.properties == plain.properties


def test_a_kept_cc_is_served_when_the_message_is_due(keeping: Line) -> None:
    """The front exchange looks at headers only, so nobody served it when the message came in."""
    copies = f"{keeping.name}.copies"
    keeping.declare_queue(copies)
    keeping.bind(copies, keeping.target, "copies")
    props = Props([DROPPED["cc"][0], KEPT])
    for way in (direct, delayed):
        assert parts(way(keeping, props).properties).headers == [*map(encode_entry, props.headers or [])]
        assert len(keeping.receive(queue=copies)) == 1


def test_the_header_by_which_rabbitmq_delays_never_leaves(keeping: Line) -> None:
    assert parts(delayed(keeping, Props([NATIVE, KEPT])).properties).headers == [encode_entry(KEPT)]


def test_user_id_is_dropped_and_the_rest_stays(line: Line) -> None:
    props = every_property([KEPT])
    props.others |= {"expiration": short(b"60000"), "user_id": short(b"guest"), "delivery_mode": PERSISTENT}
    late = delayed(line, props, b"body")
    del props.others["user_id"]
    assert without_audit(late) == parts(props.encode())


def test_user_id_is_kept_where_the_settings_say_so(keeping: Line) -> None:
    props = Props([KEPT], {"user_id": short(b"guest"), "app_id": short(b"a")})
    assert delayed(keeping, props).properties == props.encode()


def test_every_delay_header_is_taken_out(line: Line) -> None:
    others: list[Entry] = [
        (b"x-delay-level", "I", b"\0\0\0\1"),
        (b"x-deliver-at", "S", sized(b"1700000000000")),
        (b"x-delay-key", "S", sized(b"a key")),
        (b"x-delay-id", "S", sized(b"from an earlier delay")),
        (b"x-delay-due", "l", b"\0" * 8),
    ]
    late = delayed(line, Props([*others, KEPT]))
    assert without_audit(late).headers == [encode_entry(KEPT)]


# What is added, by setting


@pytest.mark.parametrize("props", [Props([KEPT]), Props([]), every_property([KEPT])], ids=["one", "empty", "all"])
def test_without_audit_the_bytes_are_exactly_those_of_the_producer(silent: Line, props: Props) -> None:
    if "user_id" in props.others:
        props.others |= {"expiration": short(b"60000"), "delivery_mode": PERSISTENT}
        del props.others["user_id"]
    for first in (False, True):
        assert delayed(silent, props, b"body", first=first).properties == props.encode()


def test_without_audit_a_full_frame_of_headers_arrives(silent: Line) -> None:
    props = full(ROOM)
    silent.publish(props)
    late = silent.receive()[0]
    assert late.properties == Props((props.headers or [])[1:]).encode()


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (delay(20), (b"x-delay", "I", struct.pack(">i", -20))),
        ((b"x-delay", "l", struct.pack(">q", 20)), (b"x-delay", "l", struct.pack(">q", -20))),
        ((b"x-delay", "I", struct.pack(">i", -20)), (b"x-delay", "I", struct.pack(">i", 20))),
        ((b"x-delay", "S", sized(b"0s")), (b"x-delay", "l", struct.pack(">q", 0))),
        ((b"x-delay", "l", struct.pack(">q", -(2**63))), None),
    ],
    ids=["int32", "int64", "negative", "text", "the smallest int64"],
)
def test_compat_plugin_leaves_the_negated_delay(plugin: Line, given: Entry, left: Entry | None) -> None:
    plugin.publish(Props([KEPT, given]))
    late = plugin.receive()[0]
    content = without_audit(late).headers
    assert encode_entry(KEPT) in content
    assert len(content) == 2
    assert left is None or encode_entry(left) in content


def test_a_delayed_message_that_a_consumer_sends_on_has_one_id_only(line: Line) -> None:
    first = delayed(line, Props([KEPT]))
    before, headers, behind = parts(first.properties)
    line.publish(before + sized(b"".join(headers) + encode_entry(delay(20))) + behind)
    second = line.receive()[0]
    assert without_audit(second) == (before, [encode_entry(KEPT)], behind)
    assert second.properties != first.properties


def test_a_classic_intake_queue_keeps_the_bytes_as_well(rabbitmq: RabbitMQ, redis_server: Redis, folder: Path) -> None:
    with Line(rabbitmq.url, redis_server.url, folder, {"rabbitmq": {"queue_type": "classic"}}) as line:
        line.start()
        assert_same(
            line, Props([(name.encode(), tag, raw) for name, (tag, raw) in VALUES.items()]), b"body", quorum=False
        )
