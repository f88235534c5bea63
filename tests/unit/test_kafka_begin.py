"""Where a partition is begun: by what is committed, and by what Kafka still has."""

from __future__ import annotations

import pytest

from adapters.kafka.start_offset import NEVER, Begin, begin_after, begin_at, note_of
from adapters.kafka.topology.topic_ids import TopicId

TOPIC = TopicId("cluster-1", "aa")
ANEW = TopicId("cluster-1", "bb")
ELSEWHERE = TopicId("cluster-2", "cc")
NAMELESS = TopicId("", "payments.delay")


@pytest.mark.parametrize(
    ("topic_id", "committed", "note", "begin"),
    [
        (TOPIC, None, "", Begin(None)),
        (TOPIC, 7, note_of(TOPIC, NEVER), Begin(7)),
        (TOPIC, 7, note_of(TOPIC, 5), Begin(7, 5)),
        (ANEW, 7, note_of(TOPIC, NEVER), Begin(None)),
        (ANEW, 7, note_of(TOPIC, 5), Begin(None)),
        (ANEW, 7, "", Begin(7)),
        (ELSEWHERE, 7, note_of(TOPIC, 5), Begin(7)),
        (NAMELESS, 7, note_of(TOPIC, NEVER), Begin(7)),
        (TOPIC, 7, note_of(NAMELESS, NEVER), Begin(7)),
        (TOPIC, 7, "whatever another client of this group wrote", Begin(7)),
        (TOPIC, 7, "postdate cluster-1", Begin(7)),
    ],
)
def test_a_commit_is_believed_unless_it_was_made_for_another_topic_of_this_cluster(
    topic_id: TopicId, committed: int | None, note: str, begin: Begin
) -> None:
    assert begin_at(topic_id, committed, note) == begin


@pytest.mark.parametrize(
    ("offset", "begin"), [(5, Begin(10, 12)), (10, Begin(10, 12)), (20, Begin(20, 12)), (21, Begin(10, 20))]
)
def test_it_goes_on_with_the_oldest_and_what_comes_beyond_a_shortened_end_is_new(offset: int, begin: Begin) -> None:
    assert begin_after(offset, first=10, end=20, cut=12) == begin
