"""The topology of all routes, over all brokers: planned, declared, compared. Everything here blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bridge.app.brokers import Broker, brokers_of
from bridge.core.errors import FAILED, FINE, REFUSED, UNREACHABLE, BrokerUnavailable
from bridge.desk.topology import Finding, Name, Part, Standing
from bridge.settings import Settings, forgotten_broker

#: Findings beside a topic that exists: it is usable, and there is something to say about it.
_BESIDE = (Standing.FEW, Standing.UNLIKE)
_STOPS = frozenset({Standing.DIFFERENT, Standing.FORBIDDEN, Standing.UNSEEN})
#: What `setup` would find and do, by what the comparison found.
_PLANNED = {Standing.SAME: Standing.THERE, Standing.AWAY: Standing.THERE, Standing.MISSING: Standing.PLANNED}


class Declared(NamedTuple):
    """What `setup` did or would do: each part with its state, warnings, and the exit code."""

    found: list[Finding]
    warnings: list[str]
    code: int


def plan_topology(settings: Settings) -> Declared:
    """Return what `setup` would declare, and the exit code it would return as far as a comparison tells. Where a
    broker does not answer, every part of it is planned."""
    found: list[Finding] = []
    warnings: list[str] = []
    codes = []
    for broker, own in brokers_of(settings):
        try:
            compared = broker.topology.verify(own)
        except BrokerUnavailable as error:
            warnings.append(f"what exists already is not known: {error}")
            codes.append(UNREACHABLE)
            found += [Finding(part, Standing.PLANNED) for part in broker.topology.plan(own)]
            continue
        standing = {
            finding.part.name: _PLANNED.get(finding.state, finding.state)
            for finding in compared
            if finding.part.ours and finding.state not in _BESIDE
        }
        planned = [Finding(part, _planned(part, standing)) for part in broker.topology.plan(own, compared)]
        warnings += [finding.text for finding in compared if _worth_a_warning(finding)]
        codes.append(_code(planned))
        consumers = broker.topology.judge_consumers(own)
        found += planned + consumers
        warnings += _of_consumers(consumers)
    return Declared(found, warnings, next((code for code in codes if code), FINE))


def declare_topology(settings: Settings, whole: Settings | None = None) -> Declared:
    """Declare what is missing. ``whole``: all settings, where ``settings`` have some of the routes. Raises
    ``TopologyMismatch``, ``Refused``, ``BrokerUnavailable``."""
    found: list[Finding] = []
    forgotten = forgotten_broker(whole or settings)
    warnings = [forgotten] if forgotten else []
    for broker, own in brokers_of(settings):
        declared, words = _declare(broker, own, forgotten)
        consumers = broker.topology.judge_consumers(own, change=True)
        found += declared + consumers
        warnings += words + _of_consumers(consumers)
    waits = any(finding.state is Standing.WAITS for finding in found)
    return Declared(found, warnings, FAILED if waits else FINE)


def verify_topology(settings: Settings) -> list[Finding]:
    """Compare every exchange, queue and topic with the broker's. Raises ``BrokerUnavailable``."""
    return [finding for broker, own in brokers_of(settings) for finding in broker.topology.verify(own)]


def judge_policies(settings: Settings) -> list[tuple[str, str]]:
    """Return a route and a sentence for each policy that harms postdate's queues. Raises ``BrokerUnavailable`` where
    policies cannot be read."""
    return [harm for broker, own in brokers_of(settings) for harm in broker.topology.judge_policies(own)]


def judge_consumers(settings: Settings) -> list[Finding]:
    """Return whether what the consumers of retry routes reject reaches postdate."""
    return [
        finding
        for broker, own in brokers_of(settings)
        for finding in broker.topology.judge_consumers(own)
        if finding.text
    ]


def open_fronts(settings: Settings, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Return a route and a sentence wherever delayed messages pass undelayed. Pure."""
    return [front for broker, own in brokers_of(settings) for front in broker.topology.open_fronts(own, findings)]


def replay_reach(settings: Settings) -> list[tuple[str, str]]:
    """Return a route and a sentence about what its intake could bring back. Raises ``BrokerUnavailable``."""
    return [reach for broker, own in brokers_of(settings) for reach in broker.topology.replay_reach(own)]


def _declare(broker: Broker, own: Settings, forgotten: str) -> tuple[list[Finding], list[str]]:
    try:
        return broker.topology.declare(own)
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"{error}; {forgotten}") if forgotten else error from error


def _planned(part: Part, standing: Mapping[Name, Standing]) -> Standing:
    """AMQP cannot be asked for a binding: it counts as there where both ends are. `setup` declares it in any case."""
    if not part.binds:
        return standing.get(part.name, Standing.PLANNED)
    known = all(standing.get(end, Standing.PLANNED) is not Standing.PLANNED for end in part.binds)
    return Standing.THERE if known else Standing.PLANNED


def _of_consumers(found: Iterable[Finding]) -> list[str]:
    return [finding.text for finding in found if finding.text and finding.state is not Standing.THERE]


def _worth_a_warning(finding: Finding) -> bool:
    return bool(finding.text) and (finding.state not in (Standing.SAME, Standing.MISSING) or not finding.part.ours)


def _code(found: Iterable[Finding]) -> int:
    states = {finding.state for finding in found}
    if states & _STOPS:
        return REFUSED
    return FAILED if Standing.WAITS in states else FINE
