"""The chart as files, and the objects that Helm makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tests.bridge_process import ROOT
from tests.devstack.helm import KUBE_VERSION, ChartTools

CHART = ROOT / "deploy/helm/postdate"
VALUES = Path(__file__).parent / "values"

Objects = Mapping[str, Any]


def read_yaml(file: Path) -> dict[str, Any]:
    """One document."""
    loaded: dict[str, Any] = YAML(typ="safe").load(file)
    return loaded


def rendered(tools: ChartTools, *options: str | Path) -> str:
    """The manifests of a release called `r` in the namespace `shop`."""
    done = tools.run_helm("template", "r", CHART, "--namespace", "shop", "--kube-version", KUBE_VERSION, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(tools: ChartTools, *options: str | Path) -> str:
    """What Helm says when it refuses."""
    done = tools.run_helm("template", "r", CHART, "--kube-version", KUBE_VERSION, *options)
    assert done.returncode != 0
    return done.stderr


def objects(manifests: str) -> dict[str, Any]:
    """The objects by their kind; the chart makes at most one of each."""
    found = [manifest for manifest in YAML(typ="safe").load_all(manifests) if manifest]
    by_kind = {manifest["kind"]: manifest for manifest in found}
    assert len(by_kind) == len(found)
    return by_kind


def container(made: Objects) -> dict[str, Any]:
    """The only container of the pod."""
    (container,) = made["Deployment"]["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found
