"""Detects a consumer that hangs, and intake topics that are missing or unreadable.

After a broker restart or a rebalance aiokafka can hang without an error. So postdate regularly compares the ends of
the partitions with the consumer's positions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer.fetcher import OffsetResetStrategy
from aiokafka.errors import KafkaError

from adapters.kafka.client import has_leader
from adapters.kafka.intake import Intakes, Partition
from bridge.core.clock import CLOCK_OFF_S, StoreClock
from bridge.core.errors import BrokerUnavailable
from bridge.core.message import Delivery
from bridge.delay.duration import write_age
from bridge.desk.severity import named
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

#: Without a record for this long, two equal checks suffice. While other records come, a partition may wait longer.
_QUIET_S = 15.0
_PATIENCE_S = 60.0
_ANSWER_S = 10.0
_REBALANCE_S = 60.0
_NOT_BEGUN = -1
#: Timestamps this much older than the record are reported. The clocks of producers may differ by less.
_OLD_MS = 3000
#: They must come for this long, with pauses no longer: a producer that kept its records while Kafka stood still sends
#: them within seconds.
_OLD_LASTS_S = 10.0
_OLD_SAID_S = 60.0
#: An absolute moment does not count from a timestamp.
_MOMENT = "x-deliver-at"
#: How long the looks at a missing topic come soon.
_HURRY_S = 60.0
_NO_ANSWER = "the brokers do not report the ends of their partitions"


class ConsumerWatchdog:
    """Checks one consumer. Raises ``BrokerUnavailable`` if it hangs."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self._behind: dict[TopicPartition, tuple[int, float]] = {}
        self._assigned_at = self._answered_at = time.monotonic()

    def forget(self) -> None:
        """The consumer waits for postdate, so its positions prove nothing."""
        self._behind = {}
        self._answered_at = time.monotonic()

    async def look(self, took_at: float) -> None:
        """Check once. ``took_at`` is the monotonic second of the last record."""
        now = time.monotonic()
        if self._consumer._subscription.reassignment_in_progress:
            self.forget()
            if now - self._assigned_at > _REBALANCE_S:
                raise BrokerUnavailable("the consumer group has not assigned partitions for a minute")
            return
        self._assigned_at = now
        quiet = now - took_at >= _QUIET_S
        try:
            async with asyncio.timeout(_ANSWER_S):
                behind = await self._ask()
        except TimeoutError:
            if not quiet:
                return
            raise BrokerUnavailable(_NO_ANSWER) from None
        except KafkaError as error:
            self._on_error(error, now)
            return
        self._answered_at = now
        self._compare(behind, now, 0.0 if quiet else _PATIENCE_S)

    def _on_error(self, error: KafkaError, now: float) -> None:
        """A partition is gone or its leader moved. The consumer learns of it soon and is checked then."""
        if not error.retriable or now - self._answered_at > _PATIENCE_S:
            raise BrokerUnavailable(_NO_ANSWER) from error
        self._consumer._client.force_metadata_update()
        self._behind = {}

    def _compare(self, behind: dict[TopicPartition, int], now: float, patience_s: float) -> None:
        before, self._behind = self._behind, {}
        for tp, position in behind.items():
            known, since = before.get(tp, (None, now))
            if known != position:
                since = now
            elif now - since >= patience_s:
                raise BrokerUnavailable("records are waiting and the consumer fetches none. postdate replaces it")
            self._behind[tp] = position, since

    async def _ask(self) -> dict[TopicPartition, int]:
        """Partitions with records beyond the consumer's position; the position is -1 where it has not started.

        A partition without a leader is left out. Raises ``KafkaError`` at once. The public method would retry for
        ever for a deleted partition, and would wait for a position in a revoked one.
        """
        consumer, positions = self._consumer, dict[TopicPartition, int]()
        for tp in consumer.assignment() - consumer.paused():
            state = consumer._subscription.subscription.assignment.state_value(tp)
            if has_leader(consumer._client.cluster, tp):
                positions[tp] = state.position if state.has_valid_position else _NOT_BEGUN
        if not positions:
            return {}
        asked = dict.fromkeys(positions, OffsetResetStrategy.LATEST)
        ends = await consumer._fetcher._proc_offset_requests(asked)
        return {tp: position for tp, position in positions.items() if position < ends[tp][0]}


class OldTimestamps:
    """Reports routes whose records are written long after their timestamps, from which delays count.

    A record that waited for postdate is old, too. So only those count that were written after postdate had read
    everything. The last record of each poll is enough: an application that forwards timestamps does so with all.
    All moments are of the store's clock. While this machine's differs from it, nothing is judged: neither is sure.
    """

    def __init__(self, health: Health, clock: StoreClock, now: Callable[[], float] = time.monotonic) -> None:
        self._health = health
        self._clock = clock
        self._now = now
        #: By route: when old timestamps began to come, and when the last one came.
        self._runs: dict[str, tuple[float, float]] = {}

    def note_ends(self, consumer: AIOKafkaConsumer, parts: Mapping[TopicPartition, Partition]) -> None:
        """Note which partitions are read up to their ends, and when Kafka last said so."""
        offset_s = self._clock.offset_s()
        if abs(offset_s) > CLOCK_OFF_S:
            for part in parts.values():
                part.caught_up_ms = 0
            return
        for tp in consumer.assignment().intersection(parts):
            end, asked_ms = consumer.highwater(tp), consumer.last_poll_timestamp(tp)
            if end is not None and asked_ms is not None and (parts[tp].next or 0) >= end:
                parts[tp].caught_up_ms = round(asked_ms + offset_s * 1000)

    def look(self, part: Partition, delivery: Delivery) -> None:
        written_ms = min(part.caught_up_ms, delivery.arrived_ms)
        old_ms = written_ms - (delivery.published_ms or written_ms)
        if old_ms < _OLD_MS or not delivery.headers or _MOMENT in delivery.headers:
            return
        if not self._lasts(part.route):
            return
        age = write_age(old_ms)
        text = (
            f"records of route {part.route} have timestamps older than their arrival, the last one by {age}. Delays "
            "count from the timestamp, so these end sooner after the write than their header says. Kafka Streams "
            f'forwards the timestamp of its input. Set routes.{part.route}.delay_from = "arrival" to count from arrival'
        )
        self._health.say(Subject("kafka", "timestamps", part.route), text, _OLD_SAID_S, cause="old")

    def _lasts(self, route: str) -> bool:
        """Note an old timestamp. Return whether they have come for long."""
        now = self._now()
        began, last = self._runs.get(route, (now, now))
        began = now if now - last > _OLD_LASTS_S else began
        self._runs[route] = began, now
        return now - began >= _OLD_LASTS_S


class TopicWatch:
    """Reports missing and unreadable intake topics, and partitions without a leader. ``mend()`` recreates missing
    topics, if the settings allow it."""

    def __init__(
        self, intakes: Intakes, mend: Callable[[], None], health: Health, lost: Callable[[str], str] = lambda _: ""
    ) -> None:
        """``lost`` returns what is lost if a missing topic was deleted: the end of its sentence."""
        self._intakes = intakes
        self._mend = mend
        self._health = health
        self._lost = lost
        self._refused: set[str] = set()
        self._tried: set[str] = set()
        #: The topics that the last look did not find. A broker that has just come back may not know its topics yet.
        self.missing: frozenset[str] = frozenset()
        #: Since when topics are missing (monotonic, s); 0 while none is.
        self._missing_s = 0.0
        self._gone = asyncio.Event()
        #: By topic, the partitions that had no leader at the last look. An election is over before the next one.
        self._headless: dict[str, set[int]] = {}

    def refused(self, consumer: AIOKafkaConsumer, topics: Sequence[str]) -> None:
        """Kafka refuses to let postdate read these topics. That fails every poll, so pause them until ``try_again``."""
        for topic in topics:
            self._refused.add(topic)
            self._say(topic, "postdate may not read it")
        consumer.pause(*(tp for tp in consumer.assignment() if tp.topic in topics))

    def try_again(self, consumer: AIOKafkaConsumer) -> None:
        """Read the paused topics again. A topic that was resumed by the last call and not refused since is well."""
        for topic in self._tried - self._refused:
            self._health.say(Subject("kafka", "topic", topic), "")
        self._tried, self._refused = self._refused, set()
        consumer.resume(*consumer.paused())

    def forget(self) -> None:
        """The brokers did not answer, so what the last look did not find proves nothing."""
        self.missing, self._missing_s = frozenset(), 0.0

    def hurried(self) -> bool:
        """Whether the next look should come soon: a missing topic is usually declared again within seconds. Metadata of
        a large cluster cost too much to ask for them each second for hours."""
        return bool(self.missing) and time.monotonic() - self._missing_s < _HURRY_S

    def on_metadata(self, cluster: Any) -> None:
        """Wake the watch when new metadata lack a topic: a fetch from a deleted one asks for them."""
        if not self.missing.issuperset(self._intakes.missing(cluster.topics())):
            self._gone.set()

    async def until_gone(self, within_s: float) -> None:
        """Wait until a topic is gone that was there at the last look, at most ``within_s``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._gone.wait()
        self._gone.clear()

    def look(self, consumer: AIOKafkaConsumer) -> None:
        """Start to recreate missing topics, and report those that the last look missed, too. Report partitions without
        a leader."""
        cluster = consumer._client.cluster
        missing = frozenset(self._intakes.missing(cluster.topics()))
        lasting, self.missing = missing & self.missing, missing
        self._missing_s = (self._missing_s or time.monotonic()) if missing else 0.0
        for topic in self._intakes.names():
            self._judge_leaders(cluster, topic)
            if topic in lasting:
                why = "it does not exist, or postdate may not see it (no Describe permission)"
                self._say(topic, f"{why}{self._lost(topic)}")
            elif topic not in missing | self._tried | self._refused:
                self._health.say(Subject("kafka", "topic", topic), "")
        if missing or any(self._headless.values()):
            consumer._client.force_metadata_update()
        if missing:
            self._mend()

    def _judge_leaders(self, cluster: Any, topic: str) -> None:
        partitions = cluster.partitions_for_topic(topic) or ()
        headless = {n for n in partitions if not has_leader(cluster, TopicPartition(topic, n))}
        lasting = sorted(headless & self._headless.get(topic, set()))
        self._headless[topic] = headless
        text = ""
        if lasting:
            text = (
                f"nothing is taken from partitions {named([*map(str, lasting)], 4)} of the topic {topic}: they have no "
                "leader, so producers cannot write there either. Bring their brokers back"
            )
        self._health.say(Subject("kafka", "leader", topic), text)

    def _say(self, topic: str, why: str) -> None:
        self._health.say(Subject("kafka", "topic", topic), f"nothing is taken from the topic {topic}: {why}")
