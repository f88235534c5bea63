"""``postdate stats``: the store and the instances in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bridge.cli.options import ConfigOption, Output, OutputOption

if TYPE_CHECKING:
    from bridge.admin.desk import Desk, Stats


#: How a message leaves the store.
_LEFT = ("delivered", "cancelled", "replaced")


def stats(config: ConfigOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show how many messages wait, what is overdue, what happened so far, memory, and how each instance is."""
    from bridge.app.open_desk import at_desk
    from bridge.app.wiring import settings_from
    from bridge.cli.output import facts

    async def work(desk: Desk) -> Stats:
        return await desk.stats()

    settings = settings_from(config)
    found = at_desk(settings, work)
    others = [name for name, route in settings.routes.items() if route.mode != "redis"]
    text = _as_text(found, len(others) < len(settings.routes) or not others)
    if others:
        text.append(("without a store", f"{', '.join(others)}: `postdate levels stats` counts what waits there"))
    facts(output, {**_as_json(found), "without_store": others}, text)


def _as_json(found: Stats) -> dict[str, Any]:
    from bridge.delay.duration import write_moment

    return {
        "now": write_moment(found.now_ms),
        "parked": found.parked,
        "claimed": found.claimed,
        "dead": found.dead,
        "overdue": found.overdue,
        "refused_waiting": found.refused,
        "oldest_overdue_ms": _overdue_ms(found),
        "next_due": None if found.next_due_ms is None else write_moment(found.next_due_ms),
        "ever": dict(found.ever),
        "memory": [{"server": one.server, "used": one.used, "max": one.most or None} for one in found.memory],
        "bytes_per_message": found.bytes_each,
        "warnings": list(found.warnings),
        "instances": [{"name": name, **told, **_late(told)} for name, told in found.instances.items()],
    }


def _late(told: Mapping[str, object]) -> dict[str, object]:
    """Its lateness to a tenth of a millisecond: nothing finer is known."""
    late = told.get("lateness_ms")
    if not isinstance(late, dict):
        return {}
    numbers = {name: round(ms, 1) if isinstance(ms, int | float) else ms for name, ms in late.items()}
    return {"lateness_ms": numbers}


def _overdue_ms(found: Stats) -> int:
    return max(0, found.now_ms - found.next_due_ms) if found.next_due_ms is not None else 0


def _as_text(found: Stats, used: bool) -> list[tuple[str, str]]:
    """``used``: a route has a store, so that an instance should be there."""
    from bridge.cli.messages import wait
    from bridge.delay.duration import write_duration

    late = f", the oldest for {write_duration(_overdue_ms(found))}" if found.overdue else ""
    lines = [
        *(("warning", f"{word}.") for word in found.warnings),
        ("parked", str(found.parked)),
        ("next due", wait(found.next_due_ms, found.now_ms) if found.next_due_ms is not None else "nothing waits"),
        ("overdue", f"{found.overdue}{late}"),
        *([("refused", f"{found.refused} wait for their next try")] if found.refused else []),
        ("claimed", str(found.claimed)),
        ("dead letters", str(found.dead)),
        *_ever(found.ever),
    ]
    for one in found.memory:
        most = f" of {_size(one.most)}" if one.most else ", and no maxmemory"
        lines.append((f"memory of {one.server}", f"{_size(one.used)}{most}"))
    if found.bytes_each is not None:
        lines.append(("a message takes", f"about {_size(found.bytes_each)}"))
    lines += [(f"instance {name}", _instance(told)) for name, told in found.instances.items()]
    if not found.instances:
        away = "none is running: start one with `postdate run`"
        lines.append(
            ("instances", away if used else "none is at work here: `postdate run` comes when something is parked")
        )
    return lines


def _ever(ever: Mapping[str, int]) -> list[tuple[str, str]]:
    """What came in since the store began, and what has left: the difference is what is there now."""
    if not ever:
        return [("came in, ever", "nothing")]

    def count(*names: str) -> str:
        return f"{sum(ever.get(name, 0) for name in names)}"

    came_in = f"{count('parked', 'rejected')} = parked {count('parked')} + dead letters at once {count('rejected')}"
    left = " + ".join(f"{name} {count(name)}" for name in _LEFT)
    return [
        ("came in, ever", came_in),
        ("left, ever", f"{count(*_LEFT)} = {left}"),
        ("moved, ever", f"became dead letters {count('dead')}, leases recovered {count('recovered')}"),
    ]


def _instance(told: Mapping[str, object]) -> str:
    """Its own sentence first, for that is what a person looks for."""
    late = _late(told).get("lateness_ms")
    parts = [
        f"{told.get('health') or 'says nothing'}".removesuffix("."),
        f"shards {','.join(map(str, shards)) or 'none'}" if isinstance(shards := told.get("shards"), list) else "",
        f"received {told['received']}" if "received" in told else "",
        f"delivered {told['delivered']}" if "delivered" in told else "",
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
