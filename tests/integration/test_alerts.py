"""Alert rules and dashboard: every metric in them exists on the page of a running bridge, and promtool accepts all."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.bridge_process import ROOT
from tests.delay_line import Line
from tests.devstack.promtool import find_promtool
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import Unavailable
from tests.http_line import HttpLine

RULES, DASHBOARD = ROOT / "deploy/prometheus-alerts.yaml", ROOT / "deploy/grafana-dashboard.json"
_NAME = re.compile(r"\bpostdate_[a-z_]+")


@pytest.fixture(scope="module")
def promtool() -> str:
    try:
        return find_promtool()
    except Unavailable as error:
        pytest.skip(str(error))


def rules() -> list[dict[str, Any]]:
    found = YAML(typ="safe").load(RULES)
    return [rule for group in found["groups"] for rule in group["rules"]]


def queries() -> Iterator[str]:
    """Every query of the dashboard, with Grafana's variables filled in."""
    board = json.loads(DASHBOARD.read_text())
    yield board["templating"]["list"][1]["query"]["query"]
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "1m").replace("$route", ".*")


def named() -> set[str]:
    """The metrics that rules and dashboard name."""
    texts = [*(rule["expr"] for rule in rules()), *queries()]
    return {name for text in texts for name in _NAME.findall(text)}


def checked(promtool: str, *arguments: str, text: str | None = None) -> None:
    done = subprocess.run([promtool, *arguments], input=text, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules_and_their_tests_pass(promtool: str) -> None:
    checked(promtool, "check", "rules", str(RULES))
    checked(promtool, "test", "rules", "tests/integration/alerts.test.yaml")


def test_promtool_accepts_every_query_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    exprs = [query for query in queries() if not query.startswith("label_values(")]
    recorded = [{"record": f"dashboard:query:{number}", "expr": expr} for number, expr in enumerate(exprs)]
    file = tmp_path / "queries.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    checked(promtool, "check", "rules", str(file))


def test_every_alert_has_a_heading_in_the_runbook() -> None:
    headings = {line[4:].strip() for line in (ROOT / "deploy/README.md").read_text().splitlines() if line[:4] == "### "}
    for rule in rules():
        assert rule["alert"] in headings
        assert rule["annotations"]["runbook"] == f"deploy/README.md#{rule['alert'].lower()}"
        assert "runbook_url" not in rule["annotations"], "a path is no link"
    assert {heading for heading in headings if heading.startswith("Postdate")} == {rule["alert"] for rule in rules()}


@pytest.mark.rabbitmq
def test_every_metric_of_rules_and_dashboard_is_on_the_page(
    rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path, promtool: str
) -> None:
    http, journal = HttpLine(), {"journal": {"url": f"sqlite:///{tmp_path}/journal.db"}}
    with Line(
        rabbitmq.url, redis_server.url, tmp_path, {**http.settings, "canary": {"enabled": True}, **journal}
    ) as line:
        line.start()
        http.wait("/readyz", 200)
        page = http.get("/metrics").text
    there = set(re.findall(r"^# TYPE (postdate_[a-z_]+) ", page, re.MULTILINE))
    there |= {f"{name}_bucket" for name in re.findall(r"^# TYPE (postdate_[a-z_]+) histogram", page, re.MULTILINE)}
    assert named() - there == set()
    checked(promtool, "check", "metrics", text=page)


def test_every_alert_is_tried_on_a_running_postdate() -> None:
    tried = (ROOT / "tests/integration/test_alerts_live.py").read_text()
    assert [rule["alert"] for rule in rules() if f'"{rule["alert"]}"' not in tried] == []
