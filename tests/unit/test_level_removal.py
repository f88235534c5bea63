"""Which level queues and topics may be removed, in which order, and why the others stay."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.kafka.stale_levels import why_kept as why_topic_kept
from adapters.rabbitmq.declarations import Queue
from adapters.rabbitmq.stale_levels import LevelQueue, removal_order, why_kept
from bridge.desk.leftovers import Place, Use

QUORUM = {"x-queue-type": "quorum", "x-dead-letter-strategy": "at-least-once"}
CLASSIC = {"x-queue-type": "classic"}


def queue(name: str, leads_to: str = "", messages: int = 0, arguments: dict[str, str] = QUORUM) -> LevelQueue:
    made = Queue(name, {**arguments, "x-dead-letter-exchange": leads_to})
    return LevelQueue("orders", made, messages, True, name == "due", name == "dead")


HIGH, MIDDLE, LOW = queue("step.12", "step.11"), queue("step.11", "step.02"), queue("step.02", "due")
DUE, DEAD = queue("due", "orders"), queue("dead", arguments=CLASSIC)
ALL = [DEAD, DUE, LOW, HIGH, MIDDLE]


def kept(queue: LevelQueue, *alive: LevelQueue) -> str:
    return why_kept(queue, alive)


def test_a_ladder_is_removed_from_the_top_then_the_due_queue_and_last_the_dead_letters() -> None:
    assert removal_order(ALL) == [HIGH, MIDDLE, LOW, DUE, DEAD]


def test_a_queue_stays_while_it_or_a_queue_that_leads_to_it_has_messages() -> None:
    assert kept(HIGH, *ALL) == ""
    assert kept(MIDDLE, *ALL) == "the messages in queue 'step.12' go through it"
    assert kept(MIDDLE, MIDDLE, LOW, DUE) == ""
    assert kept(replace(HIGH, messages=1), *ALL).startswith("it holds messages: 1. ")
    assert kept(replace(HIGH, messages=2), *ALL).startswith("it holds messages: 2. ")


def test_the_dead_letter_queue_stays_until_the_others_of_its_route_are_removed() -> None:
    assert kept(DEAD, DEAD, HIGH) == "it is removed last: postdate finds the others by it"
    assert kept(DEAD, DEAD, replace(HIGH, route="bills")) == ""
    assert kept(DEAD, DEAD) == ""


@pytest.mark.parametrize("last", [DUE, queue("level", "orders")], ids=["due", "a level with last_hop broker"])
def test_a_queue_from_which_rabbitmq_alone_delivers_stays_because_its_count_is_incomplete(last: LevelQueue) -> None:
    assert "does not count over AMQP" in kept(last, last)
    classic = Queue(last.name, {**CLASSIC, "x-dead-letter-exchange": "orders"})
    assert kept(replace(last, queue=classic)) == ""


def test_a_level_whose_due_queue_is_missing_stays() -> None:
    assert kept(LOW, LOW, DUE) == ""
    assert "does not count over AMQP" in kept(LOW, LOW)


def test_a_topic_stays_while_it_holds_records_and_the_dead_letter_topic_while_another_stays() -> None:
    level = Place("orders", "topic", "level", 1, Use.OLD)
    dead = Place("orders", "topic", "dead", 0, Use.OLD, is_dead=True)
    assert why_topic_kept(level, [level, dead]).startswith("it holds records: 1. ")
    assert why_topic_kept(dead, [level, dead]).startswith("it goes last: ")
    empty = replace(level, messages=0)
    assert [why_topic_kept(place, [empty, dead]) for place in (empty, dead)] == ["", ""]
