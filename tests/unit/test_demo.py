"""The demo: states of its messages, complaints, and a table that fits."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from bridge.lab.demo import (
    Arrival,
    BrokerMessages,
    DemoMessage,
    LiveTable,
    StateLines,
    complaints,
    demo_messages,
    late_text,
    lesson,
    state_text,
    summary,
)
from bridge.lab.ports import StoredMessage

NOW = 1_795_268_000_123


def stored(state: str, due_ms: int, reason: str = "") -> StoredMessage:
    return StoredMessage(state, due_ms, reason, b"")


def tracked(noun: str = "order") -> list[DemoMessage]:
    return [replace(message, sent_ms=NOW) for message in demo_messages(NOW, noun)]


def well(noun: str = "order") -> list[DemoMessage]:
    """Six messages that ended as they must."""
    found = tracked(noun)
    for message in found[:4]:
        due_ms = NOW + 2000 if message.headers else None
        message.arrivals.append(Arrival(NOW + 2001.5, due_ms))
    found[4].see(stored("dead", NOW, "bad_header: no moment"))
    found[5].see(stored("parked", NOW + 5000))
    found[5].cancel_sent = True
    found[5].see(None)
    return found


def test_a_message_is_sent_then_parked_then_on_its_way_then_delivered() -> None:
    message = tracked()[0]
    states = [message.state()]
    for sighting in (stored("parked", NOW + 2000), stored("claimed", NOW + 2000)):
        message.see(sighting)
        states.append(state_text(message, NOW + 500))
    message.arrivals.append(Arrival(NOW + 2003, NOW + 2000))
    assert [*states, message.state()] == ["sent", "parked, 1.5 s", "on its way", "delivered"]
    assert late_text(message) == "3.0 ms late"


def test_a_cancelled_message_is_watched_beyond_its_due_moment() -> None:
    message = well()[5]
    assert message.state() == "cancelled"
    assert not message.settled(NOW + 5000)
    assert message.settled(NOW + 5501)
    message.arrivals.append(Arrival(NOW + 5002, NOW + 5000))
    assert complaints([message]) == ["order 6 (x-delay: 5000, a key): expected cancelled, found delivered"]


def test_expected_endings_give_no_complaints() -> None:
    assert complaints(well()) == []


def test_duplicate_early_late_and_missing_deliveries_are_complaints() -> None:
    twice, early, late, never, dead, _ = well()
    twice.arrivals *= 2
    early.arrivals = [Arrival(NOW + 1990, NOW + 2000)]
    late.arrivals = [Arrival(NOW + 4000, NOW + 2000)]
    never.arrivals = []
    dead.see(None)
    assert complaints([twice, early, late, never, dead]) == [
        "order 1 was delivered 2 times",
        "order 2 was delivered 10.0 ms early",
        "order 3 was delivered 2000 ms late",
        "order 4 (no header): expected delivered, found sent",
        'order 5 (x-delay: "tomorrow"): expected dead letter, found sent',
    ]


def test_a_message_without_a_delay_is_never_late() -> None:
    message = tracked()[3]
    message.arrivals.append(Arrival(NOW + 7, NOW))
    assert late_text(message) == ""
    assert "order 4 (at once)" in summary(BrokerMessages("Kafka", [message]), 60)
    assert complaints([message]) == []


def test_tables_and_words_fit_in_sixty_columns() -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None, legacy_windows=False)
    groups = [BrokerMessages("RabbitMQ", well()), BrokerMessages("Kafka", well("payment"))]
    with LiveTable(console) as table:
        table.show(groups, NOW)
    assert isinstance(console.file, io.StringIO)
    drawn = console.file.getvalue()
    assert "…" not in drawn
    assert "payment 6  x-delay: 5000, a key     cancelled" in drawn
    words = [*summary(groups[0], 60).splitlines(), *summary(groups[1], 60).splitlines()]
    assert max(map(len, [*words, *lesson(("rabbitmq", "kafka")).splitlines()])) <= 60


def test_two_tables_fit_on_a_terminal_of_twenty_four_lines() -> None:
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True, legacy_windows=False)
    with LiveTable(console) as table:
        table.show([BrokerMessages("RabbitMQ", well()), BrokerMessages("Kafka", well("payment"))], NOW)
    assert isinstance(console.file, io.StringIO)
    assert "payment 6" in console.file.getvalue()


def test_the_lesson_covers_only_the_brokers_that_were_shown() -> None:
    assert "pika" in lesson(("rabbitmq",))
    assert "Kafka" not in lesson(("rabbitmq",))
    assert "pika" not in lesson(("kafka",))


def test_without_a_terminal_a_line_is_written_only_when_a_state_changes() -> None:
    console = Console(file=io.StringIO(), width=60)
    lines, group = StateLines(console), BrokerMessages("Kafka", tracked("payment"))
    lines.show([group], NOW)
    lines.show([group], NOW + 100)
    group.messages[0].see(stored("parked", NOW + 2000))
    lines.show([group], NOW + 200)
    assert isinstance(console.file, io.StringIO)
    written = console.file.getvalue().splitlines()
    assert len(written) == 7
    assert written[-1] == " 0.20 s  Kafka, payment 1: x-delay: 2000, parked, 1.8 s"
