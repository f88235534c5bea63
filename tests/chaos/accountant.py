"""The base of both ledgers: a producer and a consumer thread, and a book of what is owed and what has arrived.

A subclass says what a message is, and how it is produced and consumed."""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import ClassVar, Self

from tests.chaos.verdict import Owed, Receipt, Verdict, judge, missing, out_of_order
from tests.devstack.service import wait_for
from tests.proof.record import record


class Accountant(ABC):
    """It consumes from the start of the ``with`` block. ``patience_s``: the default limit when waiting for messages."""

    patience_s: ClassVar[float]

    def __init__(self) -> None:
        self._run = random.getrandbits(32)
        self._owed: dict[int, Owed] = {}
        self._receipts: dict[int, list[Receipt]] = {}
        #: By key and due moment, the numbers of messages as they arrived.
        self._order: dict[tuple[bytes, float], list[int]] = {}
        self._strangers = 0
        self._stop_producing = threading.Event()
        self._stop_consuming = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

    def __enter__(self) -> Self:
        self._spawn(self._consume)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_producing.set()
        self._stop_consuming.set()
        for thread in self._threads:
            thread.join(15)

    def beside(self, producing: Accountant) -> Self:
        """Expect the messages of another ledger, before this one is entered: they go to two consumers."""
        self._run, self._owed = producing._run, producing._owed
        return self

    @abstractmethod
    def _consume(self) -> None:
        """Record arrivals until ``_stop_consuming``."""

    @abstractmethod
    def produce(self, rate: float, delays_ms: tuple[int, int], count: int | None = None) -> None:
        """Start to produce ``rate`` messages a second, each with a random delay in ``delays_ms``; at most ``count``."""

    @abstractmethod
    def stop_producing(self) -> None:
        """Stop, and wait until the broker has confirmed what was produced."""

    def confirmed(self) -> int:
        """The number of messages that the broker has confirmed."""
        return sum(bool(owed.confirmed_at) for owed in list(self._owed.values()))

    def late_after(self, healed: float) -> float:
        """How many seconds a message waited at most, from when all was well, the broker had it, and it was due."""
        late_s = max(
            receipts[0].at - max(self._owed[number].due, self._owed[number].confirmed_at, healed)
            for number, receipts in self._receipts.copy().items()  # at once: another thread goes on adding
        )
        record(recovery_s=late_s)
        return late_s

    def arrived(self) -> int:
        """The number of different messages that have arrived."""
        return len(self._receipts)

    def wait_arrivals(self, more: int, deadline_s: float | None = None) -> None:
        """Wait until this many more different messages have arrived."""
        wanted = len(self._receipts) + more
        patience_s = self.patience_s if deadline_s is None else deadline_s
        wait_for(lambda: len(self._receipts) >= wanted, f"{more} more messages arrive", patience_s)

    def settle(self, deadline_s: float | None = None, linger_s: float = 0.5) -> Verdict:
        """Wait until everything owed has arrived or the time is up, then a little longer for copies."""
        self.wait_owed(deadline_s)
        time.sleep(linger_s)
        return self.verdict()

    def wait_owed(self, deadline_s: float | None = None) -> None:
        """Wait until everything owed has arrived or the time is up."""
        give_up = time.monotonic() + (self.patience_s if deadline_s is None else deadline_s)
        while time.monotonic() < give_up and missing(self._owed, self._receipts):
            self._raise_failures()
            time.sleep(0.02)

    def verdict(self) -> Verdict:
        """The verdict at this moment."""
        found = judge(self._owed, self._receipts, self._strangers)
        found.misordered = out_of_order(list(self._order.values()))
        return found

    def _raise_failures(self) -> None:
        if self._failures:
            raise self._failures[0]

    def _spawn(self, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as failure:
                self._failures.append(failure)
                raise

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
