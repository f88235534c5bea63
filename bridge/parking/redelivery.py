"""Gives a redelivered message the id of its first copy.

RabbitMQ names no message: after a crash between parking and accepting, the same message comes again, marked only as
redelivered. It is parked again, because to skip it would be to guess, and a wrong guess loses one of two messages that
are alike to the byte. But both copies then carry one id, so that a consumer can tell. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from bridge.core.message import Delivery
from bridge.parking.identity import ID_BYTES

DIGEST_BYTES = 8
_ENTRY_BYTES = DIGEST_BYTES + ID_BYTES
#: Ids that are remembered as given away. A connection redelivers once, at its start, what was in flight.
_GIVEN_MAX = 50_000


class Given:
    """First ids that redelivered messages have got. While such a message is alive, its id is no other message's."""

    def __init__(self, alive: Callable[[Delivery], bool]) -> None:
        self._alive = alive
        self._to: dict[bytes, Delivery] = {}

    def note(self, first: bytes, delivery: Delivery) -> None:
        """This message has got that id."""
        if len(self._to) >= _GIVEN_MAX:
            alive = {one: to for one, to in self._to.items() if self._alive(to)}
            self._to = dict(list(alive.items())[-_GIVEN_MAX // 2 :])
        self._to[first] = replace(delivery, payload=b"", headers={})

    def is_held(self, first: bytes) -> bool:
        """Whether a message that is still alive has got it."""
        to = self._to.get(first)
        return to is not None and self._alive(to)


class FirstCopies:
    """What was parked lately, by digest."""

    def __init__(self, is_held: Callable[[bytes], bool] = lambda _: False) -> None:
        """``is_held(id)``: another redelivered message has got this id."""
        self._is_held = is_held
        self._ids: dict[bytes, list[bytes]] = {}

    def learn(self, recent: Iterable[bytes]) -> None:
        """Take in a shard's recent list, oldest first: many entries of digest and id in a piece."""
        for piece in recent:
            for at in range(0, len(piece), _ENTRY_BYTES):
                digest = piece[at : at + DIGEST_BYTES]
                self._ids.setdefault(digest, []).append(piece[at + DIGEST_BYTES : at + _ENTRY_BYTES])

    def take(self, digest: bytes) -> bytes:
        """The id of the newest message with this digest that was not taken yet, or nothing.

        The newest, because what comes again is the end of what was delivered.
        """
        ids = self._ids.get(digest, [])
        while ids:
            if not self._is_held(first := ids.pop()):
                return first
        return b""
