"""The store of routes that have none any more: what is parked there is delivered beside the rest.

It is looked at for as long as the process lives, and not only at the start: it may be away then, and an instance that
still runs with the settings of before goes on parking there. Where nothing was found, nothing of it is opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

import structlog

from bridge.admin.leftovers import Remains
from bridge.core.errors import PostdateError, Unreachable
from bridge.process.loops import together

if TYPE_CHECKING:
    from bridge.process.service import Running

log = structlog.get_logger("postdate")

#: How long between two looks: so long what is due may be late, once.
LOOK_S = 5.0


class Emptying:
    """Looks, and delivers from when there is something to the end of the process."""

    def __init__(
        self,
        look: Callable[[], Awaitable[Remains]],
        words: Callable[[Remains], str],
        service: Callable[[], AbstractAsyncContextManager[Running]],
        expected: bool,
        look_s: float = LOOK_S,
    ) -> None:
        """``look`` raises ``StoreUnavailable`` and ``StoreUnfit``; ``words`` says what it found, in a sentence;
        ``service`` opens the store and delivers from it. A store that cannot be asked is told of only if ``expected``.
        """
        self._look = look
        self._words = words
        self._open = service
        self._expected = expected
        self._look_s = look_s
        self._service: Running | None = None
        self._stopping = False
        self._said = ""

    async def run(self) -> None:
        """Look and deliver until cancelled. Raises what a loop raised that no other look mends."""
        while True:
            try:
                remains = await self._look()
                self._say(self._words(remains) if any(remains) else "")
                if remains.waiting and not self._stopping:
                    await self._serve()
            except PostdateError as error:
                if self._expected or not isinstance(error, Unreachable):
                    self._say(f"whether Redis still holds messages of previous settings is not known: {error}")
            await asyncio.sleep(self._look_s)

    async def _serve(self) -> None:
        async with self._open() as service:
            self._service = service
            if self._stopping:
                service.take_no_more()
            try:
                await together(service.loops())
            finally:
                self._service = None

    def _say(self, text: str) -> None:
        """Every state once."""
        if text != self._said:
            if text:
                log.warning("left behind", what=text)
            else:
                log.info("nothing is left behind")
            self._said = text

    def take_no_more(self) -> int:
        """Stop taking; how much is claimed."""
        self._stopping = True
        return self._service.take_no_more() if self._service is not None else 0

    def finished(self) -> bool:
        """Whether nothing is under way any more."""
        return self._service is None or self._service.finished()

    async def leave(self) -> int:
        """Say goodbye to the store; how much is given back."""
        return await self._service.leave() if self._service is not None else 0
