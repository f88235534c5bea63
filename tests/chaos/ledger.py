"""The ledger on RabbitMQ: a producer and a consumer that outlive every fault, and the verdict over their messages.

Only a message whose publish was confirmed is owed. One without a confirm is neither owed nor wrong. The consumer
acknowledges what it has recorded. When its own connection breaks, RabbitMQ redelivers what was not acknowledged. Such a
redelivered message that is already in the book is not a copy made by the bridge.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from hashlib import blake2b

from tests.chaos.accountant import Accountant
from tests.chaos.verdict import Owed, Receipt
from tests.raw_amqp import Answer, Closed, Message, RawConnection, parts
from tests.unit.raw_properties import Entry, Props, encode_entry, short, sized

_WINDOW = 2000
_TURN_S = 0.01
_HEAD = struct.Struct(">QId")


class Ledger(Accountant):
    """Publishes to ``front`` and consumes ``queue``, in a thread each."""

    patience_s = 30.0

    def __init__(
        self, broker_url: str, front: str, queue: str, keys: int = 50, grid_ms: int = 0, seed: int = 7
    ) -> None:
        """``grid_ms``: every due moment is absolute, and a multiple of this; 0 for moments of all kinds."""
        super().__init__()
        self._keys = keys
        self._grid_ms = grid_ms
        self._broker_url = broker_url
        #: The exchange that it publishes to. It may change.
        self.front = front
        self._queue = queue
        self._random = random.Random(seed)
        self._number = 0
        #: Headers that a message may have gained on its way.
        self.added: tuple[bytes, ...] = (b"x-delay-id", b"x-delay-due")
        self.rate = 0.0
        self.delays_ms = (0, 2000)
        self._left: int | None = None

    # -- what a test asks for ---------------------------------------------------------------------------------------

    def produce(self, rate: float, delays_ms: tuple[int, int], count: int | None = None) -> None:
        """Start to publish ``rate`` messages a second, each with a random delay in ``delays_ms``; at most ``count``."""
        self.rate, self.delays_ms, self._left = rate, delays_ms, count
        self._stop_producing.clear()
        self._spawn(self._produce)

    def stop_producing(self) -> None:
        """Stop publishing and wait for the open confirms."""
        self._stop_producing.set()
        self._threads[-1].join(30)
        self._raise_failures()

    def produced(self) -> None:
        """Wait until all ``count`` messages were sent."""
        self._threads[-1].join(60)
        self._raise_failures()

    # -- the producer -----------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        while not self._done():
            try:
                with RawConnection(self._broker_url, 5.0) as connection:
                    connection.confirm()
                    _Publishing(self, connection).run()
            except Closed:
                time.sleep(0.05)

    def _done(self) -> bool:
        return self._stop_producing.is_set() or self._left == 0

    def make(self) -> tuple[int, bytes, bytes, bytes]:
        """The next message: number, routing key, properties, body. Written down before it is sent."""
        seeded, number = self._random, self._number
        self._number += 1
        if self._left is not None:
            self._left -= 1
        delay_ms = seeded.randint(*self.delays_ms)
        due = time.time() + delay_ms / 1000
        if self._grid_ms:
            due = int(due * 1000 // self._grid_ms * self._grid_ms) / 1000
        body = _HEAD.pack(number, self._run, due) + seeded.randbytes(seeded.randrange(300))
        headers = _random_headers(seeded)
        others = {"delivery_mode": b"\2"}
        if seeded.random() < 0.5:
            others |= {"type": short(b"a type"), "timestamp": struct.pack(">Q", 1_790_000_000_123)}
        if not self._grid_ms and seeded.random() < 0.5:
            asked: Entry = (b"x-delay", "I", struct.pack(">i", delay_ms))
        else:
            due = due if self._grid_ms else int(due * 1000 + 1) / 1000
            asked = (b"x-deliver-at", "l", struct.pack(">q", round(due * 1000)))
        place = seeded.randint(0, len(headers))
        raw = Props([*headers[:place], asked, *headers[place:]], others).encode()
        digest = _digest([encode_entry(header) for header in headers], parts(raw).before, parts(raw).behind, body)
        self._owed[number] = Owed(due, digest)
        return number, b"key.%d" % seeded.randrange(self._keys), raw, body

    def confirm(self, number: int) -> None:
        """Record that the broker confirmed a message: it is owed."""
        self._owed[number].confirmed_at = time.time()

    def stopping(self) -> bool:
        return self._done()

    # -- the consumer -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        while not self._stop_consuming.is_set():
            try:
                with RawConnection(self._broker_url, 5.0) as connection:
                    connection.consume(self._queue)
                    while not self._stop_consuming.is_set():
                        last = 0
                        for event in connection.events(0.2):
                            assert isinstance(event, Message)
                            self._write_down(event)
                            last = event.tag
                        if last:
                            connection.acknowledge(last, multiple=True)
            except Closed:
                time.sleep(0.05)

    def _write_down(self, message: Message) -> None:
        if len(message.body) < _HEAD.size:
            self._strangers += 1
            return
        number, run, due = _HEAD.unpack_from(message.body)
        if run != self._run or number not in self._owed:
            self._strangers += 1
            return
        receipts = self._receipts.setdefault(number, [])
        if message.redelivered and receipts:
            return
        found = parts(message.properties)
        left = found.without(*self.added)
        public_id = next((entry[-20:] for entry in found.headers if entry[1:11] == b"x-delay-id"), b"")
        digest = _digest(left.headers, left.before, left.behind, message.body)
        if self._grid_ms and not receipts:
            self._order.setdefault((message.routing_key, due), []).append(number)
        receipts.append(Receipt(message.at, public_id, digest, due))


class _Publishing:
    """One connection of the producer, from its first publish to its end."""

    def __init__(self, ledger: Ledger, connection: RawConnection) -> None:
        self._ledger = ledger
        self._connection = connection
        self._waiting: dict[int, int] = {}
        self._tag = 0
        self._lowest = 1

    def run(self) -> None:
        """Publish until the ledger stops and all is confirmed. Raises ``Closed`` if the connection ends first."""
        began, sent = time.monotonic(), 0
        while not self._ledger.stopping():
            wanted = int((time.monotonic() - began) * self._ledger.rate) - sent
            if self._connection.blocked or len(self._waiting) >= _WINDOW:
                began, sent, wanted = time.monotonic(), 0, 0
            sent += self._send(min(wanted, 200))
            self._take(_TURN_S)
        give_up = time.monotonic() + 5
        while self._waiting and time.monotonic() < give_up:
            self._take(0.1)

    def _send(self, count: int) -> int:
        frames: list[bytes] = []
        while len(frames) < count and not self._ledger.stopping():
            number, key, properties, body = self._ledger.make()
            self._tag += 1
            self._waiting[self._tag] = number
            frames.append(self._connection.encode(self._ledger.front, key, properties, body))
        if frames:
            self._connection.send(b"".join(frames))
        return len(frames)

    def _take(self, timeout_s: float) -> None:
        for event in self._connection.events(timeout_s):
            assert isinstance(event, Answer)
            first = self._lowest if event.multiple else event.tag
            for tag in range(first, event.tag + 1):
                number = self._waiting.pop(tag, None)
                if number is not None and event.taken:
                    self._ledger.confirm(number)
            if event.multiple:
                self._lowest = event.tag + 1


def _random_headers(seeded: random.Random) -> list[Entry]:
    """A few headers of every type that a quorum queue writes as it read it."""
    makers: list[Callable[[], tuple[str, bytes]]] = [
        lambda: ("S", sized(seeded.randbytes(seeded.randrange(20)))),
        lambda: ("x", sized(seeded.randbytes(5))),
        lambda: ("d", struct.pack(">d", seeded.random())),
        lambda: ("f", struct.pack(">f", 0.5)),
        lambda: ("l", seeded.randbytes(8)),
        lambda: ("I", seeded.randbytes(4)),
        lambda: ("b", seeded.randbytes(1)),
        lambda: ("B", seeded.randbytes(1)),
        lambda: ("s", seeded.randbytes(2)),
        lambda: ("T", struct.pack(">Q", 1_790_000_000_123)),
        lambda: ("D", b"\2" + struct.pack(">i", 150)),
        lambda: ("t", b"\1"),
        lambda: ("V", b""),
        lambda: ("F", sized(encode_entry((b"inner", "d", struct.pack(">d", 1.5))))),
    ]
    return [(b"h%d" % n, *seeded.choice(makers)()) for n in range(seeded.randrange(5))]


def _digest(headers: list[bytes], before: bytes, behind: bytes, body: bytes) -> bytes:
    """Of all that must arrive; RabbitMQ 4 puts the headers in the order of their names."""
    joined = (before, b"".join(sorted(headers)), behind, body)
    return blake2b(b"\0".join(joined), digest_size=16).digest()
