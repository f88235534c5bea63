"""Keeps connections for clients that send requests. uvicorn alone keeps those that send none for ever.

A head must be complete within ``HEAD_S``, and so must a body that no endpoint reads any more. When all places are
taken, the connection that has been without a request for longest makes room for a new one; where all have a request,
the one that has been answered for longest. So no client keeps others from being served, neither one that only opens
connections nor one that does not read its answers.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: How long a client may take to send the head of a request.
HEAD_S = 10.0
#: Connections at one time.
CONNECTIONS_MAX = 512


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP protocol with limits of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        #: When its request began, or since when it has none.
        self.since = time.monotonic()

    @property
    def busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room, and start to count."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            self._make_room()
        self._count()

    def data_received(self, data: bytes) -> None:
        """Count while a head, or a body without a reader, arrives."""
        was_busy = self.busy
        super().data_received(data)
        if self.busy and not was_busy:
            self.since = time.monotonic()
        if self.busy:
            self._stop_counting()
        else:
            self._count()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to count."""
        self._stop_counting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Be idle from now on."""
        self.since = time.monotonic()
        super().on_response_complete()

    def _count(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._judge)

    def _stop_counting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _judge(self) -> None:
        self._head_timer = None
        if not self.busy and not self.transport.is_closing():
            self.transport.abort()

    def _make_room(self) -> None:
        others = [place for place in self.connections if isinstance(place, PatientProtocol) and place is not self]
        longest = min(others, key=lambda place: (place.busy, place.since), default=self)
        longest.transport.abort()
