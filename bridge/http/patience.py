"""Closes connections whose client does not send a request: uvicorn alone would keep them for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: How long a client may take to send the head of its first request.
HEAD_S = 10.0


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a limit of time for the head of the first request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start to count."""
        super().connection_made(transport)
        self._head_timer = asyncio.get_running_loop().call_later(HEAD_S, self._judge)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to count."""
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _judge(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()
