"""The system: settings, levels, doctor, audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

from fastapi import Query
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from starlette.responses import Response

from bridge.app.survey import count_intakes, survey_levels
from bridge.desk.severity import CheckResult, warn
from bridge.http.access import Role, router
from bridge.http.backend import Here, Who, reply
from bridge.http.schemas import Anything, problems
from bridge.operate.describe import intake_of, level_of
from bridge.operate.doctor import examine_all
from bridge.operate.documents import AuditList
from bridge.process.http_child import Reloading
from bridge.settings import Settings, mask_url
from bridge.settings.names import dotted, is_secret, leaves_of, rule_of
from bridge.settings.urls import DOTS, Url

reads = router(Role.VIEWER, "system")
admin = router(Role.ADMIN, "system")

#: How long answers of brokers are kept: each asks them for a second or more.
_LEVELS_S, _DOCTOR_S = 5.0, 10.0


@admin.get("/config", summary="Read the settings", responses={200: {"model": Anything}, **problems()})
async def config(here: Here) -> Response:
    """List all settings with their values and sources. Secrets are hidden."""
    return reply({"file": here.settings.file, "settings": _shown(here.settings)})


def _shown(settings: Settings) -> list[dict[str, Any]]:
    """Return every setting with its value as in a file, and where it was read from. Secrets are hidden."""
    found = []
    for path, field, value in leaves_of(settings):
        name = dotted(path)
        source = settings.origin.sources.get(name, "default")
        found.append({"name": name, "value": _setting(field, value), "source": source, "secret": is_secret(field)})
    return found


def _setting(field: FieldInfo, value: Any) -> Any:
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return mask_url(text) if isinstance(rule_of(field), Url) else DOTS if text else ""
    rule = rule_of(field)
    return value if rule is None or isinstance(value, bool | tuple) else rule.write(value)


@reads.get("/levels", summary="Count messages in levels", responses={200: {"model": Anything}, **problems()})
async def levels(here: Here) -> Response:
    """Count the messages in the queues and topics of routes without a store, and in the intakes."""
    return reply(await here.kept.get("levels", _LEVELS_S, partial(asyncio.to_thread, _levels, here.settings)))


def _levels(settings: Settings) -> dict[str, Any]:
    places, unknown = survey_levels(settings)
    levels = [*map(intake_of, count_intakes(settings)), *(level_of(place, place.use, place.text) for place in places)]
    return {"levels": [level.as_dict() for level in levels], "warnings": unknown}


@reads.get("/doctor", summary="Examine the installation", responses={200: {"model": Anything}, **problems()})
async def doctor(here: Here) -> Response:
    """Find out what is wrong with settings, store, brokers and instances, and what to do. Nothing is changed."""
    examine = partial(asyncio.to_thread, examine_all, here.settings)
    found = [*_judged_reload(here.processes.reloading), *await here.kept.get("doctor", _DOCTOR_S, examine)]
    return reply({"findings": [result.finding() | {"level": result.level.value.lower()} for result in found]})


def _judged_reload(last: Reloading) -> Iterator[CheckResult]:
    """Warn about a reload that failed: the running settings are fine, those of the next start are not. Pure."""
    if last.failure:
        yield warn("settings", last.failure, "Correct the file and reload again. The next start would fail")


@reads.get("/audit", summary="Read the audit log", responses={200: {"model": AuditList}, **problems()})
async def audit(
    here: Here,
    who: Who,
    before: Annotated[str, Query(pattern=r"^([0-9]{1,13}(-[0-9]{1,10})?)?$")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """List what people did to messages and routes, the latest first."""
    return reply(await here.operator(who).audit(limit, before))
