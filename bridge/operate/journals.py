"""The journals of the stores: make and check their tables, and restore what an order names."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from bridge.app.brokers import desk_of, open_journal, open_store
from bridge.app.build import instance_name, new_token
from bridge.core.clock import StoreClock
from bridge.core.errors import Refused
from bridge.core.journal import Tables
from bridge.pipeline.restore import Restored, RestoreOrder, Restorer
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


async def inspect_journals(settings: Settings) -> int:
    """Check every journal. Return how many there are. Raises ``StoreUnavailable`` and ``StoreUnfit``."""
    async with journals(settings) as found:
        for _, journal in found:
            await journal.open()
    return len(found)


async def restore(
    settings: Settings, order: RestoreOrder, progress: Callable[[Restored], None] = lambda _: None
) -> Restored:
    """Restore in all stores. Return the sums; ``progress`` is told them.

    Raises ``Refused`` without a journal, and ``StoreUnavailable``, ``StoreUnfit``."""
    total = Restored(Counter())
    async with journals(settings, order.wanted.route) as found:
        if not found:
            raise Refused(NO_JOURNAL)
        for plan, journal in found:
            total = _sum(total, await _restore(plan, journal, order, partial(_add, progress, total)))
    return total


def _add(progress: Callable[[Restored], None], before: Restored, part: Restored) -> None:
    progress(_sum(before, part))


async def _restore(
    plan: ProcessPlan, journal: Tables, order: RestoreOrder, progress: Callable[[Restored], None]
) -> Restored:
    await journal.open()
    settings, redis = plan.settings, plan.settings.redis
    store = open_store(settings, StoreClock(), instance_name(settings, new_token()))
    try:
        await store.open(redis.durability, redis.replicas, redis.timeout)
        return await Restorer(store, desk_of(store, plan), journal, store.moves).run(order, progress)
    finally:
        await store.close()


def _sum(first: Restored, second: Restored) -> Restored:
    return Restored(first.counts + second.counts, first.overdue + second.overdue)
