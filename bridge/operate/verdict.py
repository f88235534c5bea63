"""One verdict on an installation: is all well, and if not, what is wrong.

The page, `stats`, `doctor` and /readyz show the same sentence. Everything here is pure: facts in, verdict out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, cast

from bridge.core.orders import RouteState, routes_that
from bridge.core.reasons import ReasonKind
from bridge.delay.duration import write_age
from bridge.desk.clock_step import STEP_NEWS_MS
from bridge.desk.numbers import Stats
from bridge.desk.severity import Severity, named
from bridge.operate.faults import Fault, joined, merged, newest_ms
from bridge.telemetry.health import RESTORING, WELL, lacks_messages, overdue_for, waits_after_refusal
from bridge.telemetry.printable import ended
from bridge.telemetry.subject import (
    OVERDUE,
    STORE,
    STORE_AWAY,
    STORE_CLAIM,
    STORE_CLOCK,
    STORE_CONTENTS,
    STORE_FULL,
    makes_late,
)

#: A process reports every second. What it said before counts as old after this time.
STALE_S = 5.0
#: Overdue by less is usual under load; by more it is a failure.
LATE_MS, FAILED_MS = 1000, 10_000
#: Below this part of its maxmemory a server is not full.
_ROOM = 0.95
#: Held by ``max_rate`` for longer is a warning. The alerts PostdateOverdue and PostdateRateTooLow have the same time.
HELD_LONG_MS = 30_000
#: The kind of a deleted intake.
_OF_INTAKE = 9
#: Stands for a loss that no instance has noted yet.
_SHRUNK = (
    "Redis counts less than a moment ago: it was emptied, or replaced by an older copy of its data. How many messages "
    "are lost is not known yet"
)
#: An instance looks for a loss every 5 s, and such a look takes 6 s. What it said before a restore is over.
_RESTORED_MS = 15_000
#: The subjects of warnings: refused messages wait for their next try, or a deleted queue or topic is there again.
_REFUSED, _RECREATED = "refused", ("rabbitmq recreated ", "kafka recreated ")
#: What is wrong with a server, a destination or consumers: every instance sees it, and none has it.
_OF_ALL = ("rabbitmq front ", "rabbitmq consumers of ", "route ", str(STORE_FULL))
#: For so long a loss of messages is named first. Later, what is wrong now is.
_LOSS_NEWS_MS = 600_000
#: Names in a sentence.
_NAMED_MAX = 5
#: What /readyz says of a process.
STARTING, STOPPING = "it is starting", "it is stopping"
_WELL = "All well: "
_START = "Start one with `postdate run`"


class InstanceState(StrEnum):
    """How an instance is, by the worst that is known of it. ``STALE``: it was running and is silent now."""

    WELL = "well"
    WARNING = "warning"
    TROUBLE = "trouble"
    STALE = "stale"


class InstanceVerdict(NamedTuple):
    """An instance by name, with what is wrong with it. ``silent``: for how long a stale one has been silent."""

    name: str
    state: InstanceState
    faults: tuple[Fault, ...] = ()
    silent: str = ""


@dataclass(frozen=True, slots=True)
class LocalReport:
    """What a process on this machine reported last, and for how long it has been silent. ``broker`` is "" for the
    parent of workers, which is no instance. ``stored``: it delivers from the store."""

    name: str
    broker: str
    silent_s: float
    troubles: Mapping[str, str] = field(default_factory=dict)
    stored: bool = True


@dataclass(frozen=True, slots=True)
class Known:
    """The facts of a verdict.

    ``stats`` is None where the store does not answer, and ``away`` says why; or where it was ``asked`` and may still
    answer; or where no route is ``stored``. ``unready`` is what /readyz reports as missing. ``answers_s``: for how long
    the store has answered since it was away. ``rates`` has the ``max_rate`` of the routes that have a limit. ``age_s``:
    how old ``stats`` are, where the store has not answered since; else 0. It may have answered the instances after this
    process asked (``answered_since``): then this process is busy, and the store is not away. ``reload``: why the last
    reload failed, "" if it did not. ``cure`` is what ends a loss, as ``loss_cure`` returns it.
    """

    stats: Stats | None = None
    away: str = ""
    stored: bool = True
    local: Sequence[LocalReport] = ()
    unready: Sequence[tuple[str, str]] = ()
    asked: bool = False
    answers_s: float = math.inf
    rates: Mapping[str, float] = field(default_factory=dict)
    age_s: float = 0.0
    answered_since: bool = False
    reload: str = ""
    cure: str = ""

    @property
    def late_ms(self) -> int:
        """For how long the oldest overdue message has been due."""
        return self.stats.oldest_overdue_ms if self.stats is not None else 0


class Overall(NamedTuple):
    """The verdict. ``sentence`` ends with a full stop. ``level`` is OK if all is well, FAIL for a trouble or old
    numbers, and else WARN. ``away``: why the store does not answer, as in ``Known``; so is ``age_s``."""

    level: Severity
    sentence: str
    faults: Sequence[Fault]
    instances: Sequence[InstanceVerdict]
    away: str = ""
    age_s: float = 0.0

    @property
    def well(self) -> bool:
        """Whether all is well."""
        return self.level is Severity.OK


def _rank(fault: Fault, lost: bool = False) -> tuple[int, int]:
    """Return the place of a fault among others: by kind, and of lost intakes the newest first."""
    rank = _kind(fault, lost)
    return rank, -newest_ms(fault.text) if rank == _OF_INTAKE else 0


def _kind(fault: Fault, lost: bool) -> int:
    """Return the kind of a fault: first a store that is away, a loss (``lost``: a moment ago), what else is away, then
    what follows from that, then what happened to the store, which is shown for a long time after it."""
    match fault.subject.split(" "):
        case ["store"] | ["store", "claim" | "park" | "full" | "settle"]:
            return 0
        case ["journal", "restore"]:
            return 1
        case ["store", "contents"] if lost:
            return 1
        case ["instance"]:
            return 2
        case [_, "intake" | "publish" | "alarm" | "leader", *_]:
            return 3
        case ["confirms" | "refused"]:
            return 5
        case ["canary" | "overdue"] | ["kafka", "begin" | "commit"]:
            return 6
        case ["warning"]:
            return 7
        case ["store", "contents"]:
            return 8
        case ["rabbitmq" | "kafka", "deleted" | "recreated", *_]:
            return _OF_INTAKE
        case ["store", "clock"]:
            return 10
    return 4


def _warns(fault: Fault) -> bool:
    """Return whether a fault of an instance is a warning, and no trouble."""
    return fault.subject == _REFUSED or fault.subject.startswith(_RECREATED)


def judge(known: Known) -> Overall:
    """Return the verdict. Old data never makes it well."""
    overall = _judged(known)
    if not known.age_s:
        return overall
    age = write_age(max(1000, known.age_s * 1000))
    busy = "the store answers the instances, and this page's own process is busy"
    why = busy if known.answered_since else "the store has not answered since"
    old = f"{overall.sentence.removeprefix(_WELL)} These numbers are {age} old: {why}."
    return overall._replace(level=Severity.FAIL, sentence=old, age_s=known.age_s)


def troubles_among(found: Stats) -> list[str]:
    """Return the warnings of the store that are troubles to the verdict."""
    mere = {fault.text for fault in judge(Known(found)).faults if fault.subject == "warning"}
    return [warning for warning in found.all_warnings if warning not in mere]


def _judged(known: Known) -> Overall:
    instances = judge_instances(known)
    if known.stats is not None:
        instances = [_without_past(instance, known, known.stats) for instance in instances]
    processes = [*instances, *_parents(known)]
    silent = _silent([process for process in processes if process.silent])
    loss = list(_loss(known))
    away = [Fault("", "store", _bare(known.away))] if known.away else []
    faults = [*away, *_alone(known, instances), *silent, *_lost(known), *loss, *_step(known)]
    heard = (process.faults for process in processes if not process.silent)
    same = str(STORE_CONTENTS) if loss else None  # the store says it for all instances
    reported = merged(
        fault for found in heard for fault in found if not _repeats(known, fault) and fault.subject != same
    )
    if any(makes_late(fault.subject) for fault in (*faults, *reported)):
        reported = [fault for fault in reported if fault.subject != str(OVERDUE)]
        instances = [_explained(instance) for instance in instances]
    faults += [fault for fault in reported if not _warns(fault)]
    if not faults:
        faults = [Fault("", subject, text) for subject, text in _unready(known.unready)]
    overdue = _overdue(known)
    step = str(known.stats.step) if known.stats is not None else ""  # long known: behind every other warning
    warnings = sorted(
        [*filter(_warns, reported), *_warnings(known, faults)], key=lambda fault: (fault.text == step, _rank(fault))
    )
    if faults:
        faults = sorted(faults, key=partial(_rank, lost=_lost_lately(known.stats)))
        sentence = _of_faults(faults, len(warnings), overdue, _of_some(faults[0], instances, known))
        sentence += _ordered(known)
        return Overall(Severity.FAIL, sentence, [*faults, *warnings], instances, known.away)
    if known.asked:
        return Overall(Severity.WARN, "Not known: the store has not answered yet.", (), instances)
    if overdue or warnings:
        level = Severity.FAIL if known.late_ms >= FAILED_MS else Severity.WARN
        sentence = " ".join(filter(None, (overdue, _why(known, warnings), _of_warnings(warnings))))
        return Overall(level, sentence + _ordered(known, sentence), warnings, instances)
    if known.stats is None or not (known.stored or known.stats.waiting):
        return Overall(Severity.OK, "No route has a store. Messages wait in the broker: see Levels.", (), instances)
    calm = f"{known.stats.waiting:,} parked{_next(known.stats)}, nothing overdue."
    if _pause_holds(known.stats):
        return Overall(Severity.WARN, f"{_ordered(known).lstrip()} {calm}", (), instances)
    return Overall(Severity.OK, f"{_WELL}{calm}{_ordered(known)}", (), instances)


def judge_instances(known: Known) -> list[InstanceVerdict]:
    """Return how each instance is. A process on this machine is judged by what it says here, as /readyz is: its report
    in the store may be a beat behind."""
    local = {report.name: report for report in known.local if report.broker}
    running: Mapping[str, Mapping[str, Any]] = known.stats.instances if known.stats is not None else {}
    silent: Mapping[str, int] = known.stats.silent if known.stats is not None else {}
    names = sorted(local.keys() | running.keys() | silent.keys())
    if known.away:
        return [_without_store(local[name]) for name in names]
    refuses = known.stats is not None and known.stats.refuses_writes
    if refuses or known.answers_s < STALE_S:
        mute = _MUTE if refuses else _UNHEARD
        reports = {name: {"troubles": {"instance": f"instance {name} {mute}"}} for name in names} | dict(running)
        return [_instance(name, local.get(name), reports[name], None) for name in names]
    return [_instance(name, local.get(name), running.get(name), silent.get(name)) for name in names]


#: Stands for the report of an instance on another machine that cannot write one.
_MUTE = "cannot report while Redis refuses writes"
#: The store is back for less than ``STALE_S``: an instance may be well and not have reported yet.
_UNHEARD = "has not reported yet since Redis answers again"


def _instance(
    name: str, local: LocalReport | None, report: Mapping[str, Any] | None, silent_ms: int | None
) -> InstanceVerdict:
    if local is not None and local.silent_s >= STALE_S:
        return _stale(name, int(local.silent_s * 1000))
    if local is None and silent_ms is not None:
        return _stale(name, silent_ms)
    faults = [Fault(name, subject, _bare(text)) for subject, text in (local.troubles if local else {}).items()]
    if not faults and silent_ms is not None:
        faults = [Fault(name, "store", f"instance {name} does not report to the store")]
    if local is None and report is not None and not (report.get("able", True) and report.get("health") == WELL):
        troubles: Mapping[str, str] = report.get("troubles") or {
            "": str(report.get("health") or "it reports no health")
        }
        faults = [
            Fault(
                name, subject, f"instance {name} is starting, or it cannot deliver now" if text == WELL else _bare(text)
            )
            for subject, text in troubles.items()
        ]
    return InstanceVerdict(name, _state(faults), tuple(faults))


def _state(faults: Sequence[Fault]) -> InstanceState:
    if all(map(_warns, faults)):
        return InstanceState.WARNING if faults else InstanceState.WELL
    return InstanceState.TROUBLE


def _without_past(instance: InstanceVerdict, known: Known, found: Stats) -> InstanceVerdict:
    """Drop what an instance says of messages that the store does not have any more. Soften what it says of a store
    that has just answered: it waits for some seconds between two attempts."""
    faults = tuple(
        dict.fromkeys(
            _of_before(fault) if _is_of_before(fault, known, found) else _counted(fault, known, found)
            for fault in instance.faults
            if not _is_over(fault, known, found)
        )
    )
    return instance._replace(faults=faults, state=instance.state if instance.silent else _state(faults))


def _explained(instance: InstanceVerdict) -> InstanceVerdict:
    """Leave out that messages are late, where another sentence says why."""
    faults = tuple(fault for fault in instance.faults if fault.subject != str(OVERDUE))
    return instance._replace(faults=faults, state=instance.state if instance.silent else _state(faults))


def _is_over(fault: Fault, known: Known, found: Stats) -> bool:
    """Return whether the store has none of the overdue or refused messages of a fault, or has those back that it had
    lost. Dead letters were refused.

    The store does not know when claimed messages are due. The instance does, but for what it saw before an outage.
    """
    match fault.subject.split(" "):
        case ["journal", "restore"] if found.loss:  # whose sentence says it, with the number
            return True
        case ["store", "contents"] | ["journal", "restore"]:
            return found.restored_ago_ms < _RESTORED_MS
        case ["store", "memory"]:  # the store's own warning says so, from the look that has the limit
            return True
        case ["store", "full"]:
            return _has_room(found)
        case ["overdue"]:
            return (not found.claimed or known.answers_s < STALE_S) and found.oldest_overdue_ms < LATE_MS
        case ["route", name] if name in found.unserved:  # the store's own warning says so, with what to do
            return f" {ReasonKind.NO_ROUTE}:" in fault.text
        case ["route", name]:
            counts, waits = found.by_route.get(name), fault.text.startswith(waits_after_refusal(name))
            if waits or fault.instance in found.instances:
                return counts is None or not (counts.refused or (counts.dead and not waits))
    return False


def _has_room(found: Stats) -> bool:
    """Return whether each server has memory: what an instance met a moment ago is over."""
    return bool(found.memory) and all(server.used < _ROOM * server.most or not server.most for server in found.memory)


def _counted(fault: Fault, known: Known, found: Stats) -> Fault:
    """Say of a loss what the store says now: a restore counts it down, and each instance knows of its own broker's
    messages. The oldest overdue message may be a refused one, which no instance looks at. Say how many refused messages
    wait where a route delivers again: an instance only warns of these."""
    if found.loss and fault.subject == str(STORE_CONTENTS):
        return fault._replace(text=loss_of(found, known.cure))
    if found.restoring and fault.subject == "journal restore":
        return fault._replace(text=lacks_messages(RESTORING))
    if fault.subject == str(OVERDUE):
        oldest = Fault(fault.instance, fault.subject, overdue_for(found.oldest_overdue_ms))
        return joined([fault, oldest])
    part, _, route = fault.subject.partition(" ")
    if part == "route" and route in found.by_route and fault.text.startswith(waits_after_refusal(route)):
        # Without --min-tries it would send messages early that were never tried.
        cure = f"`postdate deliver --route {route} --min-tries 1` sends them now"
        return Fault(fault.instance, _REFUSED, f"{fault.text}. Messages: {found.by_route[route].refused:,}. {cure}")
    return fault


#: Subjects of an instance that does not reach the store, and of those the ones to deliver.
_UNREACHED = frozenset(map(str, STORE_AWAY))
_UNCLAIMED = frozenset({str(STORE), str(STORE_CLAIM)})


def _is_of_before(fault: Fault, known: Known, found: Stats) -> bool:
    """Return whether an instance says that the store is away, though the store was away a moment ago, or it reports
    there. Overdue messages prove it right where the store was not away."""
    if known.answers_s < STALE_S:
        return fault.subject in _UNREACHED
    # A store without room refuses to park while it reports, and that is true.
    return fault.subject in _UNCLAIMED and fault.instance in found.instances and found.oldest_overdue_ms < LATE_MS


def _of_before(fault: Fault) -> Fault:
    """Say what is true before the store is seen away, and until the instance has asked it again."""
    return Fault(fault.instance, "instance", f"Redis did not answer instance {fault.instance} at its last try")


def _without_store(report: LocalReport) -> InstanceVerdict:
    """Return how an instance of this machine is while the store is away. Of others nothing is known. Only the store
    knows which refusals are over, and which routes are full."""
    found = _instance(report.name, report, None, None)
    if not report.stored:
        return found
    faults = tuple(fault for fault in found.faults if not fault.subject.startswith("route "))
    text = "it delivers nothing while the store does not answer"
    return found._replace(
        state=found.state if found.silent else InstanceState.TROUBLE,
        faults=faults or (Fault(report.name, "store", text),),
    )


def _stale(name: str, silent_ms: int) -> InstanceVerdict:
    silent = write_age(max(1000, silent_ms))
    text = f"instance {name} has been silent for {silent}: it is frozen, or it died. Look at its process"
    return InstanceVerdict(name, InstanceState.STALE, (Fault(name, "instance", text),), silent)


def _silent(processes: Sequence[InstanceVerdict]) -> Iterator[Fault]:
    """Name all silent ones in one sentence: they may have died with one command."""
    if len(processes) == 1:
        yield from processes[0].faults
    elif processes:
        names = ", ".join(f"{process.name} for {process.silent}" for process in processes)
        text = f"silent instances: {names}. Each is frozen, or it died. Look at its process"
        yield Fault(", ".join(process.name for process in processes), "instance", text)


def _repeats(known: Known, fault: Fault) -> bool:
    """Return whether a fault is about a store that is away: it says so again, or is from before."""
    return bool(known.away) and fault.subject.partition(" ")[0] == "store"


def _alone(known: Known, instances: Sequence[InstanceVerdict]) -> Iterator[Fault]:
    """Say that nothing is delivered because no instance runs, nor starts on this machine."""
    found = known.stats
    if found is None or not known.stored or instances or known.unready:
        return
    if found.shrunk or (found.loss and found.now_ms - found.lost_ms < STALE_S * 1000):
        return  # the loss took their reports, too
    text = "no instance is running, or Redis was emptied a moment ago" if found.blank else "no instance is running"
    yield Fault("", "instance", f"{text}. {_START}")


def loss_of(found: Stats, cure: str) -> str:
    """Return the sentence about a loss of the store, with what ends it (``cure``); "" for none."""
    text = _SHRUNK if found.shrunk else found.loss
    cure = RESTORING if found.restoring else cure
    return f"{text}. {cure}" if cure and (found.shrunk or found.lost_ms) else text


def _loss(known: Known) -> Iterator[Fault]:
    if known.stats is not None and (text := loss_of(known.stats, known.cure)):
        yield Fault("", str(STORE_CONTENTS), text)


def _lost_lately(found: Stats | None) -> bool:
    return found is not None and (found.shrunk or 0 < found.lost_ms > found.now_ms - _LOSS_NEWS_MS)


def _step(known: Known) -> Iterator[Fault]:
    """Make a step of the clock a trouble for a while. Only the stores together know its messages."""
    found = known.stats
    if found is not None and found.step and found.now_ms - found.step.at_ms < STEP_NEWS_MS:
        yield Fault("", str(STORE_CLOCK), str(found.step))


def _lost(known: Known) -> Iterator[Fault]:
    """Make lost instances a trouble while one may hold an intake. Later they are a warning."""
    if known.stats is not None and known.stats.holds_intakes:
        yield Fault("", "instance", known.stats.lost_warning)


def _parents(known: Known) -> list[InstanceVerdict]:
    return [_instance(report.name, report, None, None) for report in known.local if not report.broker]


def _warnings(known: Known, faults: Sequence[Fault]) -> list[Fault]:
    """Return the warnings of the store that no fault repeats."""
    found = known.stats
    warnings = [*found.all_warnings, *slow_routes(found, known.rates)] if found is not None else []
    warnings += filter(None, [known.reload])
    repeated = "".join(f". {fault.text}." for fault in faults)  # the loss of several stores is one fault
    return [Fault("", "warning", text) for text in warnings if f". {text}." not in repeated]


def _of_some(fault: Fault, instances: Sequence[InstanceVerdict], known: Known) -> str:
    """Return whose fault it is, if another instance serves the same routes and is well; else ""."""
    if fault.instance in fault.text or fault.subject.startswith(_OF_ALL):
        return ""
    names, served = fault.instance.split(", "), set[str]()
    for name in names:
        served |= _routes_of(name, known)
    able = (InstanceState.WELL, InstanceState.WARNING)
    well = (each.name for each in instances if each.state in able and each.name not in names)
    return f"instance {fault.instance}: " if any(served & _routes_of(name, known) for name in well) else ""


def _routes_of(name: str, known: Known) -> set[str]:
    report = known.stats.instances.get(name, {}) if known.stats is not None else {}
    return set(cast("Sequence[str]", report.get("routes", ())))


def _of_faults(faults: Sequence[Fault], warnings: int, overdue: str, whose: str) -> str:
    more = f" Troubles: {len(faults)}." if len(faults) > 1 else ""
    more += f" Warnings: {warnings}." if warnings else ""
    late = f" {overdue}" if overdue else ""
    return f"Trouble: {whose}{ended(faults[0].text)}{more}{late}"


def _overdue(known: Known) -> str:
    late, oldest_ms = shown_overdue(known.stats) if known.stats is not None else (0, 0)
    return f"Overdue: {late:,}, the oldest by {write_age(oldest_ms)}." if late else ""


def _why(known: Known, warnings: Sequence[Fault]) -> str:
    """Explain a figure of overdue messages that stands beside no trouble."""
    late, _ = shown_overdue(known.stats) if known.stats is not None else (0, 0)
    if known.stats is None or not late:
        return ""
    if (unconfirmed := late - known.stats.overdue) > 0:
        return f"Of these, the broker has not confirmed: {unconfirmed:,}."
    return "" if warnings else "No instance reports a cause."


def shown_overdue(found: Stats) -> tuple[int, int]:
    """Return how many messages are overdue, and for how long the oldest is; twice 0 while that is usual under load."""
    return (found.late, found.oldest_overdue_ms) if found.oldest_overdue_ms >= LATE_MS else (0, 0)


def _unready(unready: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Return what /readyz reports, with the processes that start in one sentence, and so those that stop."""
    for text in (STARTING, STOPPING):
        state = text.removeprefix("it is ")
        if names := [subject for subject, what in unready if what == text and subject != "parent"]:
            yield "instance", f"instances {state} on this machine: {', '.join(names)}"
        elif ("parent", text) in unready:
            yield "instance", f"postdate is {state} on this machine"
    for subject, text in unready:
        if text not in (STARTING, STOPPING):
            yield subject, text if subject in text else f"{subject}: {text}"


def _of_warnings(warnings: Sequence[Fault]) -> str:
    more = f" Warnings: {len(warnings)}." if len(warnings) > 1 else ""
    return f"Warning: {ended(warnings[0].text)}{more}" if warnings else ""


def slow_routes(found: Stats, rates: Mapping[str, float]) -> Iterator[str]:
    """Warn of each route whose ``max_rate`` has held a message for long. A pause has its own sentence."""
    paused = routes_that(found.orders, RouteState.PAUSED)
    for route, counts in sorted(found.by_route.items()):
        if route in rates and route not in paused and counts.held and counts.oldest_held_ms > HELD_LONG_MS:
            oldest = write_age(counts.oldest_held_ms)
            yield (
                f"route {route}: more is due than its max_rate of {rates[route]:g}/s lets out. "
                f"Held: {counts.held:,}, the oldest for {oldest}"
            )


def _pause_holds(found: Stats) -> bool:
    """Return whether a paused route holds due messages. What ``max_rate`` holds leaves by itself, or is a warning."""
    return any(found.held_of(route) for route in routes_that(found.orders, RouteState.PAUSED))


def _next(found: Stats) -> str:
    """Return when the next message leaves. One of a paused route does not; what other routes have may be unknown."""
    if routes_that(found.orders, RouteState.PAUSED) and not found.next_is_known:
        return ""
    if found.next_ms is None or not found.waiting:
        return ", none due"
    away_ms = max(0, found.next_ms - found.now_ms)
    return f", next in {write_age(away_ms)}" if away_ms else ", next now"


def _ordered(known: Known, sentence: str = "") -> str:
    """Name the routes that an order or a rate holds, with held messages: a forgotten pause looks well otherwise. Leave
    out a route whose reason ``sentence`` has."""
    if (found := known.stats) is None:
        return ""
    paused, draining = (routes_that(found.orders, state) for state in (RouteState.PAUSED, RouteState.DRAINING))
    by_route = {route: found.held_of(route) for route in sorted(found.by_route.keys() | paused)}
    pauses = [route + (f" (held: {by_route[route]:,})" if by_route[route] else "") for route in sorted(paused)]
    known_of = paused | found.unserved.keys()  # those of the latter count as overdue
    rest = (item for item in by_route.items() if item[0] not in known_of and f"route {item[0]}: " not in sentence)
    held = {route: f"{route} ({count:,})" for route, count in rest if count}
    slow = [text for route, text in held.items() if route in known.rates]
    others = [text for route, text in held.items() if route not in known.rates]
    groups: dict[str, Sequence[str]] = {"Paused": pauses, "Draining": sorted(draining)}
    groups |= {"Held by max_rate": slow, "Held": others}
    return "".join(f" {what}: {few(words)}." for what, words in groups.items() if words)


def few(words: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return named(words, _NAMED_MAX)


def _bare(text: str) -> str:
    return text.removesuffix(".")
