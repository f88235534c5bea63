"""Where a partition is begun: by what is committed, and by what Kafka still has."""

from __future__ import annotations

import pytest

from adapters.kafka.intake import NEVER, StartOffset, note_of, start_offset_after, start_offset_in
from adapters.kafka.topology.topic_ids import TopicId

TOPIC = TopicId("cluster-1", "aa")
ANEW = TopicId("cluster-1", "bb")
ELSEWHERE = TopicId("cluster-2", "cc")
NAMELESS = TopicId("", "payments.delay")


@pytest.mark.parametrize(
    ("topic_id", "committed", "note", "begin"),
    [
        (TOPIC, None, "", StartOffset(None)),
        (TOPIC, 7, note_of(TOPIC, NEVER), StartOffset(7)),
        (TOPIC, 7, note_of(TOPIC, 5), StartOffset(7, 5)),
        (ANEW, 7, note_of(TOPIC, NEVER), StartOffset(None)),
        (ANEW, 7, note_of(TOPIC, 5), StartOffset(None)),
        (ANEW, 7, "", StartOffset(7)),
        (ELSEWHERE, 7, note_of(TOPIC, 5), StartOffset(7)),
        (NAMELESS, 7, note_of(TOPIC, NEVER), StartOffset(7)),
        (TOPIC, 7, note_of(NAMELESS, NEVER), StartOffset(7)),
        (TOPIC, 7, "whatever another client of this group wrote", StartOffset(7)),
        (TOPIC, 7, "postdate cluster-1", StartOffset(7)),
    ],
)
def test_a_commit_is_believed_unless_its_note_names_another_topic_of_this_cluster(
    topic_id: TopicId, committed: int | None, note: str, begin: StartOffset
) -> None:
    assert start_offset_in(topic_id, committed, note) == begin


@pytest.mark.parametrize(
    ("offset", "begin"),
    [(5, StartOffset(10, 12)), (10, StartOffset(10, 12)), (20, StartOffset(20, 12)), (21, StartOffset(10, 20))],
)
def test_reading_continues_at_the_oldest_record_and_records_after_a_lost_end_are_new(
    offset: int, begin: StartOffset
) -> None:
    assert start_offset_after(offset, first=10, end=20, cut=12) == begin
