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
    return bool(service.get("tmpfs") or [one for one in service.get("volumes", ()) if not one.endswith(":ro")])


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
    installs = [one for run in instructions("RUN") for one in run.split("&&") if " install " in one]
    assert len(installs) == 2
    assert "--require-hashes --only-binary :all: -r /src/deploy/requirements.lock" in " ".join(installs[0].split())
    assert "--no-deps --no-build-isolation" in installs[1]


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
