"""Where ``demo``, ``bench`` and ``compare`` meet the adapters: broker and store, with the run's own things on them."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from adapters.rabbitmq.payload import unpack
from adapters.rabbitmq.stage import Stage
from adapters.redis.stage import StoreStage
from bridge.cli.output import complain
from bridge.clock import StoreClock
from bridge.demo.fate import Sighting
from bridge.errors import PostdateError, Unreachable
from bridge.settings import Settings
from bridge.trial.config import Names
from bridge.trial.process import BridgeProcess

T = TypeVar("T")

ADVICE = (
    "In a clone, `make demo` starts RabbitMQ and Redis by itself; "
    "to use yours, set POSTDATE_RABBITMQ__URL and POSTDATE_REDIS__URL."
)


class Trial:
    """A running bridge with a stage around it; the end of the ``with`` block removes all of it, whatever happens.

    Entering raises ``Unreachable``, whose text says what to type, and ``BridgeFailed``.
    """

    def __init__(self, settings: Settings, names: Names) -> None:
        self.settings = settings
        self.names = names
        self.clock = StoreClock()

    def __enter__(self) -> Self:
        self._ends = ExitStack()
        try:
            self._begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _begin(self) -> None:
        ends = self._ends
        self._runner = ends.enter_context(asyncio.Runner())
        try:
            self.store = StoreStage(self.settings.redis, self.clock)
            ends.callback(lambda: self.wait_for(self.store.close()))
            self.wait_for(self.store.look_at_clock())
            self.broker = ends.enter_context(Stage(self.settings, self.names))
        except Unreachable as error:
            raise Unreachable(f"{error}. {ADVICE}") from error
        ends.callback(self._clear, "in Redis", lambda: self.wait_for(self.store.remove()))
        ends.callback(self._clear, "on RabbitMQ", self.broker.take_down)
        self.broker.put_up()
        self.bridge = ends.enter_context(BridgeProcess(self.settings))
        self.bridge.wait_ready(self.broker.consumed)

    def _end(self) -> None:
        """Stop the bridge, then remove what is left on the broker and in the store."""
        with uninterrupted():
            self._ends.close()

    def _clear(self, where: str, remove: Callable[[], None]) -> None:
        try:
            remove()
        except PostdateError as error:
            complain(f"Some things named {self.names.prefix}... are left {where}: {error}.")

    def restart(self) -> None:
        """End the bridge in good order and start another, without waiting until it is ready."""
        self.bridge.stop()
        self.bridge = self._ends.enter_context(BridgeProcess(self.settings))

    def wait_for(self, asked: Awaitable[T]) -> T:
        """The result of something asynchronous."""

        async def answer() -> T:
            return await asked

        return self._runner.run(answer())

    def now_ms(self) -> float:
        """Unix milliseconds by the store's clock."""
        return self.clock.now_us() / 1000

    def now_ms_at(self, monotonic_s: float) -> float:
        """The store's clock at a moment that ``time.monotonic`` told."""
        return self.now_ms() - (time.monotonic() - monotonic_s) * 1000

    def sightings(self) -> dict[bytes, Sighting]:
        """Every message in the store by its body. For a handful of them."""
        kept = self.wait_for(self.store.kept())
        return {unpack(one.payload).body: Sighting(one.state, one.due_ms, one.reason) for one in kept}


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C and the like do nothing in this block: what was begun is also cleared away."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def every_signal_interrupts() -> Iterator[None]:
    """SIGTERM and a closed terminal end this block as Ctrl-C does, so that they leave nothing behind either."""
    before = {number: signal.signal(number, _interrupt) for number in _ENDING if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


_ENDING = [signal.SIGINT, signal.SIGTERM] + ([signal.SIGHUP] if sys.platform != "win32" else [])
