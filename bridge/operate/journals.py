"""The journals of the stores: make and check their tables, and restore what an order names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from bridge.app.brokers import desk_of, loader_of, open_journal, open_store
from bridge.app.build import instance_name
from bridge.core.clock import StoreClock
from bridge.core.errors import Refused, StoreUnavailable
from bridge.core.journal import Tables
from bridge.parking.identity import new_instance
from bridge.pipeline.derive import key_rule
from bridge.pipeline.restore import Restorer
from bridge.pipeline.tiers import TieredStore
from bridge.settings import ProcessPlan, Settings
from bridge.settings.process_plan import used_stores

NO_JOURNAL = "there is no journal to restore from. Set journal.url"


@asynccontextmanager
async def journals(settings: Settings, route: str | None = None) -> AsyncIterator[list[tuple[ProcessPlan, Tables]]]:
    """Make the journal of each store that has one, not connected yet; only that of ``route``, if it is given."""
    async with AsyncExitStack() as stack:
        found = []
        for plan in used_stores(settings):
            journal = open_journal(plan) if route is None or route in plan.settings.routes else None
            if journal is not None:
                stack.push_async_callback(journal.close)
                found.append((plan, journal))
        yield found


async def set_up(settings: Settings, dry_run: bool) -> list[str]:
    """Create or upgrade the tables, or only ask. Return the SQL; nothing where all is as it should be.

    Raises ``StoreUnavailable`` and ``StoreUnfit``."""
    async with journals(settings) as found:
        written = [await (journal.missing() if dry_run else journal.create()) for _, journal in found]
    return list(dict.fromkeys(statement for statements in written for statement in statements))


async def inspect_journals(settings: Settings) -> list[bool]:
    """Check every journal. Return for each whether `postdate run` makes tables for it, as it does in ``app.start``.

    Raises ``StoreUnavailable`` and ``StoreUnfit``."""
    new = []
    async with journals(settings) as found:
        for plan, journal in found:
            new.append(settings.bridge.setup and await journal.is_new() and not await _has_logs(plan))
            if not new[-1]:
                await journal.open()
    return new


async def _has_logs(plan: ProcessPlan) -> bool:
    """Return whether Redis logs its moves for a journal; False while Redis is away."""
    store = open_store(plan.settings, StoreClock(), "check")
    try:
        return await store.moves.begun()
    except StoreUnavailable:  # `check` reports it
        return False
    finally:
        await store.close()


@asynccontextmanager
async def restorers(settings: Settings, route: str | None = None) -> AsyncIterator[list[Restorer]]:
    """Open what restores each store from its journal; only that of ``route``, if it is given.

    Raises ``Refused`` without a journal, and ``StoreUnavailable``, ``StoreUnfit``."""
    async with journals(settings, route) as found, AsyncExitStack() as stack:
        if not found:
            raise Refused(NO_JOURNAL)
        opened = []
        for plan, journal in found:
            await journal.open()
            redis, name = plan.settings.redis, instance_name(plan.settings, new_instance())
            store = open_store(plan.settings, StoreClock(), name)
            stack.push_async_callback(store.close)
            await store.open(redis.durability, redis.replicas, redis.timeout)
            tiered = TieredStore(store, loader_of(store, journal))
            opened.append(Restorer(tiered, desk_of(store, plan), journal, store.moves, key_rule(plan.settings)))
        yield opened
