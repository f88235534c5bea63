"""The faults and the deeds of operators that a plan names, carried out on a world. Each returns what ends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bridge.core.journal import Written
from bridge.core.orders import RouteState
from tests.simulation.instance import CLAIMS, RETRIES, Instance
from tests.simulation.journal import JournalServer
from tests.simulation.plan import COLD_AFTER_MS, Fault
from tests.simulation.servers import Network, Server
from tests.simulation.world import ROUTES, AnyInstance, World

_End = Callable[[], object]
#: How many messages an operator acts on at once, and a bulk operation.
_SOME, _MANY = 5, 250


def begin(world: World, fault: Fault) -> None:
    """Begin a fault, and end it in its time."""
    world.note(f"begin {fault.kind}, {fault.for_s:.3f} s, {fault.which}")
    end = _FAULTS[fault.kind](world, fault)

    def over() -> None:
        world.note(f"end {fault.kind}, {fault.which}")
        end()

    world.loop.call_later(fault.for_s, over)


def _nothing() -> None:
    pass


def _victim(world: World, fault: Fault) -> AnyInstance:
    living = [instance for instance in world.instances if not instance.process.killed] or [world.start()]
    return living[fault.which % len(living)]


# -- processes --------------------------------------------------------------------------------------------------------


def _kill(world: World, fault: Fault) -> _End:
    _victim(world, fault).kill()
    return world.start


def _stop(world: World, fault: Fault) -> _End:
    _victim(world, fault).stop()
    return world.start


def _join(world: World, _: Fault) -> _End:
    world.start()
    return _nothing


def _freeze(world: World, fault: Fault) -> _End:
    victim = _victim(world, fault)
    victim.process.freeze()
    if fault.for_s > 20 and hasattr(victim, "source") and not world.plan.kafka:
        world.loop.call_later(15.0, victim.source.reconnect)  # a broker gives up on a silent client
    elif fault.for_s > 10 and hasattr(victim, "source") and world.plan.kafka:
        world.loop.call_later(10.0, victim.source.reconnect)
    return victim.process.thaw


def _machine_clock(world: World, fault: Fault) -> _End:
    _victim(world, fault).process.set_by_s += world.random.choice((-3600.0, -2.0, 5.0, 86_400.0))
    return _nothing


def _reload(world: World, _: Fault) -> _End:
    """Every instance takes over another pace, other batches and other waits."""
    random = world.random
    claim = replace(CLAIMS, pace_ms=random.choice((1, 5, 20)), batch_max=random.choice((10, 100, 500)))
    retry = replace(RETRIES, first_ms=random.choice((50, 500)), factor=random.choice((1.0, 2.0)))
    for instance in world.instances:
        if not instance.process.killed:
            instance.reload(claim, retry)
    return _nothing


# -- the store --------------------------------------------------------------------------------------------------------


def _store_frozen(world: World, _: Fault) -> _End:
    world.store.freeze()
    return world.store.thaw


def _store_away(world: World, _: Fault) -> _End:
    world.store.memory.away = "connection refused"

    def back() -> None:
        world.store.memory.away = ""

    return back


def _store_slow(world: World, _: Fault) -> _End:
    return _network(world.store, Network(0.05, 1.5))


def _store_loses(world: World, _: Fault) -> _End:
    return _network(world.store, Network(lost=0.3))


def _network(server: Server, network: Network) -> _End:
    """Of several at once the last that began counts; without any, that of the plan."""
    server.networks.append(network)
    server.network = network

    def back() -> None:
        server.networks.remove(network)
        server.network = server.networks[-1]

    return back


def _store_clock(world: World, fault: Fault) -> _End:
    step_ms = world.random.choice((-1, 1)) * world.random.choice((600, 5_000, 30_000))
    world.note(f"the store's clock steps by {step_ms} ms")
    world.store.clock.step(step_ms)
    world.waits_s += max(0, -step_ms) / 1000  # what was parked before a step back waits longer
    return _nothing


def _store_restored(world: World, _: Fault) -> _End:
    """A replica without the last milliseconds, or an older file: what was parked since is gone."""
    kept, since_s = world.store.snapshot(), world.loop.time()

    return lambda: world.lose(since_s, lambda: world.store.restore(kept))


def _store_emptied(world: World, _: Fault) -> _End:
    world.lose(0.0, world.store.empty)
    return _nothing


# -- the journal ------------------------------------------------------------------------------------------------------


def _of_journal(fault: Callable[[World, JournalServer], _End]) -> Callable[[World, Fault], _End]:
    def begin_it(world: World, _: Fault) -> _End:
        return _nothing if world.journal is None else fault(world, world.journal)

    return begin_it


def _journal_away(_: World, journal: JournalServer) -> _End:
    journal.memory.away = "connection refused"

    def back() -> None:
        journal.memory.away = ""

    return back


def _journal_frozen(_: World, journal: JournalServer) -> _End:
    journal.freeze()
    return journal.thaw


def _journal_breaks(_: World, journal: JournalServer) -> _End:
    journal.breaking = 0.3

    def holds() -> None:
        journal.breaking = 0.0

    return holds


def _die_together(world: World, fault: Fault) -> _End:
    """An instance is killed, and the store loses everything within the second."""
    start = _kill(world, fault)
    world.loop.call_later(world.random.uniform(0.0, 1.0), _store_emptied, world, fault)
    return start


def _loader(world: World) -> AnyInstance | None:
    name, _ = world.store.memory.leads.get("load", ("", 0))
    return next(
        (instance for instance in world.instances if instance.name == name and not instance.process.killed), None
    )


def _loader_killed(world: World, _: Fault) -> _End:
    if (loader := _loader(world)) is None:
        return _nothing
    loader.kill()
    return world.start


def _loader_frozen(world: World, fault: Fault) -> _End:
    if (loader := _loader(world)) is None:
        return _nothing
    living = [instance for instance in world.instances if not instance.process.killed]
    return _freeze(world, fault._replace(which=living.index(loader)))


def _cold_tier_off(world: World, _: Fault) -> _End:
    """The instances start again with another ``cold_after``, one after the other; and once more with the one before."""

    def turn() -> None:
        world.cold_after_ms = 0 if world.cold_after_ms else COLD_AFTER_MS
        _start_again(world)

    turn()
    return turn


def _restores(world: World, fault: Fault) -> _End:
    world.restore()
    if fault.kind == "two restores":
        world.restore()
    return _nothing


def _restore_killed(world: World, fault: Fault) -> _End:
    world.restore(for_s=fault.for_s)
    return _nothing


def _cancel_undone(world: World, _: Fault) -> _End:
    world.undo_cancels()
    return _nothing


def _acts_on_cold(verb: str, after_ms: float = 0.0) -> Callable[[World, JournalServer], _End]:
    def act(world: World, journal: JournalServer) -> _End:
        ids = sorted(message_id for message_id, state in journal.waiting().items() if state is Written.COLD)
        world.act(verb, world.random.sample(ids, min(len(ids), _SOME)), after_ms)
        return _nothing

    return act


# -- the broker -------------------------------------------------------------------------------------------------------


def _broker_frozen(world: World, _: Fault) -> _End:
    world.broker.freeze()

    def thaw() -> None:
        world.broker.thaw()
        world.broker.hand_out()

    return thaw


def _broker_blocked(world: World, _: Fault) -> _End:
    """Each connection learns by itself, within half a second, that the broker takes messages again."""
    for sink in world.broker.sinks:
        sink.blocked = True

    def free() -> None:
        for sink in world.broker.sinks:
            world.loop.call_later(world.random.uniform(0.0, 0.5), sink.unblocked)

    return free


def _sink_disconnected(world: World, fault: Fault) -> _End:
    victim = _victim(world, fault)
    if not hasattr(victim, "sink"):
        return _nothing
    victim.sink.disconnect()
    return victim.sink.connect


def _source_disconnected(world: World, fault: Fault) -> _End:
    victim = _victim(world, fault)
    if hasattr(victim, "source"):
        victim.source.reconnect()
    return _nothing


def _refuses(world: World, _: Fault) -> _End:
    world.broker.refusing = 0.3

    def takes() -> None:
        world.broker.refusing = 0.0

    return takes


def _refuses_for_good(world: World, _: Fault) -> _End:
    world.broker.refusing_for_good = 0.3

    def takes() -> None:
        world.broker.refusing_for_good = 0.0

    return takes


def _deaf(world: World, _: Fault) -> _End:
    """The broker hears no acknowledgement. Then every connection breaks, and what was accepted comes again."""
    world.broker.hears = False

    def hears() -> None:
        world.broker.hears = True
        for source in tuple(world.broker.sources):
            source.reconnect()

    return hears


def _confirms_lost(world: World, fault: Fault) -> _End:
    """An instance gets no confirm. Then its connection breaks, and the outcome of all is unknown."""
    victim = _victim(world, fault)
    if not hasattr(victim, "sink"):
        return _nothing
    victim.sink.hears = False

    def breaks() -> None:
        victim.sink.disconnect()
        victim.sink.connect()

    return breaks


def _channel_closed(world: World, fault: Fault) -> _End:
    victim = _victim(world, fault)
    if not hasattr(victim, "sink"):
        return _nothing
    victim.sink.close_channel()
    return victim.sink.connect


def _rebalance(world: World, _: Fault) -> _End:
    """Every log moves to the next reader, and on when this ends."""

    def turn() -> None:
        world.broker.turned += 1
        world.broker.rebalance()

    turn()
    return turn


def _route_removed(world: World, fault: Fault) -> _End:
    """The instances start again one after the other, with settings that lack a route. Then the route comes back."""
    route = ROUTES[fault.which % len(ROUTES)]
    world.removed.append(route)
    _start_again(world)

    def back() -> None:
        world.removed.remove(route)
        _start_again(world)

    return back


def _route_reloaded(world: World, fault: Fault) -> _End:
    """The instances lose a route at a reload, one after the other. Then it comes back in the same way."""
    route = ROUTES[fault.which % len(ROUTES)]

    def reload() -> None:
        routes = tuple(name for name in ROUTES if name not in world.removed)
        for place, instance in enumerate(world.instances):
            if isinstance(instance, Instance) and not instance.process.killed:
                world.loop.call_later(0.7 * place, instance.have, routes)

    def back() -> None:
        world.removed.remove(route)
        reload()

    world.removed.append(route)
    reload()
    return back


def _start_again(world: World) -> None:
    for place, instance in enumerate([instance for instance in world.instances if not instance.process.killed]):
        world.loop.call_later(0.7 * place, _replace, world, instance)


def _replace(world: World, instance: AnyInstance) -> None:
    if instance.process.killed or instance in world.leaving:
        return  # another change of the settings, or a fault, was first
    world.leaving.append(instance)
    world.start()
    instance.stop()


# -- operators --------------------------------------------------------------------------------------------------------


def _ordered(state: RouteState) -> Callable[[World, Fault], _End]:
    def order(world: World, fault: Fault) -> _End:
        ordered = world.order(ROUTES[fault.which % len(ROUTES)], state)

        def resume() -> None:
            if world.loop.time() < ordered.to_s:  # otherwise another order took its place
                world.order(ordered.route, RouteState.RUNNING)

        return resume

    return order


def _acts(
    verb: str, after_ms: Callable[[World], float] = lambda _: 0.0, most: int = _SOME
) -> Callable[[World, Fault], _End]:
    def act(world: World, _: Fault) -> _End:
        ids = sorted(world.kept())
        world.act(verb, world.random.sample(ids, min(len(ids), most)), after_ms(world))
        return _nothing

    return act


def retry_dead(world: World) -> None:
    """Retry every dead letter."""
    world.act("retry", sorted(message_id for shard in world.store.memory.shards for message_id in shard.dead))


def _retry(world: World, _: Fault) -> _End:
    retry_dead(world)
    return _nothing


_FAULTS: dict[str, Callable[[World, Fault], _End]] = {
    "kill": _kill,
    "stop": _stop,
    "join": _join,
    "freeze": _freeze,
    "machine clock": _machine_clock,
    "reload": _reload,
    "store frozen": _store_frozen,
    "store away": _store_away,
    "store slow": _store_slow,
    "store loses replies": _store_loses,
    "store clock": _store_clock,
    "store emptied": _store_emptied,
    "store fails over": _store_restored,
    "store restored": _store_restored,
    "broker frozen": _broker_frozen,
    "broker blocked": _broker_blocked,
    "sink disconnected": _sink_disconnected,
    "source disconnected": _source_disconnected,
    "broker refuses": _refuses,
    "broker refuses for good": _refuses_for_good,
    "acknowledgements lost": _deaf,
    "confirms lost": _confirms_lost,
    "channel closed": _channel_closed,
    "rebalance": _rebalance,
    "route removed": _route_removed,
    "route reloaded": _route_reloaded,
    "pause": _ordered(RouteState.PAUSED),
    "drain": _ordered(RouteState.DRAINING),
    "cancel": _acts("cancel"),
    "reschedule": _acts("reschedule", lambda world: world.random.choice((100.0, 2_000.0, 10_000.0))),
    "deliver now": _acts("deliver now"),
    "retry": _retry,
    "bulk cancel": _acts("cancel", most=_MANY),
    "journal away": _of_journal(_journal_away),
    "journal slow": _of_journal(lambda _, journal: _network(journal, Network(0.05, 1.5))),
    "journal frozen": _of_journal(_journal_frozen),
    "journal breaks": _of_journal(_journal_breaks),
    "restore": _restores,
    "two restores": _restores,
    "restore killed": _restore_killed,
    "store and process die": _die_together,
    "loader killed": _loader_killed,
    "loader frozen": _loader_frozen,
    "cold tier off": _cold_tier_off,
    "cancel cold": _of_journal(_acts_on_cold("cancel")),
    "reschedule cold": _of_journal(_acts_on_cold("reschedule", 15_000.0)),
    "deliver cold": _of_journal(_acts_on_cold("deliver now")),
    "cancel undone": _cancel_undone,
    "bulk reschedule": _acts("reschedule", lambda world: world.random.choice((100.0, 2_000.0)), _MANY),
}
