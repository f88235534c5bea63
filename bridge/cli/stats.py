"""``postdate stats``: the store and the instances in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from bridge.admin.desk import Desk, Stats
from bridge.app import views
from bridge.app.open_desk import at_desk
from bridge.cli.options import ConfigOption, Output, OutputOption
from bridge.cli.output import facts, wait
from bridge.core.orders import RouteOrders
from bridge.delay.duration import write_duration
from bridge.settings import settings_from

#: How a message leaves the store.
_LEFT = ("delivered", "cancelled", "replaced")


def stats(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show message counts, memory use and the health of each instance.

    Totals count from the first message ever parked in this store.
    """

    async def work(desk: Desk) -> tuple[Stats, RouteOrders]:
        return await desk.stats(), await desk.orders()

    settings = settings_from(config)
    found, orders = at_desk(settings, work)
    others = [name for name, route in settings.routes.items() if route.mode != "redis"]
    text = as_text(found, len(others) < len(settings.routes) or not others, orders)
    if others:
        text.append(("without a store", f"{', '.join(others)}. `postdate levels stats` counts their messages."))
    facts(output, {**views.stats(found, orders), "without_store": others}, text)


def as_text(found: Stats, used: bool, orders: RouteOrders = MappingProxyType({})) -> list[tuple[str, str]]:
    """Return lines of name and value. ``used``: a route has a store, so an instance should be running."""
    oldest = f", the oldest by {write_duration(views.overdue_ms(found))}" if found.overdue else ""
    lines = [
        *(("warning", f"{word}.") for word in found.warnings),
        ("parked", str(found.parked)),
        *([("held", f"{found.held}, due on routes that are paused or at max_rate")] if found.held else []),
        ("next due", wait(found.next_due_ms, found.now_ms) if found.next_due_ms is not None else "none"),
        ("overdue", f"{found.overdue}{oldest}"),
        *([("refused", f"{found.refused}, waiting for the next try")] if found.refused else []),
        ("claimed", str(found.claimed)),
        ("dead letters", str(found.dead)),
        *_totals(found.ever),
    ]
    for one in found.memory:
        most = f" of {_size(one.most)}" if one.most else ", maxmemory is not set"
        lines.append((f"memory of {one.server}", f"{_size(one.used)}{most}"))
    if found.bytes_each is not None:
        lines.append(("memory per message", f"about {_size(found.bytes_each)}"))
    for name in views.route_names(found, orders):
        lines.append((f"route {name or '(damaged messages)'}", _route(views.route(name, found, orders))))
    lines += [(f"instance {name}", _instance(report)) for name, report in found.instances.items()]
    if not found.instances:
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

    taken = f"{count('parked', 'rejected')} = parked {count('parked')} + dead on arrival {count('rejected')}"
    left = " + ".join(f"{name} {count(name)}" for name in _LEFT)
    return [
        ("total in", taken),
        ("total out", f"{count(*_LEFT)} = {left}"),
        ("total moved", f"to dead letters {count('dead')}, by recovered leases {count('recovered')}"),
    ]


def _route(facts: Mapping[str, Any]) -> str:
    """Return one line: the state of a route, if it does not just run, and its counts."""
    parts = []
    if facts["state"] == "full":
        parts.append("full (max_parked)")
    elif facts["state"] != "running":
        reason = f" ({facts['reason']})" if facts["reason"] else ""
        parts.append(f"{facts['state']} since {facts['since']} by {facts['by']}{reason}")
    parts += [f"parked {facts['parked']}", *(f"{name} {facts[name]}" for name in ("held", "dead") if facts[name])]
    if facts["overdue"]:
        parts.append(f"overdue {facts['overdue']}, the oldest by {write_duration(facts['oldest_overdue_ms'])}")
    return " · ".join(parts)


def _instance(report: Mapping[str, object]) -> str:
    """Return one line: the instance's health first, because that is what a person looks for."""
    late = views.lateness(report).get("lateness_ms")
    parts = [
        f"{report.get('health') or 'no health reported'}".removesuffix("."),
        f"shards {','.join(map(str, shards)) or 'none'}" if isinstance(shards := report.get("shards"), list) else "",
        f"received {report['received']}" if "received" in report else "",
        f"delivered {report['delivered']}" if "delivered" in report else "",
        f"lateness p50 {late.get('p50')} ms, p99 {late.get('p99')} ms" if isinstance(late, dict) else "",
    ]
    return " · ".join(part for part in parts if part)


def _size(count: int) -> str:
    number = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            break
        number /= 1024
    return f"{count} B" if unit == "B" else f"{number:.1f} {unit}"
