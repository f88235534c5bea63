"""One pod of the chart, as podman runs it: it delivers, and Kubernetes' rules for it hold."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.bridge_line import QUICK
from tests.bridge_process import toml
from tests.delay_line import Line, delay
from tests.devstack import images, podman
from tests.devstack.engine import Container, Engine
from tests.devstack.fixtures import need
from tests.devstack.helm import ChartTools, build_tools
from tests.devstack.rabbitmq import RabbitMQ
from tests.devstack.redis import Redis
from tests.devstack.service import free_ports
from tests.helm.chart import container, objects, rendered
from tests.unit.raw_properties import Props

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ASK = """\
import urllib.error, urllib.request
for path, token in {questions!r}:
    asked = urllib.request.Request("http://127.0.0.1:{port}" + path, headers={{"Authorization": "Bearer " + token}})
    try:
        print(urllib.request.urlopen(asked, timeout=10).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""


@pytest.fixture(scope="module")
def tools() -> ChartTools:
    return need(build_tools)


@pytest.fixture
def engine(tools: ChartTools) -> Iterator[Engine]:
    """podman: Docker runs no manifests of Kubernetes."""
    need(podman.ready)
    need(images.build_postdate)
    with podman.room(private_network=False) as engine:
        yield engine


@pytest.fixture
def line(rabbitmq: RabbitMQ, redis_server: Redis, tmp_path: Path) -> Iterator[Line]:
    with Line(rabbitmq.url, redis_server.url, tmp_path, {**QUICK, "log": {"format": "json"}}) as line:
        yield line


@contextmanager
def played(engine: Engine, made: dict[str, Any], port: int, folder: Path) -> Iterator[Container]:
    """The chart's Deployment under `podman play kube`, in the network of this machine, where its servers are."""
    # podman 4 takes a Secret from its own store, and the last of two variables of one name does not win.
    secret, manifest = folder / "secret.json", folder / "pod.yaml"
    secret.write_text(json.dumps(made["Secret"]["data"]))
    engine.run("secret", "create", made["Secret"]["metadata"]["name"], str(secret))
    pod = made["Deployment"]["spec"]["template"]["spec"]
    pod["hostNetwork"] = True
    container(made)["ports"] = []
    (listen,) = (variable for variable in container(made)["env"] if variable["name"] == "POSTDATE_HTTP__LISTEN")
    listen["value"] = f"0.0.0.0:{port}"
    with manifest.open("w") as file:
        YAML().dump_all([made["ConfigMap"], made["Deployment"]], file)
    engine.run("play", "kube", "--no-hosts", str(manifest), deadline_s=120)
    try:
        names = engine.run("ps", "--all", "--format", "{{.Names}}").split()
        (name,) = (name for name in names if name.endswith("-postdate"))
        yield Container(engine, name)
    finally:
        engine.run("play", "kube", "--down", str(manifest), deadline_s=120)


def test_the_pod_delivers_is_ready_and_may_do_nothing_else(
    engine: Engine, tools: ChartTools, line: Line, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    repository, _, tag = images.POSTDATE.rpartition(":")
    values = tmp_path / "values.yaml"
    with values.open("w") as file:
        image = {"repository": repository, "tag": tag}
        YAML().dump({"config": toml(line.settings), "image": image, "replicas": 1}, file)
    made = objects(rendered(tools, "--values", values))
    token = base64.b64decode(made["Secret"]["data"]["viewer_token"]).decode()
    with played(engine, made, port, tmp_path) as pod:
        line.publish(Props([delay(700)]), b"through a pod")
        assert line.receive()[0].body == b"through a pod"
        status = pod.run("python", "-c", "print(open('/proc/1/status').read())")
        assert "Uid:\t10001\t10001\t10001\t10001" in status
        assert "CapBnd:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        attempt = "try: open('/opt/x', 'w')\nexcept OSError as error: print(error.strerror)"
        assert pod.run("python", "-c", attempt).strip() == "Read-only file system"
        questions = [("/livez", ""), ("/readyz", ""), ("/startupz", ""), ("/metrics", ""), ("/metrics", token)]
        answers = pod.run("python", "-c", ASK.format(port=port, questions=questions)).split()
        assert answers == ["200", "200", "200", "401", "200"]
        assert pod.stop(grace_s=40) == 0
