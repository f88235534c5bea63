"""The overview: status, instances, and who the caller is."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from bridge import __version__
from bridge.admin.desk import Stats
from bridge.app import views
from bridge.delay.duration import write_duration
from bridge.http.access import Role, router
from bridge.http.backend import Backend, Here, Who, reply
from bridge.http.schemas import Anything, Me, StatusFacts, problems

reads = router(Role.VIEWER, "status")


@reads.get("/status", summary="Read the overview", responses={200: {"model": StatusFacts}, **problems()})
async def status(here: Here, who: Who) -> Response:
    """Return the numbers of the overview, and one sentence that says whether all is well."""
    found = await here.look.stats()
    return reply(facts(here, found, who.role.title))


def facts(here: Backend, found: Stats, role: str) -> dict[str, Any]:
    """Return the overview as JSON values."""
    troubles = [
        {"instance": str(one["name"]), "subject": "", "text": str(one.get("health"))}
        for one in views.instances(found)
        if not one.get("able")
    ]
    well = not troubles and not found.overdue
    return {
        "now_ms": found.now_ms,
        "well": well,
        "sentence": _sentence(found, well),
        "troubles": troubles,
        "parked": found.parked,
        "held": 0,
        "claimed": found.claimed,
        "dead": found.dead,
        "overdue": found.overdue,
        "oldest_overdue_ms": views.overdue_ms(found),
        "next_due_ms": found.next_due_ms,
        "memory": views.stats(found)["memory"],
        "ever": dict(found.ever),
        "instances": len(found.instances),
        "version": __version__,
        "role": role,
        "bodies": here.settings.ui.bodies,
    }


def _sentence(found: Stats, well: bool) -> str:
    if not well:
        return f"Overdue: {found.overdue}."
    due = "none due"
    if found.next_due_ms is not None:
        due = f"next in {write_duration(max(0, found.next_due_ms - found.now_ms) // 1000 * 1000)}"
    return f"All well: {found.parked} parked, {due}, nothing overdue."


@reads.get("/instances", summary="List instances", responses={200: {"model": Anything}, **problems()})
async def instances(here: Here) -> Response:
    """List the running instances with their reports."""
    return reply({"instances": views.instances(await here.look.stats())})


@reads.get("/me", summary="Read your role", responses={200: {"model": Me}, **problems()})
async def me(who: Who) -> Response:
    """Return the role of the token."""
    return reply({"role": who.role.title})
