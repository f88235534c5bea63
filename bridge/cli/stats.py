"""``postdate stats``: the store and the instances in numbers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from bridge.cli.acting import operate, settings_for
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import facts, rounded, wait
from bridge.delay.duration import read_moment_ms, write_age
from bridge.operate.documents import RouteCounts, StatsFacts
from bridge.operate.sizing import size_text
from bridge.operate.verdict import LATE_MS
from bridge.telemetry.lateness import BOUNDS_MS
from bridge.telemetry.printable import ended

#: How a message leaves the store.
_LEFT = ("delivered", "cancelled", "replaced")


def stats(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show message counts, memory use and the health of each instance.

    Totals count from the first message ever parked in this store, and include the messages of the canary.
    """

    settings = settings_for(config)
    found = operate(settings, lambda operator: operator.stats())
    used = settings.uses_store or not found.without_store
    text = [("verdict", found.sentence), *as_text(found, used)]
    if others := ", ".join(found.without_store):
        text.append(("without a store", f"{others}. `postdate levels stats` counts their messages."))
    facts(output, found.as_dict(), text)


def _next(found: StatsFacts) -> str:
    """Return when the next message is due. One that is not yet late is due now."""
    if found.next_due is None:
        return "none"
    due_ms, now_ms = read_moment_ms(found.next_due), read_moment_ms(found.now)
    return "now" if 0 <= now_ms - due_ms <= LATE_MS else wait(due_ms, now_ms)


def as_text(found: StatsFacts, used: bool) -> list[tuple[str, str]]:
    """Return lines of name and value. ``used``: a route has a store, so an instance should be running."""
    oldest = f", the oldest by {write_age(found.oldest_overdue_ms)}" if found.overdue else ""
    if found.unconfirmed:
        oldest += f"; {found.unconfirmed} of them are claimed and not confirmed, and no route counts these"
    refused = found.refused_waiting
    others = (word for word in found.warnings if word not in found.sentence)
    lines = [
        *(("trouble" if word in found.troubles else "warning", ended(word)) for word in others),
        ("parked", str(found.parked)),
        *([("cold", f"{found.cold}, in the journal alone; they count as parked")] if found.cold else []),
        *([("held", f"{found.held}, due on routes that are paused, missing or at max_rate")] if found.held else []),
        ("next due", _next(found)),
        ("overdue", f"{found.overdue}{oldest}"),
        *([("refused", f"{refused}, waiting for the next try")] if refused else []),
        ("claimed", f"{found.claimed}, being sent; they count as parked"),
        ("dead letters", str(found.dead)),
        *_totals(found.ever),
    ]
    for memory in found.memory:
        most = f" of {size_text(memory.max)}" if memory.max else ", maxmemory is not set"
        lines.append((f"memory of {memory.server}", f"{size_text(memory.used)}{most}"))
    if found.bytes_per_message is not None:
        lines.append(("memory per message", f"about {size_text(found.bytes_per_message)}"))
    lines += [(f"route {route.name or '(damaged messages)'}", _route(route)) for route in found.routes]
    lines += [(f"instance {report['name']}", _instance(report)) for report in found.instances]
    for name, ms in found.silent.items():
        unknown = "unknown: it cannot report while Redis refuses writes"
        lines.append((f"instance {name}", unknown if found.refuses_writes else f"stale: silent for {rounded(ms)}"))
    if not found.instances and not found.silent:
        needed = "none. Start one with `postdate run`."
        unneeded = "none. No route has a store; `postdate run` still delivers what is parked in this one."
        lines.append(("instances", needed if used else unneeded))
    return lines


def _totals(ever: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return what the store has taken in and what has left it; the difference is what it holds now."""
    if not ever:
        return [("total in", "0")]

    def count(*names: str) -> str:
        return f"{sum(ever.get(name, 0) for name in names)}"

    names = ("parked", "rejected", "restored")
    taken = f"{count(*names)} = parked {count('parked')} + dead on arrival {count('rejected')}"
    taken += f" + dead letters restored {count('restored')}" if ever.get("restored") else ""
    taken = f"{taken}, canaries included"
    left = " + ".join(f"{name} {count(name)}" for name in _LEFT)
    buried = ever.get("dead", 0) - ever.get("rejected", 0)
    return [
        ("total in", taken),
        ("total out", f"{count(*_LEFT)} = {left}"),
        ("total moved", f"to dead letters {buried}, by recovered leases {count('recovered')}"),
    ]


def _route(route: RouteCounts) -> str:
    """Return one line: the state of a route, if it does not just run, and its counts."""
    parts = []
    if route.state == "full":
        parts.append("full (max_parked)")
    elif route.state != "running":
        reason = f" ({route.reason})" if route.reason else ""
        parts.append(f"{route.state} since {route.since} by {route.by}{reason}")
    counts = {"cold": route.cold, "held": route.held, "refused": route.refused, "dead": route.dead}
    parts += [f"parked {route.parked}", *(f"{name} {count}" for name, count in counts.items() if count)]
    if route.overdue and (route.oldest_overdue_ms or 0) >= LATE_MS:
        parts.append(f"overdue {route.overdue}, the oldest by {write_age(route.oldest_overdue_ms or 0)}")
    return " · ".join(parts)


def _instance(report: Mapping[str, object]) -> str:
    """Return one line: the instance's health first, because that is what a person looks for."""
    late = report.get("lateness_ms")
    parts = [
        f"{report.get('health') or 'no health reported'}".removesuffix("."),
        f"shards {','.join(map(str, shards)) or 'none'}" if isinstance(shards := report.get("shards"), list) else "",
        f"received {report['received']}" if "received" in report else "",
        f"delivered {report['delivered']}" if "delivered" in report else "",
        f"lateness p50 {_percentile(late.get('p50'))}, p99 {_percentile(late.get('p99'))}"
        if isinstance(late, dict)
        else "",
    ]
    return " · ".join(part for part in parts if part)


def _percentile(ms: object) -> str:
    """Return the lateness of a percentile. Deliveries are counted by class: above a second it shows the class."""
    if not isinstance(ms, int | float):
        return "not known"
    lower = BOUNDS_MS[max(0, bisect_left(BOUNDS_MS, ms - 0.1) - 1)]  # reports are rounded to a tenth
    return f"{ms} ms" if lower < 1000 else f"{write_age(lower)} to {write_age(ms + 999)}"
