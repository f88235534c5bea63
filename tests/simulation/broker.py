"""The brokers of a simulated run: queues as RabbitMQ has them, or logs as Kafka has them, and one target.

``Arrived`` is what consumers see. The ledger compares it with what producers published.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple
from zlib import crc32

from bridge.core.clock import StoreClock
from bridge.core.message import Claim, Delivery, Failure, HeaderValue, Outcome, Refusal, no_route
from bridge.core.ports import Result
from bridge.core.reasons import Reason, ReasonKind
from bridge.pipeline.intake import Arrivals
from tests.simulation.loop import Process
from tests.simulation.servers import LATER_S, Connection, Server
from tests.simulation.store import START_S, StoreServer

_PREFETCH = 200
_WINDOW = 500


class Published(NamedTuple):
    """What a producer published at ``at_s``, and the moment that it asked for at least (Unix ms by the store's clock).

    ``name``: its ``x-delay-key``. ``cancels``: the one that it cancels; such a message is not to be delivered.
    ``relative``: the delay counts from its arrival. ``attempt``: how often its consumer failed, on the retry route.
    """

    number: int
    at_s: float
    key: bytes
    headers: Mapping[str, HeaderValue]
    route: str
    due_ms: float
    name: bytes = b""
    cancels: bytes = b""
    priority: int | None = None
    relative: bool = False
    attempt: int = 0


class Arrived(NamedTuple):
    """What a consumer received: the message's number, its ids, the store's clock (ms) and the loop's then, its place.

    ``id`` is the one in the store, and ``sent_s`` when postdate sent it.
    """

    number: int
    route: str
    public_id: bytes
    id: bytes
    at_ms: float
    at_s: float
    sent_s: float
    instance: str
    place: int


class Accepted(NamedTuple):
    """When the broker heard that a message is durable: the loop's time, and the store's clock (ms)."""

    at_s: float
    at_ms: float


class Tag(NamedTuple):
    """A delivery of one connection."""

    connection: int
    number: int


@dataclass
class Log:
    """A partition: its records, what is committed, and who reads it."""

    name: bytes
    route: str
    records: list[Delivery] = field(default_factory=list)
    committed: int = 0
    reader: SimulatedSource | None = None


class Broker(Server):
    """Takes what producers publish, hands it to the instances, and takes what they publish.

    Without ``logs`` each route has a queue: what a dead connection had is delivered again. With logs, each has one
    reader at a time, which begins at the committed offset.
    """

    def __init__(self, store: StoreServer, random: Any, logs: int = 0, holds: bool = False) -> None:
        """``holds``: records that consumers failed have their key as an id, by which they are held."""
        super().__init__(store.loop, random)
        self._holds = holds
        self.store = store
        #: By route: its queue, and the consumer that is active. The others wait for its end.
        self.queues: dict[str, deque[Delivery]] = {}
        self._active: dict[str, SimulatedSource] = {}
        self._partitions = logs
        self.logs: list[Log] = []
        self.sources: list[SimulatedSource] = []
        self.sinks: list[SimulatedSink] = []
        self.arrived: list[Arrived] = []
        #: Which share of publishes is refused for now, and for good.
        self.refusing = self.refusing_for_good = 0.0
        #: Numbers of messages that were refused.
        self.refused: set[int] = set()
        #: By number: when it was first accepted.
        self.accepted: dict[int, Accepted] = {}
        #: Called with each message that arrives.
        self.consumer: Callable[[Arrived], None] = lambda arrived: None
        self.hears = True
        #: By transactional id: the number of its session, and its markers with their moments (Unix ms).
        self.sessions: dict[str, int] = {}
        self.markers: dict[str, list[tuple[int, list[bytes]]]] = {}
        #: Numbers of messages that are dead letters of the broker.
        self.dead: set[int] = set()
        self._in_levels = 0
        #: By how many places the readers of logs have moved on.
        self.turned = 0
        self.redelivered = 0
        #: The numbers of the messages that were delivered again.
        self.again: set[int] = set()

    def publish(self, message: Published) -> None:
        """Take a producer's message."""
        payload = b"%d" % message.number
        digest = blake2b(message.key + b"\0" + payload, digest_size=8).digest()
        delivery = Delivery(Tag(0, 0), message.route, payload, message.key, dict(message.headers), 0, digest=digest)
        if message.attempt:
            delivery.failure = Failure(message.attempt, "rejected")
            delivery.message_id = message.key if self._holds else None
        if self._partitions:
            log = self._log(message)
            delivery.published_ms, delivery.origin = int(self.now_ms()), (log.name, len(log.records))
            delivery.record_key = message.key
            log.records.append(delivery)
            if not self.frozen:
                self._let_read(log)
        else:
            delivery.priority = message.priority
            self.queues.setdefault(message.route, deque()).append(delivery)
            self.hand_out()

    def now_ms(self) -> float:
        """Return the broker's own clock, which nothing steps."""
        return (START_S + self.loop.time()) * 1000

    def _log(self, message: Published) -> Log:
        """Return the partition of a message: each route has a topic of its own."""
        number = crc32(message.key) % self._partitions
        name = b"%b/%d" % (message.route.encode(), number)
        for log in self.logs:
            if log.name == name:
                return log
        self.logs.append(Log(name, message.route))
        self.rebalance()
        return self.logs[-1]

    def hand_out(self) -> None:
        """Give the instances what they have room for, in turns."""
        if self.frozen:
            return
        for log in self.logs:
            self._let_read(log)
        alive = [source for source in self.sources if source.consumes()] if self.queues else []
        for place, (route, queue) in enumerate(self.queues.items()):
            consumers = [source for source in alive if route in source.routes]
            if self._active.get(route) not in consumers and consumers:
                self._active[route] = consumers[place % len(consumers)]
            while queue and consumers and self._active[route].room() > 0 and route not in self._active[route].held:
                self._active[route].receive([queue.popleft()])

    @staticmethod
    def _let_read(log: Log) -> None:
        if log.reader is not None and log.route not in log.reader.held:
            log.reader.read(log)

    def join(self, source: SimulatedSource) -> None:
        """A source connects."""
        self.sources.append(source)
        self.rebalance()

    def lose(self, source: SimulatedSource) -> None:
        """The broker notices that a connection has ended."""
        if source in self.sources:
            self.sources.remove(source)
        again = [replace(delivery, redelivered=True) for delivery in source.out.values() if delivery.origin is None]
        self.redelivered += len(again)
        self.again.update(int(delivery.payload) for delivery in again)
        for delivery in reversed(again):
            self.queues[delivery.route].appendleft(delivery)
        source.out.clear()
        self.rebalance()

    def rebalance(self) -> None:
        """Deal the logs to the readers. A log that moves is read again from its committed offset."""
        alive = [source for source in self.sources if source.consumes()]
        for number, log in enumerate(self.logs):
            readers = [source for source in alive if log.route in source.routes]
            reader = readers[(number + self.turned) % len(readers)] if readers else None
            if reader is not log.reader:
                if log.reader is not None:
                    log.reader.forget(log)
                log.reader = reader
                if reader is not None:
                    reader.positions[log.name] = log.committed
        self.hand_out()

    def deliver(self, number: int, route: str, ids: tuple[bytes, bytes], sent_s: float, instance: str) -> None:
        """Take what an instance sent, and hand it to its consumer. ``ids``: the public one, and that in the store."""
        moments = self.store.clock.now_us() / 1000, self.loop.time(), sent_s
        arrived = Arrived(number, route, *ids, *moments, instance, len(self.arrived))
        self.arrived.append(arrived)
        self.consumer(arrived)

    def wait_in_level(self, number: int, wait_s: float, due: str) -> None:
        """Keep a message in a level, and put it into the queue ``due`` when it expires."""
        self._in_levels += 1

        def expire() -> None:
            if self.frozen:
                self.wait(expire)
                return
            self._in_levels -= 1
            self.queues.setdefault(due, deque()).append(Delivery(Tag(0, 0), due, b"%d" % number, b"", {}, 0))
            self.hand_out()

        self.loop.call_at(self.loop.time() + wait_s, expire, context=self.outside)

    def refuses(self, number: int) -> Refusal | None:
        """Return why a message is not taken; None for one that is."""
        for share, lasting in ((self.refusing_for_good, True), (self.refusing, False)):
            if share and self.random.random() < share:
                self.refused.add(number)
                return Refusal(Reason(ReasonKind.UNROUTABLE, "no queue"), lasting)
        return None

    def left(self) -> int:
        """Return how many messages no instance has accepted."""
        unread = sum(len(log.records) - log.committed for log in self.logs)
        handed_out = 0 if self._partitions else sum(len(source.out) for source in self.sources)
        return sum(map(len, self.queues.values())) + handed_out + unread + self._in_levels


class SimulatedSource:
    """A ``Source`` of one process."""

    def __init__(self, broker: Broker, clock: StoreClock, process: Process, routes: Collection[str]) -> None:
        self._broker = broker
        self.routes = routes
        self._clock = clock
        self._process = process
        self._connection = Connection(broker)
        self._arrivals = Arrivals()
        self._number = 0
        self._come_at = 0.0
        self.connection = 1
        self.connected = True
        self.out: dict[Tag, Delivery] = {}
        self.positions: dict[bytes, int] = {}
        #: By log: offsets accepted above the committed one.
        self._accepted: dict[bytes, set[int]] = {}
        self.held: frozenset[str] = frozenset()
        self._stopped = False

    # -- the broker's side ------------------------------------------------------------------------------------------

    def consumes(self) -> bool:
        """Return whether the broker delivers to it."""
        return self.connected and not self._stopped and not self._process.killed

    def room(self) -> int:
        """Return how much may still be handed out."""
        return _PREFETCH - len(self.out)

    def read(self, log: Log) -> None:
        """Hand out the next records of a log."""
        at = self.positions[log.name]
        if at < len(log.records) and (records := log.records[at : at + max(0, self.room())]):
            self.positions[log.name] = at + len(records)
            self.receive(records)

    def receive(self, deliveries: Sequence[Delivery]) -> None:
        """Send deliveries to the process."""
        tagged = []
        for delivery in deliveries:
            self._number += 1
            delivery = replace(delivery, tag=Tag(self.connection, self._number))
            self.out[delivery.tag] = delivery
            tagged.append(delivery)
        loop = self._broker.loop
        self._come_at = max(self._come_at + LATER_S, loop.time() + self._broker.travel_s())
        loop.call_at(self._come_at, self._come, tagged, context=self._process.context)

    def forget(self, log: Log) -> None:
        """The log is another reader's from now on."""
        for tag in [
            tag for tag, delivery in self.out.items() if delivery.origin is not None and delivery.origin[0] == log.name
        ]:
            del self.out[tag]
        self._accepted.pop(log.name, None)

    def connect(self) -> None:
        """Begin to consume."""
        self._broker.join(self)

    def reconnect(self) -> None:
        """The connection breaks. What was not accepted is delivered again."""
        self._broker.lose(self)
        self.connection += 1
        self._arrivals.clear()
        self._broker.join(self)

    def _come(self, deliveries: Sequence[Delivery]) -> None:
        now_ms = self._clock.now_ms()
        mine = [delivery for delivery in deliveries if self.alive(delivery)]
        for delivery in mine:
            delivery.arrived_ms = now_ms
        if mine:
            self._arrivals.add(tuple(mine))

    # -- the port ---------------------------------------------------------------------------------------------------

    async def take(self, messages_max: int, bytes_max: int) -> list[Delivery]:
        return await self._arrivals.take(messages_max, bytes_max)

    def more(self, messages_max: int, bytes_max: int, without: Collection[str] = ()) -> list[Delivery]:
        return self._arrivals.more(messages_max, bytes_max, without)

    def accept(self, deliveries: Sequence[Delivery]) -> None:
        tags = [delivery.tag for delivery in deliveries]
        if self._broker.hears:
            self._connection.send(lambda: self._settle(tags))

    def _settle(self, tags: Sequence[Tag]) -> None:
        """The broker hears what was accepted. Of a log, it hears the first offset that was not."""
        for tag in tags:
            delivery = self.out.pop(tag, None)
            if delivery is None:
                continue
            now = Accepted(self._broker.loop.time(), self._broker.store.clock.now_us() / 1000)
            self._broker.accepted.setdefault(int(delivery.payload), now)
            if delivery.origin is None:
                continue
            name, offset = delivery.origin
            log = next(log for log in self._broker.logs if log.name == name)
            done = self._accepted.setdefault(name, set())
            done.add(offset)
            while log.committed in done:
                done.discard(log.committed)
                log.committed += 1
        self._broker.hand_out()

    def drop(self, deliveries: Sequence[Delivery]) -> None:
        pass

    def alive(self, delivery: Delivery) -> bool:
        return bool(delivery.tag.connection == self.connection) and delivery.tag in self.out

    def place(self, delivery: Delivery) -> dict[str, object]:
        return {}

    def close_intakes(self, routes: Collection[str]) -> None:
        self.held = frozenset(routes)
        self._connection.send(self._broker.hand_out)

    def stop(self) -> None:
        self._stopped = True

    def emptied(self) -> bool:
        return self._arrivals.empty()


class SimulatedSink:
    """A ``Sink`` of one process."""

    def __init__(self, broker: Broker, process: Process, routes: Collection[str]) -> None:
        self.broker = broker
        self.process = process
        self.routes = routes
        self.connection = Connection(broker)
        #: Whether it gets the broker's confirms.
        self.hears = True
        #: What arrives on a channel before this number, the broker throws away.
        self._open_from = 0
        self._answered: Callable[[list[Result[Claim]]], None] = lambda results: None
        self._flights: dict[int, Claim] = {}
        self._number = 0
        self.epoch = 0
        self.connected = True
        self.blocked = False
        broker.sinks.append(self)

    def disconnect(self) -> None:
        """The connection breaks: the outcome of what is on its way is unknown."""
        self.connected = False
        self.epoch += 1
        flights, self._flights = list(self._flights.values()), {}
        results = [Result(letter, Outcome.UNKNOWN, None) for letter in flights]
        if results:
            self.broker.loop.call_soon(self._answered, results, context=self.process.context)

    def close_channel(self) -> None:
        """The broker closes the channel over another message: it throws away what arrives there afterwards."""
        self._open_from = self.epoch + 1
        self.disconnect()

    def connect(self) -> None:
        """Connect again."""
        self.connected = self.hears = True
        self.connection = Connection(self.broker)
        self.broker.loop.call_soon(self._answered, [], context=self.process.context)

    def unblocked(self) -> None:
        """The broker takes messages again."""
        self.blocked = False
        self.broker.loop.call_soon(self._answered, [], context=self.process.context)

    # -- the port ---------------------------------------------------------------------------------------------------

    def on_answers(self, answered: Callable[[list[Result[Claim]]], None]) -> None:
        self._answered = answered

    def ready(self) -> bool:
        return self.connected and not self.blocked

    def able(self) -> bool:
        return self.connected

    def open(self) -> bool:
        return self.able()

    def room(self) -> tuple[int, int]:
        return (_WINDOW - len(self._flights), 64 << 20) if self.ready() else (0, 0)

    def publish(self, letters: Sequence[Claim]) -> None:
        if not self.connected:
            results = [Result(letter, Outcome.UNKNOWN, None) for letter in letters]
            self.broker.loop.call_soon(self._answered, results, context=self.process.context)
            return
        if missing := [letter for letter in letters if letter.route not in self.routes]:
            results = [Result(letter, Outcome.REFUSED, no_route(letter.route)) for letter in missing]
            self.broker.loop.call_soon(self._answered, results, context=self.process.context)
            letters = [letter for letter in letters if letter.route in self.routes]
        self._send(letters)

    def _send(self, letters: Sequence[Claim]) -> None:
        numbers = []
        for letter in letters:
            self._number += 1
            self._flights[self._number] = letter
            numbers.append(self._number)
        epoch, sent_s = self.epoch, self.broker.loop.time()
        pairs = list(zip(numbers, letters, strict=True))
        self.connection.send(lambda: self._take(epoch, pairs, sent_s), lambda answer, _: self._confirm(epoch, answer))

    def _take(self, epoch: int, pairs: Sequence[tuple[int, Claim]], sent_s: float) -> list[tuple[int, Refusal | None]]:
        """The broker takes or refuses messages, and consumers get them."""
        broker, answers = self.broker, list[tuple[int, Refusal | None]]()
        if epoch < self._open_from:
            return answers
        for number, letter in pairs:
            refusal = broker.refuses(int(letter.payload))
            answers.append((number, refusal))
            if refusal is None:
                self._land(letter, sent_s)
        return answers

    def _land(self, letter: Claim, sent_s: float) -> None:
        ids = letter.public_id, letter.id
        self.broker.deliver(int(letter.payload), letter.route, ids, sent_s, self.process.name)

    def _confirm(self, epoch: int, answers: Sequence[tuple[int, Refusal | None]]) -> None:
        if epoch != self.epoch or not self.hears:
            return
        results = []
        for number, refusal in answers or ():
            letter = self._flights.pop(number, None)
            if letter is not None:
                results.append(Result(letter, Outcome.REFUSED if refusal else Outcome.CONFIRMED, refusal))
        if results:
            self._answered(results)
