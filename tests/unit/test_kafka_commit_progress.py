"""What may be committed of a partition: never more than is accepted without a gap, and everything in the end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.kafka.intake import CommitProgress

offsets = st.lists(st.integers(0, 10_000), unique=True, min_size=1, max_size=60).map(sorted)


@given(offsets, st.data())
def test_nothing_is_committed_beyond_the_first_record_that_is_not_done(given: list[int], data: st.DataObject) -> None:
    progress = CommitProgress()
    for offset in given:
        progress.handed_over(offset)
    waiting = data.draw(st.permutations(given))
    done: set[int] = set()
    while waiting:
        step = data.draw(st.integers(1, len(waiting)))
        batch, waiting = waiting[:step], waiting[step:]
        done.update(batch)
        progress.done(batch)
        gap = next((at for at, offset in enumerate(given) if offset not in done), len(given))
        assert progress.committable == (given[gap - 1] + 1 if gap else None)
    assert progress.committable == given[-1] + 1


def test_records_handed_over_later_do_not_move_the_committable_offset() -> None:
    progress = CommitProgress()
    progress.handed_over(5)
    progress.done([5])
    progress.handed_over(9)
    progress.handed_over(12)
    assert progress.committable == 6
    progress.done([12])
    assert progress.committable == 6
    progress.done([9])
    assert progress.committable == 13


@given(offsets, st.data())
def test_offsets_without_a_record_are_committed_as_soon_as_every_record_before_them_is_done(
    given: list[int], data: st.DataObject
) -> None:
    """The source reads on past the markers of transactions while records before them are not durable yet."""
    progress, done, last = CommitProgress(), 0, 0
    for number, offset in enumerate(given, start=1):
        progress.handed_over(offset)
        after = given[number] if number < len(given) else offset + 100
        last = data.draw(st.integers(offset + 1, after))
        progress.reached(last)
        step = data.draw(st.integers(done, number))
        progress.done(given[done:step])
        done = step
        if done == number:
            assert progress.committable == last
        else:
            assert (progress.committable or 0) <= given[done]
    progress.done(given[done:])
    assert progress.committable == last
