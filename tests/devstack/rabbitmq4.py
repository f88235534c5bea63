"""RabbitMQ 4.3 on a Debian machine whose own release is older.

A small Debian of the testing release is put into a folder by debootstrap, from the mirror this machine itself uses, and
the broker runs inside it by chroot. That takes 0.5 GB and about a minute, once: the folder is kept and shared between
runs, each of which has a data folder of its own in it.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

from tests.devstack import debian
from tests.devstack.container import engine_answers
from tests.devstack.rabbitmq import RabbitInstall, RabbitMQ, find_place
from tests.devstack.service import Unavailable, devstack_folder, find_or_start, machine_lock, new_folder

URL_VARIABLE = "POSTDATE_TEST_RABBITMQ4_URL"
IMAGE = "rabbitmq:4.3"
RELEASE = "forky"
SCRIPTS = "/usr/lib/rabbitmq/bin"
PATH_INSIDE = "/usr/sbin:/usr/bin:/sbin:/bin"

# A mount namespace of its own for every process: /proc inside the root is seen by that process alone and goes with it,
# so nothing is left to unmount and deleting the root can never reach into the machine's own /proc.
PROC_AND_CHROOT = 'mount -t proc proc "$0/proc" && exec chroot "$@"'


class RabbitMQ4(RabbitMQ):
    name = "rabbitmq4"


def find() -> RabbitMQ4:
    """Given by URL, else Docker, else a 4.x on the machine, else Debian testing in a folder."""
    return find_or_start(URL_VARIABLE, RabbitMQ4, [lambda: RabbitMQ4.in_docker(IMAGE), launch_local, launch_chroot])


def prepare() -> None:
    """Fetches what a first run has to fetch, starts nothing: it may take longer than a test is given."""
    if os.environ.get(URL_VARIABLE) or engine_answers():
        return
    try:
        _local_place()
    except Unavailable:
        debian_root()


def launch(*, management: bool = False) -> RabbitMQ4:
    """One of our own."""
    try:
        return launch_local(management=management)
    except Unavailable:
        return launch_chroot(management=management)


def launch_local(*, management: bool = False) -> RabbitMQ4:
    return RabbitMQ4.in_place(_local_place(), new_folder("rabbitmq4"), management=management)


def _local_place() -> RabbitInstall:
    place = find_place(may_install=False)
    # The version is read from the path: `rabbitmqctl version` would start an epmd on the machine's own port.
    script = os.path.realpath(f"{place.scripts}/rabbitmq-server")
    version = re.search(r"rabbitmq(?:_server-|/)(\d+)\.", script)
    if version is None or int(version[1]) < 4:
        raise Unavailable("the RabbitMQ of this machine is older than 4")
    return place


def launch_chroot(*, management: bool = False) -> RabbitMQ4:
    place, folder = chroot_home()
    return RabbitMQ4.in_place(place, folder, management=management)


def chroot_home() -> tuple[RabbitInstall, Path]:
    """The Debian root, and a new folder in it for one node."""
    root = debian_root()
    folder = root / "srv" / f"rabbitmq4-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    place = RabbitInstall(
        scripts=SCRIPTS,
        enter=enter(root, "--userspec=rabbitmq:rabbitmq"),
        root=root,
        owner=_owner(root, "rabbitmq"),
        path=PATH_INSIDE,
    )
    return place, folder


def enter(root: Path, *options: str) -> tuple[str, ...]:
    """The words before a command that run it inside `root`; each program replaces the one before, so the pid stays."""
    unshare, shell = shutil.which("unshare"), shutil.which("sh")
    if unshare is None or shell is None:
        raise Unavailable("RabbitMQ 4 needs the command unshare")
    return (unshare, "--mount", shell, "-c", PROC_AND_CHROOT, str(root), *options, str(root))


def debian_root() -> Path:
    """The root folder, built when it is not there yet. It bears its name only when it is complete."""
    if reason := debian.why_not_here():
        raise Unavailable(f"RabbitMQ 4 runs here only in a Debian {RELEASE} made by debootstrap: {reason}")
    root = devstack_folder() / f"debian-{RELEASE}"
    with machine_lock(f"debian-{RELEASE}"):
        if not root.exists():
            unfinished = root.with_name(root.name + ".unfinished")
            remove_root(unfinished)
            _build(unfinished)
            unfinished.rename(root)
    return root


def remove_root(root: Path) -> None:
    """Deletes a root folder, and never anything that is mounted in it."""
    if not root.exists():
        return
    for mount_point in reversed(_mounted_below(root)):
        subprocess.run(["umount", mount_point], check=True)
    subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=True)


def _mounted_below(root: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{root}/")]


def _build(root: Path) -> None:
    bootstrap(root, RELEASE, "ca-certificates")
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(debian.NO_SERVICES)
    policy.chmod(0o755)
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    # A mirror that is a frozen copy has Release files past their date.
    _inside(root, "apt-get", "-q", "-o", "Acquire::Check-Valid-Until=false", "update")
    _inside(root, "apt-get", "-q", "install", "-y", "--no-install-recommends", "rabbitmq-server")
    _inside(root, "apt-get", "clean")


def bootstrap(root: Path, release: str, packages: str) -> None:
    """Unpack a small Debian of this release, with these packages (commas), from the machine's own mirror."""
    if shutil.which("debootstrap") is None:
        debian.install("debootstrap")
    script = Path("/usr/share/debootstrap/scripts/sid")  # this machine's debootstrap may not know newer names
    command = ["debootstrap", "--variant=minbase", f"--include={packages}", release, str(root), _mirror()]
    # debootstrap mounts /proc too; in a namespace of its own it cannot leave it behind.
    _run(["unshare", "--mount", *command, str(script)])


def _mirror() -> str:
    """The machine's own mirror, as apt knows it: never written down here."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(COMPONENT)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        address, _, component = line.partition(" ")
        if component == "main" and "security" not in address:
            return address
    raise Unavailable("apt-get names no mirror with a main component; `apt-get update` may not have run yet")


def _inside(root: Path, *command: str) -> None:
    env = {**os.environ, "PATH": PATH_INSIDE, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    _run([*enter(root), *command], env)


def _run(command: list[str], env: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode != 0:
        tail = done.stdout.decode(errors="replace")[-1_500:]
        raise Unavailable(f"building the Debian {RELEASE} root failed at {command[:6]}: {tail}")


def _owner(root: Path, user: str) -> tuple[int, int]:
    """The numbers of a user as the other system knows them."""
    with contextlib.suppress(StopIteration):
        lines = (root / "etc/passwd").read_text().splitlines()
        fields = next(line.split(":") for line in lines if line.startswith(f"{user}:"))
        return int(fields[2]), int(fields[3])
    raise Unavailable(f"the Debian root at {root} has no user {user}")
