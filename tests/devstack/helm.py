"""Helm, kubeconform and the schemas of Kubernetes: what judges the chart. Built once, from Go modules.

`python -m tests.devstack.helm` builds them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from tests.devstack.engine import EngineFailed, run
from tests.devstack.service import Unavailable, devstack_folder, machine_lock

HELM = ("helm", "helm.sh/helm/v3/cmd/helm", "v3.22.0")
KUBECONFORM = ("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform", "v0.8.0")
KUBERNETES = ("k8s.io/kubernetes", "v1.36.3")
OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
#: The version of Kubernetes that the chart is rendered for.
KUBE_VERSION = KUBERNETES[1].removeprefix("v")
# A build without these takes itself for the client of Kubernetes 1.20.
_KNOWN = "helm.sh/helm/v3/pkg/chartutil.k8sVersion"
_LINK = f"-X {_KNOWN}Major={KUBE_VERSION.split('.')[0]} -X {_KNOWN}Minor={KUBE_VERSION.split('.')[1]}"
_BUILD_S, _QUICK_S = 1_800.0, 60.0
_MACHINERY = "io.k8s.apimachinery.pkg."


class ChartTools(NamedTuple):
    """Programs and a folder of schemas."""

    helm: Path
    kubeconform: Path
    schemas: Path

    def run_helm(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """One command of Helm, without a cluster and without plugins or settings of this machine."""
        with tempfile.TemporaryDirectory() as home:
            environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home}
            return subprocess.run(
                (self.helm, *words), env=environ, capture_output=True, text=True, timeout=_QUICK_S, check=False
            )

    def judge(self, manifests: str) -> str:
        """What kubeconform says against these manifests; unknown fields count. Empty if nothing."""
        known = f"{self.schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json"
        command = (self.kubeconform, "-strict", "-schema-location", known, "-")
        done = subprocess.run(command, input=manifests, capture_output=True, text=True, timeout=_QUICK_S, check=False)
        assert (done.returncode == 0) == (not done.stdout), done
        return done.stdout


def present_tools() -> ChartTools:
    """What a run of the long tests has left on this machine."""
    tools = _tools()
    if missing := [path.name for path in tools if not path.exists()]:
        raise Unavailable(f"{', '.join(missing)} not built yet: `make test-helm` builds it with Go")
    return tools


def build_tools() -> ChartTools:
    """All of it, built where it is not there yet: five minutes, once."""
    tools = _tools()
    _once(tools.helm, lambda target: _install(HELM, target))
    _once(tools.kubeconform, lambda target: _install(KUBECONFORM, target))
    _once(tools.schemas, _write_schemas)
    return tools


def _tools() -> ChartTools:
    folder = devstack_folder()
    helm, kubeconform = (folder / f"{name}-{version}" for name, _, version in (HELM, KUBECONFORM))
    return ChartTools(helm, kubeconform, folder / f"kubernetes-schemas-{KUBERNETES[1]}-{OPERATOR[1]}")


def _once(target: Path, make: Callable[[Path], None]) -> None:
    """Make a file or a folder that bears its name only when it is complete."""
    with machine_lock(target.name):
        if target.exists():
            return
        with tempfile.TemporaryDirectory(dir=devstack_folder(), prefix=f"{target.name}-") as folder:
            try:
                make(Path(folder) / "new")
            except (EngineFailed, subprocess.TimeoutExpired) as error:
                raise Unavailable(f"{target.name} cannot be built: {error}") from error
            (Path(folder) / "new").rename(target)


def _go(*words: str, **more: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("no Go on this machine")
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": "-p=1 -modcacherw", **more}
    return run([go, *words], environ, _BUILD_S)


def _install(module: tuple[str, str, str], target: Path) -> None:
    name, path, version = module
    bin_folder = target.with_name("bin")
    _go("install", "-ldflags", _LINK, f"{path}@{version}", GOBIN=str(bin_folder))
    (bin_folder / name).rename(target)


def _write_schemas(target: Path) -> None:
    # The modules are large, and only some files of them are wanted: they are not kept.
    cache = target.with_name("modules")
    fetched = {name: _fetch(name, version, cache) for name, version in (KUBERNETES, OPERATOR)}
    spec = json.loads((fetched[KUBERNETES[0]] / "api/openapi-spec/swagger.json").read_text())
    target.mkdir()
    for name, schema in _kubernetes_schemas(spec["definitions"]):
        (target / name).write_text(json.dumps(schema))
    for kind in ("servicemonitors", "prometheusrules"):
        file = fetched[OPERATOR[0]] / f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
        name, schema = _resource_schema(YAML(typ="safe").load(file))
        (target / name).write_text(json.dumps(schema))


def _fetch(module: str, version: str, cache: Path) -> Path:
    found = _go("mod", "download", "-json", f"{module}@{version}", GOMODCACHE=str(cache))
    return Path(json.loads(found)["Dir"])


def _kubernetes_schemas(definitions: dict[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A schema for each kind of object, and one with what all refer to."""
    definitions[f"{_MACHINERY}util.intstr.IntOrString"] = {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    definitions[f"{_MACHINERY}api.resource.Quantity"] = {"oneOf": [{"type": "string"}, {"type": "number"}]}
    yield "_definitions.json", {"definitions": {name: _strict(definition) for name, definition in definitions.items()}}
    for name, definition in definitions.items():
        for kind in definition.get("x-kubernetes-group-version-kind", ()):
            file = _file_name(kind["kind"], kind["group"], kind["version"])
            yield file, {"$ref": f"_definitions.json#/definitions/{name}"}


def _resource_schema(crd: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The schema of a custom resource."""
    spec = crd["spec"]
    (version,) = spec["versions"]
    return _file_name(spec["names"]["kind"], spec["group"], version["name"]), _strict(
        version["schema"]["openAPIV3Schema"]
    )


def _file_name(kind: str, group: str, version: str) -> str:
    return "-".join(part for part in (kind, group.split(".")[0], version) if part).lower() + ".json"


def _strict(schema: Any) -> Any:
    """The same schema, in which an object has no other fields than those that it names."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    result = {name: _strict(part) for name, part in schema.items()}
    if isinstance(result.get("properties"), dict):
        result.setdefault("additionalProperties", False)
    if result.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


if __name__ == "__main__":
    build_tools()
