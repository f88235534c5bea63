"""The images of the container tests: postdate's own, and those that `deploy/compose.yaml` names.

With a Docker engine they come from where they come for everybody. Without one nothing can be pulled, so Debian's
packages and the devstack's own servers are put into stand-ins of the same names, users and folders.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.devstack import debian, podman, rabbitmq4
from tests.devstack.engine import Engine, EngineFailed, build, docker
from tests.devstack.kafka import ready_place
from tests.devstack.kafka_java import tools_jars
from tests.devstack.service import Unavailable, devstack_folder, machine_lock

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy/Dockerfile"
#: Two checkouts on one machine do not share it.
POSTDATE = f"localhost/postdate-test:{zlib.crc32(str(ROOT).encode()):08x}"
BASE = "docker.io/library/python:3.13-slim"
# Debian 13, whose Python is 3.13. In the image's own folders: Python under both names, and pip that installs.
RELEASE = "trixie"
PACKAGES = "python3,python3-venv,python3-pip,ca-certificates"
CERTIFICATES = Path("etc/ssl/certs/ca-certificates.crt")
FORKY = f"localhost/devstack/debian-{rabbitmq4.RELEASE}"

APT = "apt-get update && apt-get install -y --no-install-recommends {} && rm -rf /var/lib/apt/lists/*"

REDIS = f"""\
FROM {BASE}
RUN {APT.format("redis-server")} && mkdir /data && chown redis:redis /data
VOLUME /data
WORKDIR /data
CMD ["redis-server"]
"""

RABBITMQ = f"""\
FROM {FORKY}
ENV PATH={rabbitmq4.SCRIPTS}:{rabbitmq4.PATH_INSIDE} HOME=/var/lib/rabbitmq RABBITMQ_LOGS=- LANG=C.UTF-8
RUN mkdir -p /etc/rabbitmq/conf.d && echo loopback_users.guest=false > /etc/rabbitmq/conf.d/10-defaults.conf \\
    && chown -R rabbitmq:rabbitmq /etc/rabbitmq /var/lib/rabbitmq
VOLUME /var/lib/rabbitmq
CMD ["rabbitmq-server"]
"""

KAFKA = f"""\
FROM {BASE}
RUN {APT.format("openjdk-21-jre-headless")} && useradd appuser
COPY jars /opt/kafka/libs
COPY run /etc/kafka/docker/run
COPY kafka-broker-api-versions.sh /opt/kafka/bin/
RUN chmod 755 /etc/kafka/docker/run /opt/kafka/bin/* && mkdir -p /var/lib/kafka/data /opt/kafka/config \\
    && chown -R appuser /var/lib/kafka /opt/kafka/config
USER appuser
VOLUME /var/lib/kafka/data
CMD ["/etc/kafka/docker/run"]
"""

# The demo needs of it what Debian's older one can do, too.
PROMETHEUS = f"""\
FROM {BASE}
RUN {APT.format("prometheus")} && mkdir /prometheus && chown nobody:nogroup /prometheus
USER nobody
VOLUME /prometheus
ENTRYPOINT ["prometheus"]
"""

# What the image of Apache does with its environment, as far as the compose file uses it.
KAFKA_RUN = """\
#!/usr/bin/env python3
import os, subprocess
file, java = "/opt/kafka/config/server.properties", ["java", "-cp", "/opt/kafka/libs/*"]
names = [name for name in os.environ if name.startswith("KAFKA_") and not name.endswith("_OPTS")]
with open(file, "w") as out:
    out.writelines(f"{name[6:].lower().replace('_', '.')}={os.environ[name]}\\n" for name in names)
cluster = os.environ.get("CLUSTER_ID", "5L6g3nShT-eMCtK--X86sw")
subprocess.run([*java, "kafka.tools.StorageTool", "format", "-g", "-t", cluster, "-c", file], check=True)
os.execvp("java", [*java[:1], *os.environ.get("KAFKA_HEAP_OPTS", "").split(), *java[1:], "kafka.Kafka", file])
"""
KAFKA_VERSIONS = """\
#!/bin/sh
exec java -XX:TieredStopAtLevel=1 -cp '/opt/kafka/libs/*' org.apache.kafka.tools.BrokerApiVersionsCommand "$@"
"""


def build_postdate() -> None:
    """Build `POSTDATE` from deploy/Dockerfile as it is now."""
    with _builder() as engine:
        if not engine.podman:
            # Docker's builder may keep its base to itself, and a test compares the two.
            engine.run("pull", "--quiet", BASE, deadline_s=600)
        build(engine, DOCKERFILE, ROOT, POSTDATE)


def provide(images: Sequence[str]) -> None:
    """Make sure that the engine has images of these names."""
    with _builder() as engine:
        for image in images:
            if not engine.podman:
                engine.run("pull", "--quiet", image, deadline_s=600)
            else:
                _build_stand_in(engine, image)


@contextmanager
def _builder() -> Iterator[Engine]:
    with machine_lock("images"):
        try:
            engine = docker()
        except Unavailable:
            with podman.builder() as engine:
                if not _has(engine, BASE):
                    _import(engine, _debian_root(), BASE)
                yield engine
        else:
            yield engine


def _has(engine: Engine, image: str) -> bool:
    try:
        engine.run("image", "inspect", image)
    except EngineFailed:
        return False
    return True


def _build_stand_in(engine: Engine, image: str) -> None:
    name = image.partition(":")[0].rpartition("/")[2]
    with tempfile.TemporaryDirectory(dir=devstack_folder(), prefix="stand-in-") as folder:
        context = Path(folder)
        if name == "rabbitmq" and not _has(engine, FORKY):
            _import(engine, rabbitmq4.debian_root(), FORKY)
        if name == "kafka":
            _copy_kafka(context)
        dockerfile = context / "Dockerfile"
        dockerfile.write_text(STAND_INS[name])
        full = image if "/" in image else f"library/{image}"
        build(engine, dockerfile, context, f"docker.io/{full}")


STAND_INS: Mapping[str, str] = {"redis": REDIS, "rabbitmq": RABBITMQ, "kafka": KAFKA, "prometheus": PROMETHEUS}


def _copy_kafka(context: Path) -> None:
    shutil.copytree(ready_place().jars, context / "jars")
    for jar in tools_jars().iterdir():
        shutil.copy2(jar, context / "jars")
    (context / "run").write_text(KAFKA_RUN)
    (context / "kafka-broker-api-versions.sh").write_text(KAFKA_VERSIONS)


def _debian_root() -> Path:
    """A small Debian with Python 3.13, unpacked once for the image that stands in for `BASE`."""
    root = devstack_folder() / f"debian-{RELEASE}"
    if root.exists():
        return root
    unfinished = root.with_name(root.name + ".unfinished")
    rabbitmq4.remove_root(unfinished)
    rabbitmq4.bootstrap(unfinished, RELEASE, PACKAGES)
    # As in the official image: pip may install, and Python has its short name.
    for mark in unfinished.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
        mark.unlink()
    (unfinished / "usr/bin/python").symlink_to("python3")
    # The machine may trust more authorities than Debian does, and reach the network through one of them.
    shutil.copy2(Path("/") / CERTIFICATES, unfinished / CERTIFICATES)
    unfinished.rename(root)
    return root


def _import(engine: Engine, root: Path, image: str) -> None:
    """Make an image of a folder; servers' data in `srv` and what the package tool keeps stay out."""
    if reason := debian.why_not_here():
        raise Unavailable(reason)
    left_out = [f"--exclude=./{folder}/*" for folder in ("dev", "proc", "sys", "srv", "var/cache/apt/archives")]
    with tempfile.NamedTemporaryFile(dir=devstack_folder(), suffix=".tar") as archive:
        pack = ["tar", "--directory", str(root), "--numeric-owner", *left_out, "--create", "--file", archive.name, "."]
        subprocess.run(pack, check=True)
        path = f"PATH=/usr/local/sbin:/usr/local/bin:{rabbitmq4.PATH_INSIDE}"
        change = ("--change", f"ENV {path}", "--change", 'CMD ["python3"]')
        engine.run("import", "--quiet", *change, archive.name, image, deadline_s=300)
