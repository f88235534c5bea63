"""Report intake topics that are missing or may not be read, and recreate deleted ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aiokafka import AIOKafkaConsumer

from adapters.kafka.intake import Intakes
from bridge.telemetry.health import Health


class TopicWatch:
    """``mend()`` makes missing intake topics again, if it may."""

    def __init__(self, intakes: Intakes, mend: Callable[[], None], health: Health) -> None:
        self._intakes = intakes
        self._mend = mend
        self._health = health
        self._refused: set[str] = set()
        self._tried: set[str] = set()

    def refused(self, consumer: AIOKafkaConsumer, topics: Sequence[str]) -> None:
        """Kafka does not let us read these topics. That fails every poll, of all topics, so they rest until
        ``try_again``."""
        for topic in topics:
            self._refused.add(topic)
            self._say(topic, "postdate may not read it")
        consumer.pause(*(place for place in consumer.assignment() if place.topic in topics))

    def try_again(self, consumer: AIOKafkaConsumer) -> None:
        """Read refused topics again. One that was read since the last call, and not refused, is well."""
        for topic in self._tried - self._refused:
            self._health.say(f"kafka topic {topic}", "")
        self._tried, self._refused = self._refused, set()
        consumer.resume(*consumer.paused())

    def look(self, consumer: AIOKafkaConsumer) -> None:
        """Say which topics are missing, and start making them again."""
        missing = self._intakes.missing(consumer._client.cluster.topics())
        for topic in self._intakes.names():
            if topic in missing:
                self._say(topic, "it does not exist, or may not be seen (no Describe permission)")
            elif topic not in self._tried | self._refused:
                self._health.say(f"kafka topic {topic}", "")
        if missing:
            consumer._client.force_metadata_update()
            self._mend()

    def _say(self, topic: str, why: str) -> None:
        self._health.say(f"kafka topic {topic}", f"nothing is taken from the topic {topic}: {why}")
