"""podman on a machine without a Docker engine, without a trace.

podman leaves NAT rules, mounts and processes behind. NAT rules make the kernel track every loopback connection, which
slows all servers of the machine. So its service runs in namespaces of its own, which one process holds: when that
process ends, for whatever reason, its containers, networks and mounts are gone.

Images are kept in one store below the devstack folder. Containers live in a store of their run, above that one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.devstack import debian
from tests.devstack.engine import Engine, EngineFailed
from tests.devstack.process import Launch, ProcessRunner
from tests.devstack.service import StartFailed, Unavailable, clean_env, devstack_folder, new_folder, wait_for

PACKAGES = ("podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables", "iproute2")

# Fresh folders over those that podman insists on, so that nothing of it stays on the machine.
SERVICE = """\
for folder in /run/netns /run/containers /run/libpod; do
    mkdir -p $folder && mount -t tmpfs tmpfs $folder || exit 1
done
ip link set lo up
exec catatonit -- podman system service --time 0 "$1"
"""

# The limits: root may lack the right to raise them, and podman would. runc: crun of Debian 12 refuses mixed cgroups.
CONTAINERS = """\
[containers]
netns = "{network}"
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
"""
STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{store}"
runroot = "{run}"
"""
ABOVE = """\
[storage.options]
additionalimagestores = ["{images}"]
"""


def images_store() -> Path:
    """The folder of the images that outlive a run."""
    store = devstack_folder() / "images"
    store.mkdir(exist_ok=True)
    return store


@contextmanager
def builder() -> Iterator[Engine]:
    """podman that writes into the store of images, in the machine's own network. One at a time: take a lock."""
    with _service(private_network=False, store=images_store(), above=None) as engine:
        yield engine


@contextmanager
def room(private_network: bool) -> Iterator[Engine]:
    """podman for one run: it sees the images of the store, and its containers end with it.

    In a private network containers reach each other and nothing else; no port of the machine is taken.
    """
    with _service(private_network, store=None, above=images_store()) as engine:
        yield engine


def ready() -> None:
    """Install podman where it is missing."""
    if reason := debian.why_not_here():
        raise Unavailable(f"no Docker engine answers, and podman is set up on Debian only: {reason}")
    if not all(shutil.which(name) for name in ("podman", "runc", "catatonit", "iptables", "ip", "unshare")):
        debian.install(*PACKAGES)


@contextmanager
def _service(private_network: bool, store: Path | None, above: Path | None) -> Iterator[Engine]:
    ready()
    folder = new_folder("podman")
    (folder / "networks").mkdir()
    environ = _settings(folder, "bridge" if private_network else "host", store, above)
    socket = f"unix://{folder}/podman.sock"
    spaces = ("--pid", "--mount", "--fork", "--kill-child", "--mount-proc", *(["--net"] if private_network else []))
    command = ("unshare", *spaces, "sh", "-c", SERVICE, "sh", socket)
    runner = ProcessRunner(Launch(command, folder, environ))
    engine = Engine(
        ("podman", "--remote", "--url", socket),
        {**environ, "DOCKER_HOST": socket},
        podman=True,
    )
    try:
        runner.start()
        try:
            wait_for(lambda: engine.run("version", deadline_s=10), "podman answers")
        except TimeoutError as error:
            raise StartFailed(f"podman does not start: {error}; {runner.log_tail()}") from error
        yield engine
    finally:
        _remove_containers(engine)
        runner.stop(10)
        runner.remove()
        # The last process of the namespaces may still be on its way out, and write.
        wait_for(lambda: _is_gone(folder), f"{folder} is gone")


def _is_gone(folder: Path) -> bool:
    if folder.exists():
        shutil.rmtree(folder)
    return True


def _remove_containers(engine: Engine) -> None:
    """In order, while podman runs: so it removes their cgroups, too."""
    try:
        engine.run("rm", "--all", "--force", "--time", "0")
    except (EngineFailed, OSError):
        return


def _settings(folder: Path, network: str, store: Path | None, above: Path | None) -> Mapping[str, str]:
    containers, storage = folder / "containers.conf", folder / "storage.conf"
    containers.write_text(CONTAINERS.format(folder=folder, network=network))
    # A store remembers the folder of its first run and would use it again.
    running = store.with_name(f"{store.name}-run") if store else folder / "run"
    text = STORAGE.format(store=store or folder / "store", run=running)
    text += ABOVE.format(images=above) if above else ""
    storage.write_text(text)
    # The machine's way to the network, where it has a special one, is part of no file here.
    proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return clean_env(**proxies, HOME=str(folder), CONTAINERS_CONF=str(containers), CONTAINERS_STORAGE_CONF=str(storage))
