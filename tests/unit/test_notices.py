"""Lines in the log that stand for many messages."""

from __future__ import annotations

from bridge.notices import Notices


def test_a_flood_of_one_kind_is_one_line_a_second_and_says_how_many() -> None:
    lines: list[dict[str, object]] = []
    notices = Notices(lambda event, **facts: lines.append({"event": event, **facts}))
    for number in range(1000):
        notices.tell("refused", "orders", f"unroutable: key {number}", id=number)
    notices.tell("refused", "orders", "forbidden: no rights", id="x")
    notices.tell("refused", "payments", "unroutable: key 1", id="y")
    assert [(line["route"], line["id"], line["messages"]) for line in lines] == [
        ("orders", 0, 1),
        ("orders", "x", 1),
        ("payments", "y", 1),
    ]
