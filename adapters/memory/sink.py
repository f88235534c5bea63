"""A sink in memory: keeps what was published in order, and answers as it is told to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

from bridge.core.message import Claim, Outcome, Refusal
from bridge.core.ports import Result


class Hold(Enum):
    """No answer until ``answer_held``."""

    HOLD = "hold"


HOLD = Hold.HOLD
#: What becomes of one publish: confirmed, unknown, refused with a reason, or no answer yet.
Answer = Outcome | Refusal | Hold


class MemorySink:
    """``bridge.core.ports.Sink`` in memory. It confirms everything, unless ``script`` or ``answer`` say otherwise."""

    def __init__(
        self, answered: Callable[[list[Result]], None], window: int = 2000, window_bytes: int = 64 << 20
    ) -> None:
        self._answered = answered
        self._window = window
        self._window_bytes = window_bytes
        self._script: deque[Answer] = deque()
        self._flights: list[Claim] = []
        self._results: list[Result] = []
        #: What is said to every publish that no script foresees.
        self.answer: Answer = Outcome.CONFIRMED
        self.connected = True
        self.blocked = False
        self.published: list[Claim] = []

    # -- the broker's side ------------------------------------------------------------------------------------------

    def script(self, *answers: Answer) -> None:
        """What becomes of the next publishes, one after the other."""
        self._script.extend(answers)

    def answer_held(self, answer: Outcome | Refusal = Outcome.CONFIRMED) -> None:
        """Everything that waits for an answer gets this one."""
        flights, self._flights = self._flights, []
        self._answer(flights, answer)

    def lose_connection(self) -> None:
        """The connection breaks: what waits for an answer will get none."""
        self.connected = False
        self.answer_held(Outcome.UNKNOWN)

    def held(self) -> list[Claim]:
        """What was sent and has no answer."""
        return list(self._flights)

    def bodies(self) -> list[bytes]:
        """The payloads that were published, in order."""
        return [claim.payload for claim in self.published]

    # -- the port ---------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        return self.connected and not self.blocked

    def able(self) -> bool:
        return self.connected

    def room(self) -> tuple[int, int]:
        if not self.ready():
            return 0, 0
        return self._window - len(self._flights), self._window_bytes - sum(len(c.payload) for c in self._flights)

    def publish(self, claims: Sequence[Claim]) -> None:
        if not self.connected:
            self._answer(claims, Outcome.UNKNOWN)
            return
        for claim in claims:
            self.published.append(claim)
            answer = self._script.popleft() if self._script else self.answer
            if isinstance(answer, Hold):
                self._flights.append(claim)
            else:
                self._answer([claim], answer)

    def _answer(self, claims: Sequence[Claim], answer: Outcome | Refusal) -> None:
        refusal = answer if isinstance(answer, Refusal) else None
        outcome = Outcome.REFUSED if isinstance(answer, Refusal) else answer
        if claims and not self._results:
            asyncio.get_running_loop().call_soon(self._flush)
        self._results += (Result(claim, outcome, refusal) for claim in claims)

    def _flush(self) -> None:
        results, self._results = self._results, []
        self._answered(results)
