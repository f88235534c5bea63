"""The transactional way out of a simulated run: the real queues of the shards, on sessions of the simulated broker.

Kafka's part is simulated: a session fences the earlier ones of its transactional id, a commit delivers all records and
their markers or nothing, and a commit whose answer is lost may have been carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple
from unittest.mock import patch

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, ProducerFenced

from adapters.kafka import transactional
from adapters.kafka.delivered import DeliveredKeys
from adapters.kafka.transaction import RefusedRecordsError
from adapters.kafka.transactional import Transactions
from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import Result
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from tests.simulation.broker import Broker, SimulatedSink
from tests.simulation.loop import PROCESS, Process
from tests.simulation.servers import asked

#: A client waits for its own time-outs, which are shorter.
_TIMEOUT_S = 30.0


class _Record(NamedTuple):
    """What a shard's queue knows of an outgoing record."""

    letter: Claim
    size: int


class TransactionalSink(SimulatedSink):
    """A sink whose records leave in transactions."""

    def __init__(self, broker: Broker, process: Process, routes: Collection[str], lease_ms: int) -> None:
        super().__init__(broker, process, routes)
        self._transactions = Transactions(Kafka(), lease_ms, Health(broker.loop.time), lambda: None)
        self._unanswered = 0

    def room(self) -> tuple[int, int]:
        messages, size = super().room()
        return max(0, messages - self._unanswered), size

    def _send(self, letters: Sequence[Claim]) -> None:
        self._unanswered += len(letters)
        for letter in letters:
            record: Any = _Record(letter, len(letter.payload))
            self._transactions.add(TopicPartition(letter.route, 0), record, self._on_answer)

    def _on_answer(self, _: str, records: Sequence[Any], outcome: Outcome, refusal: Refusal | None) -> None:
        self._unanswered -= len(records)
        self._answered([Result(record.letter, outcome, refusal) for record in records])

    async def call(self, work: Callable[[], Any]) -> Any:
        """Return what the broker answers. Raises ``KafkaConnectionError`` where the connection broke meanwhile."""
        epoch = self.epoch
        if not self.connected:
            raise KafkaConnectionError("no connection")
        answer = await asked(self.connection, work, _TIMEOUT_S)
        if self.epoch != epoch or not self.hears:
            raise KafkaConnectionError("the connection broke")
        return answer


class _Session:
    """A producer's session of one shard, as ``ShardSession``."""

    def __init__(self, sink: TransactionalSink, markers: TopicPartition) -> None:
        self._sink = sink
        self._broker = sink.broker
        self._id = f"{markers.topic}.{markers.partition}"
        self._number = 0

    async def begin(self, delivered: DeliveredKeys) -> None:
        """Fence the earlier sessions, and learn what they delivered."""
        broker = self._broker

        def at_broker() -> list[tuple[int, list[bytes]]]:
            self._number = broker.sessions[self._id] = broker.sessions.get(self._id, 0) + 1
            return broker.markers.setdefault(self._id, [])[:]

        for at_ms, keys in await self._sink.call(at_broker):
            delivered.add(at_ms, keys)

    def sound(self) -> bool:
        return True

    async def refusal_of(self, _: TopicPartition) -> Refusal | None:
        return None

    async def commit(self, flights: Sequence[tuple[TopicPartition, Any]], keys: Sequence[bytes], _: object) -> None:
        """Deliver all records with their markers, or none."""
        broker, sent_s = self._broker, self._broker.loop.time()

        def at_broker() -> None:
            if broker.sessions[self._id] != self._number:
                raise ProducerFenced
            for tp, record in flights:
                if refusal := broker.refuses(int(record.letter.payload)):
                    raise RefusedRecordsError([record], tp.topic, refusal)
            for _, record in flights:
                self._sink._land(record.letter, sent_s)
            broker.markers[self._id].append((int(broker.now_ms()), list(keys)))

        await self._sink.call(at_broker)

    async def abort(self) -> None:
        pass

    async def close(self) -> None:
        pass


def simulated_sessions(broker: Broker) -> AbstractContextManager[Any]:
    """Replace Kafka's sessions by those of a simulated broker."""

    async def open_session(_: Kafka, markers: TopicPartition, delivered: DeliveredKeys) -> _Session:
        sink = next(sink for sink in broker.sinks if sink.process is PROCESS.get())
        assert isinstance(sink, TransactionalSink)
        session = _Session(sink, markers)
        await session.begin(delivered)
        return session

    return patch.object(transactional, "open_session", open_session)
