"""Where ``demo``, ``bench`` and ``compare`` meet the adapters: broker and store, with the run's own things on them."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import NoReturn, Protocol, Self, TypeVar

from adapters.redis.lab import StoreStage
from bridge.core.clock import StoreClock
from bridge.core.errors import Unreachable
from bridge.lab.cleanup import cleared
from bridge.lab.demo.fate import Sighting
from bridge.lab.trial.config import Names, new_names, trial_settings
from bridge.lab.trial.process import BridgeProcess
from bridge.settings import Settings
from bridge.settings.model import TITLES, BrokerKind
from bridge.settings.plan import store_of
from bridge.telemetry.printable import say

T = TypeVar("T")

ADVICE = (
    "In a clone, `make demo` starts RabbitMQ, Kafka and Redis by itself; to use yours, set POSTDATE_RABBITMQ__URL or "
    "POSTDATE_KAFKA__BOOTSTRAP_SERVERS, and POSTDATE_REDIS__URL."
)


class Stage(AbstractContextManager["Stage"], Protocol):
    """What a run puts on its broker. Every method raises ``BrokerUnavailable`` and ``Refused``."""

    @property
    def versions(self) -> Mapping[str, str]:
        """What has a part in the figures, and its version."""

    def put_up(self) -> None:
        """The consumers' side, that the route delivers to."""

    def consumed(self) -> bool:
        """Whether the bridge has begun to take messages."""

    def take_down(self) -> None:
        """Delete all that is the run's, whether it is there or not."""


def open_stage(settings: Settings, names: Names) -> Stage:
    """The stage on the broker of the settings' routes. Raises ``BrokerUnavailable``."""
    if settings.broker == "kafka":
        from adapters.kafka.lab.stage import Stage as Topics

        return Topics(settings.kafka, names)
    from adapters.rabbitmq.lab.stage import Stage as Queues

    return Queues(settings, names)


def answering(settings: Settings, required: Sequence[BrokerKind] = ()) -> list[BrokerKind]:
    """The required brokers, or, where none are, those that answer, and a word about each that does not.

    Raises ``Unreachable`` if one that is required does not answer, or none at all.
    """
    found: list[BrokerKind] = []
    silent: dict[str, Unreachable] = {}
    for broker in required or TITLES:
        names = new_names("probe", broker)
        try:
            with open_stage(trial_settings(settings, names, broker=broker), names):
                found.append(broker)
        except Unreachable as error:
            silent[TITLES[broker]] = error
    if not found or (required and silent):
        raise Unreachable(f"{'; '.join(f'{title}: {why}' for title, why in silent.items())}. {ADVICE}")
    for title, why in silent.items():
        say(f"{title} is left out: {why}.")
    return found


class Trial:
    """A running bridge with a stage around it; the end of the ``with`` block removes all of it, whatever happens.

    There is no ``store`` where the route of the settings needs none: nobody else asks for it then.
    Entering raises ``Unreachable``, whose text says what to type, and ``BridgeFailed``.
    """

    def __init__(self, settings: Settings, names: Names) -> None:
        self.settings = settings
        self.names = names
        self.title = TITLES[settings.broker]
        self.clock = StoreClock()

    def __enter__(self) -> Self:
        self._ends = ExitStack()
        try:
            self._begin()
        except BaseException as error:
            self._end(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)

    def _begin(self) -> None:
        ends = self._ends
        self._runner = ends.enter_context(asyncio.Runner())
        stored = any(route.mode == "redis" for route in self.settings.routes.values())
        try:
            if stored:
                self._open_store()
            self.broker = ends.enter_context(open_stage(self.settings, self.names))
        except Unreachable as error:
            raise Unreachable(f"{error}. {ADVICE}") from error
        if stored:
            ends.enter_context(cleared("redis", self.names.prefix, lambda: self.wait_for(self.store.remove())))
        ends.enter_context(cleared(self.settings.broker, self.names.prefix, self.broker.take_down))
        self.broker.put_up()
        self.bridge = ends.enter_context(BridgeProcess(self.settings))
        self.bridge.wait_ready(lambda: self.broker.consumed() and (not stored or self.wait_for(self.store.drained())))

    def _open_store(self) -> None:
        self.store = StoreStage(store_of(self.settings, self.settings.broker).settings.redis, self.clock)
        self._ends.callback(lambda: self.wait_for(self.store.close()))
        self.wait_for(self.store.look_at_clock())

    def _end(self, error: BaseException | None) -> None:
        """Stop the bridge, then remove what is left on the broker and in the store; what stays, ``error`` says too."""
        with uninterrupted():
            self._ends.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)

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
        return {self._body(one.payload): Sighting(one.state, one.due_ms, one.reason) for one in kept}

    def _body(self, payload: bytes) -> bytes:
        if self.settings.broker == "kafka":
            from adapters.kafka.raw.record import unpack as unpack_record

            return unpack_record(payload).value or b""
        from adapters.rabbitmq.raw.payload import unpack

        return unpack(payload).body


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
