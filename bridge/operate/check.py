"""Judge the settings, the stores and the topology without changing anything: `postdate check`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from bridge.app.brokers import brokers_of
from bridge.app.survey import count_drained, stored_before, strays_of, survey_levels, without_consumer
from bridge.app.topology import judge_consumers, judge_policies, open_fronts, replay_reach, verify_topology
from bridge.core.errors import UNREACHABLE, PostdateError, Unreachable
from bridge.core.journal import JournalMissing
from bridge.core.orders import RouteState, routes_that
from bridge.core.reasons import ReasonKind
from bridge.delay.duration import write_moment
from bridge.desk.leftovers import left_over
from bridge.desk.numbers import Stats
from bridge.desk.severity import CheckResult, fail, failed, ok, warn
from bridge.desk.topology import Finding, Name, Standing, counts
from bridge.operate.journals import inspect_journals
from bridge.operate.stores import at_desk, inspect_store, settled_stats
from bridge.operate.verdict import InstanceState, Known, judge, loss_of
from bridge.pipeline.derive import loss_cure
from bridge.settings import Settings, exposed_files, forgotten_broker, mask_url, open_routes
from bridge.settings.conflicts import listening_conflicts
from bridge.settings.process_plan import emptied_stores
from bridge.telemetry.health import WELL
from bridge.telemetry.subject import STORE_CONTENTS

#: ``fail`` or ``warn``.
Trouble = Callable[..., CheckResult]
#: How many parts of a route are named; of more, the number is given.
_NAMED = 4
_WARNINGS = (Standing.NONE, Standing.FEW, Standing.UNLIKE, Standing.WAITS, Standing.AWAY)
#: What to do about troubles of instances, by their subject in deploy/messages.md, which has all of them.
_ADVICE = {
    "route …": "Correct the destination that the sentence names. `postdate check` compares the topology",
    **dict.fromkeys(
        ("rabbitmq deleted …", "rabbitmq recreated …"),
        "The producers must send again what was in the queue. Find out who deleted it",
    ),
    "kafka recreated …": "The producers must send again what was in the topic. Find out who deleted it",
    **dict.fromkeys(("rabbitmq intake", "rabbitmq publish"), "If RabbitMQ is down, start it"),
    **dict.fromkeys(("kafka intake", "kafka publish"), "If Kafka is down, start it"),
    **dict.fromkeys(("store", "store claim", "store park", "store settle"), "If Redis is down, start it"),
    **dict.fromkeys(("", "instance"), "Read its log"),
    "refused": "Nothing: they leave at their next try",
}


def check_all(
    settings: Settings, before: Sequence[Settings] = (), trouble: Trouble = warn, found: Stats | None = None
) -> list[CheckResult]:
    """Return every result. Blocking: it asks the store and the brokers, and changes nothing.

    ``trouble`` makes the result for what the verdict calls a trouble of the store or of an instance. To `check` this is
    a warning, because it judges settings before a deployment: the new version may be the cure. ``found``: the numbers
    of the store, if the caller has them.
    """
    found = found or _found(settings)
    drained = routes_that(found.orders, RouteState.DRAINING) if found is not None else frozenset()
    return [
        *_settings(settings),
        *_stores(settings, found, trouble),
        *_journals(settings),
        *_brokers(settings, before, drained),
        *(judged_orders(found, _drained(settings, drained)) if found is not None else ()),
    ]


def _of(route: str) -> str:
    return f"route {route}"


# -- settings ---------------------------------------------------------------------------------------------------------


def _settings(settings: Settings) -> Iterator[CheckResult]:
    source = f"Read from {settings.file}" if settings.file else "No settings file, so defaults and the environment"
    yield ok("settings", f"routes: {', '.join(settings.routes)}. {source}")
    for text in exposed_files(settings):
        yield warn("settings", text)
    for conflict in listening_conflicts(settings):
        text = f"{'.'.join(conflict.paths[0])} {conflict.text}"
        yield warn("settings", f"{text}. `run` refuses to start, unless its own environment has a token")
    if forgotten := forgotten_broker(settings):
        yield warn("settings", forgotten)
    for name, text in open_routes(settings):
        yield warn(_of(name), text)


# -- stores -----------------------------------------------------------------------------------------------------------


def _stores(settings: Settings, found: Stats | None, trouble: Trouble) -> Iterator[CheckResult]:
    yield from _unused_stores(settings)
    yield from _strays(settings)
    if not settings.uses_store:
        return
    try:
        inspected = inspect_store(settings)
        stats = (found or at_desk(settings, settled_stats)) if inspected.instances else None
    except PostdateError as error:
        yield failed("store", error)
        return
    yield ok("store", f"{mask_url(settings.redis.url.get_secret_value())} is usable")
    cure = loss_cure(settings)
    for warning in inspected.warnings:
        yield warn("store", warning)
    if loss := (loss_of(stats, cure) if stats is not None else "") or inspected.loss:
        yield trouble("store", loss)
    if stats is not None:
        yield ok("instances", f"running: {len(stats.instances)}")
        yield from judged_instances(stats, cure, trouble)
    else:
        text = "no postdate instance is running on this store, or it is still starting. Start one with `postdate run`"
        yield trouble("instances", text)


def _journals(settings: Settings) -> Iterator[CheckResult]:
    """Judge the journal: its tables are made by `postdate run`, and upgraded by `postdate setup` alone."""
    where = mask_url(settings.journal.url.get_secret_value())
    try:
        new = asyncio.run(inspect_journals(settings))
    except JournalMissing as error:
        yield fail("journal", error.fact, UNREACHABLE, error.advice)
        return
    except PostdateError as error:
        yield failed("journal", error)
        return
    if any(new):
        yield warn("journal", f"{where} has no tables yet. `postdate run` or `postdate setup` creates them")
    elif new:
        yield ok("journal", f"{where} has its tables")


def judged_instances(found: Stats, cure: str = "", trouble: Trouble = warn) -> Iterator[CheckResult]:
    """Judge what the instances report. They know of intakes that refuse messages, also without the management API.
    ``cure`` is what ends a loss."""
    if found.lost:
        judged = trouble if found.holds_intakes else warn
        yield judged("instances", found.lost_warning, advice="Look at its process and its log, and start it again")
    if found.clock_warning:
        yield warn("clock", found.clock_warning)
    for instance in judge(Known(found)).instances:
        name = f"instance {instance.name}"
        # The store's own line has the loss.
        faults = [fault for fault in instance.faults if not (found.loss and fault.subject == str(STORE_CONTENTS))]
        if instance.name in found.instances and not faults:
            yield ok(name, "no trouble of its own" if instance.faults else WELL.removesuffix("."))
        elif instance.name in found.instances:
            advice = ". ".join(dict.fromkeys(_advice_on(fault.subject, fault.text, cure) for fault in faults))
            judged = trouble if instance.state is InstanceState.TROUBLE else warn
            yield judged(name, ". ".join(fault.text for fault in faults), advice=advice)


def _advice_on(subject: str, what: str, cure: str) -> str:
    """Return what to do about a trouble with this subject and sentence. Pure."""
    if subject == str(STORE_CONTENTS) and cure:
        return cure
    words = subject.split(" ")
    if words[0] == "route" and f"the last one as {ReasonKind.NO_ROUTE}:" in what:
        return f"Restore [routes.{words[1]}], or start an instance that has it"
    part = words[0] if words[0] == "route" and words[-1] != "full" else " ".join(words[:2])
    return _ADVICE.get(subject) or _ADVICE.get(f"{part} …") or f"See the subject `{subject}` in deploy/messages.md"


def _found(settings: Settings) -> Stats | None:
    """Return the store's numbers, with the orders of the routes. ``_stores`` reports why there are none."""
    try:
        return at_desk(settings, settled_stats) if settings.uses_store else None
    except PostdateError:
        return None


def _drained(settings: Settings, drained: Collection[str]) -> dict[str, int]:
    """Return how many messages wait at the intakes of drained routes, as far as their brokers answer."""
    try:
        return count_drained(settings, drained)
    except PostdateError:
        return {}


def judged_orders(found: Stats, waiting: Mapping[str, int]) -> Iterator[CheckResult]:
    """Name the routes that an operator has paused or drains: a forgotten one looks well otherwise. ``waiting`` counts
    messages at the intakes of drained ones. Pure."""
    for route, order in sorted(found.orders.items()):
        what = f"it delivers nothing; messages held: {found.held_of(route)}"
        if order.state is RouteState.DRAINING:
            what = f"it takes nothing in; messages that wait in the broker: {waiting.get(route, 'not known')}"
        text = f"{order.state.value} since {write_moment(order.since_ms)} by {order.by}: {what}"
        yield warn(_of(route), text, f"postdate resume {route}")


def _unused_stores(settings: Settings) -> Iterator[CheckResult]:
    """Judge what is still parked for a broker whose routes need no store any more. A Redis that the settings do not
    name need not exist."""
    where = mask_url(settings.redis.url.get_secret_value())
    for store in emptied_stores(settings):
        fact = f"no store needed by {', '.join(store.delivering.routes)}"
        try:
            left = stored_before(store)
        except PostdateError as error:
            if settings.is_set("redis.url") or not isinstance(error, Unreachable):
                text = f"{fact}, and whether Redis still holds their messages is not known: {error}"
                yield warn("store", f"{text}. If it never held any, remove redis.url")
            else:
                yield ok("store", f"{fact}, and no Redis answers at the default {where}")
            continue
        if left:
            yield warn("store", left)
        else:
            yield ok("store", f"{fact}. Redis holds no message of theirs: {where}")


def _strays(settings: Settings) -> Iterator[CheckResult]:
    for leftover in asyncio.run(strays_of(settings)):
        yield warn(_of(leftover.route), leftover.text)


# -- brokers ----------------------------------------------------------------------------------------------------------


def _brokers(settings: Settings, before: Sequence[Settings], drained: Collection[str]) -> Iterator[CheckResult]:
    try:
        found = verify_topology(settings)
    except PostdateError as error:
        yield failed("broker", error)
        return
    yield from _topology(settings, found)
    yield from _policies(settings)
    for route, text in open_fronts(settings, found):
        yield fail(_of(route), text)
    for broker, own in brokers_of(settings):
        yield from broker.topology.judge_interception(own)
    for finding in judge_consumers(settings):
        yield (ok if finding.state is Standing.THERE else warn)(_of(finding.part.route), finding.text)
    for route, text in replay_reach(settings):
        yield ok(_of(route), text)
    yield from _unread(settings, drained)
    yield from _stale(settings, before)


def _policies(settings: Settings) -> list[CheckResult]:
    try:
        harms = judge_policies(settings)
    except PostdateError as error:
        return [warn("policies", f"the broker's policies could not be read: {error}")]
    return [warn(_of(route), text) for route, text in harms]


def _topology(settings: Settings, found: Sequence[Finding]) -> Iterator[CheckResult]:
    """Yield for each route a line for all that exists, one for all that is created later, and one for each problem."""
    for route in dict.fromkeys(finding.part.route for finding in found):
        parts = [finding for finding in found if finding.part.route == route]
        there = [finding.part.name for finding in parts if finding.state is Standing.SAME]
        later = [finding.part.name for finding in parts if _is_made_later(settings, finding)]
        if there:
            yield ok(_of(route), f"exists: {_listed(there)}")
        if later:
            yield warn(
                _of(route), f"missing: {_listed(later)}. `postdate run` or `postdate setup` creates what is missing"
            )
        for finding in parts:
            if finding.state is not Standing.SAME and finding.part.name not in later:
                yield _judged(settings, finding)


def _listed(names: Sequence[Name]) -> str:
    """Return a few by name; of many, the number of each kind."""
    return ", ".join(map(str, names)) if len(names) <= _NAMED else counts(name.kind for name in names)


def _is_made_later(settings: Settings, finding: Finding) -> bool:
    """A missing part of ours is a failure only where postdate may not declare it."""
    return finding.state is Standing.MISSING and finding.part.ours and settings.bridge.setup


def _judged(settings: Settings, finding: Finding) -> CheckResult:
    """Judge a part that neither exists as needed nor is created by itself."""
    subject = _of(finding.part.route)
    if finding.state in _WARNINGS:
        return warn(subject, finding.text)
    if finding.state is Standing.OUTDATED and settings.bridge.setup:
        return warn(subject, f"{finding.text}, and so does `postdate run`")
    if finding.state is Standing.FORBIDDEN:
        return warn(subject, f"{finding.part.name} cannot be compared: {finding.text}")
    return fail(subject, finding.text)


def _unread(settings: Settings, drained: Collection[str]) -> Iterator[CheckResult]:
    """Judge intakes that no consumer reads, or whose consumer has stopped; not of the ``drained`` routes."""
    try:
        found = without_consumer(settings, drained)
    except PostdateError as error:
        yield warn("instances", f"whether every intake has a consumer is unknown: {error}")
        return
    for leftover in found:
        yield warn(_of(leftover.route), leftover.text)


def _stale(settings: Settings, before: Sequence[Settings]) -> Iterator[CheckResult]:
    """Judge what previous settings left in queues and topics."""
    try:
        places, unknown = survey_levels(settings, before)
    except PostdateError as error:
        yield warn("levels", f"whether previous settings left messages is unknown: {error}")
        return
    for text in unknown:
        yield warn("levels", text)
    for left in left_over(places):
        yield (warn if left.messages or not left.certain else ok)(_of(left.route), left.text)
