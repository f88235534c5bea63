"""The target topic of a record: never forbidden, never a guess, never a loop."""

from __future__ import annotations

import pytest

from adapters.kafka.routing import Router
from bridge.core.message import Refusal
from bridge.delay.naming import Naming

RULE = Naming("*.delay", "*")
TAKEN = [("all", RULE), ("other", Naming("secret", "x"))]


def word(router: Router, topic: bytes, headers: list[tuple[bytes, bytes | None]] | None = None) -> str:
    """The target, or the kind of the refusal in brackets."""
    target = router.target(topic, headers or [])
    return f"<{target.reason.kind}>" if isinstance(target, Refusal) else target


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
def test_a_rule_maps_the_topic_of_a_record_to_its_target(topic: bytes, where: str) -> None:
    router = Router("all", [RULE], (), TAKEN)
    assert word(router, topic) == where
    assert word(router, topic) == where


def test_a_rule_never_leads_to_kafkas_internal_topics() -> None:
    assert word(Router("all", [Naming("delay.*", "*")]), b"delay.__consumer_offsets") == "<bad_target>"


def test_a_changed_target_applies_to_parked_records_and_a_changed_intake_is_never_guessed() -> None:
    assert word(Router("r", [Naming("payments.delay", "payments.v2")]), b"payments.delay") == "payments.v2"
    assert word(Router("r", [RULE]), b"payments.delay") == "payments"
    assert word(Router("r", [Naming("payments.later", "payments")]), b"refunds.delay") == "<no_target>"
    both = [Naming("payments.later", "payments"), Naming("refunds.delay", "refunds")]
    assert word(Router("r", both), b"refunds.delay") == "refunds"


@pytest.mark.parametrize(
    ("value", "where"),
    [(b"invoices", "invoices"), (b"payments", "<not_allowed>"), (None, "<not_allowed>"), (b"\xff", "<not_allowed>")],
)
def test_a_destination_header_is_obeyed_only_if_allowed(value: bytes | None, where: str) -> None:
    router = Router("r", [Naming("orders.delay", "orders")], ["invoices", "letters"])
    assert word(router, b"orders.delay", [(b"x-delay-to", value), (b"trace", b"letters")]) == where
    assert word(router, b"orders.delay", [(b"x-delay-to", b"letters"), (b"x-delay-to", value)]) == where
    assert word(router, b"orders.delay", [(b"X-Delay-To", value)]) == "orders"


def test_without_a_list_a_header_may_name_only_the_records_own_target() -> None:
    router = Router("r", [Naming("orders.delay", "orders"), Naming("bills.delay", "bills"), RULE], (), TAKEN[1:])
    assert word(router, b"orders.delay", [(b"x-delay-to", b"orders")]) == "orders"
    assert word(router, b"letters.delay", [(b"x-delay-to", b"letters")]) == "letters"
    for value in (b"bills", b"orders.delay", b"", None):
        assert word(router, b"orders.delay", [(b"x-delay-to", value)]) == "<not_allowed>"


def test_a_record_that_names_its_target_also_waits_until_the_settings_name_its_topic() -> None:
    router = Router("r", [Naming("payments.later", "payments")])
    assert word(router, b"refunds.delay", [(b"x-delay-to", b"refunds")]) == "<no_target>"


def test_a_forbidden_target_is_not_reached_by_naming_it() -> None:
    router = Router("all", [RULE], (), TAKEN)
    assert word(router, b"secret.delay", [(b"x-delay-to", b"secret")]) == "<not_allowed>"


def test_a_refusal_that_no_setting_can_mend_is_lasting_and_the_others_wait() -> None:
    router = Router("all", [RULE], (), TAKEN)
    for topic, lasting in ((b"a.delay.delay", True), (b"..delay", True), (b"a.later", False)):
        refusal = router.target(topic, [])
        assert isinstance(refusal, Refusal)
        assert (refusal.lasting, refusal.again_ms is None) == (lasting, lasting)
