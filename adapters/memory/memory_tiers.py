"""The cold tier in memory: messages go to the journal alone, and come back. As the Lua files of the same names."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from adapters.memory.shard import Shard, field_of
from bridge.core.orders import HELD_MS
from bridge.core.state import Guard
from bridge.parking.envelope import UnopenedEnvelope, as_loaded, route_in, unseal


class TieredShard(Shard):
    """A shard of both tiers."""

    def begin(self, counts: Mapping[str, int], mark: bytes) -> None:
        """Take these counts of cold messages."""
        if self.mark == mark:
            self.mark = mark or secrets.token_bytes(8)
            for route in self.cold():
                del self.routes["cold", route.encode()]
            self.routes.update({("cold", route.encode()): number for route, number in counts.items()})

    def cold(self) -> dict[str, int]:
        return {route.decode(): number for (state, route), number in self.routes.items() if state == "cold"}

    def far(self, from_ms: int) -> list[tuple[bytes, int, bool]]:
        """Return id and due moment of messages due from a moment on, and whether each was neither tried nor loaded."""
        return [
            (message_id, at_ms, self._untouched(message_id))
            for at_ms, message_id in self.due
            if from_ms <= at_ms < HELD_MS
        ]

    def unload(self, messages: Sequence[tuple[bytes, int]]) -> int:
        """parked -> gone."""
        unloaded = 0
        for message_id, due_ms in messages if self.mark else ():
            if self.due.at_ms(message_id) != due_ms or not self._untouched(message_id):
                continue
            route, key = route_in(self.messages[message_id]), field_of(self.messages[message_id])
            self._move("unload", message_id, Guard.UNTOUCHED)
            if key is not None:
                self.keys.remove(key, message_id)
            self._route_add("parked", route, -1)
            self._route_add("cold", route, 1)
            unloaded += 1
        self.mark = secrets.token_bytes(8) if unloaded else self.mark
        return unloaded

    def load(self, mark: bytes, messages: Sequence[tuple[bytes, int, bytes]], known: Sequence[bytes]) -> bool:
        """new -> parked."""
        if not mark or mark != self.mark:
            return False
        before = dict(self.messages)
        for message_id in known:
            if message_id in self.messages:
                self.messages[message_id] = as_loaded(message_id, self.messages[message_id])
        for message_id, due_ms, envelope in messages:
            if message_id not in self.messages:
                self._move("load", message_id, Guard.FENCED, due_ms)
                self.messages[message_id] = envelope
                if (key := field_of(envelope)) is not None:
                    self.keys.add(key, [message_id])
                self._route_add("cold", route_in(envelope), -1)
                self._route_add("parked", route_in(envelope), 1)
        self.mark = mark if before == self.messages else secrets.token_bytes(8)
        self._wake_if_nearer(due_ms for _, due_ms, _ in messages)
        return True

    def _untouched(self, message_id: bytes) -> bool:
        try:
            opened = unseal(self.messages.get(message_id, b""))
        except UnopenedEnvelope:
            return False
        return not (opened.first or opened.tries or opened.reached) and opened.due_ms == self.due.at_ms(message_id)
