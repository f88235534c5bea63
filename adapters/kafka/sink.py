"""The sink: publishes with an idempotent producer, and tells of every record what became of it.

``publish`` only sorts: each target partition has a queue and a loop (``lane.py``), so a slow partition delays no other.
A producer that broke its own numbering, or does not answer, is given up with everything it has, which is then unknown
and published again by a new one: the named window for duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from aiokafka import AIOKafkaProducer, TopicPartition

from adapters.kafka import refusals
from adapters.kafka.access import broker_errors
from adapters.kafka.client import answers, give_up_producer, new_producer, start
from adapters.kafka.outgoing import Flight, Out
from adapters.kafka.partition_queue import Lane
from adapters.kafka.partitioner import Choice
from adapters.kafka.raw.record import headers_in, topic_of, unpack
from adapters.kafka.targets import Targets
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Outcome, Refusal, no_route
from bridge.core.ports import Letter, Result
from bridge.settings import Kafka
from bridge.telemetry.health import Health
from bridge.telemetry.reconnect import Reconnect, keep_connected

_SUBJECT = "kafka publish"
#: A broker hangs up over a larger request (socket.request.max.bytes, 100 MiB unless it is told otherwise) and says
#: nothing: everything on that connection would be sent again, for ever.
_REQUEST_BYTES = (100 << 20) - (64 << 10)
#: So often it is asked whether any broker still answers.
_ASK_S = 5.0
_ANSWER_S = 3.0


class KafkaSink:
    """``bridge.core.ports.Sink`` on Kafka. ``run`` keeps it connected."""

    _answered: Callable[[list[Result]], None]

    def __init__(
        self,
        rules: Kafka,
        outs: Mapping[str, Out],
        window_bytes: int,
        health: Health,
    ) -> None:
        self._rules = rules
        self._outs = outs
        self._window_bytes = window_bytes
        self._health = health
        self._choice = Choice(rules.partitioner)
        self._kept = Choice("same")
        self._keep_timestamp = rules.timestamp == "original"
        self._producer: AIOKafkaProducer | None = None
        self._targets: Targets | None = None
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._asking: dict[str, list[Letter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[str] | None = None
        self._reachable = False
        self._out = 0
        self._bytes = 0

    # -- the port ---------------------------------------------------------------------------------------------------

    def on_answers(self, answered: Callable[[list[Result]], None]) -> None:
        """See ``bridge.core.ports.Sink.on_answers``."""
        self._answered = answered

    def ready(self) -> bool:
        """See ``bridge.core.ports.Sink.ready``."""
        return self._reachable

    def able(self) -> bool:
        """See ``bridge.core.ports.Sink.able``."""
        return self._reachable

    def room(self) -> tuple[int, int]:
        """See ``bridge.core.ports.Sink.room``."""
        if not self._reachable:
            return 0, 0
        return self._rules.window - self._out, self._window_bytes - self._bytes

    def publish(self, letters: Sequence[Letter]) -> None:
        """See ``bridge.core.ports.Sink.publish``."""
        targets = self._targets
        if targets is None:
            self._answered([Result(letter, Outcome.UNKNOWN, None) for letter in letters])
            return
        self._out += len(letters)
        self._bytes += sum(len(letter.payload) for letter in letters)
        refused: list[Result] = []
        self._choice.next_batch()
        self._kept.next_batch()
        for letter in letters:
            refusal = self._sort(letter, targets)
            if refusal is not None:
                refused.append(Result(letter, Outcome.REFUSED, refusal))
        if refused:
            self._give(refused)

    def _sort(self, claim: Letter, targets: Targets) -> Refusal | None:
        """Into the queue of its partition; or why not."""
        out = self._outs.get(claim.route)
        if out is None:
            return no_route(claim.route)
        if out.headers_max is not None and headers_in(claim.payload) > out.headers_max:
            return refusals.too_many_headers(out.headers_max)
        try:
            record = unpack(claim.payload)
        except ValueError as error:
            return Refusal("unreadable", str(error), lasting=True)
        topic = out.aim.target(topic_of(claim.payload), record.headers)
        if isinstance(topic, Refusal):
            return topic
        resting = targets.resting(topic)
        if resting is not None:
            return resting
        if len(claim.payload) > _REQUEST_BYTES and self._rules.compression == "none":
            return refusals.over_request(topic)
        partitions = targets.partitions(topic)
        if not partitions or topic in self._asking:
            self._ask(topic, claim, targets)
            return None
        choice = self._kept if out.keep_partition else self._choice
        number = choice.partition(record.key, record.partition, partitions)
        lane = self._lanes.get((topic, number)) or self._new_lane(topic, number)
        lane.add(Flight(claim, record, out, self._keep_timestamp))
        return None

    def _new_lane(self, topic: str, number: int) -> Lane:
        assert self._producer is not None
        place = TopicPartition(topic, number)
        told = partial(self._told, topic)
        timeout_s, compressed = self._rules.confirm_timeout / 1000, self._rules.compression != "none"
        lane = Lane(self._producer, place, timeout_s, compressed, told, self._break)
        self._lanes[topic, number] = lane
        return lane

    # -- answers ----------------------------------------------------------------------------------------------------

    def _told(self, topic: str, flights: Sequence[Flight], outcome: Outcome, refusal: Refusal | None) -> None:
        if refusal is not None and refusal.reason in refusals.OF_TOPIC and self._targets is not None:
            self._targets.rest(topic, refusal)
        self._give([Result(flight.claim, outcome, refusal) for flight in flights])

    def _give(self, results: list[Result]) -> None:
        self._out -= len(results)
        self._bytes -= sum(len(result.letter.payload) for result in results)
        self._answered(results)

    def _break(self, why: str) -> None:
        if self._broken is not None and not self._broken.done():
            self._broken.set_result(why)

    # -- topics that are not known ----------------------------------------------------------------------------------

    def _ask(self, topic: str, claim: Letter, targets: Targets) -> None:
        """Whoever comes while it is asked whether the topic is there waits, and keeps his place."""
        waiting = self._asking.get(topic)
        if waiting is not None:
            waiting.append(claim)
            return
        self._asking[topic] = [claim]
        task = asyncio.get_running_loop().create_task(self._learn(topic, targets))
        self._tasks.add(task)
        task.add_done_callback(self._learnt)

    def _learnt(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._asking and (task.cancelled() or task.exception() is not None):
            self._break("nobody could say whether a topic is there")

    async def _learn(self, topic: str, targets: Targets) -> None:
        refusal = await targets.ask(topic)
        claims = self._asking.pop(topic)
        if refusal is not None:
            targets.rest(topic, refusal)
        results = []
        for claim in claims:
            refused = refusal or self._sort(claim, targets)
            if refused is not None:
                results.append(Result(claim, Outcome.REFUSED, refused))
        if results:
            self._give(results)

    # -- the connection ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep connected until cancelled."""
        await keep_connected(self._translated, self._health, _SUBJECT, "nothing can be published to Kafka")

    async def _translated(self, reconnect: Reconnect) -> None:
        with broker_errors(self._rules):
            await self._session(reconnect)

    async def _session(self, reconnect: Reconnect) -> None:
        """One producer, until it is broken."""
        producer = new_producer(self._rules)
        try:
            async with asyncio.timeout(self._rules.confirm_timeout / 1000):
                await start(producer, self._rules)
                await producer.client.force_metadata_update()
            self._producer = producer
            self._targets = Targets(producer.client)
            self._broken = asyncio.get_running_loop().create_future()
            reconnect.worked()
            self._reached(True)
            raise BrokerUnavailable(await self._until_broken(self._broken, producer))
        finally:
            self._reachable = False
            self._targets = None
            self._producer = None
            self._give_back()
            await give_up_producer(producer)

    async def _until_broken(self, broken: asyncio.Future[str], producer: AIOKafkaProducer) -> str:
        """While no broker answers there is no room; a producer survives that, and so do the records it has."""
        while not broken.done():
            self._reached(await answers(producer.client, _ANSWER_S))
            await asyncio.wait([broken], timeout=_ASK_S)
        return broken.result()

    def _reached(self, reached: bool) -> None:
        if reached:
            self._health.say(_SUBJECT, "")
        else:
            text = f"nothing can be published to Kafka: no broker of {self._rules.bootstrap_servers} answers"
            self._health.say(_SUBJECT, text)
        if reached and not self._reachable:
            self._reachable = True
            self._answered([])  # there is room again, and whoever waits for it should not sleep on
        self._reachable = reached

    def _give_back(self) -> None:
        """Everything without an answer comes back as unknown."""
        _cancel(self._tasks)
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.end()
        asking, self._asking = self._asking, {}
        for claims in asking.values():
            self._give([Result(claim, Outcome.UNKNOWN, None) for claim in claims])


def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tuple(tasks):
        task.cancel()
