"""Run seeds: `make simulate SEEDS=1000 FROM=1`, or one with its trace: `make simulate SEED=7`.

Ends with 1 if a promise was broken in any run. Each finding is a line. The trace is that of the fewest faults that
still show it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.mutations import MUTATIONS, table
from tests.simulation.plan import Plan, draw
from tests.simulation.run import Outcome, run
from tests.simulation.shrink import shrink

_CHUNK = 8


def main() -> int:
    """Run what the arguments say. Return the exit code."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--from", dest="first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed alone, and print its trace")
    parser.add_argument("--mutation", help="search for this planted mistake from seed 1 on; all: for every one")
    given = parser.parse_args()
    if given.mutation is not None:
        return int(not table(MUTATIONS if given.mutation == "all" else [given.mutation]))
    if given.seed is not None:
        return _trace(given.seed)
    return _many(range(given.first, given.first + given.seeds))


def _trace(seed: int) -> int:
    outcome = run(draw(seed))
    if outcome.broken:
        outcome = shrink(outcome)
    print(describe(outcome))
    return int(bool(outcome.broken))


def _many(seeds: Iterable[int]) -> int:
    began_s, done, broken, arrived = time.perf_counter(), 0, 0, 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for seed, texts, number in pool.map(_judged, seeds, chunksize=_CHUNK):
            done, broken, arrived = done + 1, broken + bool(texts), arrived + number
            for text in texts:
                print(f"seed {seed}: {text}", flush=True)
    took_s = time.perf_counter() - began_s
    print(f"{done} seeds, {arrived} deliveries, {done / took_s:.1f} seeds/s, broken: {broken}", file=sys.stderr)
    return int(bool(broken))


def _judged(seed: int) -> tuple[int, list[str], int]:
    outcome = run(draw(seed))
    return seed, outcome.broken, outcome.arrived


def describe(outcome: Outcome) -> str:
    """Return a run as text: its plan, what happened, and what was broken."""
    return "\n".join(
        [_plan(outcome.plan), *map(str, outcome.plan.faults), "", *outcome.trace, "", *(outcome.broken or ["kept"])]
    )


def _plan(plan: Plan) -> str:
    broker = "logs" if plan.kafka else "queues"
    broker += ", transactional" * plan.transactional + ", levels" * plan.levels
    if plan.journal:
        cold = f", cold after {plan.cold_after_ms} ms" * bool(plan.cold_after_ms)
        broker += f", journal {plan.journal}{cold}" + ", restores by itself" * plan.auto
    return (
        f"seed {plan.seed}: {plan.messages} messages, {plan.keys} keys, {plan.instances} instances, {broker}, "
        f"{plan.shards} shards, max_rate {plan.rate:g}, answers lost {plan.lost:g}, slow {plan.slow:g}, "
        f"drift {plan.drift:g}"
    )


if __name__ == "__main__":
    sys.exit(main())
