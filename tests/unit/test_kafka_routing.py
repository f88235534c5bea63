"""Which topic a record goes to: never one that its producer was not allowed to name, never a guess, never a loop."""

from __future__ import annotations

import pytest

from adapters.kafka.routing import Router
from bridge.core.message import Refusal
from bridge.delay.naming import Naming

RULE = Naming("*.delay", "*")
TAKEN = [("all", RULE), ("other", Naming("secret", "x"))]


def word(aim: Router, topic: bytes, headers: list[tuple[bytes, bytes | None]] | None = None) -> str:
    """The target, or the kind of the refusal in brackets."""
    target = aim.target(topic, headers or [])
    return f"<{target.reason}>" if isinstance(target, Refusal) else target


@pytest.mark.parametrize(
    ("topic", "where"),
    [
        (b"orders.delay", "orders"),
        (b"a.b.delay", "a.b"),
        (b"orders.delay.delay", "<loop>"),
        (b"secret.delay", "<loop>"),
        (b"..delay", "<bad_target>"),
        (b"orders.later", "<no_target>"),
        (b"\xff", "<no_target>"),
        (b"", "<no_target>"),
    ],
)
def test_by_a_rule_a_record_goes_where_its_topic_leads(topic: bytes, where: str) -> None:
    aim = Router("all", [RULE], (), TAKEN)
    assert word(aim, topic) == where
    assert word(aim, topic) == where


def test_a_rule_leads_to_nobodys_own_topics() -> None:
    assert word(Router("all", [Naming("delay.*", "*")]), b"delay.__consumer_offsets") == "<bad_target>"


def test_a_changed_target_holds_for_what_is_parked_and_a_changed_intake_topic_is_not_guessed_at() -> None:
    assert word(Router("r", [Naming("payments.delay", "payments.v2")]), b"payments.delay") == "payments.v2"
    assert word(Router("r", [RULE]), b"payments.delay") == "payments"
    assert word(Router("r", [Naming("payments.later", "payments")]), b"refunds.delay") == "<no_target>"
    both = [Naming("payments.later", "payments"), Naming("refunds.delay", "refunds")]
    assert word(Router("r", both), b"refunds.delay") == "refunds"


def test_a_record_from_before_topics_were_kept_goes_to_the_one_there_is() -> None:
    assert word(Router("r", [Naming("payments.later", "payments")]), b"") == "payments"
    assert word(Router("r", [Naming("a", "b"), Naming("c", "d")]), b"") == "<no_target>"


@pytest.mark.parametrize(
    ("value", "where"),
    [(b"invoices", "invoices"), (b"payments", "<not_allowed>"), (None, "<not_allowed>"), (b"\xff", "<not_allowed>")],
)
def test_a_header_is_obeyed_where_it_is_allowed_and_refused_elsewhere(value: bytes | None, where: str) -> None:
    aim = Router("r", [Naming("orders.delay", "orders")], ["invoices", "letters"])
    assert word(aim, b"orders.delay", [(b"x-delay-to", value), (b"trace", b"letters")]) == where
    assert word(aim, b"orders.delay", [(b"x-delay-to", b"letters"), (b"x-delay-to", value)]) == where
    assert word(aim, b"orders.delay", [(b"X-Delay-To", value)]) == "orders"


def test_without_a_list_a_header_may_name_only_the_target_of_the_records_own_topic() -> None:
    aim = Router("r", [Naming("orders.delay", "orders"), Naming("bills.delay", "bills"), RULE], (), TAKEN[1:])
    assert word(aim, b"orders.delay", [(b"x-delay-to", b"orders")]) == "orders"
    assert word(aim, b"letters.delay", [(b"x-delay-to", b"letters")]) == "letters"
    for value in (b"bills", b"orders.delay", b"", None):
        assert word(aim, b"orders.delay", [(b"x-delay-to", value)]) == "<not_allowed>"


def test_a_record_that_names_its_target_waits_like_any_other_for_settings_that_know_its_topic() -> None:
    aim = Router("r", [Naming("payments.later", "payments")])
    assert word(aim, b"refunds.delay", [(b"x-delay-to", b"refunds")]) == "<no_target>"


def test_a_target_that_nothing_may_go_to_is_not_reached_by_naming_it() -> None:
    aim = Router("all", [RULE], (), TAKEN)
    assert word(aim, b"secret.delay", [(b"x-delay-to", b"secret")]) == "<not_allowed>"


def test_what_will_not_mend_is_lasting_and_what_the_settings_mend_is_waited_for() -> None:
    aim = Router("all", [RULE], (), TAKEN)
    for topic, lasting in ((b"a.delay.delay", True), (b"..delay", True), (b"a.later", False)):
        refusal = aim.target(topic, [])
        assert isinstance(refusal, Refusal)
        assert (refusal.lasting, refusal.again_ms is None) == (lasting, lasting)
