"""What a broker has of the exchanges, queues, bindings and topics that postdate needs, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Standing(StrEnum):
    """How a part of the topology compares with what postdate needs. The values are those of ``-o json``."""

    SAME = "same"
    MISSING = "missing"
    #: RabbitMQ: a classic queue on a node that is down. It exists.
    AWAY = "away"
    #: RabbitMQ: an exchange that leads to another list of levels; `setup` recreates it.
    OUTDATED = "outdated"
    DIFFERENT = "different"
    #: The broker does not allow the comparison.
    FORBIDDEN = "forbidden"
    #: Kafka: this user may not see the topic.
    UNSEEN = "unseen"
    #: Kafka: an intake that is created when the topic exists that it leads to.
    WAITS = "waits"
    #: Kafka, beside "same": fewer partitions, or less safe settings, than the topic it leads to.
    FEW = "few"
    UNLIKE = "unlike"
    #: Kafka: a rule that no topic matches yet.
    NONE = "none"
    #: What only the consumers' side or an administrator of the broker can set.
    ASKED = "asked"
    #: Of `setup`: what it would create, has created, or has found.
    PLANNED = "planned"
    MADE = "made"
    THERE = "there"


class Name(NamedTuple):
    """What identifies a part on its broker. ``kind``: exchange, queue, binding, policy or topic."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a route's topology. ``ours``: postdate declares it. ``binds``: what a binding connects."""

    name: Name
    route: str
    ours: bool = True
    arguments: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    binds: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """How one part stands. ``text`` is the fact and the advice, without a full stop; "" where there is none."""

    part: Part
    state: Standing
    text: str = ""


def counts(kinds: Iterable[str]) -> str:
    """Return how many there are of each kind: "queues (2), exchanges (1)"."""
    return ", ".join(f"{kind}s ({number})" for kind, number in Counter(kinds).items())
