"""A sink in memory: it keeps what was published in order, and answers by a script."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Generic

from bridge.core.message import Outcome, Refusal
from bridge.core.ports import L, Result


class NoAnswer(Enum):
    """No answer before ``answer_held``."""

    HOLD = "hold"


HOLD = NoAnswer.HOLD
#: What becomes of one publish: confirmed, unknown, refused with a reason, or no answer yet.
Answer = Outcome | Refusal | NoAnswer


class MemorySink(Generic[L]):
    """A ``Sink`` in memory. It confirms everything, unless ``script`` or ``answer`` say otherwise."""

    _answered: Callable[[list[Result[L]]], None]

    def __init__(self, window: int = 2000, window_bytes: int = 64 << 20, connected: bool = True) -> None:
        self._window = window
        self._window_bytes = window_bytes
        self._script: deque[Answer] = deque()
        self._flights: list[L] = []
        self._results: list[Result[L]] = []
        #: The answer to every publish beyond the script.
        self.answer: Answer = Outcome.CONFIRMED
        self.connected = connected
        self.blocked = False
        self.published: list[L] = []

    # -- the broker's side ------------------------------------------------------------------------------------------

    def script(self, *answers: Answer) -> None:
        """Set what becomes of the next publishes, one after the other."""
        self._script.extend(answers)

    def answer_held(self, answer: Outcome | Refusal = Outcome.CONFIRMED) -> None:
        """Give this answer to everything that waits for one."""
        flights, self._flights = self._flights, []
        self._answer(flights, answer)

    def lose_connection(self) -> None:
        """Break the connection. The outcome of what waits for an answer is unknown."""
        self.connected = False
        self.answer_held(Outcome.UNKNOWN)

    def connect(self) -> None:
        """Connect, and tell the listener that there is room."""
        self.connected = True
        self._answered([])

    def block(self, blocked: bool) -> None:
        """Block publishers as a broker without memory does, or end that and tell the listener."""
        self.blocked = blocked
        if not blocked:
            self._answered([])

    def held(self) -> list[L]:
        return list(self._flights)

    def bodies(self) -> list[bytes]:
        return [letter.payload for letter in self.published]

    # -- the port ---------------------------------------------------------------------------------------------------

    def on_answers(self, answered: Callable[[list[Result[L]]], None]) -> None:
        self._answered = answered

    def able(self) -> bool:
        return self.connected

    def open(self) -> bool:
        return self.able()

    def room(self) -> tuple[int, int]:
        if not self.connected or self.blocked:
            return 0, 0
        return self._window - len(self._flights), self._window_bytes - sum(
            len(flight.payload) for flight in self._flights
        )

    def publish(self, letters: Sequence[L]) -> None:
        if not self.connected:
            self._answer(letters, Outcome.UNKNOWN)
            return
        for letter in letters:
            self.published.append(letter)
            answer = self._script.popleft() if self._script else self.answer
            if isinstance(answer, NoAnswer):
                self._flights.append(letter)
            else:
                self._answer([letter], answer)

    def _answer(self, letters: Sequence[L], answer: Outcome | Refusal) -> None:
        refusal = answer if isinstance(answer, Refusal) else None
        outcome = Outcome.REFUSED if isinstance(answer, Refusal) else answer
        if letters and not self._results:
            asyncio.get_running_loop().call_soon(self._flush)
        self._results += (Result(letter, outcome, refusal) for letter in letters)

    def _flush(self) -> None:
        results, self._results = self._results, []
        self._answered(results)
