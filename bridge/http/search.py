"""Where is my message? And why are messages dead?"""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from bridge.admin.desk import Filter
from bridge.admin.where import history_view, where_is
from bridge.app import lists, views
from bridge.app.lists import Wanted
from bridge.core.state import State
from bridge.http.access import Role, router
from bridge.http.backend import Here, reply
from bridge.http.messages import Text, as_bytes
from bridge.http.schemas import ID, Anything, SearchResult, problems

reads = router(Role.VIEWER, "messages")


@reads.get("/search", summary="Find a message by id or key", responses={200: {"model": SearchResult}, **problems()})
async def search(
    here: Here, q: Annotated[str, Query(max_length=500, pattern=r"\S", examples=[ID])], route: Text = None
) -> Response:
    """Find messages by their id or by the producer's key: in the store, and in the history of those that left it."""
    desk = await here.desk()
    routes = [route] if route else list(here.settings.routes)
    found = await where_is(desk, routes, as_bytes("q", q.strip()))
    past = [one for one in found.past if not route or one.route == route]
    rows = [row for row in found.rows if not route or row.route == route]
    return reply(
        {"found": [*(views.message(row) for row in rows), *(history_view(one) for one in past)], "text": found.text}
    )


@reads.get("/dead/reasons", summary="Count dead letters by reason", responses={200: {"model": Anything}, **problems()})
async def dead_reasons(here: Here, route: Text = None) -> Response:
    """Count the dead letters by the kind of their reason. Looks at a bounded number of them."""
    page = await lists.page(await here.desk(), State.DEAD, Wanted(Filter(route=route or None)), None, lists.LOOKED_MAX)
    counts = Counter(row.reason.partition(":")[0] or "unknown" for row in page.rows)
    reasons = [{"reason": reason, "count": count} for reason, count in counts.most_common(50)]
    return reply({"reasons": reasons, "looked_at": page.looked_at, "complete": page.after is None})
