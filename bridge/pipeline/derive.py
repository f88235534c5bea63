"""Derive the rules of each stage from the settings. Pure."""

from __future__ import annotations

from collections.abc import Callable

from bridge.delay.header import HeaderRules
from bridge.delay.levels import LevelRules, rounding, to_the_millisecond, to_whole_seconds
from bridge.delay.schedule import RetrySchedule, read_jitter
from bridge.delay.trust import Trust
from bridge.parking.history import HistoryLimits
from bridge.pipeline.assemble import PipelineRules
from bridge.pipeline.claim import ClaimRules
from bridge.pipeline.decide import RouteRules
from bridge.pipeline.full import ParkedLimit
from bridge.pipeline.park import ParkLimits
from bridge.pipeline.settle import RetryRules
from bridge.settings import ProcessPlan, Settings
from bridge.settings.process_plan import is_canary
from bridge.telemetry.health import RESTORE, RESTORES_ITSELF

#: The bound of what is claimed and not settled, in windows: one unconfirmed, and one that is being settled.
_WINDOWS_HELD = 2


def pipeline_rules(process: ProcessPlan, settings: Settings, window: int, taken_max: int) -> PipelineRules:
    """Return what the stages of a process need to know of ``settings``: those of the process, or after a reload.

    ``window`` and ``taken_max`` are the broker's (``Ends``).
    """
    limits, history = settings.limits, HistoryLimits(settings.history.keep, settings.history.max)
    return PipelineRules(
        routes={name: route_rules(settings, name) for name in settings.routes},
        claim=dispatch_rules(settings, window),
        retry=retry_rules(settings),
        park=ParkLimits(limits.batch_max, limits.batch_bytes, taken_max),
        rates=rate_limits(process.delivering),
        parked=parked_limits(settings),
        history=history if history.most else None,
        unrecorded=is_canary,
    )


def route_rules(settings: Settings, name: str) -> RouteRules:
    """Return what parking needs to know of a route."""
    route, headers = settings.routes[name], settings.headers
    return RouteRules(
        headers=HeaderRules(
            settings.dialects_of(name),
            headers.levels,
            settings.limits.max_delay,
            route.binary_numbers,
            settings.binary_setting_of(name),
            route.round_timestamps,
        ),
        order=route.order,
        on_bad=settings.on_bad_of(name),
        on_same_key=settings.on_same_key_of(name),
        message_id=settings.message_id_of(name),
        body_max=settings.limits.max_body,
        allow_to=settings.allowed_destinations_of(name),
        trust=trust(settings, name),
        schedule=retry_schedule(settings, name),
        jitter=read_jitter(route.jitter),
    )


def key_rule(settings: Settings) -> Callable[[str], str]:
    """Return what says which of two messages with a key stays, by route. A route may be one of previous settings."""
    known = {name: settings.on_same_key_of(name) for name in settings.routes}
    return lambda route: known.get(route, settings.headers.on_same_key)


def retry_schedule(settings: Settings, name: str) -> RetrySchedule | None:
    """Return when a retry route returns what failed; None for other routes."""
    route = settings.routes[name]
    if not route.retries:
        return None
    return RetrySchedule(
        settings.schedule_of(name),
        read_jitter(route.jitter),
        keeps_dead=route.then == "dead",
        consumers=f"the consumers of {'queue' if route.queue else 'topic'} '{route.queue or route.target}'",
        hold=route.hold,
    )


def trust(settings: Settings, name: str) -> Trust | None:
    """Return what a route refuses its producers; None if it refuses nothing."""
    cancel, queues = settings.routes[name].cancel, settings.allowed_routing_keys_of(name)
    return None if cancel and queues is None else Trust(cancel, queues)


def level_rules(settings: Settings, name: str) -> LevelRules:
    """Return what the relay needs to know of a route without a store, or of one whose previous mode is drained."""
    route, rules = settings.routes[name], route_rules(settings, name)
    rounds = {
        "levels": rounding(settings.headers.levels, settings.levels.rounding),
        "ladder": to_whole_seconds,
        "native": to_the_millisecond,
    }
    return LevelRules(
        headers=rules.headers,
        round=rounds.get(route.mode, to_whole_seconds),  # a drained route takes nothing in, so nothing is rounded
        on_bad=rules.on_bad,
        body_max=rules.body_max,
        trust=rules.trust,
    )


def dispatch_rules(settings: Settings, window: int) -> ClaimRules:
    """Return the rules of claiming. ``window``: how many messages the sink publishes before a confirm."""
    dispatch, limits = settings.dispatch, settings.limits
    return ClaimRules(
        lease_ms=dispatch.lease,
        drain_ms=dispatch.takeover,
        pace_ms=dispatch.pace,
        batch_max=limits.batch_max,
        batch_bytes=limits.batch_bytes,
        held_max=_WINDOWS_HELD * window,
    )


def all_lanes(settings: Settings) -> dict[str, tuple[str, ...]]:
    return {name: tuple(settings.lanes_of(name)) for name in settings.routes}


def rate_limits(settings: Settings) -> dict[str, float]:
    """Return the messages per second of each route that has a limit."""
    return {name: route.max_rate for name, route in settings.routes.items() if route.max_rate}


def loss_cure(settings: Settings) -> str:
    """Return what brings back messages that the store lost. Beside a journal postdate refuses Kafka's intakes."""
    journal = settings.journal
    if not journal.url.get_secret_value():
        return "Bring them back: `postdate restore ROUTE --from-intake` on Kafka, or `postdate import` from a backup"
    return RESTORES_ITSELF if journal.restore == "auto" else RESTORE


def parked_limits(settings: Settings) -> dict[str, ParkedLimit]:
    """Return the limit of each route that has one."""
    limits = {
        name: ParkedLimit(route.max_parked, route.max_parked_bytes, route.on_full == "dead")
        for name, route in settings.routes.items()
    }
    return {name: limit for name, limit in limits.items() if limit.messages or limit.size}


def retry_rules(settings: Settings) -> RetryRules:
    """Return how often, and when, a refused message is tried again."""
    retry = settings.retry
    return RetryRules(retry.first, retry.factor, retry.max, retry.attempts)
