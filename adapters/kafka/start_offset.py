"""Where a partition is begun: pure, from what the group has committed, and from what Kafka still has.

A commit is an offset for a topic's name. The topic may have been deleted since and made anew under that name, and the
first records of the new one would be passed over. So the topic's id is committed beside the offset, in the text that
Kafka keeps there for whoever commits. A commit without it, of an earlier version or by Kafka's own tools, is believed;
and so is one of another cluster: whoever copies offsets between clusters has translated it.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

from adapters.kafka.topology.topic_ids import TopicId

_OURS = "postdate"
NEVER = sys.maxsize


class Begin(NamedTuple):
    """``offset`` is the first to be read, None for the oldest there is. From offset ``cut`` on Kafka had other records
    once, which it has lost; ``NEVER`` where it has not."""

    offset: int | None
    cut: int = NEVER


def note_of(topic_id: TopicId, cut: int) -> str:
    """What is committed beside an offset; empty where Kafka is too old for ids."""
    if not topic_id.cluster:
        return ""
    return " ".join([_OURS, *topic_id, *([] if cut == NEVER else [str(cut)])])


def begin_at(topic_id: TopicId, committed: int | None, note: str) -> Begin:
    """Where to begin in a topic of this id, from the group's offset, if there is one, and what stands beside it."""
    match note.split(" "):
        case [word, cluster, _, *_] if word != _OURS or cluster != topic_id.cluster:
            return Begin(committed)
        case [_, _, topic, *_] if topic != topic_id.topic:
            return Begin(None)
        case [_, _, _, cut] if cut.isdecimal():
            return Begin(committed, int(cut))
    return Begin(committed)


def begin_after(offset: int, first: int, end: int, cut: int) -> Begin:
    """Where to go on when Kafka has nothing at ``offset``, and has the offsets from ``first`` to before ``end``.

    Beyond the end it has lost what was read already, and gives the same offsets once more to other records: all that
    comes from now on is new, whatever its offset. Where nothing is amiss after all it goes on where it was.
    """
    if offset < first:
        return Begin(first, cut)
    return Begin(first, end) if offset > end else Begin(offset, cut)
