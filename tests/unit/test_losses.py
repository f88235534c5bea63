"""A deleted intake: one trouble of all instances that saw it, the newest before older ones, and reported once each."""

from __future__ import annotations

from dataclasses import replace

from adapters.kafka.deleted_topic import recreated
from bridge.delay.duration import write_moment
from bridge.desk.numbers import Stats
from bridge.operate.verdict import Known, Overall, judge

NOON_MS = 1_800_000_000_000
CALM = Stats(NOON_MS, 5, 0, 0, 0, NOON_MS + 60_000, {}, {}, ())
SUBJECT = "kafka recreated orders.delay"
_LOST = "Records in it that postdate had not read are lost. "


def topic(seen_s: float, now_s: float, counted: str = "", name: str = "orders.delay") -> str:
    """The sentence of an instance about a topic, its moments in seconds after noon. ``counted``: "7 in 0, 1"."""
    seen_ms, now_ms = (NOON_MS + round(second * 1000) for second in (seen_s, now_s))
    records, _, partitions = counted.partition(" in ")
    lost = f"Unread records: {records} at {write_moment(seen_ms)} (in partitions: {partitions}). postdate cannot count "
    what = f"{_LOST}{lost}later ones" if counted else f"{_LOST}postdate cannot count them"
    return recreated(name, "orders", what, now_ms, seen_ms if counted else None)


def judged(**troubles: dict[str, str]) -> Overall:
    """The verdict on instances by name, each with its troubles."""
    reports = {name: {"able": True, "health": "Ill.", "troubles": found} for name, found in troubles.items()}
    return judge(Known(replace(CALM, instances=reports)))


def test_a_deleted_topic_is_one_trouble_with_the_records_of_all_partitions() -> None:
    a, b = topic(0, 4.1, "1,200 in 0, 2"), topic(0.7, 3.9, "42 in 1")
    (fault,) = judged(a={SUBJECT: a}, b={SUBJECT: b}).faults
    assert fault == ("a, b", SUBJECT, topic(0, 3.9, "1,242 in 0, 1, 2"))
    missing = {
        name: {"kafka topic t": f"it does not exist. If it was deleted: {text}"} for name, text in (("a", a), ("b", b))
    }
    (fault,) = judged(**missing).faults
    assert "Unread records: 1,242 at" in fault.text


def test_an_instance_that_could_not_count_its_partitions_hides_no_number() -> None:
    first, unknown = topic(0, 4, "7 in 0, 1"), topic(0, 5)
    for troubles in (
        {"a": {SUBJECT: first}, "b": {SUBJECT: unknown}},
        {"a": {SUBJECT: unknown}, "b": {SUBJECT: first}},
    ):
        (fault,) = judged(**troubles).faults
        assert fault == ("a, b", SUBJECT, topic(0, 4, "7 in 0, 1"))


def test_the_same_topic_deleted_again_later_is_another_loss() -> None:
    old, new = topic(0, 4, "7 in 0"), topic(600, 604, "5 in 1")
    overall = judged(a={SUBJECT: old}, b={SUBJECT: new})
    assert [fault.text for fault in overall.faults] == [new, old]


def test_of_two_deleted_intakes_the_last_one_is_the_headline() -> None:
    old, new = topic(0, 4, "7 in 0"), topic(600, 604, "5 in 1", "bills.delay")
    overall = judged(a={SUBJECT: old, "kafka recreated bills.delay": new})
    assert overall.sentence == f"Warning: {new}. Warnings: 2."
    queue = "the intake queue {} of route orders was deleted at {}. Messages in it are lost"
    first, second = (queue.format(name, write_moment(NOON_MS + ms)) for name, ms in (("a", 0), ("b", 9_000)))
    overall = judged(a={"rabbitmq recreated a": first, "rabbitmq recreated b": second, SUBJECT: new})
    assert [fault.text for fault in overall.faults] == [new, second, first]


def test_messages_without_a_confirm_are_one_sum_over_the_routes_and_the_oldest_names_its_route() -> None:
    waits = "RabbitMQ has not confirmed published messages: {}, the oldest for {}, of route {}"
    kafka = waits.replace("RabbitMQ", "Kafka").format(2, "4s", "other")
    here, there = ({"confirms": waits.format(*words)} for words in ((3, "9s", "orders"), (4, "1m 10s", "bills")))
    overall = judged(a=here, b=there, c={"confirms": kafka})
    assert [fault.text for fault in overall.faults] == [waits.format(7, "1m 10s", "bills"), kafka]
