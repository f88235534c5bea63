"""What a meter counts: how late each message came, how often, whether too early, and whether in its order. Pure."""

from __future__ import annotations

from array import array

from bridge.lab.bench.load import EARLY_MS, Got, Load

_NUMBER = 0xFFFFFFFF


class Tally:
    """The count of one load."""

    def __init__(self, load: Load) -> None:
        self._run = load.run
        self._keys = load.keys
        # Only messages that are due at one moment have an order to keep.
        self._ordered = bool(load.due_at)
        self._last_of_key = [-1] * load.keys
        self._seen = bytearray(load.count)
        self._late_ms, self._at, self._numbers = array("d"), array("d"), array("L")
        self._duplicates = self._early = self._disordered = 0
        self._first = self._last = 0.0
        #: How many different messages have come.
        self.messages = 0

    def note(self, number: int, due: float, now: float) -> None:
        """A message that came at ``now``, with what ``load.STAMP`` says in it; other runs' do not count."""
        if number >> 32 != self._run:
            return
        index = number & _NUMBER
        if self._seen[index]:
            self._duplicates += 1
            return
        self._seen[index] = 1
        self.messages += 1
        late_ms = (now - due) * 1000
        self._late_ms.append(late_ms)
        self._numbers.append(index)
        self._at.append(now)
        if late_ms < EARLY_MS:
            self._early += 1
        if self._ordered:
            key = index % self._keys
            if index < self._last_of_key[key]:
                self._disordered += 1
            else:
                self._last_of_key[key] = index
        if not self._first:
            self._first = now
        self._last = now

    def got(self) -> Got:
        """All of it."""
        return Got(
            self.messages,
            self._duplicates,
            self._early,
            self._late_ms,
            self._first,
            self._last,
            self._numbers,
            self._at,
            self._disordered,
        )
