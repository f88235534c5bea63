"""Whether what consumers reject reaches postdate, as the management API tells it. No broker."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from adapters.rabbitmq.management import Governed
from adapters.rabbitmq.topology.rejections import DeadLettering, judge, redelivering

WORK = DeadLettering("orders_retry", "orders.work", "/shop")
OURS = {"dead-letter-exchange": "postdate.retry", "dead-letter-routing-key": "orders_retry"}
SAFE = {**OURS, "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}


def queue(kind: str = "classic", **arguments: object) -> Governed:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return Governed({"x-queue-type": kind, **given}, "", "", {})


def policy(definition: dict[str, Any], name: str = "theirs", **more: object) -> dict[str, Any]:
    return {"name": name, "pattern": "^orders", "apply-to": "queues", "priority": 0, "definition": definition, **more}


def test_a_queue_reaches_postdate_by_its_arguments() -> None:
    found = judge(WORK, queue(x_dead_letter_exchange="postdate.retry", x_dead_letter_routing_key="orders_retry"), [])
    assert found == (True, "queue 'orders.work' dead-letters to postdate by its arguments", False)


def test_a_queue_reaches_postdate_by_the_policy_that_rabbitmq_applies() -> None:
    policies = [policy({"max-length": 5}), policy(OURS, "high", priority=3), policy({}, "other", pattern="^bills")]
    assert judge(WORK, queue(), policies).text == "queue 'orders.work' dead-letters to postdate by policy 'high'"


def test_a_queue_without_a_policy_may_get_ours() -> None:
    assert judge(WORK, queue(), [policy(OURS, apply="x", pattern="^bills")]) == (
        False,
        "queue 'orders.work' does not dead-letter to postdate",
        True,
    )


@pytest.mark.parametrize(
    ("governed", "policies", "said"),
    [
        (None, [], "does not exist"),
        (queue(), [policy({"max-length": 5})], "Policy 'theirs' governs it"),
        (queue(), [policy({"max-length": 5}, **{"apply-to": "classic_queues"})], "Policy 'theirs' governs it"),
        (
            queue(),
            [policy({"dead-letter-exchange": "grave"})],
            "exchange 'grave' without routing key by policy 'theirs'",
        ),
        (
            queue(x_dead_letter_exchange="grave"),
            [policy(OURS)],
            "to exchange 'grave' with routing key 'orders_retry' by",
        ),
        (queue(x_dead_letter_exchange="postdate.retry"), [], "without routing key by its arguments"),
    ],
)
def test_a_queue_that_others_govern_is_left_alone(
    governed: Governed | None, policies: list[dict[str, Any]], said: str
) -> None:
    found = judge(WORK, governed, policies)
    assert (found.reaches, found.free) == (False, False)
    assert said in found.text


def test_a_policy_for_the_other_queue_type_does_not_count() -> None:
    assert judge(WORK, queue(), [policy({}, **{"apply-to": "quorum_queues"})]).free


def test_where_policies_cannot_be_listed_the_queues_own_answer_counts() -> None:
    governed = Governed({"x-queue-type": "classic"}, "theirs", "", OURS)
    assert judge(WORK, governed, []).reaches


def test_a_quorum_queue_must_keep_a_rejected_message_until_postdate_has_it() -> None:
    assert "at most once" in judge(WORK, queue("quorum"), [policy(OURS)]).text
    assert judge(WORK, queue("quorum"), [policy(SAFE)]).reaches
    assert judge(WORK, queue("quorum"), [policy(OURS, "postdate.orders_retry")]).free, "setup may complete its own"


def test_the_policy_changes_nothing_else_of_the_queue() -> None:
    assert WORK.definition(queue()) == OURS
    assert WORK.definition(queue("quorum")) == SAFE
    assert WORK.definition(None) == SAFE, "its type is not known yet, and without them a quorum queue loses messages"
    assert WORK.definition(queue("quorum", x_max_length=9)) == OURS, "a full queue goes on dropping its oldest message"


@pytest.mark.parametrize(
    ("redelivered", "delivered", "runs"),
    [(178.2, 178.2, True), (30.0, 50.0, True), (178.2, 900.0, False), (3.0, 3.0, False), (None, None, False)],
)
def test_a_queue_whose_consumers_requeue_what_fails_is_named(
    redelivered: float | None, delivered: float | None, runs: bool
) -> None:
    rates = {"redeliver_details": {"rate": redelivered}, "deliver_get_details": {"rate": delivered}}
    text = redelivering(WORK, rates if redelivered is not None else {})
    assert bool(text) is runs
    assert not runs or text.startswith(f"queue 'orders.work' redelivers {redelivered:.0f} messages a second")


def test_the_command_sets_the_policy_on_this_queue_alone() -> None:
    words = shlex.split(WORK.command(queue("quorum")))
    assert words[:-2] == ["rabbitmqctl", "set_policy", "-p", "/shop", "--apply-to", "queues", "postdate.orders_retry"]
    assert words[-2] == r"^orders\.work$"
    assert json.loads(words[-1]) == SAFE
