"""What a bench found, as a table for people and as a document for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from bridge.lab.bench.figures import Figures
from bridge.lab.bench.measure import Row
from bridge.lab.bench.plan import Plan
from bridge.settings import Settings
from bridge.settings.model import BrokerKind

#: The version of the document: raised when a figure changes its name or its meaning.
FORMAT = 2
_MIB = 1024 * 1024
_OF_BROKER = {
    "rabbitmq": ("queue_type", "prefetch", "window"),
    "kafka": ("window", "compression", "partitioner", "timestamp"),
}


def document(found: Mapping[BrokerKind, Mapping[str, Any]], about: dict[str, Any], ok: bool) -> dict[str, Any]:
    """Everything: ``about`` (date, machine, versions), and a ``section`` for each broker, by its name."""
    return {"format": FORMAT, **about, "ok": ok, "brokers": found}


def section(rows: Sequence[Row], plan: Plan, settings: Settings) -> dict[str, Any]:
    """One broker: the settings and numbers that matter, each row's medians and single runs."""
    return {
        "settings": {**settings_that_matter(settings), **asdict(plan)},
        "rows": [{"name": row.name, "figures": row.figures(), "runs": row.runs} for row in rows if row.runs],
    }


def settings_that_matter(settings: Settings) -> dict[str, Any]:
    """Those that move the figures. No addresses and no secrets."""
    redis, limits, dispatch, broker = settings.redis, settings.limits, settings.dispatch, settings.broker
    return {
        "redis.durability": redis.durability,
        "redis.shards": redis.shards,
        **{f"{broker}.{name}": getattr(getattr(settings, broker), name) for name in _OF_BROKER[broker]},
        "limits.batch_max": limits.batch_max,
        "dispatch.pace_ms": dispatch.pace,
        "bridge.workers": settings.bridge.workers,
        "routes.order": next(iter(settings.routes.values())).order,
    }


def complaints(rows: Sequence[Row]) -> list[str]:
    """A sentence for each row with messages that were lost, came twice, came early, were refused or lost
    their order."""
    return [
        f"{row.name}: " + ", ".join(f"{count} {name}" for name, count in faults.items())
        for row in rows
        if (faults := row.faults())
    ]


def table(title: str, rows: Sequence[Row]) -> Table:
    """A line for each row; lateness in milliseconds."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    found.add_column(title, no_wrap=True)
    for title in ("messages", "per s", "p50 ms", "p99 ms", "p999 ms", "max ms"):
        found.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        if row.runs:
            figures = row.figures()
            rate = figures.get("rate_per_s") or figures.get("park_per_s") or figures.get("deliver_per_s")
            late = [_number(figures.get(name)) for name in ("p50_ms", "p99_ms", "p999_ms", "max_ms")]
            found.add_row(row.name, _number(figures["messages"]), _number(rate), *late)
    return found


def notes(rows: Sequence[Row]) -> list[str]:
    """A line for each row of which there is more to say."""
    return [f"{row.name}: {', '.join(said)}" for row in rows if row.runs and (said := _said(row, row.figures()))]


def _said(row: Row, figures: Figures) -> list[str]:
    said = [f"{count} {name}" for name, count in row.faults().items()]
    if figures.get("growing") and row.name != "plain" and not row.name.startswith("burst"):
        said.append("growing later, so this rate is too high")
    if figures.get("all_out_ms") is not None:
        said.append(f"all are out {_number(figures['all_out_ms'])} ms after the moment")
    if figures.get("parked_in_time") is False:
        said.append("not all were parked before it")
    if figures.get("bytes_per_message") is not None:
        said.append(f"{_number(figures['bytes_per_message'])} bytes for each in the store")
    rss, idle = figures.get("bridge_rss_bytes"), figures.get("idle_cpu_percent")
    if rss is not None:
        said.append(f"the bridge has {rss / _MIB:.0f} MiB")
    if idle is not None:
        said.append(f"and is idle at {idle:g}% of a core")
    return said


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.1f}" if value < 1000 and value != int(value) else f"{value:,.0f}"
