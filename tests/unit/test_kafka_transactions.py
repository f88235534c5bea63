"""A queue of transactions in which a message waits twice, because its lease ended and it was claimed again."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

from adapters.kafka.transactional import ShardQueue
from bridge.core.message import Outcome
from bridge.settings import Kafka
from bridge.telemetry.health import Health

TARGET = TopicPartition("orders", 0)
MARKERS = TopicPartition("postdate.released", 0)


def flight(public_id: bytes) -> Any:
    return SimpleNamespace(letter=SimpleNamespace(route="orders", public_id=public_id, lease_ends=0.0), size=1)


class Session:
    """Commits everything, and keeps what it sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def refusal_of(self, tp: TopicPartition) -> None:
        return None

    async def commit(self, flights: Sequence[Any], keys: Sequence[bytes], codec: int | None) -> None:
        self.sent += [record.letter.public_id for _, record in flights]

    def sound(self) -> bool:
        return True


async def test_a_message_that_waits_twice_is_sent_once_and_both_are_confirmed() -> None:
    answered: list[tuple[bytes, Outcome]] = []

    def answer(_: str, records: Sequence[Any], outcome: Outcome, __: object) -> None:
        answered.extend((record.letter.public_id, outcome) for record in records)

    queue = ShardQueue(Kafka(), MARKERS, 600_000, answer, Health(), lambda: None)
    session: Any = Session()
    queue._session = session
    for public_id in (b"a", b"b", b"a"):
        queue.add((TARGET, flight(public_id)))
    assert queue._loop is not None
    await queue._loop
    assert session.sent == [b"a", b"b"]
    assert answered == [(public_id, Outcome.CONFIRMED) for public_id in (b"a", b"b", b"a")]
