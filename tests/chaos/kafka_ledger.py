"""The accountant of a Kafka route: a producer and a consumer that outlive every fault, in a thread each.

Only a record whose produce was acknowledged is owed. The producer is idempotent and the consumer belongs to no group,
so neither makes a copy of its own: a number that came with two ids was parked twice, and one that came twice with one
id was published twice. Due moments stand on a grid, so that many records of a key are due together, and have an order.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from hashlib import blake2b
from types import TracebackType
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from tests.chaos.accountant import Accountant
from tests.chaos.verdict import Owed, Receipt, Verdict

_TURN_S = 0.01
_GRID_MS = 100
_NUMBER = struct.Struct(">QI")
#: The header by which a record is known; a value may be null.
_NAME = "n"
_ADDED = ("x-delay-id", "x-delay-due")
#: No record may be given up because a broker was away, and a broker that came back must be noticed soon.
_PATIENT = {"reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 1000, "log_level": 0}

Headers = list[tuple[str, bytes | None]]


class KafkaLedger(Accountant):
    """Produces to ``intake`` and consumes ``target``. Enter it, and it consumes."""

    patience_s = 40.0

    def __init__(self, url: str, intake: str, target: str, partitions: int, keys: int = 60, seed: int = 7) -> None:
        super().__init__()
        self._keys = keys
        self._intake = intake
        self._random = random.Random(seed)
        own = {"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 300_000}
        self._producer = Producer(
            {"bootstrap.servers": url, "partitioner": "murmur2_random", "retry.backoff.max.ms": 200, **own, **_PATIENT}
        )
        self._servers = {"bootstrap.servers": url, **_PATIENT}
        group = {"group.id": f"ledger-{self._run}", "enable.auto.commit": False, "fetch.error.backoff.ms": 50}
        self._consumer = Consumer({"bootstrap.servers": url, **group, **_PATIENT})
        self._consumer.assign([TopicPartition(target, number, OFFSET_BEGINNING) for number in range(partitions)])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self._producer.purge()
        self._consumer.close()

    # -- what a test asks for ---------------------------------------------------------------------------------------

    def produce(self, rate: float, delays_ms: tuple[int, int], count: int | None = None) -> None:
        """Start to produce ``rate`` records a second, each with a random delay in ``delays_ms``; at most ``count``."""
        self._stop_producing.clear()
        self._spawn(partial(self._produce, rate, delays_ms, count))

    def stop_producing(self) -> None:
        """Produce nothing more, and wait until Kafka has what was produced."""
        self._stop_producing.set()
        self.produced()

    def produced(self, deadline_s: float = 60.0) -> None:
        """Wait until all of ``count`` have been produced, and Kafka has them."""
        self._threads[-1].join(deadline_s)
        assert self._producer.flush(deadline_s) == 0, "Kafka did not take every record"
        self._raise_failures()

    def verdict(self) -> Verdict:
        """The verdict. Reads the intake where a copy has another id: an idempotent producer may make one when it gets
        no answer from nodes that die, and the intake shows it."""
        found = super().verdict()
        if found.copies_with_another_id:
            found.produced_twice = self._produced_twice()
        return found

    def _produced_twice(self) -> int:
        numbers: list[Any] = []
        own = {"group.id": f"intake-{self._run}", "enable.auto.commit": False, "enable.partition.eof": True}
        with closing(Consumer({**self._servers, **own})) as consumer:
            unread = set(consumer.list_topics(self._intake).topics[self._intake].partitions)
            consumer.assign([TopicPartition(self._intake, number, OFFSET_BEGINNING) for number in unread])
            while unread:
                message = consumer.poll(20)
                assert message is not None, f"Kafka does not show the ends of the partitions {unread}"
                error = message.error()
                if error is None:
                    headers: Any = message.headers() or []
                    numbers.append(dict(headers).get(_NAME))
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
        return len(numbers) - len(set(numbers))

    # -- the producer -----------------------------------------------------------------------------------------------

    def _produce(self, rate: float, delays_ms: tuple[int, int], count: int | None) -> None:
        began, sent = time.monotonic(), 0
        while not self._stop_producing.is_set() and (count is None or sent < count):
            wanted = int((time.monotonic() - began) * rate) - sent
            for _ in range(wanted if count is None else min(wanted, count - sent)):
                self._produce_one(delays_ms)
                sent += 1
            self._producer.poll(_TURN_S)

    def _produce_one(self, delays_ms: tuple[int, int]) -> None:
        seeded, number, now_ms = self._random, len(self._owed), int(time.time() * 1000)
        due_ms = max(now_ms, (now_ms + seeded.randint(*delays_ms)) // _GRID_MS * _GRID_MS)
        named = (_NAME, _NUMBER.pack(number, self._run))
        asked: tuple[str, bytes | None] = ("x-deliver-at", b"%d" % due_ms)
        if seeded.random() < 0.5:
            asked = ("x-delay", b"%d" % (due_ms - now_ms))
        headers = [named, *_random_headers(seeded)]
        place = seeded.randint(0, len(headers))
        key = None if seeded.random() < 0.05 else b"key.%d" % seeded.randrange(self._keys)
        value = None if seeded.random() < 0.05 else seeded.randbytes(seeded.randrange(300))
        self._owed[number] = Owed(due_ms / 1000, _digest(key, value, headers))
        carried: Any = [*headers[:place], asked, *self._more_headers(number, key, due_ms), *headers[place:]]
        heard = partial(self._answered, number)
        while True:
            try:
                self._producer.produce(self._intake, value, key, on_delivery=heard, timestamp=now_ms, headers=carried)
                return
            except BufferError:
                self._producer.poll(0.1)

    def _more_headers(self, number: int, key: bytes | None, due_ms: int) -> Headers:
        """More headers that postdate removes."""
        return []

    def _answered(self, number: int, error: object, message: Message) -> None:
        if error is None:
            self._owed[number].confirmed_at = time.time()

    # -- the consumer -----------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        while not self._stop_consuming.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:  # otherwise a broker is away
                    self._write_down(message, time.time())

    def _write_down(self, message: Message, at: float) -> None:
        headers: Any = message.headers() or []
        named = dict(headers)
        try:
            number, run = _NUMBER.unpack(named[_NAME])
        except (KeyError, struct.error):
            number, run = -1, 0
        if run != self._run or number not in self._owed:
            self._strangers += 1
            return
        key, value = message.key(), message.value()
        digest = _digest(key, value, [header for header in headers if header[0] not in _ADDED])
        receipts = self._receipts.setdefault(number, [])
        if key is not None and not receipts:
            self._order.setdefault((key, int(named["x-delay-due"])), []).append(number)
        receipts.append(Receipt(at, named["x-delay-id"], digest, int(named["x-delay-due"]) / 1000))


def _random_headers(seeded: random.Random) -> Headers:
    makers: list[Callable[[], tuple[str, bytes | None]]] = [
        lambda: ("trace", seeded.randbytes(seeded.randrange(20))),
        lambda: ("trace", None),
        lambda: ("", b"no name"),
        lambda: ("ключ", b"\xff\xfe\x00"),
        lambda: ("empty", b""),
    ]
    return [seeded.choice(makers)() for _ in range(seeded.randrange(4))]


def _digest(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Of all that must arrive, in its order; null is not empty."""
    return blake2b(repr((key, value, headers)).encode(), digest_size=16).digest()
