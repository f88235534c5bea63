"""Find the fewest faults that still break a run."""

from __future__ import annotations

from dataclasses import replace

from tests.simulation.plan import Plan
from tests.simulation.run import Outcome, run


def shrink(outcome: Outcome) -> Outcome:
    """Return the run of a smaller plan that breaks the same promise: fewer faults, then shorter and simpler ones."""
    best, what = outcome, _promise(outcome)
    smaller = True
    while smaller:
        smaller = False
        for plan in _simpler(best.plan):
            tried = run(plan)
            if what in {_promise_of(text) for text in tried.broken}:
                best, smaller = tried, True
                break
    return best


def _promise(outcome: Outcome) -> str:
    return _promise_of(outcome.broken[0])


def _promise_of(text: str) -> str:
    return text.partition(":")[0]


def _simpler(plan: Plan) -> list[Plan]:
    found = [plan.without(fault) for fault in plan.faults]
    for change in ({"instances": 1}, {"shards": 1}, {"rate": 0.0}, {"lost": 0.0}, {"slow": 0.0}):
        simpler = replace(plan, **change)
        if simpler != plan:
            found.append(simpler)
    return found
