"""The system: settings, levels, doctor, audit log."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from bridge.app import views
from bridge.app.doctor import examine_all
from bridge.app.leftovers import count_intakes, survey_levels
from bridge.delay.duration import write_moment
from bridge.http.access import Role, router
from bridge.http.backend import Here, reply
from bridge.http.schemas import Anything, problems
from bridge.settings import Settings

reads = router(Role.VIEWER, "system")
admin = router(Role.ADMIN, "system")

#: How long answers of brokers are kept: each asks them for a second or more.
_LEVELS_S, _DOCTOR_S = 5.0, 10.0


@admin.get("/config", summary="Read the settings", responses={200: {"model": Anything}, **problems()})
async def config(here: Here) -> Response:
    """List all settings with their values and sources. Secrets are hidden."""
    return reply({"file": here.settings.file, "settings": views.settings_view(here.settings)})


@reads.get("/levels", summary="Count messages in levels", responses={200: {"model": Anything}, **problems()})
async def levels(here: Here) -> Response:
    """Count the messages in the queues and topics of routes without a store, and in the intakes."""

    async def make() -> Any:
        return await asyncio.to_thread(_levels, here.settings)

    return reply(await here.kept.get("levels", _LEVELS_S, make))


def _levels(settings: Settings) -> dict[str, Any]:
    places, unknown = survey_levels(settings)
    intakes = [views.intake(one) for one in count_intakes(settings)]
    return {"levels": [*intakes, *(views.level(one, one.use, one.text) for one in places)], "warnings": unknown}


@reads.get("/doctor", summary="Examine the installation", responses={200: {"model": Anything}, **problems()})
async def doctor(here: Here) -> Response:
    """Find out what is wrong with settings, store, brokers and instances, and what to do. Nothing is changed."""

    async def make() -> Any:
        found = await asyncio.to_thread(examine_all, here.settings)
        return [
            {"level": one.level.value.lower(), "subject": one.subject, "text": one.text, "advice": one.advice}
            for one in found
        ]

    return reply({"findings": await here.kept.get("doctor", _DOCTOR_S, make)})


@reads.get("/audit", summary="Read the audit log", responses={200: {"model": Anything}, **problems()})
async def audit(
    here: Here,
    before: Annotated[str, Query(pattern=r"^([0-9]{1,13}(-[0-9]{1,10})?)?$")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List what people did to messages and routes, the latest first."""
    found = await (await here.desk()).audit(limit, before)
    entries = [{**asdict(one), "at": write_moment(one.at_ms)} for one in found]
    return reply({"audit": entries, "next": found[-1].id if len(found) == limit else None})
