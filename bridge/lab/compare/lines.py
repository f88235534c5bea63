"""The table of a comparison: a line for each question, a column for each mode. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from bridge.lab.compare.plan import Plan
from bridge.lab.compare.result import Result

_MIB = 1024 * 1024
_QUANTILES = {"p50": "p50_ms", "p90": "p90_ms", "p99": "p99_ms", "p99.9": "p999_ms", "max": "max_ms"}

#: What must not happen to a message, each in a column; their order is told apart.
_COUNTED = ("lost", "duplicates", "early", "refused")

#: By label.
_NOTES = {
    "short behind long": "Short behind long: the median lateness of the quarter of messages with the shortest delays, "
    "minus that of the quarter with the longest; about 0 where a short delay passes a long one. Below 0 nothing came "
    "early: the long ones were the later ones, as in a ladder, where they pass more queues.",
    "of it rounding": "Counted from the moment that was asked for. Of it rounding: how far the way's own rule moves "
    "that moment, for the message that it moves furthest.",
    "broker, bytes each": "By how much the broker's process grew, for each message; blank where it gave back more than "
    "it took. With redis no message waits there: it is what RabbitMQ has not given back yet of passing them on.",
}

#: One mode's answer to one question.
Answer = Callable[[Result], str]


@dataclass(frozen=True)
class Line:
    """A question and each mode's answer; lines of one ``group`` belong together. "" where there is no answer.

    ``note`` says what cannot be seen from the label.
    """

    group: str
    label: str
    cells: tuple[str, ...]
    note: str = ""


def lines(results: Sequence[Result], plan: Plan) -> list[Line]:
    """All lines that at least one mode has an answer to."""
    found = [
        Line(group, label, tuple(map(answer, results)), _NOTES.get(label, ""))
        for group, label, answer in _questions(plan)
    ]
    return [line for line in found if any(line.cells)]


def _questions(plan: Plan) -> Iterator[tuple[str, str, Answer]]:
    for rate in plan.rates:
        for label, name in _QUANTILES.items():
            yield f"Lateness at {rate:,g} a second, ms", label, _at_rate(rate, name)
    rate = plan.rates[-1]
    group = f"Delays of {plan.span}, at {rate:,g} a second, ms"
    yield group, "short behind long", _at_rate(rate, "short_behind_long_ms")
    yield group, "rounded, p50", _at_rate(rate, "rounding_p50_ms")
    yield group, "rounded, max", _at_rate(rate, "rounding_max_ms")
    group = f"One flood of {plan.count:,} at once, a second"
    yield group, "published", _of("flood", "publish_per_s")
    yield group, "delivered", _of("flood", "deliver_per_s")
    group = "Messages, all runs"
    yield group, "sent", lambda result: number(result.messages())
    for name in _COUNTED:
        yield group, name, _fault(name)
    group = "Came after one that was published later"
    yield group, "due at one moment", _fault("disordered")
    yield group, "with one delay", _out_of_order
    group = f"{plan.count:,} due at one moment, ms"
    yield group, "all out after", _of("burst", "all_out_ms")
    yield group, "of it rounding", _of("burst", "moved_max_ms")
    for name in ("bridge", "broker", "store"):
        yield f"Processor at {rate:,g} a second, µs a message", name, _at_rate(rate, f"{name}_cpu_us")
    group = f"{plan.backlog:,} waiting"
    yield group, "broker, bytes each", _bytes_each("broker")
    yield group, "store, bytes each", _bytes_each("store")
    yield group, "bridge, MiB", lambda result: _mib(result.figures("backlog").get("bridge_bytes"))
    yield "Bridge started anew, ms", "none came for", _of("restart", "standstill_ms")
    yield "What waits", "can be cancelled", lambda result: result.mode.cancel


def number(value: float | None) -> str:
    """For people; "" for none."""
    if value is None:
        return ""
    shown = round(value, 1) or 0  # or a little less than nothing would be -0
    return f"{shown:,.0f}" if abs(shown) >= 100 or shown == int(shown) else f"{shown:,.1f}"


def _at_rate(rate: float, name: str) -> Answer:
    def answer(result: Result) -> str:
        step = result.at_rate(rate)
        return "" if step is None else number(step.figures.get(name))

    return answer


def _fault(name: str) -> Answer:
    """Nothing where no step could have seen one."""

    def answer(result: Result) -> str:
        seen = any(name in step.figures for step in result.steps)
        return number(result.faults().get(name, 0)) if seen else ""

    return answer


def _of(kind: str, name: str) -> Answer:
    return lambda result: number(result.figures(kind).get(name))


def _bytes_each(name: str) -> Answer:
    """Nothing where the server gave back more memory meanwhile than it took."""

    def answer(result: Result) -> str:
        backlog = result.figures("backlog")
        grew = backlog.get(f"{name}_grew_bytes") or 0
        return number(grew / (backlog["messages"] or 1)) if grew > 0 else ""

    return answer


def _out_of_order(result: Result) -> str:
    flood = result.figures("flood")
    if flood.get("out_of_order") is None or not flood["messages"]:
        return ""
    share = float(flood["out_of_order"] or 0) / float(flood["messages"])
    return "0" if not flood["out_of_order"] else f"{share:.1%} of the flood"


def _mib(value: float | None) -> str:
    return "" if value is None else f"{value / _MIB:,.0f}"
