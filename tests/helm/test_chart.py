"""The chart, judged by Helm and by the schemas of Kubernetes and the Prometheus Operator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bridge.settings import load
from tests.bridge_process import ROOT
from tests.devstack.helm import ChartTools, present_tools
from tests.devstack.service import Unavailable
from tests.helm.chart import CHART, VALUES, container, objects, read_yaml, refusal, rendered

pytestmark = pytest.mark.slow

LEAST, FULL = VALUES / "least.yaml", VALUES / "full.yaml"
#: Beside the chart, and linked into it: Helm reads no file outside of a chart.
RULES = ROOT / "deploy/prometheus-alerts.yaml"
ALWAYS = {"ConfigMap", "Deployment", "PodDisruptionBudget", "Service"}


@pytest.fixture(scope="module")
def tools() -> ChartTools:
    try:
        return present_tools()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("values", [LEAST, FULL], ids=lambda file: file.stem)
def test_helm_and_the_strict_schemas_find_nothing(tools: ChartTools, values: Path) -> None:
    linted = tools.run_helm("lint", CHART, "--strict", "--values", values)
    assert linted.returncode == 0, linted.stdout
    assert tools.judge(rendered(tools, "--values", values)) == ""


def test_the_strict_schemas_notice_a_misspelt_field(tools: ChartTools) -> None:
    manifests = rendered(tools, "--values", FULL)
    for right, wrong in (("imagePullPolicy", "imagePullPolice"), ("scrapeTimeout", "scrapeTimeOut")):
        assert wrong in tools.judge(manifests.replace(right, wrong))


def test_the_least_values_make_these_objects_with_secure_defaults(tools: ChartTools) -> None:
    made = objects(rendered(tools, "--values", LEAST))
    assert set(made) == ALWAYS | {"Secret"}
    pod = made["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container(made)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container(made)["image"] == "postdate:0.1.0"
    for name, path, port in (
        ("startup", "/startupz", "http"),
        ("liveness", "/livez", "live"),
        ("readiness", "/readyz", "http"),
    ):
        assert container(made)[f"{name}Probe"]["httpGet"] == {"path": path, "port": port}
    ports = [(port["name"], port["containerPort"]) for port in container(made)["ports"]]
    assert ports == [("http", 8480), ("live", 8481)]


def test_every_object_has_the_standard_labels_and_is_in_the_namespace_of_the_release(tools: ChartTools) -> None:
    for values in (LEAST, FULL):
        for kind, manifest in objects(rendered(tools, "--values", values)).items():
            assert manifest["metadata"]["namespace"] == "shop", kind
            assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "r", kind
            assert ("team" in manifest["metadata"]["labels"]) == (values is FULL), kind


def test_service_budget_and_monitor_select_the_pods_and_two_releases_do_not_mix(tools: ChartTools) -> None:
    made = objects(rendered(tools, "--values", FULL))
    pods = made["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    service = made["Service"]
    for selector in (
        service["spec"]["selector"],
        made["Deployment"]["spec"]["selector"]["matchLabels"],
        made["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector == {"app.kubernetes.io/name": "delay", "app.kubernetes.io/instance": "r"}
        assert selector.items() <= pods
    monitor = made["ServiceMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [
        port["name"] for port in service["spec"]["ports"]
    ]


@pytest.mark.parametrize("values", [LEAST, FULL], ids=lambda file: file.stem)
def test_postdate_accepts_the_settings_and_stops_before_kubernetes_kills_it(
    tools: ChartTools, values: Path, tmp_path: Path
) -> None:
    made = objects(rendered(tools, "--values", values))
    file = tmp_path / "postdate.toml"
    file.write_text(made["ConfigMap"]["data"]["postdate.toml"])
    environ = {
        variable["name"]: variable.get("value", f"made-up-{variable['name'].lower()}")
        for variable in container(made)["env"]
    }
    settings = load(file, environ)
    assert settings.http.listen == "0.0.0.0:8480"
    assert settings.http.live_listen == "0.0.0.0:8481"
    grace = made["Deployment"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert settings.bridge.shutdown_grace == (grace - 15) * 1000


def test_changed_settings_replace_the_pods_and_other_values_do_not(tools: ChartTools) -> None:
    def checksum(*options: str | Path) -> str:
        made = objects(rendered(tools, "--values", LEAST, *options))
        found: str = made["Deployment"]["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return found

    assert checksum() == checksum("--set", "replicas=5")
    assert checksum() != checksum("--set-string", "config=[routes.other]")


def test_tokens_are_generated_long_and_different_or_taken_from_a_secret(tools: ChartTools) -> None:
    made = objects(rendered(tools, "--values", LEAST))
    tokens = made["Secret"]["data"]
    assert set(tokens) == {"viewer_token", "operator_token", "admin_token"}
    assert len(set(tokens.values())) == 3
    assert min(len(token) for token in tokens.values()) >= 40
    taken = objects(rendered(tools, "--values", FULL))
    assert "Secret" not in taken
    credentials = taken["ServiceMonitor"]["spec"]["endpoints"][0]["authorization"]["credentials"]
    assert credentials == {"name": "postdate-web", "key": "viewer_token"}
    sources = {
        variable["name"]: variable["valueFrom"]["secretKeyRef"]
        for variable in container(taken)["env"]
        if "_TOKEN" in variable["name"]
    }
    assert {source["name"] for source in sources.values()} == {"postdate-web"}
    assert "optional" not in sources["POSTDATE_AUTH__VIEWER_TOKEN"]


def test_the_full_values_reach_the_pod(tools: ChartTools) -> None:
    made, given = objects(rendered(tools, "--values", FULL)), read_yaml(FULL)
    pod, main = made["Deployment"]["spec"]["template"]["spec"], container(made)
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "topologySpreadConstraints"):
        assert pod[name] == given[name], name
    assert pod["priorityClassName"] == "high"
    assert pod["securityContext"].items() >= given["podSecurityContext"].items()
    assert main["image"] == f"registry.example/team/postdate@{given['image']['digest']}"
    assert main["resources"] == given["resources"]
    assert main["envFrom"] == [{"secretRef": {"name": "postdate-secrets"}}, *given["extraEnvFrom"]]
    assert given["extraEnv"][0] in main["env"]
    assert given["extraVolumes"][0] in pod["volumes"]
    assert given["extraVolumeMounts"][0] in main["volumeMounts"]


def test_the_rules_of_the_operator_are_those_of_the_repository(tools: ChartTools) -> None:
    made = objects(rendered(tools, "--values", FULL))
    assert made["PrometheusRule"]["spec"]["groups"] == read_yaml(RULES)["groups"]


def test_the_runbook_of_each_rule_is_a_link_where_its_url_is_known(tools: ChartTools) -> None:
    url = "https://wiki.example/postdate"
    made = objects(rendered(tools, "--values", FULL, "--set", f"prometheusRule.runbookUrl={url}"))
    rules = [rule for group in made["PrometheusRule"]["spec"]["groups"] for rule in group["rules"]]
    links = [rule["annotations"].get("runbook_url") for rule in rules]
    assert links == [f"{url}#{rule['alert'].lower()}" for rule in rules]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((), "config is empty. Put postdate's settings there"),
        (("--set-string", "config=[routes"), "config is not valid TOML: "),
        (("-f", LEAST, "--set", "tokens.generate=false"), "Set tokens.generate to true, or tokens.existingSecret"),
        (("-f", LEAST, "--set", "replica=2"), "'replica' not allowed"),
        (("-f", LEAST, "--set", "terminationGracePeriodSeconds=10"), "/terminationGracePeriodSeconds"),
    ],
)
def test_what_cannot_work_is_refused_in_one_sentence(
    tools: ChartTools, options: tuple[str | Path, ...], sentence: str
) -> None:
    assert sentence in refusal(tools, *options)


@pytest.mark.parametrize(("values", "role"), [(LEAST, "admin"), (FULL, "viewer")], ids=["generated", "own"])
def test_the_notes_name_the_commands_that_a_new_user_needs(
    tools: ChartTools, tmp_path: Path, values: Path, role: str
) -> None:
    # Helm shows notes only after it has asked a cluster.
    shutil.copytree(CHART, tmp_path / "postdate")
    (tmp_path / "postdate/templates/shown.yaml").write_text(
        'kind: Notes\ntext: |\n  {{- include (print $.Template.BasePath "/NOTES.txt") . | nindent 2 }}\n'
    )
    done = tools.run_helm("template", "r", tmp_path / "postdate", "--values", values)
    assert done.returncode == 0, done.stderr
    made = objects(done.stdout)
    notes = made["Notes"]["text"]
    assert f"kubectl -n default rollout status deployment/{made['Deployment']['metadata']['name']}" in notes
    # A Secret of the user may have the viewer token alone.
    assert f"with the {role} token" in notes
    assert f"-o go-template='{{{{.data.{role}_token | base64decode}}}}'" in notes
    assert ("admin_token" in notes) == (role == "admin")
