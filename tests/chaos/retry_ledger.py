"""The ledger of a retry route: a producer, consumers that fail at random, and a queue beside that must get no copy.

Each delivery goes into a book: message, attempt, moment, and whether the consumer accepted it. Only a message whose
publish was confirmed is owed. It ends accepted, or as a dead letter after the full schedule.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple, Self

from tests.bridge_line import SHARDS
from tests.bridge_process import store_client
from tests.devstack.service import wait_for
from tests.proof.record import record
from tests.raw_amqp import Answer, Closed, Message, RawConnection, parts
from tests.retry_line import FailingConsumers, RetryLine, retry_headers
from tests.unit.raw_properties import Props

FAIL = 0.3
_BODY = re.compile(rb"retry-ledger ([0-9a-f]+) (\d+);")
_SENT = Props([(b"tenant", "t", b"\1")], {"delivery_mode": b"\2"}).encode()
#: postdate rounds arrival to the nearest millisecond, and the clocks of two processes are read apart.
_EXACT_S = 0.002
_WINDOW = 2000


class Delivery(NamedTuple):
    """One delivery to a consumer. ``attempt`` is 0 for the producer's own message. ``answered``: just before the
    consumer accepted or rejected it. ``public_id`` is x-delay-id."""

    attempt: int
    at: float
    redelivered: bool
    accepted: bool
    answered: float
    public_id: bytes


@dataclass
class RetryVerdict:
    """What the books say.

    ``late_ms``: how much later than the schedule messages returned that had no copy. ``copies``: deliveries that repeat
    an attempt. RabbitMQ marks those that it redelivers by itself. ``same_id``: copies that a consumer can recognise.
    """

    owed: int = 0
    accepted: int = 0
    dead: int = 0
    lost: list[int] = field(default_factory=list)
    early: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    copies: int = 0
    same_id: int = 0
    redelivered: int = 0
    other_copies: list[int] = field(default_factory=list)
    late_ms: list[float] = field(default_factory=list)

    def late(self, share: float) -> float:
        """A quantile of ``late_ms``."""
        return sorted(self.late_ms)[int(share * (len(self.late_ms) - 1))]

    def __str__(self) -> str:
        late = ", ".join(f"{share:.1%} {self.late(share):.1f} ms" for share in (0.5, 0.99, 0.999, 1.0))
        counted = {
            "owed": self.owed,
            "accepted": self.accepted,
            "dead": self.dead,
            "lost": len(self.lost),
            "early": len(self.early),
            "wrong": len(self.wrong),
            "copies": self.copies,
            "of these with the same x-delay-id": self.same_id,
            "redelivered by RabbitMQ": self.redelivered,
            "copies in the other queue": len(self.other_copies),
            "returns": len(self.late_ms),
        }
        return "; ".join([*(f"{name} {number}" for name, number in counted.items()), f"late {late}"])

    def assert_kept(self) -> None:
        """Lost 0, early 0, every attempt right, no copy elsewhere."""
        record(messages=self.owed, lost=len(self.lost), early=len(self.early), copies=self.copies)
        found = (self.lost[:5], self.early[:5], self.wrong[:5], self.other_copies[:5])
        assert found == ([], [], [], []), str(self)


class RetryLedger:
    """Runs from the start of its ``with`` block. ``waits_s``: the schedule."""

    def __init__(self, line: RetryLine, failing: FailingConsumers, waits_s: tuple[float, ...], rate: float) -> None:
        self._line = line
        self._failing = failing
        self._waits_s = waits_s
        self._rate = rate
        self._run = b"%x" % random.getrandbits(48)
        self._stop_producing = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce),
            threading.Thread(target=self._consume, args=(failing.queue, self._answer)),
            threading.Thread(target=self._consume, args=(line.queue, self._look_on)),
        ]
        self._sent = 0
        self.confirmed: set[int] = set()
        self.book: dict[int, list[Delivery]] = {}
        self._accepted: set[int] = set()
        self._others: Counter[int] = Counter()
        self._random = random.Random(11)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_producing.set()
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def go_on(self, more: int = 300, deadline_s: float = 60) -> None:
        """Wait until this many more messages were accepted."""
        wanted = len(self._accepted) + more
        wait_for(lambda: len(self._accepted) >= wanted, f"{more} more accepted messages", deadline_s)

    def settle(self, deadline_s: float) -> RetryVerdict:
        """Stop the producer, wait until every message has ended and nothing waits, and judge."""
        self._stop_producing.set()
        self._threads[0].join(20)

        def ended() -> bool:
            open_ones = self.confirmed - self._accepted
            return open_ones <= self._dead().keys() and self._line.waiting() == 0

        give_up = time.monotonic() + deadline_s
        while not ended() and time.monotonic() < give_up:
            time.sleep(0.5)
        time.sleep(1)
        return self._judge()

    # -- threads ----------------------------------------------------------------------------------------------------

    def _produce(self) -> None:
        while not self._stop_producing.is_set():
            try:
                with RawConnection(self._line.broker_url, 5.0) as connection:
                    connection.confirm()
                    self._publish(connection)
            except Closed:
                time.sleep(0.05)

    def _publish(self, connection: RawConnection) -> None:
        began, sent, tag, lowest = time.monotonic(), 0, 0, 1
        open_ones: dict[int, int] = {}
        while open_ones or not self._stop_producing.is_set():
            wanted = int((time.monotonic() - began) * self._rate) - sent
            frames = []
            for _ in range(0 if self._stop_producing.is_set() or len(open_ones) > _WINDOW else min(wanted, 100)):
                self._sent, tag, sent = self._sent + 1, tag + 1, sent + 1
                open_ones[tag] = self._sent
                key, body = f"{self._failing.label}.new".encode(), b"retry-ledger %b %d;" % (self._run, self._sent)
                frames.append(connection.encode(self._line.target, key, _SENT, body))
            if frames:
                connection.send(b"".join(frames))
            for event in connection.events(0.01):
                assert isinstance(event, Answer)
                answered = range(lowest, event.tag + 1) if event.multiple else (event.tag,)
                lowest = event.tag + 1 if event.multiple else lowest
                numbers = [number for answer in answered if (number := open_ones.pop(answer, None)) is not None]
                if event.taken:
                    self.confirmed.update(numbers)

    def _consume(self, queue: str, take: object) -> None:
        assert callable(take)
        while not self._stop.is_set():
            try:
                with RawConnection(self._line.broker_url, 5.0) as connection:
                    connection.consume(queue, 200)
                    while not self._stop.is_set():
                        for event in connection.events(0.2):
                            take(connection, event)
            except Closed:
                time.sleep(0.05)

    def _answer(self, connection: RawConnection, message: Message) -> None:
        """Fail at random, as a consumer that rejects."""
        number = self._number(message.body)
        found = retry_headers(message)
        accepted, answered = self._random.random() >= FAIL, time.time()
        if accepted:
            connection.acknowledge(message.tag)
        else:
            connection.reject(message.tag)
        headers = parts(message.properties).headers
        public_id = next((entry[-20:] for entry in headers if entry[1:11] == b"x-delay-id"), b"")
        delivery = Delivery(found[0] if found else 0, message.at, message.redelivered, accepted, answered, public_id)
        self.book.setdefault(number, []).append(delivery)
        if accepted:
            self._accepted.add(number)

    def _look_on(self, connection: RawConnection, message: Message) -> None:
        connection.acknowledge(message.tag)
        if not message.redelivered:
            self._others[self._number(message.body)] += 1

    def _number(self, body: bytes) -> int:
        found = _BODY.search(body)
        assert found is not None
        assert found[1] == self._run
        return int(found[2])

    # -- the verdict ------------------------------------------------------------------------------------------------

    def _dead(self) -> dict[int, str]:
        """The numbers of the dead letters, with their reasons."""
        found: dict[int, str] = {}
        with store_client(self._line.store_url) as client:
            for shard in range(SHARDS):
                reasons = client.hgetall(self._line._key(shard, "why"))
                for name in client.zrange(self._line._key(shard, "dead"), 0, -1):
                    body = _BODY.search(client.hget(self._line._key(shard, "msg"), name) or b"")
                    if body is not None:
                        found[int(body[2])] = (reasons.get(name) or b"").decode()
        return found

    def _judge(self) -> RetryVerdict:
        verdict, dead = RetryVerdict(owed=len(self.confirmed)), self._dead()
        full = f"failed {len(self._waits_s) + 1} times"
        for number in self.confirmed:
            if number in dead:
                verdict.dead += 1
                reached = {delivery.attempt for delivery in self.book.get(number, ()) if not delivery.accepted}
                if full not in dead[number] or reached != set(range(len(self._waits_s) + 1)):
                    verdict.wrong.append(f"{number}: {dead[number]}, {self.book.get(number)}")
            elif number not in self._accepted:
                verdict.lost.append(number)
            verdict.accepted += number in self._accepted
        for number, deliveries in self.book.items():
            self._judge_one(number, deliveries, verdict)
        verdict.other_copies = [number for number, count in self._others.items() if count > 1]
        return verdict

    def _judge_one(self, number: int, deliveries: list[Delivery], verdict: RetryVerdict) -> None:
        once = len({delivery.attempt for delivery in deliveries}) == len(deliveries)
        seen: dict[int, set[bytes]] = {}
        for place, delivery in enumerate(deliveries):
            if delivery.attempt in seen:
                verdict.redelivered += delivery.redelivered
                verdict.copies += not delivery.redelivered
                verdict.same_id += not delivery.redelivered and delivery.public_id in seen[delivery.attempt]
            seen.setdefault(delivery.attempt, set()).add(delivery.public_id)
            if not delivery.attempt:
                continue
            before = [
                other for other in deliveries[:place] if other.attempt == delivery.attempt - 1 and not other.accepted
            ]
            if not before or delivery.attempt > len(self._waits_s):
                verdict.wrong.append(f"{number}: attempt {delivery.attempt} of {deliveries}")
                continue
            late_s = delivery.at - before[0].answered - self._waits_s[delivery.attempt - 1]
            if late_s < -_EXACT_S:
                verdict.early.append(number)
            if once:
                verdict.late_ms.append(late_s * 1000)
