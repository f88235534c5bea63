"""Publish the messages of some routes to several destinations, each confirmed on its own.

Around the broker's sink, a message of such a route becomes one copy for each destination that has not confirmed it.
When all copies are answered, the listener gets one result for the message. Destinations that confirmed are noted in
the claim, and so in the store with the next release or burial: a later try goes to the others only. A crash before
that makes copies, as for every message.

Copies are sent as the sink has room for them. The sink may allow one at a time, to find the message over which the
broker closes its channel.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import Result, Sink


@dataclass(slots=True)
class _Group:
    """A message and the copies of it without an answer."""

    claim: Claim
    left: int
    unknown: bool = False
    refusal: Refusal | None = None

    def answer(self, number: int, outcome: Outcome, refusal: Refusal | None) -> None:
        """Record the answer to the copy for destination ``number``."""
        self.left -= 1
        if outcome is Outcome.CONFIRMED:
            self.claim.reached |= 1 << number
        elif refusal is None:
            self.unknown = True
        elif self.refusal is None or self.refusal.lasting:
            self.refusal = refusal  # one that another try may cure counts first: burying would end the other tries

    def result(self) -> Result[Claim]:
        """Return the result for the message, when all copies are answered."""
        if self.refusal is not None:
            if self.unknown and self.refusal.lasting:
                return Result(self.claim, Outcome.UNKNOWN, None)
            return Result(self.claim, Outcome.REFUSED, self.refusal)
        return Result(self.claim, Outcome.UNKNOWN if self.unknown else Outcome.CONFIRMED, None)


class Copy:
    """The letter of a message to one of its destinations. ``route`` is the destination's lane."""

    __slots__ = ("arrived_ms", "due_ms", "group", "number", "payload", "public_id", "route")

    def __init__(self, group: _Group, number: int, lane: str) -> None:
        claim = group.claim
        self.group = group
        self.number = number
        self.route = lane
        self.public_id = claim.public_id
        self.payload = claim.payload
        self.due_ms = claim.due_ms
        self.arrived_ms = claim.arrived_ms


class FanOut:
    """A ``Sink`` around the broker's."""

    _answered: Callable[[list[Result[Claim]]], None]

    def __init__(self, sink: Sink[Claim | Copy], lanes: Mapping[str, Sequence[str]]) -> None:
        """``lanes``: for each route the names under which the sink knows its destinations."""
        self._sink = sink
        self._lanes: dict[str, tuple[str, ...]] = {}
        self.follow(lanes)
        self._waiting: deque[Claim | Copy] = deque()
        self._sending = False
        self.able, self.open = sink.able, sink.open

    def follow(self, lanes: Mapping[str, Sequence[str]]) -> None:
        """Use the lanes of all routes. Those of removed routes stay, because their copies may be under way. So a route
        that comes back with one destination has one lane."""
        self._lanes.update(
            (route, tuple(names)) for route, names in lanes.items() if len(names) > 1 or route in self._lanes
        )

    def on_answers(self, answered: Callable[[list[Result[Claim]]], None]) -> None:
        self._answered = answered
        self._sink.on_answers(self._on_results)

    def room(self) -> tuple[int, int]:
        """Return the sink's room; none while copies wait, so that nothing overtakes them."""
        return (0, 0) if self._waiting else self._sink.room()

    def publish(self, letters: Sequence[Claim]) -> None:
        """Send the messages, each to all of its destinations that have not confirmed it."""
        lanes, done = self._lanes, []
        if not lanes:
            self._sink.publish(letters)
            return
        for claim in letters:
            names = lanes.get(claim.route)
            if names is None:
                self._waiting.append(claim)
                continue
            left = [number for number in range(len(names)) if not claim.reached >> number & 1]
            group = _Group(claim, len(left))
            self._waiting.extend(Copy(group, number, names[number]) for number in left)
            if not left:  # the settings have fewer destinations now
                done.append(group.result())
        if done:
            self._answered(done)
        self._send()

    def _send(self) -> None:
        """Send what waits and has room."""
        if self._sending:  # the sink answered while it was given letters
            return
        self._sending = True
        try:
            if self._waiting and not self.open():  # another instance may have the broker, and these messages with it
                lost, self._waiting = self._waiting, deque()
                self._on_results([Result(copy, Outcome.UNKNOWN, None) for copy in lost])
            while self._waiting and (most := max(0, self._sink.room()[0])):
                ready = [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
                now_s = time.monotonic()
                late = [copy for copy in ready if now_s >= _claim_of(copy).lease_ends]
                if late:  # another instance may have these messages by now
                    self._on_results([Result(copy, Outcome.UNKNOWN, None) for copy in late])
                    ready = [copy for copy in ready if copy not in late]
                if ready:
                    self._sink.publish(ready)
        finally:
            self._sending = False

    def _on_results(self, results: list[Result[Claim | Copy]]) -> None:
        if not self._lanes:
            self._answered(cast("list[Result[Claim]]", results))  # the sink returns only what it was given: claims
            return
        ended: list[Result[Claim]] = []
        for result in results:
            letter = result.letter
            if not isinstance(letter, Copy):
                ended.append(Result(letter, result.outcome, result.refusal))
                continue
            letter.group.answer(letter.number, result.outcome, result.refusal)
            if not letter.group.left:
                ended.append(letter.group.result())
        self._send()
        self._answered(ended)


def _claim_of(letter: Claim | Copy) -> Claim:
    return letter.group.claim if isinstance(letter, Copy) else letter
