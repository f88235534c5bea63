"""`deploy/Dockerfile` and `deploy/compose.yaml` as texts: the schema, and the conventions that a build cannot show."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from bridge.settings import load
from tests.devstack import kafka, rabbitmq4

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
COMPOSE = ROOT / "deploy/compose.yaml"
FILES = (ROOT / "deploy/Dockerfile", COMPOSE, ROOT / ".dockerignore", *(ROOT / "deploy/examples/compose").iterdir())


def services() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = YAML(typ="safe").load(COMPOSE)["services"]
    return loaded


def instructions(name: str) -> list[str]:
    """The arguments of every such instruction of the Dockerfile, with continued lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.partition(" ")[2].strip() for line in joined.splitlines() if line.startswith(f"{name} ")]


@pytest.mark.slow
def test_the_compose_file_follows_the_official_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_service_of_the_compose_file_is_bounded_and_restarted() -> None:
    for name, service in services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["mem_limit"], name
        assert service["restart"] == "unless-stopped", name
        assert "privileged" not in service, name


def test_the_compose_file_opens_ports_on_loopback_alone() -> None:
    ports = [port for service in services().values() for port in service.get("ports", ())]
    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:${")] == []


def test_what_runs_postdates_image_cannot_write_and_only_one_service_builds_it() -> None:
    own = {name: service for name, service in services().items() if "postdate" in service["image"]}
    assert len(own) == 6
    assert [name for name, service in own.items() if not service["read_only"]] == []
    assert [name for name, service in own.items() if "build" in service] == ["postdate"]
    assert own["postdate"]["build"] == {"context": "..", "dockerfile": "deploy/Dockerfile"}
    bare = [name for name, service in own.items() if name.startswith("postdate")]
    assert [name for name in bare if service_has_a_writable_path(own[name])] == []


def service_has_a_writable_path(service: dict[str, Any]) -> bool:
    return bool(service.get("tmpfs") or [volume for volume in service.get("volumes", ()) if not volume.endswith(":ro")])


def test_the_image_and_the_compose_file_judge_postdate_by_its_own_healthcheck() -> None:
    (options,) = instructions("HEALTHCHECK")
    assert options.endswith('CMD ["postdate", "healthcheck"]')
    for name, service in services().items():
        if "postdate" not in service["image"]:
            continue
        if name.startswith("postdate"):
            assert service["healthcheck"]["test"] == ["CMD", "postdate", "healthcheck"], name
        else:
            assert service["healthcheck"] == {"disable": True}, name


def test_what_the_image_is_built_from_is_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [path for line in instructions("COPY") if not line.startswith("--from") for path in line.split()[:-1]]
    assert copied
    assert {*copied} <= sent
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_compose_file_gives_tokens_that_its_user_may_replace() -> None:
    for name in ("postdate", "postdate-kafka"):
        given = services()[name]["environment"]
        assert given["POSTDATE_HTTP__LISTEN"] == "0.0.0.0:8480", name
        for role in ("VIEWER", "OPERATOR", "ADMIN"):
            assert given[f"POSTDATE_AUTH__{role}_TOKEN"] == f"${{{role}_TOKEN:-demo-{role.lower()}-token}}", name


def test_the_settings_of_the_compose_file_are_accepted() -> None:
    for name in ("postdate", "postdate-kafka"):
        given = services()[name]["environment"]
        environ = {key: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) for key, value in given.items()}
        assert load(None, environ).routes, name


def test_what_the_profile_monitoring_mounts_is_there_and_read_only() -> None:
    monitoring = [service for service in services().values() if service.get("profiles") == ["monitoring"]]
    assert len(monitoring) == 2
    mounts = [volume for service in monitoring for volume in service["volumes"] if volume.startswith("./")]
    assert [mount for mount in mounts if not mount.endswith(":ro")] == []
    files = [COMPOSE.parent / mount.split(":")[0] for mount in mounts]
    assert {COMPOSE.parent / name for name in ("prometheus-alerts.yaml", "grafana-dashboard.json")} <= {*files}
    assert [str(file) for file in files if not file.exists()] == []


def test_prometheus_and_grafana_find_each_other_and_postdate() -> None:
    folder = COMPOSE.parent / "monitoring"
    reader = YAML(typ="safe")
    (job,) = reader.load(folder / "prometheus.yml")["scrape_configs"]
    (targets,) = job["dns_sd_configs"]
    assert {*targets["names"]} == {name for name in services() if name.startswith("postdate")}
    assert targets["port"] == 8480
    (source,) = reader.load(folder / "grafana/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = reader.load(folder / "grafana/dashboards/postdate.yaml")["providers"]
    mounted = {volume.split(":")[0]: volume.split(":")[1] for volume in services()["grafana"]["volumes"]}
    assert Path(mounted["./grafana-dashboard.json"]).parent == Path(provider["options"]["path"])


def test_a_stop_of_the_compose_file_waits_longer_than_postdate_needs() -> None:
    config = (ROOT / "config.example.toml").read_text()
    found = re.search(r'^# shutdown_grace = "(\d+)s"', config, re.MULTILINE)
    assert found
    for name in ("postdate", "postdate-kafka"):
        assert int(services()[name]["stop_grace_period"].removesuffix("s")) >= int(found[1]) + 10


def test_redis_keeps_what_is_parked_and_the_images_are_those_of_the_tests() -> None:
    redis = " ".join(services()["redis"]["command"])
    assert "--appendonly yes" in redis
    assert "--maxmemory-policy noeviction" in redis
    assert "redis:/data" in services()["redis"]["volumes"]
    assert services()["kafka"]["image"] == kafka.IMAGE
    assert services()["rabbitmq"]["image"].replace("${RABBITMQ_TAG:-4.3}", "4.3") == rabbitmq4.IMAGE


def test_the_dockerfile_ends_as_a_user_without_rights_and_stops_by_sigterm() -> None:
    assert instructions("USER") == ["10001:10001"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("ENTRYPOINT") == ['["postdate"]']
    assert instructions("CMD") == ['["run"]']
    assert instructions("FROM") == ["${BASE} AS build", "${BASE}"]
    assert instructions("ARG")[0] == "BASE=python:3.13-slim"


def test_the_dockerfile_installs_only_what_the_lock_names_by_hash() -> None:
    installs = [command for run in instructions("RUN") for command in run.split("&&") if " install " in command]
    assert len(installs) == 2
    assert '--require-hashes --only-binary :all: -r "/src/deploy/${LOCK}"' in " ".join(installs[0].split())
    assert "--no-deps --no-build-isolation" in installs[1]
    assert "LOCK=requirements.lock" in instructions("ARG")
    assert "deploy/requirements.lock deploy/extras.lock /src/deploy/" in instructions("COPY")


def test_the_dockerfile_needs_no_newer_builder() -> None:
    assert "<<" not in DOCKERFILE
    assert "--mount" not in DOCKERFILE


def test_the_version_of_the_image_is_that_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"VERSION={version}" in instructions("ARG")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_of_the_containers_names_a_machine_or_a_mirror(file: Path) -> None:
    text = file.read_text()
    assert not re.search(r"(?i)index-url|proxy|mirror|https?://(?!127\.0\.0\.1)|/(?:work|root|home)/", text)
    assert max(len(line) for line in text.splitlines()) <= 120
