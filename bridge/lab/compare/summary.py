"""The few figures of a comparison that a README has room for, as a table in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bridge.lab.compare.lines import number
from bridge.lab.compare.plan import Plan, caution
from bridge.lab.compare.result import Result

_PROCESSES = ("bridge", "broker", "store")


def markdown(results: Sequence[Result], plan: Plan, about: Mapping[str, Any]) -> str:
    """A row for each mode, and below the table how to read it, and on what machine and when it was measured."""
    titles, answers = zip(("way", lambda result: result.mode.title), *_columns(plan), strict=True)
    rows = [[answer(result) for answer in answers] for result in results]
    table = [titles, ["---", *("--:" for _ in titles[1:])], *rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return f"{text}\n\n{' '.join(notes(plan))}\n\n{_where(about)}\n"


def notes(plan: Plan) -> tuple[str, ...]:
    """Sentences without which the figures would be taken for more than they are."""
    found = (
        "Late counts from the moment to which a way rounds the delay; the rounding comes on top.",
        f"It is that of the delays measured, {plan.span}: levels that lie further apart round by more, those of the "
        "default list 61 minutes to 2 hours.",
        "Short behind long: below 0 nothing came early, the long delays were the later ones.",
        f"At once: how fast one flood of {plan.count:,} drains, and no rate that can be held.",
        caution(plan),
    )
    return tuple(filter(None, found))


def _columns(plan: Plan) -> Iterator[tuple[str, Callable[[Result], str]]]:
    for rate in plan.rates:
        yield f"late at {rate:,g}/s: p50, p99, ms", partial(_late, rate)
    rate = plan.rates[-1]
    yield "short behind long, ms", lambda result: _at(result, rate, "short_behind_long_ms")
    yield f"delays of {plan.span} rounded by up to, ms", lambda result: _at(result, rate, "rounding_max_ms")
    yield f"{plan.count:,} at once, out/s", lambda result: number(result.figures("flood").get("deliver_per_s"))
    yield f"{plan.count:,} due at one moment, all out after, ms (of it rounding)", _all_out
    yield f"processor at {rate:,g}/s, µs a message", lambda result: _processor(result, rate)
    yield "lost, early", lambda result: f"{result.faults().get('lost', 0)}, {result.faults().get('early', 0)}"


def _late(rate: float, result: Result) -> str:
    return ", ".join(filter(None, (_at(result, rate, name) for name in ("p50_ms", "p99_ms"))))


def _at(result: Result, rate: float, name: str) -> str:
    step = result.at_rate(rate)
    return "" if step is None else number(step.figures.get(name))


def _all_out(result: Result) -> str:
    """Counted from the moment that was asked for, because that is what is waited for."""
    burst = result.figures("burst")
    text, moved = number(burst.get("all_out_ms")), burst.get("moved_max_ms")
    return f"{text} ({number(moved)})" if text and moved else text


def _processor(result: Result, rate: float) -> str:
    """Of all processes together; nothing where the broker's is not known."""
    step = result.at_rate(rate)
    if step is None or step.figures.get("broker_cpu_us") is None:
        return ""
    return number(sum(float(step.figures.get(f"{name}_cpu_us") or 0) for name in _PROCESSES))


def _where(about: Mapping[str, Any]) -> str:
    machine, versions = about["machine"], about["versions"]
    programs = ", ".join(f"{name} {version}" for name, version in versions.items() if name != "postdate")
    return f"{about['date'][:10]}, {machine['cpu']}, {machine['cores']} cores; {programs}."
