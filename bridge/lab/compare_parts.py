"""What ``compare`` is put together from: the ways to wait, put up on the broker of the settings."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from adapters.rabbitmq.lab import ends, ways
from adapters.rabbitmq.lab.stage import Stage
from adapters.rabbitmq.topology import setup
from adapters.redis.lab import StoreStage
from bridge.core.clock import StoreClock
from bridge.core.errors import Unreachable
from bridge.lab.bench.measure import Place, Progress
from bridge.lab.bench.processes import carry
from bridge.lab.bench_parts import store_version
from bridge.lab.cleanup import cleared
from bridge.lab.compare.measure import Measurement, Usage, Way
from bridge.lab.compare.modes import Mode, levels_for
from bridge.lab.compare.plan import Plan
from bridge.lab.trial.config import Names, new_names, trial_settings
from bridge.lab.trial.open import ADVICE, Trial, uninterrupted
from bridge.lab.trial.usage import command_of, cpu_s, listening_pid, rss_bytes
from bridge.settings import RabbitMQ, Settings

#: RabbitMQ's program. Behind its port there may be another one that only passes bytes on.
_BROKER = "beam.smp"


def why_no_plugin(settings: Settings) -> str:
    """See ``adapters.rabbitmq.lab.ways.why_no_plugin``. Raises ``Unreachable``, whose text says what to type."""
    with _advice():
        return ways.why_no_plugin(settings.rabbitmq)


def check_servers(settings: Settings, modes: Sequence[Mode]) -> None:
    """Raise ``Unreachable``, whose text says what to type, unless everything that the modes need answers."""
    names = new_names("compare")
    with _advice():
        Stage(trial_settings(settings, names), names).close()
        if any(mode.route_mode == "redis" for mode in modes):
            asyncio.run(_look_at_store(settings))


async def _look_at_store(settings: Settings) -> None:
    store = StoreStage(settings.redis, StoreClock())
    try:
        await store.look_at_clock()
    finally:
        await store.close()


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except Unreachable as error:
        raise Unreachable(f"{error}. {ADVICE}") from error


@contextmanager
def measurement(
    settings: Settings, plan: Plan, mode: Mode, bar: Progress, versions: dict[str, str]
) -> Iterator[Measurement]:
    """A mode that is up for this block; ``versions`` is told of what has a part in it. Raises ``Unreachable``."""
    names = new_names(f"compare.{mode.name}")
    levels = levels_for(settings.headers.levels, plan.delays_ms())
    own = trial_settings(
        settings,
        names,
        mode.route_mode or "redis",
        log={"level": "warning"},
        headers={"levels": levels},
        levels={"last_hop": "broker"} if mode.alone else {},
    )
    put_up = _bridge_way if mode.bridged else _bare_way
    with put_up(own, mode, names, versions) as way:
        run = random.getrandbits(30)
        yield Measurement(plan, mode, way, partial(carry, ends(settings.rabbitmq)), bar, levels, run)


def _place(names: Names) -> Place:
    return Place(names.front, names.target, names.queue)


class _Broker:
    """RabbitMQ's own process, where it is one of this machine."""

    def __init__(self, settings: RabbitMQ) -> None:
        from adapters.rabbitmq.connection import addresses

        first, *others = addresses(settings)  # of several, nothing tells which one does the work
        pid = listening_pid(first.port) if _is_here(first.host) and not others else None
        self._pid = pid if pid is not None and command_of(pid) == _BROKER else None

    def usage(self) -> Usage:
        return Usage(cpu_s(self._pid), rss_bytes(self._pid)) if self._pid is not None else Usage(None, None)


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _BridgeWay:
    """A mode of postdate's, with a bridge of its own."""

    def __init__(self, trial: Trial, mode: Mode) -> None:
        self._trial = trial
        self._stored = mode.route_mode == "redis"
        self._broker = _Broker(trial.settings.rabbitmq)
        self.place = _place(trial.names)

    def check(self) -> None:
        self._trial.bridge.check()

    def unsettled(self) -> int:
        assert isinstance(self._trial.broker, Stage)
        return self._trial.broker.waiting(self._trial.names.intake)

    def usage(self) -> dict[str, Usage]:
        trial, pid = self._trial, self._trial.bridge.pid
        found = {"bridge": Usage(cpu_s(pid), rss_bytes(pid)), "broker": self._broker.usage()}
        if self._stored:
            store = trial.store
            found["store"] = Usage(trial.wait_for(store.cpu_s()), trial.wait_for(store.used_bytes()))
        return found

    def restart(self) -> None:
        self._trial.restart()


@contextmanager
def _bridge_way(own: Settings, mode: Mode, names: Names, versions: dict[str, str]) -> Iterator[Way]:
    with Trial(own, names) as trial:
        versions |= dict(trial.broker.versions)
        if mode.route_mode == "redis":
            versions |= store_version(trial)
        yield _BridgeWay(trial, mode)


class _BareWay:
    """A mode that is the broker's alone."""

    def __init__(self, settings: Settings, names: Names) -> None:
        self._broker = _Broker(settings.rabbitmq)
        self.place = _place(names)

    def check(self) -> None:
        """Nothing of ours runs here."""

    def unsettled(self) -> int:
        # It is in its place when the broker has confirmed it.
        return 0

    def usage(self) -> dict[str, Usage]:
        return {"broker": self._broker.usage()}

    def restart(self) -> None:
        raise AssertionError("the user's broker is not ours to restart")


@contextmanager
def _bare_way(own: Settings, mode: Mode, names: Names, versions: dict[str, str]) -> Iterator[Way]:
    with _advice():
        stage = Stage(own, names)
    with stage:
        versions |= stage.versions
        with cleared("rabbitmq", names.prefix, partial(_take_down, stage)):
            stage.put_up()
            if mode.alone:
                setup.declare(own)
            else:
                ways.put_up(own.rabbitmq, mode.name, names)
            yield _BareWay(own, names)


def _take_down(stage: Stage) -> None:
    with uninterrupted():
        stage.take_down()
