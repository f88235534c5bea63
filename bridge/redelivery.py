"""Gives a redelivered message the id of its first copy.

RabbitMQ names no message: after a crash between parking and accepting, the same message comes again, marked only as
redelivered. It is parked again, because to skip it would be to guess, and a wrong guess loses one of two messages that
are alike to the byte. But both copies then carry one id, so that a consumer can tell. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.identity import ID_BYTES

DIGEST_BYTES = 8
_ENTRY_BYTES = DIGEST_BYTES + ID_BYTES


class FirstCopies:
    """What was parked lately, by digest."""

    def __init__(self) -> None:
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
        ids = self._ids.get(digest)
        return ids.pop() if ids else b""
