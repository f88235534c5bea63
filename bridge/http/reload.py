"""``POST /-/reload``: the same as SIGHUP to the bridge, with the result in the answer."""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from bridge.desk.past import AuditEntry
from bridge.http.access import Role, router
from bridge.http.backend import Here, Who, reply
from bridge.http.problems import Problem
from bridge.http.schemas import problems

admin = router(Role.ADMIN, "settings", prefix="/-")
_PATIENCE_S = 30.0


@admin.post("/reload", summary="Reload the settings", responses=problems(409, 501))
async def reload(here: Here, who: Who) -> Response:
    """Read the settings again and take over those that can change live. The answer names those that need a restart."""
    ask = here.processes.ask_reload
    if ask is None:
        raise Problem(501, "`postdate serve` does not reload. Restart it.")
    waiting = here.processes.next_reload()
    ask()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            found = await waiting
    except TimeoutError:
        raise Problem(503, f"The bridge did not reload within {_PATIENCE_S:.0f} s. Its log says why.") from None
    refused = "" if found.worked else f"Nothing was changed. {found.text}"
    await here.note(AuditEntry(who.by, "reload", f"settings. {refused}" if refused else "settings"))
    if refused:
        raise Problem(409, refused)
    return reply({"text": found.text})
