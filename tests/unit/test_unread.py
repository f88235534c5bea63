"""What is said of an intake that nobody takes from."""

from __future__ import annotations

from bridge.admin.unread import Intake, unread
from bridge.settings import Settings

ROUTE = {"intercept": "a.delay", "deliver_to": "a"}


def told(messages: int, readers: int = 0, kind: str = "queue", **route: str) -> str:
    settings = Settings.model_validate({"routes": {"a": {**ROUTE, "mode": "levels", **route}}})
    return "".join(text for _, text in unread(settings, [Intake("a", kind, "postdate.a", messages, readers)]))


def test_where_somebody_takes_nothing_is_said_however_much_waits() -> None:
    assert told(7, readers=1) == ""


def test_what_waits_is_counted() -> None:
    none_runs = "no postdate with this route is running, start one with `postdate run`"
    assert told(1) == f"1 message waits in queue 'postdate.a', and nobody takes from it: {none_runs}"
    assert told(2, kind="topic").startswith("2 messages wait in topic 'postdate.a', and nobody takes from it: ")


def test_where_nothing_waits_levels_of_rabbitmq_may_do_without_a_postdate_and_the_others_may_not() -> None:
    assert told(0).endswith("start one with `postdate run`, unless x-delay-level is all you use")
    assert told(0, mode="ladder").endswith("start one with `postdate run`")
    assert told(0, kind="topic", broker="kafka").endswith("start one with `postdate run`")
