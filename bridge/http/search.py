"""Where is my message? And why are messages dead?"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from bridge.core.state import State
from bridge.desk.numbers import RouteStats
from bridge.desk.rows import Filter, Row
from bridge.http.access import Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.schemas import Anything, Text, problems
from bridge.operate import find
from bridge.operate.documents import ID, SearchResult

reads = router(Role.VIEWER, "messages")

#: How long dead letters are counted for one answer, and how long the answer is kept (s).
_COUNT_S, _COUNTED_S = 2.0, 5.0


@reads.get("/search", summary="Find a message by id or key", responses={200: {"model": SearchResult}, **problems()})
async def search(
    here: Here, who: Who, q: Annotated[str, Query(max_length=500, pattern=r"\S", examples=[ID])], route: Text = None
) -> Response:
    """Find messages by their id or by the producer's key: in the store, and in the history of those that left it."""
    return reply(await here.operator(who).search(q.strip(), route))


@reads.get("/dead/reasons", summary="Count dead letters by reason", responses={200: {"model": Anything}, **problems()})
async def dead_reasons(here: Here, who: Who, route: Text = None) -> Response:
    """Count the dead letters by the kind of their reason. A count that takes too long is partial: not complete."""
    if route and route not in here.settings.routes:
        await here.operator(who).judge_empty(route)
        return reply(await _reasons(here, route))
    return reply(await here.kept.get(f"reasons {route}", _COUNTED_S, partial(_reasons, here, route)))


async def _reasons(here: Backend, route: str | None) -> dict[str, Any]:
    desk, wanted = await here.stores.desk(), find.Criteria(Filter(route=route or None))
    counts: Counter[str] = Counter()
    looked_at, until = 0, time.monotonic() + _COUNT_S
    page: find.Page[Row] = find.Page([], None, 0)
    while True:
        async with here.looking():
            page = await find.page(desk, State.DEAD, wanted, page.after, find.LOOKED_MAX)
        counts.update(row.reason.partition(":")[0] or "unknown" for row in page.rows)
        looked_at += page.looked_at
        if page.after is None or time.monotonic() > until:
            break
    reasons = [{"reason": reason, "count": count} for reason, count in counts.most_common(50)]
    found = await here.look.stats()
    dead = found.by_route.get(route, RouteStats()).dead if route else found.dead
    total = max(looked_at, dead)
    return {"reasons": reasons, "looked_at": looked_at, "complete": page.after is None, "total": total}
