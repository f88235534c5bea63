"""Commits how far partitions are done, and says when Kafka does not take it."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError

from adapters.kafka.access import sentence
from adapters.kafka.client import commit_once
from adapters.kafka.intake import Part
from bridge.settings import Kafka
from bridge.telemetry.health import Health

_SUBJECT = "kafka commit"
_ANSWER_S = 3.0


class Commits:
    """One commit at a time, so that an older offset never follows a newer one."""

    def __init__(self, rules: Kafka, health: Health) -> None:
        self._rules = rules
        self._health = health
        self._one = asyncio.Lock()
        self._failed = False

    async def commit(self, consumer: AIOKafkaConsumer, parts: Collection[Part]) -> None:
        """Commit how far each is done. A failure does no harm: the next call commits more, and a record that is read
        again is known by its origin."""
        try:
            async with self._one:
                await self._commit(consumer, parts)
        except (KafkaError, OSError) as error:
            self._failed = True
            self._health.say(_SUBJECT, f"offsets could not be committed to Kafka: {sentence(error, self._rules)}")

    async def _commit(self, consumer: AIOKafkaConsumer, parts: Collection[Part]) -> None:
        """After a failure commit everything once more: only an answer shows that commits work again. A rebalance in
        between makes a commit void."""
        done = {part: offset for part in parts if (offset := part.progress.committable) is not None}
        fresh = done if self._failed else {part: offset for part, offset in done.items() if offset != part.committed}
        if fresh:
            async with asyncio.timeout(_ANSWER_S):
                valid = await commit_once(consumer, {part.place: (offset, part.note) for part, offset in fresh.items()})
            if not valid:
                return
            for part, offset in fresh.items():
                part.committed = offset
        if self._failed:
            self._failed = False
            self._health.say(_SUBJECT, "")
