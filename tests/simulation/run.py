"""One run: the plan of a seed, carried out on virtual time, and judged.

``run`` is deterministic: the same plan gives the same run, event by event.
"""

from __future__ import annotations

import asyncio
import gc
import random as global_random
import secrets
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

import structlog

from bridge.core.orders import RouteState
from tests.simulation.broker import Broker
from tests.simulation.faults import begin, retry_dead
from tests.simulation.instance import on_virtual_time
from tests.simulation.journal import JournalServer
from tests.simulation.ledger import judge
from tests.simulation.loop import PROCESS, Deadlock, VirtualLoop
from tests.simulation.plan import LOAD_S, Plan
from tests.simulation.servers import Network
from tests.simulation.store import START_S, StoreServer
from tests.simulation.transactions import simulated_sessions
from tests.simulation.truth import look
from tests.simulation.world import ROUTES, World

#: Everything must have arrived by this time after the load and the last fault.
SETTLED_S = 90.0


@dataclass
class Outcome:
    """What a run showed. ``broken`` is empty where every promise was kept."""

    plan: Plan
    broken: list[str]
    trace: list[str]
    arrived: int
    virtual_s: float


def run(plan: Plan, without: Collection[str] = ()) -> Outcome:
    """Carry out a plan and judge it. Checks ``without`` are left out."""
    loop = VirtualLoop()
    with _determined(loop, plan.seed):
        return _outcome(plan, loop, without)  # nothing of the world is referred to when its memory is collected


def _outcome(plan: Plan, loop: VirtualLoop, without: Collection[str]) -> Outcome:
    random = Random(plan.seed)
    store = StoreServer(loop, random, plan.shards)
    broker = Broker(store, random, logs=2 if plan.kafka else 0, holds=plan.hold)
    store.network = Network(lost=plan.lost, slow=plan.slow)
    store.networks = [store.network]
    store.clock.drift = plan.drift
    if plan.calm:
        store.hints_lost = 0.0
    journal = JournalServer(loop, Random(f"journal {plan.seed}")) if plan.journal else None
    world = World(plan, loop, random, store, broker, journal=journal)
    try:
        with simulated_sessions(broker):
            loop.run_until_complete(_play(world))
        broken = [*judge(world, without), *_left(world)]
    except Deadlock:
        broken = ["stuck: every loop waits, and no timer is set"]
    broken += [f"error: unhandled {error}" for error in loop.errors[:3]]
    broken += _ended_loops(world)
    broken = [text for text in broken if text.partition(":")[0] not in without]
    return Outcome(plan, broken, world.trace, len(broker.arrived), loop.time())


async def _play(world: World) -> None:
    plan, loop = world.plan, world.loop
    for _ in range(plan.instances):
        world.start()
    world.schedule_load()
    for fault in plan.faults:
        loop.call_later(fault.at_s, begin, world, fault)
        world.faults_end_s = max(world.faults_end_s, fault.at_s + fault.for_s)
    while loop.time() < max(world.faults_end_s, LOAD_S) + 1.0:
        await asyncio.sleep(0.5)
        look(world)
    world.store.network = world.broker.network = Network()
    if world.undone and world.journal is not None and not plan.auto:
        world.restore()
    for route in ROUTES:  # an older state of the store may have brought an order back
        world.order(route, RouteState.RUNNING)
    world.note("no more faults")
    deadline_s = loop.time() + SETTLED_S + world.waits_s
    while loop.time() < deadline_s and (world.broker.left() or world.kept() or _waits(world)):
        retry_dead(world)
        world.restore_what_is_reported()
        await asyncio.sleep(0.5)
        look(world)
    world.note("settled" if loop.time() < deadline_s else "not settled")
    await asyncio.sleep(2.5)  # the history is written once a second
    if plan.cold_after_ms and world.journal is not None and loop.time() < world.counted_from_s():
        await asyncio.sleep(world.counted_from_s() - loop.time() + 0.001)
    look(world)


def _waits(world: World) -> bool:
    """Return whether rows of the journal wait, or a restore goes on."""
    return world.restores_under_way() or (world.journal is not None and bool(world.journal.waiting()))


# -- what must hold at the end ----------------------------------------------------------------------------------------


def _left(world: World) -> Iterator[str]:
    """Yield what is left although everything must have been delivered."""
    memory = world.store.memory
    claimed, dead = (sum(len(getattr(shard, name)) for shard in memory.shards) for name in ("claimed", "dead"))
    if dead:
        reasons = {shard.why.get(message_id, "") for shard in memory.shards for message_id in shard.dead}
        yield f"stuck: {dead} dead letters, {sorted(reasons)[:2]}"
    if (kept := len(world.kept())) or claimed:
        yield f"stuck: {kept} in the store, of them claimed {claimed}"
    if world.journal is not None and (rows := world.journal.waiting()):
        yield f"stuck: {len(rows)} rows of the journal wait, and the store has none of them"
    if left := world.broker.left():
        yield f"stuck: {left} in the broker"


def _ended_loops(world: World) -> Iterator[str]:
    """Yield the loops of living instances that ended, which none may."""
    for instance in world.instances:
        for task in instance.process.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                yield f"error: a loop of {instance.name} ended with {error!r}"


@contextmanager
def _determined(loop: VirtualLoop, seed: int) -> Iterator[None]:
    """Take time and chance from the run."""
    secret = Random(seed)
    state = global_random.getstate()
    collecting = gc.isenabled()
    asyncio.set_event_loop(loop)
    with ExitStack() as patches:
        patches.enter_context(patch.object(time, "monotonic", _monotonic(loop)))
        patches.enter_context(patch.object(time, "time", _wall(loop)))
        patches.enter_context(patch.object(secrets, "token_bytes", secret.randbytes))
        patches.enter_context(patch.object(secrets, "randbits", secret.getrandbits))
        patches.enter_context(on_virtual_time())
        patches.enter_context(structlog.testing.capture_logs())
        global_random.seed(seed)
        gc.disable()
        gc.freeze()  # what was there before need not be looked at afterwards
        try:
            yield
        finally:
            global_random.setstate(state)
            _forget(loop)
            gc.unfreeze()
            if collecting:
                gc.enable()


def _monotonic(loop: VirtualLoop) -> Callable[[], float]:
    def monotonic_s() -> float:
        process = PROCESS.get()
        return loop.now_s if process is None else loop.now_s * (1 + process.drift)

    return monotonic_s


def _wall(loop: VirtualLoop) -> Callable[[], float]:
    def wall_s() -> float:
        process = PROCESS.get()
        return START_S + loop.now_s + (0.0 if process is None else process.set_by_s)

    return wall_s


def _forget(loop: VirtualLoop) -> None:
    """Drop what is left of a run. Its finally blocks fail, as they must: there is no loop any more."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        with suppress(Exception):
            task.get_coro().close()
    asyncio.set_event_loop(None)
    loop.close()
    gc.collect()
