"""Runs of the simulation, and planted mistakes in postdate that it has to find."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.simulation.mutations import MUTATIONS, SURVIVES_WITHOUT, search, survives
from tests.simulation.plan import Fault, draw
from tests.simulation.run import run

#: Mistakes that the first few seeds find.
FOUND_AT_ONCE = (
    "accepts before durable",
    "publishes ahead",
    "never settles",
    "keeps what is replaced",
    "forgets moves",
    "leaves out a row",
    "unloads what has no row",
)
#: Enough for every kind of fault, on queues and on logs. `make simulate` runs more.
SEEDS = range(1, 13)
#: Seeds that showed something once. What they showed in postdate has a test of its own as well.
FOUND = (
    39,
    50,
    129,
    175,
    478,
    1047,
    2065,
    2606,
    2713,
    10150,
    10239,
    10820,
    20462,
    20988,
    25094,
    40378,
    71022,
    115063,
    123799,
    3001063,
    3006410,
    8002183,
    655945691178,
    1864100102,
    1795703560310,
    128070,
    129703,
    139558,
    532504596906,
)
#: Seeds with a journal that showed something once.
FOUND_WITH_A_JOURNAL = (
    40,
    80,
    507,
    1016,
    1176,
    3067,
    10315,
    30349,
    30405,
    31259,
    100144,
    5001128,
    5001771,
    5010731,
    5021304,
    5031723,
    5032400,
    5041515,
    7002080,
    7002403,
    7002579,
    7004931,
    7006165,
    7006243,
    7010488,
    7020936,
    7023901,
    9002357,
    9002875,
    9018213,
    9040232,
    9045003,
    9054187,
    9065133,
    9066528,
    9074728,
    117637,
    1044907943259,
)
#: Parts of fresh seeds, so that each worker takes some: seconds of a core for each, and of a busy machine at most.
PARTS, FRESH_S, AT_MOST_S = 4, 12.0, 40.0
_ROUTE_RELOADS = tuple(
    Fault(at_s, "route reloaded", for_s, which) for which, at_s, for_s in ((0, 3, 4), (1, 9, 9), (2, 20, 1))
)
_STORE_FREEZES = (Fault(5.0, "store frozen", 4.0, 0), Fault(12.0, "store frozen", 12.0, 0))


@pytest.mark.parametrize("seed", [*SEEDS, *FOUND, *FOUND_WITH_A_JOURNAL])
def test_every_promise_is_kept_whatever_happens(seed: int) -> None:
    assert run(draw(seed)).broken == []


def test_seeds_that_showed_something_have_a_journal_or_none_as_then() -> None:
    assert not any(draw(seed).journal for seed in FOUND)
    assert all(draw(seed).journal for seed in FOUND_WITH_A_JOURNAL)


def first_seed() -> int:
    """Return where fresh seeds begin: by the clock, and in CI by the commit, so that a commit has one verdict."""
    if os.environ.get("CI") != "true":
        return int(time.time()) * 1000
    command = ["git", "-c", "safe.directory=*", "rev-parse", "HEAD"]
    return int(subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, check=True).stdout[:10], 16)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_is_kept_with_fresh_seeds(part: int) -> None:
    of_core_s, at_s = time.process_time() + FRESH_S, time.monotonic() + AT_MOST_S
    for seed in count(first_seed() + part, PARTS):
        broken = run(draw(seed)).broken
        assert not broken, f"make simulate SEED={seed}"
        if time.process_time() > of_core_s or time.monotonic() > at_s:
            return


@pytest.mark.parametrize("seed", [4, 3])
def test_the_same_seed_is_the_same_run(seed: int) -> None:
    first, second = run(draw(seed)), run(draw(seed))
    assert (first.trace, first.arrived, first.virtual_s) == (second.trace, second.arrived, second.virtual_s)


@pytest.mark.parametrize("kafka", [False, True])
@pytest.mark.parametrize("seed", [1, 5, 7])
def test_a_store_that_freezes_for_longer_than_its_timeout_reorders_no_key(seed: int, kafka: bool) -> None:
    plan = replace(draw(seed), instances=2, shards=2, keys=5, rate=0.0, lost=0.0, slow=0.0, kafka=kafka)
    assert run(replace(plan, faults=_STORE_FREEZES)).broken == []


@pytest.mark.parametrize("name", FOUND_AT_ONCE)
def test_a_planted_mistake_is_found(name: str) -> None:
    outcome = search(MUTATIONS[name], seeds=60)
    assert outcome is not None
    assert any(text.startswith(MUTATIONS[name].check) for text in outcome.broken)


def test_each_planted_mistake_replaces_something_that_postdate_has() -> None:
    for mutation in MUTATIONS.values():
        with mutation.plant():
            pass


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_planted_mistake_is_found(name: str) -> None:
    assert search(MUTATIONS[name]) is not None


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SURVIVES_WITHOUT)
def test_without_its_check_a_planted_mistake_survives(name: str) -> None:
    mutation = MUTATIONS[name]
    found = search(mutation)
    assert found is not None
    assert survives(mutation, found.plan.seed)


@pytest.mark.parametrize("kafka", [False, True])
@pytest.mark.parametrize("seed", [2, 3])
def test_routes_that_reloads_remove_and_bring_back_keep_the_order_of_their_keys(seed: int, kafka: bool) -> None:
    plan = replace(draw(seed), instances=1 + seed % 2, keys=1, rate=0.0, lost=0.0, slow=0.0, kafka=kafka, levels=False)
    assert run(replace(plan, faults=_ROUTE_RELOADS)).broken == []
