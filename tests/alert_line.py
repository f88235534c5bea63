"""Alert rules on the metrics of a running postdate: pages of /metrics, and what Prometheus' own checker makes of them.

A test brings postdate into a state and scrapes it. ``check_firing`` lets the state last for as long as the rules
demand, at 30 s a scrape: counters and moments go on as between the two pages, what is overdue ages, the rest stays.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bridge_process import ROOT
from tests.devstack.promtool import find_promtool
from tests.devstack.service import Unavailable
from tests.http_line import HttpLine

RULES = ROOT / "deploy/prometheus-alerts.yaml"
_SAMPLE = re.compile(r"^(postdate_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_STEP_S, _BEFORE = 30, 4
_COUNTERS = ("_total", "_bucket", "_count", "_sum")
_MOMENT = "_timestamp_seconds"
_AGES = (
    "postdate_oldest_overdue_seconds",
    "postdate_oldest_held_seconds",
    "postdate_journal_unwritten_age_seconds",
    "postdate_unconfirmed_seconds",
)

#: The samples of one page by name and labels, and when it was read (Unix seconds).
Page = tuple[dict[str, float], float]


def scraped(http: HttpLine, instance: str = "a") -> Page:
    """Read /metrics as Prometheus does."""
    told = http.get("/metrics")
    assert told.status == 200, told
    samples = {}
    for name, labels, value in _SAMPLE.findall(told.text):
        samples[f'{name}{{instance="{instance}"{labels and ","}{labels}}}'] = float(value)
    return samples, time.time()


def check_firing(expected: set[str], before: Page, after: Page, folder: Path, minutes: int = 15) -> None:
    """Check that these alerts and no others fire when the state of the second page has lasted for so long."""
    test = {
        "interval": f"{_STEP_S}s",
        "input_series": list(_series(before, after, (minutes + 5) * 60 // _STEP_S)),
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (count by (alertname, route) (ALERTS{alertstate="firing"}))',
                "eval_time": f"{minutes + 2}m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
            }
        ],
    }
    file = folder / "alerts.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "30s", "tests": [test]}))
    done = subprocess.run([_promtool(), "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _series(before: Page, after: Page, steps: int) -> Iterator[dict[str, str]]:
    (first, first_s), (then, then_s) = before, after
    for name in first.keys() | then.keys():
        metric = name.partition("{")[0]
        values: list[float | None] = [first.get(name)] * _BEFORE + [then.get(name)] * (steps + 1)
        if metric.endswith(_COUNTERS) and name in then:
            grown = then[name] - first.get(name, 0.0)
            values[_BEFORE:] = [then[name] + grown * step for step in range(steps + 1)]
        elif metric in _AGES and then.get(name):
            values[_BEFORE:] = [then[name] + _STEP_S * step for step in range(steps + 1)]
        elif metric.endswith(_MOMENT):
            values = [_moved(first.get(name), first_s, 0)] * _BEFORE
            goes_on = _STEP_S if then.get(name) != first.get(name) else 0
            moved_s = _moved(then.get(name), then_s, _BEFORE)
            values += [None if moved_s is None else moved_s + goes_on * step for step in range(steps + 1)]
        yield {"series": name, "values": " ".join("_" if value is None else repr(value) for value in values)}


def _moved(moment_s: float | None, read_s: float, step: int) -> float | None:
    """Return a moment by the clock of the test, which begins at 0."""
    return None if moment_s is None else moment_s - read_s + step * _STEP_S


def _promtool() -> str:
    try:
        return find_promtool()
    except Unavailable as error:
        pytest.skip(str(error))
