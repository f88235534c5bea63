"""The sink: publishes with an idempotent producer, and reports the outcome of every record.

``publish`` only sorts: each target partition has a queue (``partition_queue.py``), so a slow partition delays no other.
Records of transactional routes go to a queue of their shard (``transactional.py``). A producer that broke its
numbering, or does not answer, is closed. Its records are then unknown, and a new producer publishes them again: the
named window for duplicates.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, get_args

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataRequest

from adapters.kafka import refusals
from adapters.kafka.access import broker_errors
from adapters.kafka.client import answers, give_up_producer, new_producer, start
from adapters.kafka.outgoing import KafkaOut, OutgoingRecord
from adapters.kafka.partition_queue import REQUEST_BYTES, PartitionQueue
from adapters.kafka.partitioner import PartitionChoice
from adapters.kafka.raw.record import Record, topic_of, unpack
from adapters.kafka.transactional import Transactions
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Outcome, Refusal, no_route
from bridge.core.ports import L, Result
from bridge.core.reasons import unreadable
from bridge.settings import Kafka, Partitioner
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import STEADY_S, Reconnect, keep_connected
from bridge.telemetry.subject import Subject

log = structlog.get_logger("postdate")

_SUBJECT = Subject("kafka", "publish")
#: Interval of asking whether any broker answers, and while none does.
_ASK_S, _ASK_AWAY_S = 5.0, 1.0
_ANSWER_S = 3.0
#: Interval of looking for answers that are overdue.
_LOOK_S = 0.5
#: Pause for a topic that Kafka refused, before a record may try it again.
_REST_S = 1.0
#: For this time a producer that broke has no trouble: the next one may be there.
_REPLACED_S = 2.0
_AGAIN_MS = 100


class TargetTopics:
    """What one client knows of the target topics. A change in the cluster's metadata clears it.

    postdate's clients request metadata of all topics, never of one by name. A broker may create a topic on such a
    request, so a typing mistake would become a topic with one partition. A missing topic is requested once by name,
    with creation forbidden, to learn the reason.
    """

    def __init__(self, client: AIOKafkaClient) -> None:
        self._client = client
        self._partitions: dict[str, int] = {}
        self._refusals: dict[str, tuple[float, Refusal]] = {}
        client.cluster.add_listener(lambda _: self._partitions.clear())

    def partitions(self, topic: str) -> int:
        """The number of partitions of a topic; 0 if it is not known to exist."""
        known = self._partitions.get(topic)
        if known is None:
            known = len(self._client.cluster.partitions_for_topic(topic) or ())
            self._partitions[topic] = known
        return known

    def refuse_for_a_while(self, topic: str, refusal: Refusal) -> None:
        """Send nothing to this topic for a while."""
        self._refusals[topic] = (time.monotonic() + _REST_S, refusal)

    def refusal_of(self, topic: str) -> Refusal | None:
        """Why nothing may be sent there now. That is not a try, so it does not count against the record."""
        if topic not in self._refusals:
            return None
        until, refusal = self._refusals[topic]
        waits_s = until - time.monotonic()
        if waits_s > 0:
            return replace(refusal, again_ms=max(_AGAIN_MS, int(waits_s * 1000)), lasting=False)
        del self._refusals[topic]
        return None

    async def ask(self, topic: str) -> Refusal | None:
        """Why an unknown topic cannot be written to; None if it exists now."""
        await self._client.force_metadata_update()
        if self.partitions(topic):
            return None
        node = self._client.get_random_node()
        try:
            answer = await self._client.send(node, MetadataRequest([topic], allow_auto_topic_creation=False))
        except (errors.KafkaError, OSError):
            return refusals.not_known(topic)
        error = errors.for_code(answer.topics[0][0])
        if error is errors.TopicAuthorizationFailedError:
            return refusals.forbidden(topic)
        if error in (errors.UnknownTopicOrPartitionError, errors.InvalidTopicError):
            return refusals.missing_topic(topic)
        return refusals.not_known(topic)


class KafkaSink(Generic[L]):
    """``bridge.core.ports.Sink`` on Kafka. ``run`` keeps it connected."""

    _answered: Callable[[list[Result[L]]], None]

    def __init__(
        self,
        rules: Kafka,
        outs: Mapping[str, KafkaOut],
        window_bytes: int,
        health: Health,
        transactions: Transactions | None = None,
    ) -> None:
        """``transactions`` is needed where a route is transactional."""
        self._rules = rules
        self._transactions = transactions
        self._outs = outs
        self._window_bytes = window_bytes
        self._health = health
        self._choices = {name: PartitionChoice(name) for name in get_args(Partitioner)}
        self._keep_timestamp = rules.timestamp == "original"
        self._producer: AIOKafkaProducer | None = None
        self._targets: TargetTopics | None = None
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._asking: dict[str, list[L]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[str] | None = None
        self._reachable = False
        self._messages = 0
        self._bytes = 0
        self._confirmed: list[Result[L]] = []
        self._confirmed_s = -math.inf

    def follow(self, outs: Mapping[str, KafkaOut]) -> None:
        self._outs = outs

    # -- the port ---------------------------------------------------------------------------------------------------

    def on_answers(self, answered: Callable[[list[Result[L]]], None]) -> None:
        self._answered = answered

    def able(self) -> bool:
        return self._reachable

    def open(self) -> bool:
        return self.able()

    def room(self) -> tuple[int, int]:
        if not self._reachable or self._producer is None:
            return 0, 0
        return self._rules.window - self._messages, self._window_bytes - self._bytes

    def publish(self, letters: Sequence[L]) -> None:
        """Publish the letters. Each gets one result later; a refused one gets it now."""
        targets = self._targets
        if targets is None:
            self._answered([Result(letter, Outcome.UNKNOWN, None) for letter in letters])
            return
        self._messages += len(letters)
        self._bytes += sum(len(letter.payload) for letter in letters)
        for choice in self._choices.values():
            choice.next_batch()
        self._sort_all(letters, targets, None)

    def _sort_all(self, letters: Sequence[L], targets: TargetTopics, refusal: Refusal | None) -> None:
        """Put letters into the queues of their partitions, and refuse the others; all of them with a ``refusal``."""
        refused = []
        for letter in letters:
            why = refusal or self._sort(letter, targets)
            if why is not None:
                refused.append(Result(letter, Outcome.REFUSED, why))
        if refused:
            self._give(refused)

    def _sort(self, letter: L, targets: TargetTopics) -> Refusal | None:
        """Put a letter into the queue of its partition, or return why it is refused."""
        out = self._outs.get(letter.route)
        if out is None:
            return no_route(letter.route)
        try:
            record = unpack(letter.payload)
        except ValueError as error:
            return Refusal(unreadable(error), lasting=True)
        if out.headers_max is not None and len(record.headers) > out.headers_max:
            return refusals.too_many_headers(out.headers_max)
        topic = out.target(topic_of(letter.payload), record.headers)
        if isinstance(topic, Refusal):
            return topic
        refusal_of = targets.refusal_of(topic)
        if refusal_of is not None:
            return refusal_of
        if len(letter.payload) > REQUEST_BYTES and self._rules.compression == "none" and not out.compress_always:
            return refusals.over_request(topic)
        partitions = targets.partitions(topic)
        if not partitions or topic in self._asking:
            self._ask(topic, letter, targets)
            return None
        number = self._partition(letter, record, out, partitions, targets)
        flight = OutgoingRecord(letter, record, out, self._keep_timestamp)
        if out.transactional and self._transactions is not None:
            self._transactions.add(TopicPartition(topic, number), flight, self._on_answer)
            return None
        queue = self._queues.get((topic, number)) or self._new_queue(topic, number)
        queue.add(flight)
        return None

    def _partition(self, letter: L, record: Record, out: KafkaOut, partitions: int, targets: TargetTopics) -> int:
        """Choose one of ``partitions``. A retry route keeps a number only between topics of the same size: in a
        smaller topic it says nothing about the larger one."""
        source, partitioner = record.partition, out.partitioner or self._rules.partitioner
        same_size = out.returns is None or targets.partitions(topic_of(letter.payload).decode()) == partitions
        if partitioner == "same" and not same_size:
            source, partitioner = -1, self._rules.partitioner
        return self._choices[partitioner].partition(record.key, source, partitions)

    def _new_queue(self, topic: str, number: int) -> PartitionQueue:
        assert self._producer is not None
        tp = TopicPartition(topic, number)
        on_answer = partial(self._on_answer, topic)
        timeout_s, compressed = self._rules.confirm_timeout / 1000, self._rules.compression != "none"
        queue = PartitionQueue(self._producer, tp, timeout_s, compressed, on_answer, self._break)
        self._queues[topic, number] = queue
        return queue

    # -- answers ----------------------------------------------------------------------------------------------------

    def _on_answer(
        self, topic: str, flights: Sequence[OutgoingRecord[L]], outcome: Outcome, refusal: Refusal | None
    ) -> None:
        if refusal is not None and refusal.reason.kind in refusals.OF_TOPIC and self._targets is not None:
            self._targets.refuse_for_a_while(topic, refusal)
        results = [Result(flight.letter, outcome, refusal) for flight in flights]
        if outcome is not Outcome.CONFIRMED:
            self._give(results)
            return
        if not self._confirmed:  # one answer of a broker confirms batches of several partitions
            asyncio.get_running_loop().call_soon(self._give_confirmed)
        self._confirmed += results

    def _give_confirmed(self) -> None:
        results, self._confirmed = self._confirmed, []
        if results:
            self._confirmed_s = time.monotonic()
            self._give(results)
            if not self._reachable and self._producer is not None:
                self._reached(True)

    def _give(self, results: list[Result[L]]) -> None:
        self._messages -= len(results)
        self._bytes -= sum(len(result.letter.payload) for result in results)
        self._answered(results)

    def _break(self, why: str) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(why)

    # -- topics that are not known ----------------------------------------------------------------------------------

    def _ask(self, topic: str, letter: L, targets: TargetTopics) -> None:
        """Collect the letters for a topic while postdate asks whether it exists. They keep their order."""
        waiting = self._asking.get(topic)
        if waiting is not None:
            waiting.append(letter)
            return
        self._asking[topic] = [letter]
        task = asyncio.get_running_loop().create_task(self._learn(topic, targets))
        self._tasks.add(task)
        task.add_done_callback(self._learnt)

    def _learnt(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._asking and (task.cancelled() or task.exception() is not None):
            self._break("postdate cannot tell whether a topic exists")

    async def _learn(self, topic: str, targets: TargetTopics) -> None:
        refusal = await targets.ask(topic)
        letters = self._asking.pop(topic)
        if refusal is not None:
            targets.refuse_for_a_while(topic, refusal)
        self._sort_all(letters, targets, refusal)

    # -- the connection ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        await keep_connected(self._session, self._health, _SUBJECT, "nothing can be published to Kafka")

    async def _session(self, reconnect: Reconnect) -> None:
        """Run one producer until it breaks. While the next one starts at once, no sentence says that Kafka is away:
        an election of leaders breaks a producer, too."""
        within_s = self._rules.confirm_timeout / 1000
        try:
            with broker_errors(self._rules):
                while True:
                    began_s = time.monotonic()
                    why = await self._run_producer(reconnect, within_s)
                    if time.monotonic() - began_s < STEADY_S:
                        raise BrokerUnavailable(why)
                    log.warning("producer replaced", because=why)
                    within_s = _REPLACED_S
        finally:
            self._reachable = False

    async def _run_producer(self, reconnect: Reconnect, within_s: float) -> str:
        """Run a producer until it breaks. Return why. It must start ``within_s``."""
        producer = new_producer(self._rules)
        try:
            async with asyncio.timeout(within_s):
                await start(producer, self._rules)
                await producer.client.force_metadata_update()
            self._producer = producer
            self._targets = TargetTopics(producer.client)
            self._broken = asyncio.get_running_loop().create_future()
            reconnect.worked()
            self._reached(True)
            return await self._until_broken(self._broken, producer)
        finally:
            self._targets = None
            self._producer = None
            self._give_back()
            if self._transactions is not None:
                await self._transactions.end()
            await give_up_producer(producer)

    async def _until_broken(self, broken: asyncio.Future[str], producer: AIOKafkaProducer) -> str:
        """Watch the brokers. While none answers there is no room. The producer survives that, with its records."""
        asking = asyncio.ensure_future(self._keep_asking(producer))
        ends: list[asyncio.Future[Any]] = [broken, asking]
        try:
            while not broken.done():
                await asyncio.wait(ends, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for queue in tuple(self._queues.values()):
                    queue.look()
                if asking.done():
                    asking.result()
            return broken.result()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _keep_asking(self, producer: AIOKafkaProducer) -> None:
        while True:
            asked_s = time.monotonic()
            there = await answers(producer.client, _ANSWER_S)
            if there or self._confirmed_s < asked_s:  # one that has confirmed meanwhile is asked again
                self._reached(there)
            await asyncio.sleep(_ASK_S if there else _ASK_AWAY_S)

    def _reached(self, reached: bool) -> None:
        if reached:
            self._health.say(_SUBJECT, "")
        else:
            text = f"nothing can be published to Kafka: no broker of {self._rules.bootstrap_servers} answers"
            self._health.say(_SUBJECT, text)
        self._reachable = reached
        if reached:
            self._answered([])  # there may be room again: wake the loops that wait for it

    def _give_back(self) -> None:
        """Everything without an answer becomes unknown."""
        self._give_confirmed()
        for task in tuple(self._tasks):
            task.cancel()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            queue.end()
        asking, self._asking = self._asking, {}
        for letters in asking.values():
            self._give([Result(letter, Outcome.UNKNOWN, None) for letter in letters])
