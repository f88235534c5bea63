"""The ledger of a retry route on Kafka: a producer, a consumer group that fails at random, and another group.

The failing group reads the real topic and a topic of its own, to which postdate returns its records. Its error handler
writes a failed record to the intake. The consumers keep their offsets in memory. The group ignores an attempt that it
has seen, and the ledger counts it as a copy.

An idempotent producer may write a record twice when it gets no answer from a broker that dies or stands still. The
other group sees such a record without postdate's headers. A consumer may read a place of a log again after a leader
came back, so only another place is a copy.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import ne
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tests.bridge_line import SHARDS
from tests.bridge_process import store_client
from tests.chaos.kafka_line import LedgerLine
from tests.devstack.service import wait_for
from tests.kafka_line import Headers
from tests.proof.record import record

FAIL = 0.3
REASON = b"ConnectionError: no answer"
_VALUE = re.compile(rb"retry-ledger ([0-9a-f]+) (\d+);")
_ADDED = (
    "x-retry-attempt",
    "x-retry-reason",
    "x-retry-first-failed",
    "x-retry-id",
    "x-retry-signature",
    "x-delay-id",
    "x-delay-due",
)
_HANDLER: Headers = [("kafka_dlt-exception-message", REASON)]
#: postdate rounds arrival to the nearest millisecond, and the clocks of two processes are read apart.
_EXACT_S = 0.002
_PATIENT = {"reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 1000, "log_level": 0}
_IDEMPOTENT = {"enable.idempotence": True, "linger.ms": 1, "message.timeout.ms": 300_000, "retry.backoff.max.ms": 200}


class Handled(NamedTuple):
    """What the group did with one attempt. ``attempt`` is 0 for the producer's own record.

    ``done``: when it accepted the record or its error handler wrote it.
    """

    attempt: int
    at: float
    accepted: bool
    done: float
    public_id: bytes
    first_failed: bytes
    due: float


@dataclass
class KafkaRetryVerdict:
    """What the books say. ``late_ms``: how much later than the schedule records returned, and the part of it before
    the wait: from the error handler to postdate."""

    owed: int = 0
    accepted: int = 0
    dead: int = 0
    lost: list[int] = field(default_factory=list)
    early: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    mangled: list[int] = field(default_factory=list)
    other_copies: list[int] = field(default_factory=list)
    produced_twice: int = 0
    parked_twice: int = 0
    published_twice: int = 0
    misordered: int = 0
    read_again: int = 0
    lines: list[str] = field(default_factory=list)
    late_ms: list[tuple[float, float]] = field(default_factory=list)

    def late(self, share: float, part: int = 0) -> float:
        """A quantile of ``late_ms``; ``part`` 1 for the part before the wait."""
        return sorted(times[part] for times in self.late_ms)[int(share * (len(self.late_ms) - 1))]

    def __str__(self) -> str:
        late, before = (
            ", ".join(f"{share:.1%} {self.late(share, part):.1f} ms" for share in (0.5, 0.99, 0.999, 1.0))
            for part in (0, 1)
        )
        return (
            f"owed {self.owed}, accepted {self.accepted}, dead {self.dead}, lost {len(self.lost)}, "
            f"early {len(self.early)}, wrong {len(self.wrong)}, mangled {len(self.mangled)}, "
            f"published twice {self.published_twice}, parked twice {self.parked_twice}, "
            f"returned in another order {self.misordered} {self.lines[:3]}, "
            f"in the other group too {len(self.other_copies)}, produced twice {self.produced_twice}, "
            f"read again {self.read_again}, "
            f"returns {len(self.late_ms)}, late {late}; "
            f"of that before postdate had them {before}"
        )

    def assert_kept(self, copies_max: int) -> None:
        """Lost 0, early 0, every attempt right, no copy for the other group, no record parked twice."""
        print(self)
        record(messages=self.owed, lost=len(self.lost), early=len(self.early), copies=self.published_twice)
        found = (self.lost[:5], self.early[:5], self.wrong[:5], self.mangled[:5], self.other_copies[:5])
        assert found == ([], [], [], [], []), str(self)
        assert self.owed > 0
        assert self.dead > 0
        assert self.parked_twice == 0, str(self)
        assert self.published_twice - self.produced_twice <= copies_max, str(self)


class KafkaRetryLedger:
    """Runs from the start of its ``with`` block. ``waits_s``: the schedule. ``back``: the failing group's own topic.

    ``keys``: the number of keys. One record in ten has none.
    """

    def __init__(self, line: LedgerLine, back: str, waits_s: tuple[float, ...], rate: float, keys: int) -> None:
        self._line = line
        self._waits_s = waits_s
        self._rate = rate
        self._run = b"%x" % random.getrandbits(48)
        self._random = random.Random(11)
        self._stop_producing, self._stop = threading.Event(), threading.Event()
        self._producer, self._handler = (
            Producer({"bootstrap.servers": line.url, **_IDEMPOTENT, **_PATIENT}) for _ in "ab"
        )
        self._group, self._other = self._reader(line.topic, back), self._reader(line.topic)
        self._threads = [threading.Thread(target=target) for target in (self._produce, self._consume, self._look_on)]
        self._sent: dict[int, tuple[bytes | None, bytes, Headers]] = {}
        self._confirmed: set[int] = set()
        self._book: dict[int, list[Handled]] = {}
        self._accepted: set[int] = set()
        self._mangled: list[int] = []
        #: By key, in the order of the failures and of the returns.
        self._failed: dict[bytes, list[int]] = {}
        self._returned: dict[bytes, list[int]] = {}
        self._keys = keys
        self._copies: Counter[bool] = Counter()
        #: What the other group got: the producer's records, and those that postdate wrote.
        self._produced: Counter[int] = Counter()
        self._others: Counter[int] = Counter()
        #: By reader, topic and partition: the place after the last record.
        self._next: dict[object, int] = {}
        self._read_again = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_producing.set()
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        for reader in (self._group, self._other):
            reader.close()

    def go_on(self, more: int = 300, deadline_s: float = 60) -> None:
        """Wait until this many more records were accepted."""
        wanted = len(self._accepted) + more
        wait_for(lambda: len(self._accepted) >= wanted, f"{more} more accepted records", deadline_s)

    def settle(self, deadline_s: float) -> KafkaRetryVerdict:
        """Stop the producer, wait until every record has ended and nothing waits, and judge."""
        self._stop_producing.set()
        self._threads[0].join(deadline_s)
        give_up = time.monotonic() + deadline_s
        while not self._ended() and time.monotonic() < give_up:
            time.sleep(0.5)
        time.sleep(1)
        return self._judge()

    def _ended(self) -> bool:
        return self._confirmed - self._accepted <= self._dead().keys() and self._line.waiting() == 0

    def _reader(self, *topics: str) -> Consumer:
        given = {
            "group.id": "ledger",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 5,
            "fetch.error.backoff.ms": 50,
        }
        reader = Consumer({"bootstrap.servers": self._line.url, **given, **_PATIENT})
        numbers = range(self._line.partitions)
        reader.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic in topics for number in numbers])
        return reader

    # -- threads ----------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        began, number = time.monotonic(), 0
        while not self._stop_producing.is_set():
            for _ in range(int((time.monotonic() - began) * self._rate) - number):
                number += 1
                key = None if number % 10 == 0 else b"key.%d" % self._random.randrange(self._keys)
                value = b"retry-ledger %b %d;" % (self._run, number)
                headers: Headers = [("own", b"%d" % number), ("x-delay", b"60000"), ("own", None)]
                self._sent[number] = (key, value, headers)
                write(self._producer, self._line.topic, key, value, headers, partial(self._answered, number))
            self._producer.poll(0.005)
        self._producer.flush(120)

    def _answered(self, number: int, error: object, message: Message) -> None:
        if error is None:
            self._confirmed.add(number)

    def _consume(self) -> None:
        while not self._stop.is_set():
            for message in self._records(self._group, 100, 0.005):
                self._handle(message, time.time())
            self._handler.poll(0)
        self._handler.flush(10)

    def _handle(self, message: Message, at: float) -> None:
        """Accept a record, or fail and write it to the intake as it came, as an error handler does."""
        number, told = self._number(message), dict(headers_of(message))
        attempt, public_id = int(told.get("x-retry-attempt") or 0), told.get("x-delay-id") or b""
        history = self._book.setdefault(number, [])
        before = next((handled for handled in history if handled.attempt == attempt), None)
        if before is not None:
            self._copies[before.public_id == public_id] += 1
            return
        kept = [header for header in headers_of(message) if header[0] not in _ADDED]
        told_right = told.get("x-retry-reason", REASON) == REASON
        if (message.key(), message.value(), kept) != self._sent[number] or not told_right:
            self._mangled.append(number)
        accepted = self._random.random() >= FAIL
        first_failed, due = told.get("x-retry-first-failed") or b"", int(told.get("x-delay-due") or 0) / 1000
        history.append(Handled(attempt, at, accepted, time.time(), public_id, first_failed, due))
        key = message.key()
        if key is not None and attempt:
            self._returned.setdefault(key, []).append(number)
        if accepted:
            self._accepted.add(number)
        else:
            if key is not None and attempt < len(self._waits_s):
                self._failed.setdefault(key, []).append(number)
            headers = [*headers_of(message), *_HANDLER]
            write(self._handler, self._line.intake, key, message.value(), headers)

    def _look_on(self) -> None:
        while not self._stop.is_set():
            for message in self._records(self._other, 500, 0.1):
                ours = dict(headers_of(message)).keys() & set(_ADDED)
                (self._others if ours else self._produced)[self._number(message)] += 1

    def _records(self, reader: Consumer, most: int, wait_s: float) -> Iterator[Message]:
        """Records that the reader has not read yet. An error says that the broker is away."""
        for message in reader.consume(most, wait_s):
            place, offset = (reader, message.topic(), message.partition()), message.offset()
            if message.error() is not None or offset is None:
                continue
            if offset < self._next.get(place, 0):
                self._read_again += 1
                continue
            self._next[place] = offset + 1
            yield message

    def _number(self, message: Message) -> int:
        found = _VALUE.fullmatch(message.value() or b"")
        assert found is not None
        assert found[1] == self._run
        return int(found[2])

    # -- the verdict ------------------------------------------------------------------------------------------------

    def _dead(self) -> dict[int, str]:
        """The numbers of the dead letters, with their reasons."""
        found: dict[int, str] = {}
        with store_client(self._line.store_url) as client:
            for shard in range(SHARDS):
                tag = f"{{{self._line.name}.kafka:{shard}}}"
                reasons = client.hgetall(f"{tag}:why")
                for name in client.zrange(f"{tag}:dead", 0, -1):
                    value = _VALUE.search(client.hget(f"{tag}:msg", name) or b"")
                    if value is not None:
                        found[int(value[2])] = (reasons.get(name) or b"").decode()
        return found

    def _judge(self) -> KafkaRetryVerdict:
        dead, full = self._dead(), f"failed {len(self._waits_s) + 1} times"
        verdict = KafkaRetryVerdict(owed=len(self._confirmed), accepted=len(self._accepted), mangled=self._mangled)
        verdict.published_twice, verdict.parked_twice = self._copies[True], self._copies[False]
        verdict.read_again = self._read_again
        for key, numbers in self._failed.items():
            returned = self._returned.get(key, [])
            if moved := sum(map(ne, numbers, returned)):
                verdict.misordered += moved
                verdict.lines.append(f"{key!r}: {self._line_of(numbers, returned)}")
        verdict.other_copies = list(self._others)
        verdict.produced_twice = self._produced.total() - len(self._produced)
        for number in self._confirmed:
            history = self._book.get(number, [])
            if number in dead:
                verdict.dead += 1
                if full not in dead[number] or len(history) != len(self._waits_s) + 1 or number in self._accepted:
                    verdict.wrong.append(f"{number}: {dead[number]}, {history}")
            elif number not in self._accepted:
                verdict.lost.append(number)
            self._judge_one(number, history, verdict)
        return verdict

    def _line_of(self, failed: list[int], returned: list[int]) -> str:
        """How the records of a key failed and returned, from the first that has another place."""
        first = next(place for place, pair in enumerate(zip(failed, returned, strict=False)) if pair[0] != pair[1])
        near = slice(first, first + 6)
        history = {number: self._book[number] for number in {*failed[near], *returned[near]}}
        return f"failed {failed[near]}, returned {returned[near]}, {history}"

    def _judge_one(self, number: int, history: list[Handled], verdict: KafkaRetryVerdict) -> None:
        attempts, firsts = [handled.attempt for handled in history], {attempt.first_failed for attempt in history[1:]}
        failed = [handled for handled in history if not handled.accepted]
        if attempts != list(range(len(history))) or len(firsts) > 1 or len(failed) < len(history) - 1:
            verdict.wrong.append(f"{number}: {history}")
            return
        for wait_s, before, after in zip(self._waits_s, history, history[1:], strict=False):
            late_s = after.at - before.done - wait_s
            if late_s < -_EXACT_S:
                verdict.early.append(number)
            verdict.late_ms.append((late_s * 1000, (after.due - before.done - wait_s) * 1000))


def headers_of(message: Message) -> Headers:
    """The headers of a record, in their order."""
    found: Any = message.headers() or []
    return list(found)


def write(
    producer: Producer, topic: str, key: bytes | None, value: bytes | None, headers: Headers, heard: Any = None
) -> None:
    """Produce, and wait for room while the broker is away."""
    carried: Any = headers
    while True:
        try:
            producer.produce(topic, value, key, headers=carried, on_delivery=heard)
            return
        except BufferError:
            producer.poll(0.1)
