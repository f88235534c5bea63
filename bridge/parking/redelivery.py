"""Give a redelivered message the id of its first copy. Pure.

RabbitMQ does not number messages. After a crash between parking and accepting, it delivers the same message again,
marked as redelivered. postdate parks it again: skipping it would be a guess, and a wrong guess loses one of two
identical messages. Both copies get one id, so that a consumer can recognize them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from bridge.core.message import Delivery
from bridge.parking.identity import ID_BYTES

DIGEST_BYTES = 8
_ENTRY_BYTES = DIGEST_BYTES + ID_BYTES
#: How many given ids are remembered. A connection redelivers once, at its start, what was in flight.
_GIVEN_MAX = 50_000


class Given:
    """Ids that redelivered messages were given. While such a message is alive, no other message gets its id."""

    def __init__(self, alive: Callable[[Delivery], bool]) -> None:
        self._alive = alive
        self._to: dict[bytes, Delivery] = {}

    def note(self, first: bytes, delivery: Delivery) -> None:
        """Record that a message was given an id."""
        if len(self._to) >= _GIVEN_MAX:
            alive = {delivery: to for delivery, to in self._to.items() if self._alive(to)}
            self._to = dict(list(alive.items())[-_GIVEN_MAX // 2 :])
        self._to[first] = replace(delivery, payload=b"", headers={})

    def is_held(self, first: bytes) -> bool:
        """Return whether a message that is still alive was given this id."""
        to = self._to.get(first)
        return to is not None and self._alive(to)


class FirstCopies:
    """Recently parked messages, by digest."""

    def __init__(self, is_held: Callable[[bytes], bool] = lambda _: False) -> None:
        """``is_held(id)``: another redelivered message was given this id."""
        self._is_held = is_held
        self._ids: dict[bytes, list[bytes]] = {}

    def learn(self, recent: Iterable[bytes]) -> None:
        """Add a shard's recent list, oldest first: many entries of digest and id in a piece."""
        for piece in recent:
            for at in range(0, len(piece), _ENTRY_BYTES):
                digest = piece[at : at + DIGEST_BYTES]
                self._ids.setdefault(digest, []).append(piece[at + DIGEST_BYTES : at + _ENTRY_BYTES])

    def take(self, digest: bytes) -> bytes:
        """Return the id of the newest message with this digest that was not taken yet, or b"".

        The newest, because a broker redelivers the end of what it delivered.
        """
        ids = self._ids.get(digest, [])
        while ids:
            if not self._is_held(first := ids.pop()):
                return first
        return b""
