"""What a shard remembers of its deliveries: for long enough, and no longer."""

from __future__ import annotations

from adapters.kafka.delivered import DeliveredKeys, read, written
from adapters.kafka.transactional import window_ms

WINDOW_MS = 600_000


def keys(first: int, count: int) -> list[bytes]:
    return [b"orders %020d" % number for number in range(first, first + count)]


def test_a_marker_is_read_as_it_was_written() -> None:
    for count in (0, 1, 4999, 5000, 5001):
        values = list(written(keys(0, count)))
        assert [key for value in values for key in read(value)] == keys(0, count)
        assert max(map(len, values)) < 1_000_000 // 2


def test_a_session_without_deliveries_writes_one_empty_marker() -> None:
    assert list(written([])) == [b""]
    assert read(None) == read(b"") == []


def test_a_delivery_is_known_for_the_window_and_forgotten_after_it() -> None:
    delivered = DeliveredKeys(WINDOW_MS)
    delivered.add(0, keys(0, 1))
    for minute in range(1, 11):
        delivered.add(minute * 60_000, keys(minute, 1))
        assert keys(0, 1)[0] in delivered
    delivered.add(12 * 60_000, keys(100, 1))
    assert keys(0, 1)[0] not in delivered
    assert keys(100, 1)[0] in delivered


def test_the_window_ends_with_the_last_delivery_and_not_now() -> None:
    delivered = DeliveredKeys(WINDOW_MS)
    delivered.add(0, keys(0, 3))
    delivered.add(WINDOW_MS - 1, [])
    assert all(key in delivered for key in keys(0, 3))


def test_a_clock_that_steps_back_forgets_nothing() -> None:
    delivered = DeliveredKeys(WINDOW_MS)
    delivered.add(50 * WINDOW_MS, keys(0, 1))
    delivered.add(0, keys(1, 1))
    assert all(key in delivered for key in keys(0, 2))


def test_after_a_pause_a_new_session_repeats_the_newest_deliveries_and_a_bounded_number() -> None:
    delivered = DeliveredKeys(WINDOW_MS)
    assert delivered.repeated(0) == []
    delivered.add(0, keys(0, 10))
    delivered.add(300_000, keys(10, 10))
    delivered.add(400_000, keys(20, 50_000))
    assert delivered.repeated(400_000 + WINDOW_MS // 4 - 1) == []
    assert delivered.repeated(400_000 + WINDOW_MS // 4) == keys(30_020, 20_000)


def test_the_memory_outlives_every_lease() -> None:
    assert window_ms(15_000) == WINDOW_MS
    assert window_ms(3_600_000) == 2 * 3_600_000
