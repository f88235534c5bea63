"""A bridge for one run of demo, bench or compare: a real ``postdate run`` under names that only this run uses."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from pydantic import SecretStr

from bridge.app.brokers import TrialStore, lab_of, open_trial_store
from bridge.app.daemon import run_daemon
from bridge.core.clock import StoreClock
from bridge.core.errors import PostdateError, Unreachable
from bridge.lab.load import Got, Load, Sent
from bridge.lab.load_runner import run_load
from bridge.lab.machine import Usage, command_of, listening_pid, own_versions, usage_of
from bridge.lab.ports import BrokerLab, ComparableBroker, RunNames, TrialBroker
from bridge.process.handover import Handover, packed
from bridge.process.workers import python_command
from bridge.settings import Route, Settings
from bridge.settings.model import TITLES, BrokerKind, JournalSection
from bridge.settings.process_plan import store_of
from bridge.settings.urls import is_loopback
from bridge.telemetry.printable import complain, say

T = TypeVar("T")

#: The name of the run's only route.
ROUTE = "trial"
ADVICE = (
    "In a clone, `make demo` starts RabbitMQ, Kafka and Redis by itself; to use yours, set POSTDATE_RABBITMQ__URL or "
    "POSTDATE_KAFKA__BOOTSTRAP_SERVERS, and POSTDATE_REDIS__URL."
)
#: The signals that end a run, beside Ctrl-C.
_ENDING = [signal.SIGTERM] + ([signal.SIGHUP] if sys.platform != "win32" else [])
#: RabbitMQ's program. Another process may own its port and only forward bytes.
_BROKER = "beam.smp"
#: By place: how to name it, and how to delete what a run left there.
_PLACES: Mapping[str, tuple[str, str]] = {
    "rabbitmq": (
        "on RabbitMQ",
        "delete its queues (`rabbitmqctl delete_queue`) and exchanges (`rabbitmqadmin delete exchange`), or both on "
        "its management page",
    ),
    "kafka": ("on Kafka", "delete its topics (`kafka-topics.sh`) and its group (`kafka-consumer-groups.sh`)"),
    "redis": ("in Redis", "run `redis-cli --scan --pattern '{{{name}*' | xargs redis-cli unlink`"),
}
_READY_S = 60.0
_POLL_S = 0.05
_PATIENCE_S = 3.0
_TAIL_BYTES = 2000
# It ends with us, even if we are killed.
_FIRST = "from bridge.process.workers import end_with_parent; end_with_parent(int(sys.argv.pop(1)))"


# -- names and settings of a run --------------------------------------------------------------------------------------


def new_names(purpose: str, broker: BrokerKind = "rabbitmq") -> RunNames:
    """Unique names: parallel runs do not collide, and leftovers of a killed run stay apart."""
    lab: BrokerLab = lab_of(broker)
    return lab.names(f"postdate.{purpose}.{secrets.token_hex(3)}")


def trial_settings(
    settings: Settings, names: RunNames, mode: str = "redis", broker: BrokerKind = "rabbitmq", **other: dict[str, Any]
) -> Settings:
    """The user's settings with one route of that mode under the run's names.

    ``other`` overrides single settings: ``bridge={"workers": 1}``.
    """
    ends = {"intercept": names.front, "deliver_to": names.target, "queue": names.intake}
    route = Route.model_validate({"broker": broker, "mode": mode, **ends})
    own: dict[str, dict[str, Any]] = {
        "kafka": {"group": names.prefix},
        "redis": {"key_prefix": names.prefix},
        "bridge": {"instance": "", "setup": True},
        # A run deletes what its route needs. It measures the bridge alone, and leaves the user's port free.
        "http": {"enabled": False},
        "canary": {"enabled": False},
        "webhook": {"url": SecretStr("")},
        # That of the user belongs to another store.
        "journal": JournalSection().model_dump(),
    }
    changed = {
        section: getattr(settings, section).model_copy(update={**own.get(section, {}), **other.get(section, {})})
        for section in own | other
    }
    return settings.model_copy(update={**changed, "routes": {ROUTE: route}})


def broker_kind(settings: Settings) -> BrokerKind:
    return settings.routes[ROUTE].broker


def open_trial(settings: Settings, names: RunNames) -> TrialBroker:
    """The broker of a run, connected. Raises ``Unreachable``."""
    lab: BrokerLab = lab_of(broker_kind(settings))
    return lab.trial(settings, names)


def answering(settings: Settings, required: Sequence[BrokerKind] = ()) -> list[BrokerKind]:
    """The required brokers, or, if none is required, those that answer. Reports each broker that is left out.

    Raises ``Unreachable`` if a required broker does not answer, or none at all.
    """
    found: list[BrokerKind] = []
    silent: dict[str, Unreachable] = {}
    for broker in required or TITLES:
        names = new_names("probe", broker)
        try:
            with open_trial(trial_settings(settings, names, broker=broker), names):
                found.append(broker)
        except Unreachable as error:
            silent[TITLES[broker]] = error
    if not found or (required and silent):
        raise Unreachable(f"{'; '.join(f'{title}: {why}' for title, why in silent.items())}. {ADVICE}")
    for title, why in silent.items():
        say(f"{title} is left out: {why}.")
    return found


@contextmanager
def advising() -> Iterator[None]:
    """Add to an ``Unreachable`` error what to type."""
    try:
        yield
    except Unreachable as error:
        raise Unreachable(f"{error}. {ADVICE}") from error


async def check_store(settings: Settings) -> None:
    """Raise ``StoreUnavailable`` unless the store answers."""
    store = open_trial_store(settings, StoreClock())
    try:
        await store.look_at_clock()
    finally:
        await store.close()


# -- what runs --------------------------------------------------------------------------------------------------------


class Trial:
    """A running bridge with the objects of its run around it. The end of the ``with`` block deletes everything.

    With ``instead`` no bridge runs: that function creates what takes its place on the broker. ``store`` exists only if
    the route needs it. Entering raises ``Unreachable``, whose text says what to type, and ``BridgeFailed``.
    """

    broker: TrialBroker
    store: TrialStore

    def __init__(
        self, settings: Settings, names: RunNames, instead: Callable[[ComparableBroker], None] | None = None
    ) -> None:
        self.settings = settings
        self.names = names
        self.kind = broker_kind(settings)
        self.title = TITLES[self.kind]
        self.lab: BrokerLab = lab_of(self.kind)
        self._clock = StoreClock()
        self._instead = instead
        self._stored = instead is None and any(route.mode == "redis" for route in settings.routes.values())
        self._bridge: BridgeProcess | None = None

    def __enter__(self) -> Self:
        self._ends = ExitStack()
        try:
            self._begin()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the bridge, then delete its objects and keys. ``error`` is extended by what could not be deleted."""
        with uninterrupted():
            self._ends.__exit__(kind, error, trace)

    def _begin(self) -> None:
        ends = self._ends
        self._runner = ends.enter_context(asyncio.Runner())
        with advising():
            if self._stored:
                self.store = open_trial_store(store_of(self.settings, self.kind).settings, self._clock)
                ends.callback(lambda: self.wait_for(self.store.close()))
                self.wait_for(self.store.look_at_clock())
            self.broker = ends.enter_context(open_trial(self.settings, self.names))
        if self._stored:
            ends.enter_context(deleting("redis", self.names.prefix, lambda: self.wait_for(self.store.remove())))
        ends.enter_context(deleting(self.kind, self.names.prefix, self.broker.delete))
        self.broker.create()
        self._broker_pid = program_pid(self.broker) if isinstance(self.broker, ComparableBroker) else None
        if self._instead is not None:
            self._instead(comparable(self.broker))
        else:
            self._start().wait_ready(self._is_ready)

    def _start(self) -> BridgeProcess:
        self._bridge = BridgeProcess(self.settings)
        self._ends.callback(self._bridge.stop)
        return self._bridge

    def _is_ready(self) -> bool:
        return self.broker.consumed() and (not self._stored or self.wait_for(self.store.drained()))

    def carry(self, load: Load, progress: Callable[[int, int], None]) -> tuple[Sent, Got | None]:
        """Run a load on the broker."""
        return run_load(self.lab, self.settings, load, progress)

    def restart(self) -> None:
        """Stop the bridge gracefully and start another one, without waiting until it is ready."""
        assert self._bridge is not None, "only a bridge of our own may be restarted"
        self._bridge.stop()
        self._start()

    def check(self) -> None:
        """Raise ``BridgeFailed`` if the bridge has ended."""
        if self._bridge is not None:
            self._bridge.check()

    def parked(self) -> int:
        return self.wait_for(self.store.parked())

    def waiting(self, published: int) -> int:
        """How many of the published messages wait in their place."""
        if self._stored:  # an empty intake is not enough: the bridge may hold messages that it has not parked yet
            return self.parked()
        # Without a bridge a message is in its place once the broker has confirmed it.
        return published - (comparable(self.broker).waiting(self.names.intake) if self._bridge is not None else 0)

    def usage(self) -> dict[str, Usage]:
        """What ``bridge``, ``broker`` and ``store`` have used; only those that take part."""
        found = {"broker": Usage(None, None) if self._broker_pid is None else usage_of(self._broker_pid)}
        if self._bridge is not None:
            found["bridge"] = usage_of(self._bridge.pid)
        if self._stored:
            found["store"] = Usage(*self.wait_for(self.store.usage()))
        return found

    def versions(self) -> dict[str, str]:
        found = own_versions() | dict(self.broker.versions)
        if self._stored:
            store, _, number = self.wait_for(self.store.version()).partition(" ")
            found[store.lower()] = number
        return found

    def wait_for(self, asked: Awaitable[T]) -> T:
        async def answer() -> T:
            return await asked

        return self._runner.run(answer())

    def now_ms(self) -> float:
        return self._clock.now_us() / 1000


def comparable(broker: TrialBroker) -> ComparableBroker:
    """The same broker. ``compare`` runs only on one that can."""
    assert isinstance(broker, ComparableBroker)
    return broker


def program_pid(broker: ComparableBroker) -> int | None:
    """The process of a RabbitMQ on this machine. None if there are several hosts: it is unknown which one works."""
    (host, port), *others = broker.addresses()
    pid = listening_pid(port) if is_loopback(f"{host}:{port}") and not others else None
    return pid if pid is not None and command_of(pid) == _BROKER else None


class BridgeFailed(PostdateError):
    """The bridge did not start, or ended by itself (exit code 1). The text ends with its last line of output."""


def run_bridge() -> None:
    """Do what ``postdate run`` does, with the settings on the standard input, and exit."""
    settings: Settings = Handover().first()
    sys.exit(run_daemon(settings, lambda: settings))


class BridgeProcess:
    """A ``postdate run`` that is handed its settings. Starts at once."""

    def __init__(self, settings: Settings) -> None:
        self._grace_s = settings.bridge.shutdown_grace / 1000
        # Files without a name: the settings hold secrets.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (`stop` closes it)
        command = python_command("bridge.lab.trial", "run_bridge", str(os.getpid()), first=_FIRST)
        with tempfile.TemporaryFile() as handed:
            handed.write(packed(settings))
            handed.seek(0)
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and no shell
                command, stdin=handed, stdout=self._log, stderr=self._log
            )

    @property
    def pid(self) -> int:
        """The process that was started; with several workers it is their parent."""
        return self._process.pid

    def check(self) -> None:
        """Raise ``BridgeFailed`` if the process has ended."""
        code = self._process.poll()
        if code is not None:
            raise BridgeFailed(f"The bridge ended with exit code {code}. Its last output: {self._last_line()}")

    def wait_ready(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready`` returns true. Raises ``BridgeFailed`` if the bridge ends first or takes over 60 s."""
        give_up = time.monotonic() + _READY_S
        while not ready():
            self.check()
            if time.monotonic() > give_up:
                raise BridgeFailed(
                    f"The bridge was not ready after {_READY_S:.0f} s. The machine may be overloaded: try again. The "
                    f"last line of the bridge's log: {self._last_line()}"
                )
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the process gracefully, kill it if that takes too long, and close its log. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(self._grace_s + _PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def _last_line(self) -> str:
        # The process writes at the place of the same file descriptor, so nothing here may move it.
        log = self._log.fileno()
        end = os.pread(log, _TAIL_BYTES, max(0, os.fstat(log).st_size - _TAIL_BYTES))
        return end.decode(errors="replace").strip().rpartition("\n")[2] or "none"


# -- how it ends ------------------------------------------------------------------------------------------------------


@contextmanager
def deleting(place: str, name: str, delete: Callable[[], None]) -> Iterator[None]:
    """Delete the run's objects in a place at the end of the block, however it ends.

    If that fails, the block's error says so as well, because users read the last line. An interrupt has no text, so
    the failure is printed before it.
    """
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
    try:
        delete()
    except PostdateError as why:
        text = remains(place, name, why)
        if ended is None:
            raise type(why)(text) from why
        if isinstance(ended, PostdateError):
            raise type(ended)(f"{ended}. {text}") from ended
        complain(f"{text}.")
    if ended is not None:
        raise ended


def remains(place: str, name: str, why: PostdateError) -> str:
    """Pure: what a run could not delete, and how to delete it. A server that does not answer may hold nothing."""
    where, how = _PLACES[place]
    verb, when = ("may remain", "When it answers, ") if isinstance(why, Unreachable) else ("remain", "To clean up, ")
    return f"Objects named {name}... {verb} {where} ({why}). {when}{how.format(name=name)}"


@contextmanager
def _handling(handler: Any, numbers: Sequence[signal.Signals]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def uninterrupted() -> AbstractContextManager[None]:
    """Ignore Ctrl-C and SIGTERM in this block, so that cleaning up completes."""
    return _handling(signal.SIG_IGN, (signal.SIGINT, *_ENDING))


def every_signal_interrupts() -> AbstractContextManager[None]:
    """SIGTERM and a closed terminal end this block as Ctrl-C does, so that they clean up as well."""
    return _handling(_interrupt, _ENDING)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
