"""When a queue that takes no messages in is reported, and when it is well again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pika
import pytest

from adapters.rabbitmq import management_watch, probes
from adapters.rabbitmq.management_watch import ManagementWatch
from adapters.rabbitmq.probes import IntakeProbe
from adapters.rabbitmq.topology.fronts import ForeignBinding, foreign_ends
from bridge.core.errors import BrokerUnavailable
from bridge.telemetry.health import Health
from bridge.telemetry.subject import Subject

OWN = {"destination_type": "queue", "destination": "postdate.orders", "arguments": {"x-delay": None}}
TAKER = {"destination_type": "queue", "destination": "taker", "arguments": {}}
EXCHANGE = {"destination_type": "exchange", "destination": "audit", "arguments": {}}


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_AGAIN_S", 0.0)


class Rounds:
    """Answers each question with the next of ``rounds``, and keeps what was asked."""

    def __init__(self, *rounds: dict[str, str]) -> None:
        self.health = Health()
        self.asked: list[list[str]] = []
        self._rounds = list(rounds)
        self.probe = IntakeProbe(lambda: ["a", "b"], self.health, self._ask)

    async def _ask(self, queues: Sequence[str]) -> dict[str, str]:
        self.asked.append(list(queues))
        return self._rounds.pop(0)

    def run(self, rounds: int = 1) -> list[str]:
        """Return the sentences in health after this many rounds."""
        for _ in range(rounds):
            asyncio.run(self.probe.once())
        return list(self.health.troubles().values())


def test_a_failure_is_reported_when_it_is_there_twice() -> None:
    rounds = Rounds({"b": "refuses"}, {"b": "refuses"})
    assert rounds.run() == ["refuses"]
    assert rounds.asked == [["a", "b"], ["b"]]
    assert all(subject.is_intake("rabbitmq") for subject in rounds.health.troubles()), "so it is not ready"


def test_a_failure_of_a_moment_is_not_reported() -> None:
    assert Rounds({"b": "no leader"}, {}).run() == []


def test_a_queue_that_takes_messages_again_is_well() -> None:
    assert Rounds({"b": "refuses"}, {"b": "refuses"}, {}).run(2) == []


def test_a_known_failure_is_not_asked_twice() -> None:
    rounds = Rounds({"b": "refuses"}, {"b": "refuses"}, {"b": "no leader"})
    assert rounds.run(2) == ["no leader"]
    assert len(rounds.asked) == 3


def test_every_binding_of_a_front_is_foreign_but_those_to_the_intake() -> None:
    assert foreign_ends([OWN, OWN], "postdate.orders") == ()
    assert foreign_ends([TAKER, OWN, EXCHANGE], "postdate.orders") == ("exchange 'audit'", "queue 'taker'")


def test_what_the_management_api_tells_is_in_health_until_it_is_gone_and_an_unknown_answer_changes_nothing() -> None:
    answers: list[dict[Subject, str] | None] = [
        {Subject("rabbitmq", "front", "orders.delay"): "bound to it: queue 'taker'"},
        None,
        {},
    ]
    health = Health()

    def look() -> dict[Subject, str]:
        answer = answers.pop(0)
        if answer is None:
            raise BrokerUnavailable("the management API does not answer")
        return answer

    watch, seen = ManagementWatch("bindings of front exchanges", look, health), []
    for _ in range(3):
        asyncio.run(watch.once())
        seen.append(list(map(str, health.troubles())))
    assert seen == [["rabbitmq front orders.delay"], ["rabbitmq front orders.delay"], []]


async def test_a_foreign_binding_is_looked_for_often_only_while_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[Subject, str]] = [{}, {Subject("rabbitmq", "front", "o"): "bound to it"}, {}, {}]
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if not found:
            raise asyncio.CancelledError

    monkeypatch.setattr(management_watch, "sleep", pause)
    with pytest.raises(asyncio.CancelledError):
        await ManagementWatch("bindings", lambda: found.pop(0), Health()).run()
    assert pauses == [60, 5, 60, 60]


def test_where_all_messages_pass_postdate_a_foreign_binding_copies_and_takes_nothing_away() -> None:
    assert "is copied there at once" in ForeignBinding("o", "o.delay", "", ("queue 'taker'",)).text
    assert "and not to 'orders'" in ForeignBinding("o", "o.delay", "orders", ("queue 'taker'",)).text


def wire(properties: pika.BasicProperties) -> bytes:
    return b"".join(properties.encode())


def probe_with(**changes: object) -> bytes:
    """The properties of a probe with other headers or properties."""
    own = probes.probe_properties()
    headers: dict[str, object] = {**(own.headers or {}), **changes.pop("headers", {})}  # type: ignore[dict-item]
    return wire(pika.BasicProperties(headers=headers, delivery_mode=1, **changes))


def test_a_probe_is_known_with_all_that_rabbitmq_may_add_to_it() -> None:
    assert probes.is_probe(wire(probes.probe_properties()), b"probe")
    counted = {"x-delivery-count": 1, "x-acquired-count": 2, "timestamp_in_ms": 1_800_000_000_000, "x-routed-by": "r@h"}
    assert probes.is_probe(probe_with(headers=counted, timestamp=1_800_000_000), b"probe")


@pytest.mark.parametrize(
    "properties",
    [
        wire(pika.BasicProperties(headers={"note": "x-postdate-probe"})),
        wire(pika.BasicProperties(message_id="x-postdate-probe")),
        wire(pika.BasicProperties(headers={"x-postdate-probe": True})),
        probe_with(headers={"x-postdate-probe": 1}),
        probe_with(headers={"x-delay-cancel": "order-1"}),
        probe_with(headers={"x-delay": 1000}),
        probe_with(headers={"x-death": []}),
        probe_with(message_id="order-1"),
        probe_with()[:-1],
        b"",
    ],
    ids=range(10),  # a probe is random, and all workers of pytest must collect the same tests
)
def test_what_only_resembles_a_probe_is_a_message(properties: bytes) -> None:
    assert not probes.is_probe(properties, b"probe")


@pytest.mark.parametrize("body", [b"", b"probe ", b"an order"])
def test_a_probe_with_another_body_is_a_message(body: bytes) -> None:
    assert not probes.is_probe(wire(probes.probe_properties()), body)
