"""What becomes of a share group's dead-letter record: the record it points at, or a fault with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import LeaderNotAvailableError

from adapters.kafka.failure import RetryRouter, Returns, read_failure
from adapters.kafka.pointers import Followed, Pointer, follow, points
from adapters.kafka.raw.poison import RawBatch
from adapters.kafka.raw.record import Record
from adapters.kafka.routing import Router
from bridge.core.message import Refusal
from bridge.delay.naming import Naming

WROTE_MS = 1_700_000_000_000
ALLOWED = frozenset({"payments"})
ORIGINAL = Record(1, WROTE_MS - 5000, b"key", b"value", [(b"own", b"1"), (b"own", None), (b"x-retry-attempt", b"1")])


def context(topic: str = "payments", partition: str = "1", offset: str = "7") -> list[tuple[str, bytes]]:
    """The headers that Kafka 4.4.0 writes, in its order."""
    where = {"topic": topic, "partition": partition, "offset": offset}
    why = {"group": "billing", "delivery.count": "1", "message": "Offset rejected by client."}
    return [(f"__dlq.errors.{name}", text.encode()) for name, text in {**where, **why}.items()]


def pointer(
    headers: Sequence[tuple[str, bytes]], key: bytes | None = None, value: bytes | None = None, offset: int = 40
) -> ConsumerRecord:
    return ConsumerRecord("dlq.payments", 1, offset, WROTE_MS, 0, key, value, None, -1, -1, tuple(headers))


def followed(records: Sequence[ConsumerRecord], fetch: Callable[[Pointer], RawBatch | None]) -> Followed:
    async def fetched(at: Pointer) -> RawBatch | None:
        return fetch(at)

    return asyncio.run(follow(records, ALLOWED, fetched))


def there(at: Pointer) -> RawBatch:
    assert at == Pointer(TopicPartition("payments", 1), 7)
    return RawBatch([(7, ORIGINAL), (8, ORIGINAL._replace(key=b"next"))], 9)


def gone(at: Pointer) -> None:
    return None


@pytest.mark.parametrize(("key", "value"), [(None, None), (b"key", b"value")])
def test_the_record_that_failed_takes_the_place_of_its_pointer_with_its_own_headers(
    key: bytes | None, value: bytes | None
) -> None:
    (record,) = followed([pointer(context(), key, value)], there).records
    assert (record.key, record.value, record.partition) == (b"key", b"value", 1)
    assert (record.topic, record.offset, record.timestamp) == ("dlq.payments", 40, WROTE_MS)
    assert [(name.encode(), content) for name, content in record.headers[:3]] == ORIGINAL.headers
    assert not points(record)
    failure = read_failure([(name.encode(), content) for name, content in record.headers])
    assert (failure.attempt, failure.reason) == (2, "Offset rejected by client.")


def test_a_returned_record_loses_what_the_broker_said_of_its_failure() -> None:
    returns, failure = Returns(3), read_failure([])
    assert all(returns.drops(name.encode(), failure) for name, _ in context())


def test_neighbours_are_fetched_once_and_others_pass_as_they_are() -> None:
    asked: list[Pointer] = []

    def fetch(at: Pointer) -> RawBatch:
        asked.append(at)
        return there(at)

    plain = pointer([("own", b"1")], b"k", b"v")
    found = followed([pointer(context()), plain, pointer(context(offset="8"), offset=41)], fetch)
    assert [record.key for record in found.records] == [b"key", b"k", b"next"]
    assert len(asked) == 1
    assert found.records[1] is plain


def recreated(at: Pointer) -> RawBatch:
    return RawBatch([(7, ORIGINAL._replace(timestamp=WROTE_MS + 3_600_000))], 8)


def odd(at: Pointer) -> RawBatch:
    return RawBatch([(7, ORIGINAL._replace(headers=[(b"\xff", b"")]))], 8)


@pytest.mark.parametrize(
    ("headers", "fetch", "fault"),
    [
        (context(), gone, "offset 7 of partition 1 of topic 'payments', and Kafka has that record no more"),
        (context(), lambda at: RawBatch([(9, ORIGINAL)], 10), "Kafka has that record no more"),
        (context(), recreated, "another record is there: the topic was recreated"),
        (context(), odd, "whose header names are not UTF-8"),
        (context("secrets"), there, "it points at topic 'secrets', which is neither in the route's deliver_to"),
        (context(offset="-1"), there, "name no record"),
        (context(partition=""), there, "name no record"),
        (context()[2:], there, "name no record"),
    ],
)
def test_a_pointer_without_its_record_is_a_fault_and_never_returns(
    headers: list[tuple[str, bytes]], fetch: Callable[[Pointer], RawBatch | None], fault: str
) -> None:
    found = followed([pointer(headers)], fetch)
    assert fault in found.faults[40]
    (record,) = found.records
    assert (record.key, record.value, list(record.headers)) == (None, None, headers)
    router = RetryRouter(Router("retry", [Naming("dlq.payments", "payments")]), Returns(3))
    target = router.target(b"dlq.payments", [(name.encode(), content) for name, content in record.headers])
    assert isinstance(target, Refusal)
    assert target.lasting


def test_a_copy_whose_original_is_gone_is_a_fault_that_an_operator_may_retry() -> None:
    found = followed([pointer(context(), b"key", b"value")], gone)
    assert "This is the broker's copy of it, without its own headers" in found.faults[40]
    assert (found.records[0].value, points(found.records[0])) == (b"value", False)


def test_a_copy_that_differs_from_the_record_at_its_place_is_a_fault() -> None:
    assert "another record is there" in followed([pointer(context(), b"key", b"other")], there).faults[40]


def test_what_cannot_be_fetched_now_waits_with_all_after_it() -> None:
    def away(at: Pointer) -> RawBatch | None:
        if at.offset == 7:
            return there(at)
        raise LeaderNotAvailableError("no leader")

    records = [pointer(context()), pointer(context(offset="20"), offset=41), pointer(context(), offset=42)]
    found = followed(records, away)
    assert [record.offset for record in found.records] == [40]
    assert found.trouble.startswith("offset 20 of partition 1 of topic 'payments': ")
    assert "no leader" in found.trouble


def test_large_originals_wait_for_their_turn() -> None:
    large = ORIGINAL._replace(value=bytes(5 << 20))
    records = [pointer(context(), offset=offset) for offset in range(5)]
    found = followed(records, lambda at: RawBatch([(7, large)], 8))
    assert ([record.offset for record in found.records], found.trouble) == ([0, 1], "")
