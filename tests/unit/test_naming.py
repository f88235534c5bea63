"""Naming rules: where a topic leads, which topics two rules share, and that no rule leads into itself unseen."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.delay.naming import Naming, is_topic, mistake, read_naming, taken_by

DELAY = Naming("*.delay", "*")

signs = st.sampled_from("ab._-")
words = st.text(signs, max_size=4)
topics = st.text(signs, min_size=1, max_size=8)
plain = st.builds(Naming, topics, topics)
rules = st.builds(lambda a, b, c, d: Naming(f"{a}*{b}", f"{c}*{d}"), words, words, words, words)
namings = (plain | rules).filter(lambda naming: not mistake(naming))


@pytest.mark.parametrize(
    ("naming", "topic", "target"),
    [
        (DELAY, "orders.delay", "orders"),
        (DELAY, "a.b.delay", "a.b"),
        (DELAY, "orders.delay.delay", "orders.delay"),
        (DELAY, ".delay", None),
        (DELAY, "orders.delayed", None),
        (DELAY, "__internal.delay", None),
        (Naming("delay.*", "*"), "delay.orders", "orders"),
        (Naming("in.*.later", "out.*.now"), "in.x.later", "out.x.now"),
        (Naming("ab*bc", "*"), "abc", None),
        (Naming("a*", "b-*"), "aa", "b-a"),
        (Naming("orders.delay", "orders"), "orders.delay", "orders"),
        (Naming("orders.delay", "orders"), "ordersxdelay", None),
    ],
)
def test_where_a_topic_leads(naming: Naming, topic: str, target: str | None) -> None:
    assert naming.target(topic) == target
    assert (re.match(rf"(?:{naming.expression()})\Z", topic) is not None) == (target is not None)


@given(namings, topics)
def test_the_expression_and_the_rule_agree_on_every_topic(naming: Naming, topic: str) -> None:
    matches = re.match(rf"(?:{naming.expression()})\Z", topic) is not None
    assert matches == (naming.target(topic) is not None)


@given(namings, namings, topics)
def test_a_topic_that_two_take_from_is_seen_before(naming: Naming, other: Naming, topic: str) -> None:
    assert naming.meets(other) == other.meets(naming)
    if naming.target(topic) is not None and other.target(topic) is not None:
        assert naming.meets(other)


@given(namings, namings, topics)
def test_what_is_said_to_feed_another_always_does(naming: Naming, other: Naming, topic: str) -> None:
    target = naming.target(topic)
    if target is not None and naming.always_feeds(other) and not target.startswith("__"):
        assert other.target(target) is not None


@pytest.mark.parametrize(
    ("naming", "other", "meet"),
    [
        (DELAY, Naming("orders.delay", "x"), True),
        (DELAY, Naming("orders.later", "x"), False),
        (DELAY, Naming("orders.*", "x.*"), True),
        (DELAY, Naming("*.later", "*"), False),
        (Naming("a.*", "*"), Naming("b.*", "*"), False),
        (Naming("a", "b"), Naming("a", "c"), True),
    ],
)
def test_which_rules_share_a_topic(naming: Naming, other: Naming, meet: bool) -> None:
    assert naming.meets(other) == meet


@pytest.mark.parametrize(
    ("naming", "other", "feeds"),
    [
        (DELAY, DELAY, False),
        (Naming("*.later", "*.delay"), DELAY, True),
        (Naming("*", "x.*"), Naming("*", "x.*"), True),
        (Naming("*", "*"), Naming("*", "*"), True),
        (Naming("a", "b"), Naming("b", "c"), True),
        (Naming("a", "orders.delay"), DELAY, True),
        (DELAY, Naming("orders", "x"), False),
    ],
)
def test_which_rules_always_lead_to_another(naming: Naming, other: Naming, feeds: bool) -> None:
    assert naming.always_feeds(other) == feeds


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("orders.delay -> orders", True),
        ("a->b", True),
        ("*.delay -> *", True),
        ("*.delay -> orders", False),
        ("orders.delay -> *", False),
        ("*.*.delay -> *", False),
        ("*.delay -> **", False),
        ("__*.delay -> *", False),
        ("*.delay -> __*", False),
        ("orders delay -> orders", False),
        (" -> orders", False),
        ("a -> b -> c", False),
    ],
)
def test_what_may_be_written(text: str, good: bool) -> None:
    naming = read_naming(text)
    assert naming is not None
    assert (mistake(naming) == "") is good


def test_without_an_arrow_it_is_none() -> None:
    assert read_naming("orders.delay = orders") is None


@pytest.mark.parametrize(
    ("name", "good"), [("a", True), ("a" * 249, True), ("a" * 250, False), ("..", False), ("", False)]
)
def test_what_a_topic_may_be_called(name: str, good: bool) -> None:
    assert is_topic(name) is good


def test_the_route_that_takes_from_a_topic_is_found() -> None:
    routes = [("a", Naming("x", "y")), ("b", DELAY)]
    assert [taken_by(topic, routes) for topic in ("x", "z.delay", "z")] == ["a", "b", None]
