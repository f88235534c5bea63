"""The chart's values: described, held by its schema, and used. Without Helm."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.bridge_process import ROOT
from tests.helm.chart import CHART, VALUES, read_yaml

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS = read_yaml(CHART / "values.yaml")
TEMPLATES = "".join(file.read_text() for file in sorted((CHART / "templates").iterdir()))


def draft_7() -> Any:
    """Imported late, for not every process needs it, and without the grammar of internationalized addresses: building
    its parsers takes a second, and the schema has no such format."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "rfc3987_syntax", None)
        return importlib.import_module("jsonschema").Draft7Validator


def mistakes(values: Mapping[str, Any]) -> list[str]:
    """What the schema says against values that overlay the defaults."""
    merged = {**DEFAULTS, **{name: over(DEFAULTS.get(name), value) for name, value in values.items()}}
    return [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in draft_7()(SCHEMA).iter_errors(merged)
    ]


def over(default: object, value: object) -> object:
    """As Helm does it: maps are merged, all else is replaced."""
    return {**default, **value} if isinstance(default, dict) and isinstance(value, dict) else value


def test_the_schema_itself_is_valid() -> None:
    draft_7().check_schema(SCHEMA)


def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    def names(
        tables: Mapping[str, Any], schema: Mapping[str, Any], path: str = ""
    ) -> Iterator[tuple[str, set[str], set[str]]]:
        yield path, set(tables), set(schema["properties"]) - {"global"}
        for name, value in tables.items():
            inner = schema["properties"][name]
            if isinstance(value, dict) and inner.get("additionalProperties") is False:
                yield from names(value, inner, f"{path}{name}.")

    for path, there, described in names(DEFAULTS, SCHEMA):
        assert there == described, path


def test_every_value_is_used_and_every_used_value_exists() -> None:
    used = set(re.findall(r"\.Values\.(\w+)", TEMPLATES))
    assert used == set(DEFAULTS)


@pytest.mark.parametrize("file", sorted(VALUES.iterdir()), ids=lambda file: file.stem)
def test_the_values_of_the_tests_are_accepted(file: Any) -> None:
    assert mistakes(read_yaml(file)) == []


def test_the_full_values_of_the_tests_set_everything() -> None:
    assert set(read_yaml(VALUES / "full.yaml")) == set(DEFAULTS)


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica": 2},
        {"replicas": "2"},
        {"replicas": -1},
        {"config": {"redis": {}}},
        {"image": {"pullPolicy": "Sometimes"}},
        {"image": {"digest": "latest"}},
        {"image": {"repository": ""}},
        {"imagePullSecrets": ["registry"]},
        {"tokens": {"viewer_token": "in clear text"}},
        {"service": {"port": 0}},
        {"service": {"type": "ExternalName"}},
        {"terminationGracePeriodSeconds": 10},
        {"podDisruptionBudget": {"maxUnavailable": 0}},
        {"podDisruptionBudget": {"maxUnavailable": "half"}},
        {"serviceMonitor": {"interval": "often"}},
        {"serviceMonitor": {"label": {}}},
        {"extraEnv": {"POSTDATE_LOG__LEVEL": "debug"}},
        {"labels": {"team": 7}},
        {"livenessProbe": {"periodSeconds": 0}},
        {"nodeSelector": []},
    ],
    ids=str,
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    assert len(mistakes(wrong)) == 1


def test_the_chart_has_the_version_of_the_package() -> None:
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert read_yaml(CHART / "Chart.yaml")["appVersion"] == package
