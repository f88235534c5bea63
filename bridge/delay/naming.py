"""Map intercepted topics to their destinations, by name or by a rule with one ``*``. Pure.

The ``*`` of a rule stands for the same text, of one character or more, in both names: ``*.delay`` and ``*`` map
``orders.delay`` to ``orders``. Topics that begin with two underscores are internal and match no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

STAR = "*"
_ARROW = "->"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic(name: str) -> bool:
    """Return whether a topic may have this name (org.apache.kafka.common.internals.Topic)."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


class Naming(NamedTuple):
    """From ``intercept`` to ``deliver_to``: two names, or a rule."""

    intercept: str
    deliver_to: str

    @property
    def is_rule(self) -> bool:
        """Return whether it has a ``*``."""
        return STAR in self.intercept

    def text_in(self, topic: str) -> str | None:
        """Return what the ``*`` stands for in a topic ("" without a ``*``); None for a topic that does not match."""
        if not self.is_rule:
            return "" if topic == self.intercept else None
        head, _, tail = self.intercept.partition(STAR)
        if topic.startswith("__") or len(topic) <= len(head) + len(tail):
            return None
        return topic[len(head) : len(topic) - len(tail)] if topic.startswith(head) and topic.endswith(tail) else None

    def target(self, topic: str) -> str | None:
        """Return the destination of ``topic``; None if it does not match. The result may be an illegal topic name."""
        text = self.text_in(topic)
        return None if text is None else self.deliver_to.replace(STAR, text)

    def expression(self) -> str:
        """Return a regular expression for the whole names of intercepted topics."""
        head, star, tail = self.intercept.partition(STAR)
        return rf"(?!__){re.escape(head)}.+{re.escape(tail)}" if star else re.escape(head)

    def meets(self, other: Naming) -> bool:
        """Return whether one topic can match both."""
        if not self.is_rule or not other.is_rule:
            plain, rule = (other, self) if self.is_rule else (self, other)
            return rule.text_in(plain.intercept) is not None
        head, _, tail = self.intercept.partition(STAR)
        other_head, _, other_tail = other.intercept.partition(STAR)
        heads_agree = head.startswith(other_head) or other_head.startswith(head)
        return heads_agree and (tail.endswith(other_tail) or other_tail.endswith(tail))

    def always_feeds(self, other: Naming) -> bool:
        """Return whether every destination of this one is intercepted by the other."""
        if STAR not in self.deliver_to:
            return other.text_in(self.deliver_to) is not None
        if not other.is_rule:
            return False
        head, _, tail = self.deliver_to.partition(STAR)
        other_head, _, other_tail = other.intercept.partition(STAR)
        return head.startswith(other_head) and tail.endswith(other_tail)


def read_naming(text: str) -> Naming | None:
    """Read "from -> to"; None for other text."""
    intercept, arrow, deliver_to = text.partition(_ARROW)
    return Naming(intercept.strip(), deliver_to.strip()) if arrow else None


def mistake(naming: Naming) -> str:
    """Return what is wrong with a naming, as the second half of a sentence; "" if nothing is."""
    stars = {naming.intercept.count(STAR), naming.deliver_to.count(STAR)}
    if stars not in ({0}, {1}):
        return f"must have one {STAR} where its other half has one, and none where that has none"
    if not all(is_topic(name.replace(STAR, "x")) for name in naming):
        return "must be the name of a topic: 1 to 249 letters, digits, dots, dashes or underscores"
    if "__" in {name[:2] for name in naming if STAR in name}:
        return f'must not begin with "__" and have a {STAR}: such topics are internal'
    return ""


def taken_by(topic: str, routes: Iterable[tuple[str, Naming]]) -> str | None:
    """Return the route that intercepts a topic; None if no route does."""
    return next((route for route, naming in routes if naming.text_in(topic) is not None), None)
