"""A source and a sink on Kafka, with topics of the test's own."""

from __future__ import annotations

from dataclasses import replace

from adapters.kafka.outgoing import KafkaOut
from adapters.kafka.raw.record import Record, pack, unpack
from adapters.kafka.sink import KafkaSink
from adapters.kafka.source import KafkaSource
from bridge.core.message import Claim, Delivery
from tests.conformance.ends_rig import WINDOW, EndFeature, SinkRig, SourceRig
from tests.integration.kafka.rig import Sink as RunningSink
from tests.integration.kafka.rig import Source as RunningSource
from tests.integration.kafka.rig import Topics, to

_MS = 1_700_000_000_000


def _record(body: bytes) -> Record:
    return Record(0, _MS, b"k", body, [(b"trace", b"1"), (b"trace", None)])


class KafkaSourceRig(SourceRig):
    """A source on two topics with one partition each. A route is called as its topic."""

    features = frozenset({EndFeature.HAS_ORIGIN})

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._source: RunningSource | None = None

    async def open(self, window: int = WINDOW) -> KafkaSource:
        self.routes = (await self._topics.make("orders"), await self._topics.make("payments"))
        self._window = window
        return await self.again()

    async def again(self) -> KafkaSource:
        await self.close()
        self._source = RunningSource(self._topics, self.routes[0], self.routes, window=self._window)
        await self._source.__aenter__()
        return self._source.source

    async def close(self) -> None:
        """End the source."""
        if self._source is not None:
            await self._source.__aexit__(None, None, None)

    async def feed(self, *bodies: bytes, route: int = 0) -> None:
        await self._topics.write(self.routes[route], [_record(body) for body in bodies], one_batch=True)

    def body(self, delivery: Delivery) -> bytes:
        record = unpack(delivery.payload)
        assert record == _record(record.value or b"")
        return record.value or b""

    def place_of(self, offset: int) -> dict[str, object]:
        return {"topic": self.routes[0], "partition": 0, "offset": offset}


class KafkaSinkRig(SinkRig):
    """A sink on one topic with one partition.

    Its client survives a broken connection and sends again. So "the connection is lost" means that its session ends.
    """

    def __init__(self, topics: Topics) -> None:
        super().__init__()
        self._topics = topics
        self._sink: RunningSink | None = None

    async def open(self, window: int = WINDOW) -> KafkaSink[Claim]:
        self._topic = await self._topics.make("target")
        outs = {"orders": self.out(self._topic), "lost": self.out(self._topics.name("lost"))}
        group = self._topics.name("group")
        self._sink = RunningSink(self._topics, outs, window=window, timestamp="original", group=group)
        self._sink.sink.on_answers(self.batches.append)
        await self._sink.__aenter__()
        return self._sink.sink

    def out(self, topic: str) -> KafkaOut:
        """Return how its records leave."""
        return to(topic)

    async def close(self) -> None:
        """End the sink."""
        if self._sink is not None:
            await self._sink.__aexit__(None, None, None)

    async def hold(self) -> None:
        """Do nothing: Kafka answers only when the loop turns."""

    async def lose_connection(self) -> None:
        await self.close()

    async def heal(self) -> None:
        assert self._sink is not None
        await self._sink.__aenter__()

    def pack(self, body: bytes) -> bytes:
        return pack(*_record(body), b"intake")

    async def received(self, number: int) -> list[bytes]:
        records = await self._topics.read(self._topic, number)
        assert records == [_record(record.value or b"") for record in records]
        return [record.value or b"" for record in records]


class TransactionalSinkRig(KafkaSinkRig):
    """The same sink with transactional routes. All letters are of one shard, because that is the unit of order."""

    async def open(self, window: int = WINDOW) -> KafkaSink[Claim]:
        await self._topics.make("group.released")
        return await super().open(window)

    def out(self, topic: str) -> KafkaOut:
        return to(topic, transactional=True)

    def letter(self, body: bytes = b"body", route: str = "orders") -> Claim:
        found = super().letter(body, route)
        return replace(found, public_id=found.public_id[2:] + b"00")
