"""The transactional way out: each shard has a queue, and a loop that delivers it transaction by transaction.

A record leaves in one transaction with a marker that names it. A record whose marker is known was delivered, so it is
confirmed and not sent. So a ``read_committed`` consumer sees each record once: ``transaction.py`` has the reason.

A shard that comes back from another instance finds its session fenced. The queue then begins a new session and tries
the same records in it: if they returned to the store first, newer ones of their keys would leave before them.

Kafka refuses a transaction as a whole. The queue then tries half of it, down to the single record that is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import ProducerFenced

from adapters.kafka import refusals
from adapters.kafka.access import broker_errors
from adapters.kafka.delivered import DeliveredKeys, key_of, marker_topic
from adapters.kafka.outgoing import OutgoingRecord
from adapters.kafka.partition_queue import make_smaller, may_compress
from adapters.kafka.transaction import MissingMarkersError, RefusedRecordsError, ShardSession, open_session
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Outcome, Refusal
from bridge.core.reasons import Reason, ReasonKind
from bridge.parking.identity import shard_of
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

#: What a transaction may hold. It has to end long before Kafka aborts it.
_RECORDS_MAX, _BYTES_MAX = 1000, 4 << 20
#: Without an answer for this time a session is given up.
_DEADLINE_S = 10.0
#: Pause after a session that could not begin.
_REST_S = 1.0
#: How long health mentions a failed transaction. The shard may be another instance's by then.
_TOLD_S = 5.0
#: The shortest memory of deliveries. It outlives the recovery of every lease.
_WINDOW_MIN_MS = 600_000

#: Reports the outcome of records, exactly once for each, and their topic where all have the same.
Answer = Callable[[str, Sequence[OutgoingRecord[Any]], Outcome, Refusal | None], None]
_Flight = tuple[TopicPartition, OutgoingRecord[Any]]


def window_ms(lease_ms: int) -> int:
    """Return for how long deliveries are remembered. Pure."""
    return max(_WINDOW_MIN_MS, 2 * lease_ms)


class Transactions:
    """The queues of all shards. ``mend`` is called where the marker topic is missing."""

    def __init__(self, rules: Kafka, lease_ms: int, health: Health, mend: Callable[[], None]) -> None:
        self._rules = rules
        self._window_ms = window_ms(lease_ms)
        self._health = health
        self._mend = mend
        self._shards: dict[int, ShardQueue] = {}

    def add(self, tp: TopicPartition, flight: OutgoingRecord[Any], answer: Answer) -> None:
        """Send the record when its turn comes."""
        shard = shard_of(flight.letter.public_id)
        queue = self._shards.get(shard)
        if queue is None:
            markers = TopicPartition(marker_topic(self._rules.group), shard)
            rules, window_ms = self._rules, self._window_ms
            queue = self._shards[shard] = ShardQueue(rules, markers, window_ms, answer, self._health, self._mend)
        queue.add((tp, flight))

    async def end(self) -> None:
        """Send nothing more. Records without an answer become unknown."""
        shards, self._shards = list(self._shards.values()), {}
        await asyncio.gather(*(shard.end() for shard in shards))


class ShardQueue:
    """The queue of one shard, in the order of publishing."""

    def __init__(
        self,
        rules: Kafka,
        markers: TopicPartition,
        window_ms: int,
        answer: Answer,
        health: Health,
        mend: Callable[[], None],
    ) -> None:
        self._rules = rules
        self._markers = markers
        self._delivered = DeliveredKeys(window_ms)
        self._answer = answer
        self._health = health
        self._mend = mend
        self._shard: int = markers.partition
        self._subject = Subject("kafka", "transactions", str(self._shard))
        self._compressed = rules.compression != "none"
        self._queue: deque[_Flight] = deque()
        self._taken: list[_Flight] = []
        self._session: ShardSession | None = None
        self._rests_until = 0.0
        self._unable = Refusal(Reason(ReasonKind.NOT_KNOWN, ""))
        #: The records of the next transaction, and their codec; None for the producer's own.
        self._most = _RECORDS_MAX
        self._codec: int | None = None
        #: A transaction was fenced, and none was committed since. Another one that is fenced gives its records back, so
        #: that two instances that fence each other come to an end.
        self._fenced = False
        self._ended = False
        self._loop: asyncio.Task[None] | None = None

    def add(self, flight: _Flight) -> None:
        """Send the record when its turn comes."""
        self._queue.append(flight)
        if self._loop is None and not self._ended:
            self._loop = asyncio.get_running_loop().create_task(self._run())
            self._loop.add_done_callback(self._on_end)

    async def end(self) -> None:
        """Send nothing more. Records without an answer become unknown."""
        self._ended = True
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.cancel()
        self._give_back(Outcome.UNKNOWN)
        if loop is not None:
            await asyncio.wait([loop])
        await self._close()

    def _on_end(self, loop: asyncio.Task[None]) -> None:
        """An unforeseen error must not leave records behind silently."""
        if self._ended:
            return
        if loop.cancelled() or (error := loop.exception()) is None:
            why = "aiokafka's producer stopped by itself" if loop.cancelled() else ""
        else:
            why = f"{type(error).__name__}: {error}"
        if why:
            self._loop = None
            self._health.say(self._subject, f"a transaction failed: {why}", for_s=_TOLD_S)
            self._rests_until = time.monotonic() + _REST_S
            self._give_back(Outcome.UNKNOWN)

    async def _run(self) -> None:
        try:
            while self._queue:
                session = self._session or await self._begin()
                if session is not None:
                    await self._transact(session)
        except BaseException:
            await self._close()
            raise
        self._loop = None

    # -- sessions ---------------------------------------------------------------------------------------------------

    async def _begin(self) -> ShardSession | None:
        """Begin a session. If none can begin, refuse what waits: nothing was tried."""
        if time.monotonic() < self._rests_until:
            self._give_back(Outcome.REFUSED, self._unable)
            return None
        delivered = DeliveredKeys(self._delivered.window_ms)
        try:
            with broker_errors(self._rules):
                async with asyncio.timeout(_DEADLINE_S):
                    self._session = await open_session(self._rules, self._markers, delivered)
        except BrokerUnavailable as error:
            if isinstance(error.__cause__, ProducerFenced):  # another instance begins one, and has the shard now
                self._give_back(Outcome.UNKNOWN)
                return None
            if isinstance(error, MissingMarkersError):
                self._mend()
            self._fail(str(error))
            return None
        self._health.say(self._subject, "")
        self._delivered = delivered
        return self._session

    def _fail(self, why: str) -> None:
        self._rests_until = time.monotonic() + _REST_S
        reason = Reason(ReasonKind.NOT_KNOWN, "no transaction can begin: {why}", {"why": why})
        self._unable = Refusal(reason, again_ms=int(_REST_S * 1000))
        text = f"nothing is delivered in transactions of shard {self._shard}: {why}"
        self._health.say(self._subject, text, for_s=_TOLD_S, cause=why)
        self._give_back(Outcome.REFUSED, self._unable)

    def _give_back(self, outcome: Outcome, refusal: Refusal | None = None) -> None:
        """Report everything that waits."""
        flights = [flight for _, flight in (*self._taken, *self._queue)]
        self._taken = []
        self._queue.clear()
        if flights:
            self._answer("", flights, outcome, refusal)

    async def _close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    # -- transactions -----------------------------------------------------------------------------------------------

    def _take(self) -> None:
        """Move what the next transaction may hold from the front of the queue."""
        queue, taken, size = self._queue, self._taken, 0
        while queue and len(taken) < self._most and (not taken or size + queue[0][1].size <= _BYTES_MAX):
            size += queue[0][1].size
            taken.append(queue.popleft())

    async def _transact(self, session: ShardSession) -> None:
        """Deliver the front of the queue. Whatever is unclear becomes unknown: the next session finds out."""
        self._take()
        try:
            with broker_errors(self._rules):
                async with asyncio.timeout(_DEADLINE_S):
                    await self._drop_refused(session)
                    if self._taken:
                        await self._commit(session)
        except RefusedRecordsError as refused:
            self._session = None
            await session.abort()
            self._refused(refused)
        except (BrokerUnavailable, AssertionError) as error:  # aiokafka asserts its states
            fenced = isinstance(error.__cause__, ProducerFenced)
            if not fenced:
                text = f"a transaction of shard {self._shard} failed and is repeated: {error}"
                self._health.say(self._subject, text, for_s=_TOLD_S, cause="failed")
            self._session = None
            if not (fenced and self._put_back()):
                self._give_back(Outcome.UNKNOWN)
            await session.close()

    def _put_back(self) -> bool:
        """Put the records of a fenced transaction back to the front of the queue. Return False where they must not be
        tried again: another instance may have a message whose lease expired."""
        now_s = time.monotonic()
        if self._fenced or any(flight.letter.lease_ends <= now_s for _, flight in self._taken):
            return False
        self._fenced = True
        self._queue.extendleft(reversed(self._taken))
        self._taken = []
        return True

    async def _drop_refused(self, session: ShardSession) -> None:
        """Refuse the records of partitions that cannot be written to now."""
        for tp in dict.fromkeys(tp for tp, _ in self._taken):
            refusal = await session.refusal_of(tp)
            if refusal is not None:
                flights = [flight for other, flight in self._taken if other == tp]
                self._refuse(
                    [flight for flight in flights if key_of(flight.letter) not in self._delivered], tp.topic, refusal
                )

    async def _commit(self, session: ShardSession) -> None:
        firsts: dict[bytes, _Flight] = {}  # a message waits twice where its lease ended and it was claimed again
        for flight in self._taken:
            firsts.setdefault(key_of(flight[1].letter), flight)
        keys = list(firsts)
        await session.commit([first for key, first in firsts.items() if key not in self._delivered], keys, self._codec)
        self._delivered.add(int(time.time() * 1000), keys)
        taken, self._taken = self._taken, []
        self._fenced = False
        self._most, self._codec = min(_RECORDS_MAX, self._most * 2), None
        self._answer("", [flight for _, flight in taken], Outcome.CONFIRMED, None)
        if not session.sound():
            await self._close()

    # -- refused records --------------------------------------------------------------------------------------------

    def _refused(self, error: RefusedRecordsError) -> None:
        """Kafka refused the transaction for some records: refuse those, or find them in smaller transactions."""
        refusal = error.refusal
        if refusal.reason.kind in refusals.OF_TOPIC or refusal.again_ms is not None:
            self._refuse(error.records, error.topic, refusal)
        elif len(self._taken) > 1:
            self._most = len(self._taken) // 2
        else:
            self._refused_alone(error.topic, refusal)
        self._queue.extendleft(reversed(self._taken))
        self._taken = []

    def _refused_alone(self, topic: str, refusal: Refusal) -> None:
        """Kafka refused a single record. One that is too large may get another try."""
        flight, self._most = self._taken[0][1], 1
        if refusal.reason.kind is ReasonKind.TOO_LARGE:
            smaller, self._codec = make_smaller(flight, self._codec, self._compressed)
            if smaller:
                return
            refusal = refusals.too_large(topic, self._compressed or may_compress(flight))
        self._codec = None
        self._refuse([flight], topic, refusal)

    def _refuse(self, records: Sequence[OutgoingRecord[Any]], topic: str, refusal: Refusal) -> None:
        if not records:
            return
        refused = set(map(id, records))
        self._taken = [flight for flight in self._taken if id(flight[1]) not in refused]
        self._answer(topic, records, Outcome.REFUSED, refusal)
