"""Kafka's part ``topology`` of ``bridge.app.brokers.Broker``: what the routes need of it."""

from __future__ import annotations

from collections.abc import Sequence

from adapters.kafka.nodes import diagnose as diagnose
from adapters.kafka.topology import declaring
from adapters.kafka.topology.declaring import redeclare as redeclare
from adapters.kafka.topology.reach import replay_reach as replay_reach
from adapters.kafka.topology.topics import Topic
from bridge.desk.severity import CheckResult
from bridge.desk.topology import Finding, Name, Part
from bridge.settings import Settings


def plan(settings: Settings, found: Sequence[Finding] = ()) -> list[Part]:
    return [_part(topic) for topic in declaring.plan(settings)]


def verify(settings: Settings) -> list[Finding]:
    return [Finding(_part(compared.topic), compared.state, compared.text) for compared in declaring.verify(settings)]


def declare(settings: Settings) -> tuple[list[Finding], list[str]]:
    created, warnings = declaring.declare(settings)
    return [Finding(_part(topic), state) for topic, state in created], warnings


def judge_policies(settings: Settings) -> list[tuple[str, str]]:
    """Kafka has no policies on topics."""
    return []


def judge_consumers(settings: Settings, change: bool = False) -> list[Finding]:
    """Kafka's error handlers write to a topic of their own accord."""
    return []


def judge_interception(settings: Settings) -> list[CheckResult]:
    """Return nothing: a producer writes to the intake topic itself."""
    return []


def open_fronts(settings: Settings, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """On Kafka a missing intake topic refuses records; it passes none on."""
    return []


def _part(topic: Topic) -> Part:
    arguments = {"partitions": topic.partitions, "replication": topic.replicas} if topic.partitions else {}
    return Part(Name("topic", topic.name), topic.route, topic.ours, arguments)
