"""RabbitMQ: one class for every version, and the one from the machine or from Debian."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, urlsplit

import pika

from tests.devstack import debian
from tests.devstack.container import ContainerRunner, engine_answers, require_engine
from tests.devstack.process import Launch, ProcessRunner
from tests.devstack.service import (
    Runner,
    Service,
    Unavailable,
    clean_env,
    find_or_start,
    free_ports,
    new_folder,
    wait_for,
)

URL_VARIABLE = "POSTDATE_TEST_RABBITMQ_URL"
MANAGEMENT_VARIABLE = "POSTDATE_TEST_RABBITMQ_MANAGEMENT_URL"
IMAGE = "rabbitmq:3.13"
COOKIE = "postdate-devstack"
WATERMARK, DISK_FREE = "2GiB", "50MB"
#: By resource: the function that sets its limit, a limit that is passed, and the usual one.
ALARMS: Mapping[str, tuple[str, str, str]] = {
    "memory": ("vm_memory_monitor:set_vm_memory_high_watermark", "0", f'{{absolute, "{WATERMARK}"}}'),
    "disk": ("rabbit_disk_monitor:set_disk_free_limit", str(10**15), f'"{DISK_FREE}"'),
}
#: rabbitmqctl starts a second Erlang, which takes half a second of CPU. erl_call is a small program in C.
EVALUATE = """\
command -v erl_call >/dev/null || exec "$0" -q eval "$1."
printf '%s.\\n' "$1" | erl_call -sname "$2" -c "$3" -e"""
ALL_RIGHTS = (".*", ".*", ".*")
#: Who acts, for the broker's log.
ACTOR = "devstack"

# Debian's /usr/sbin/rabbitmq-server changes the user and insists on the global folders; this one takes ours.
DEBIAN_SCRIPTS = "/usr/lib/rabbitmq/bin"

CONFIG = f"""\
listeners.tcp.1 = 127.0.0.1:{{port}}
vm_memory_high_watermark.absolute = {WATERMARK}
disk_free_limit.absolute = {DISK_FREE}
log.file = false
log.console = true
log.console.level = warning
"""

#: What at-least-once dead-lettering could not move on it looks at again after this, and not only after three minutes.
#: It is longer than any queue takes to confirm, and a quorum queue gets no copy in any case.
SECOND_TRY = "-rabbit dead_letter_worker_publisher_confirm_timeout 20000"


@dataclass(frozen=True)
class RabbitInstall:
    """Where RabbitMQ is installed: this machine, or another root folder that `enter` changes into."""

    scripts: str
    enter: tuple[str, ...] = ()
    root: Path = Path("/")
    owner: tuple[int, int] | None = None
    path: str | None = None

    @property
    def plugins(self) -> str:
        return str(Path(self.scripts, "rabbitmqctl").resolve().parents[1] / "plugins")

    def seen_inside(self, folder: Path) -> str:
        return "/" + str(folder.relative_to(self.root))

    def command(self, *words: str) -> tuple[str, ...]:
        return (*self.enter, *words)


class RabbitMQ(Service):
    name = "rabbitmq"

    def __init__(self, url: str, runner: Runner | None = None, ctl: str = "rabbitmqctl") -> None:
        super().__init__(url, runner)
        self._ctl = ctl
        self._alarmed: set[str] = set()
        self.management_url = ""
        self.node_name = ""

    @classmethod
    def in_place(
        cls,
        place: RabbitInstall,
        folder: Path,
        *,
        management: bool = False,
        epmd: tuple[int, bool] | None = None,
        plugin: Path | None = None,
        enabled: Sequence[str] = (),
        conf: str = "",
    ) -> Self:
        """A broker with a node name, data, plugins, cookie, epmd and ports of its own; with the ``management`` API on
        request. ``epmd``: the port of one that nodes share, and whether this node has it beside it. ``plugin``: the
        .ez file or folder of one more plugin, ``NAME-VERSION``. ``enabled``: plugins that RabbitMQ has; ``conf``: more
        lines of rabbitmq.conf."""
        port, dist_port, epmd_port, api_port = free_ports(4)
        epmd_port, has_epmd = epmd or (epmd_port, True)
        env = _write_home(place, folder, port, dist_port, epmd_port)
        if management:
            _add_management(folder, api_port)
        if enabled:
            (folder / "enabled_plugins").write_text(f"[{','.join(enabled)}].\n")
        with (folder / "rabbitmq.conf").open("a") as file:
            file.write(conf)
        if plugin is not None:
            env = {**env, "RABBITMQ_PLUGINS_DIR": f"{place.plugins}:{plugin.parent}"}
            enabled = [plugin.name.partition("-")[0], *["rabbitmq_management"] * management]
            (folder / "enabled_plugins").write_text(f"[{','.join(enabled)}].\n")
        launch = Launch(
            command=place.command(f"{place.scripts}/rabbitmq-server"),
            folder=folder,
            env=env,
            # Left to itself, the broker would start an epmd that outlives it.
            beside=place.command("epmd", "-port", str(epmd_port), "-address", "127.0.0.1") if has_epmd else (),
            beside_port=epmd_port,
            tool_prefix=place.enter,
        )
        broker = cls(url_of(port), ProcessRunner(launch), f"{place.scripts}/rabbitmqctl").start_new()
        broker.management_url = f"http://127.0.0.1:{api_port}" if management else ""
        broker.node_name = env["RABBITMQ_NODENAME"]
        return broker

    @classmethod
    def in_docker(cls, image: str) -> Self:
        require_engine()
        port = free_ports(1)[0]
        return cls(url_of(port), ContainerRunner(image, {5672: port})).start_new()

    def ctl(self, *args: str) -> str:
        """rabbitmqctl against this broker, e.g. `ctl("list_queues", "name", "messages")`."""
        runner = self._own("run rabbitmqctl on")
        if not runner.running():
            # Without our epmd, rabbitmqctl would start one that is never stopped.
            raise RuntimeError(f"{self!r} is not running; rabbitmqctl needs it")
        return runner.run(self._ctl, "-q", *args)

    def evaluate(self, expression: str) -> str:
        """The value of an Erlang expression in the broker, as Erlang prints it. A failure there is one here, too."""
        if not self.node_name:  # in a container
            return self.ctl("eval", f"{expression}.").strip()
        answer = (
            self._own("evaluate in").run("sh", "-c", EVALUATE, self._ctl, expression, self.node_name, COOKIE).strip()
        )
        if answer.startswith("{error,"):
            raise RuntimeError(f"{expression}: {answer}")
        return answer[len("{ok, ") : -1] if answer.startswith("{ok, ") else answer

    @contextmanager
    def policy(self, name: str, pattern: str, definition: Mapping[str, object]) -> Iterator[None]:
        """A policy on queues of the virtual host "/", for this block only. `ctl` would start two more Erlangs."""
        words = f"{_binaries('/', name, pattern, json.dumps(definition))}, 0, {_binaries('queues', ACTOR)}"
        self.evaluate(f"ok = rabbit_policy:parse_set({words})")
        try:
            yield
        finally:
            self.evaluate(f"ok = rabbit_policy:delete({_binaries('/', name, ACTOR)})")

    def names(self, vhost: str) -> list[str]:
        """The names of the queues and exchanges of a virtual host, without the default exchange."""
        kinds = " ++ ".join(f"{module}:list({_binary(vhost)})" for module in ("rabbit_amqqueue", "rabbit_exchange"))
        # A queue and an exchange are tuples; their second element is {resource, VirtualHost, Kind, Name}.
        found = self.evaluate(f"[binary_to_list(element(4, element(2, Thing))) || Thing <- {kinds}]")
        return re.findall(r'"([^"]+)"', found)

    def remember(self) -> None:
        """Write all declarations to disk.

        RabbitMQ 3.10 writes the names of its quorum queues (names.dets) only after half a second without access. A kill
        before that loses the name. Such a queue has lost its log, and may have no leader.
        """
        self.evaluate("[dets:sync(Table) || Table <- dets:all()], catch mnesia:sync_log()")

    @property
    def version(self) -> str:
        """As the broker says over AMQP: also one that was given by URL."""
        with self.connect() as connection:
            return str((connection._impl.server_properties or {}).get("version", ""))

    def alarm(self, on: bool, resource: str = "memory") -> None:
        """The alarm of memory or disk; returns when it is set or cleared, so that publishers are blocked or free."""
        self._alarmed.add(resource)  # also if this fails half way
        function, passed, usual = ALARMS[resource]
        self.evaluate(f"{function}({passed if on else usual})")
        wait_for(lambda: self._has_alarm(resource) == on, f"the {resource} alarm is {'on' if on else 'off'}")
        if not on:
            self._alarmed.remove(resource)

    def calm(self) -> None:
        """Ends the alarms that `alarm()` has set."""
        for resource in sorted(self._alarmed):
            self.alarm(False, resource)

    def _has_alarm(self, resource: str) -> bool:
        return resource in self.evaluate("rabbit_alarm:get_alarms()")

    def connect(self, vhost: str | None = None) -> pika.BlockingConnection:
        """A plain connection; the caller closes it."""
        parameters = pika.URLParameters(self.url)
        if vhost is not None:
            parameters.virtual_host = vhost
        parameters.socket_timeout = parameters.stack_timeout = parameters.blocked_connection_timeout = 10
        parameters.connection_attempts = 1
        return pika.BlockingConnection(parameters)

    @contextmanager
    def user(
        self, name: str, password: str, vhost: str = "/", rights: tuple[str, str, str] = ALL_RIGHTS
    ) -> Iterator[str]:
        """The URL without a password of a user for this block only, with rights to configure, to write and to read."""
        self.evaluate(f"ok = rabbit_auth_backend_internal:add_user({_binaries(name, password, ACTOR)})")
        try:
            self._grant(name, vhost, rights)
            yield f"amqp://{name}@{urlsplit(self.url).netloc.rpartition('@')[2]}/{quote(vhost, safe='')}"
        finally:
            self.evaluate(f"ok = rabbit_auth_backend_internal:delete_user({_binaries(name, ACTOR)})")

    def _grant(self, user: str, vhost: str, rights: tuple[str, str, str]) -> None:
        words = _binaries(user, vhost, *rights, ACTOR)
        self.evaluate(f"ok = rabbit_auth_backend_internal:set_permissions({words})")

    @contextmanager
    def vhost(self, name: str) -> Iterator[str]:
        """The URL of a virtual host that exists for this block only: all that a test needs to be alone."""
        self.evaluate(f"ok = rabbit_vhost:add({_binaries(name, ACTOR)})")
        try:
            self._grant("guest", name, ALL_RIGHTS)
            yield f"{self.url.rsplit('/', 1)[0]}/{quote(name, safe='')}"
        finally:
            self.evaluate(f"ok = rabbit_vhost:delete({_binaries(name, ACTOR)})")

    def probe(self) -> None:
        # A bare connection first: pika logs every refusal while the broker is still starting.
        parts = urlsplit(self.url)
        with socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout=5):
            pass
        self.connect().close()

    def _empty(self) -> None:
        """Exchanges, queues and connections go with the virtual host; users other than guest with their names."""
        self.alarm(False)
        self.ctl("delete_vhost", "/")
        self.ctl("add_vhost", "/")
        for line in self.ctl("list_users", "--no-table-headers").splitlines():
            user = line.split("\t")[0]
            if user and user != "guest":
                self.ctl("delete_user", user)
        self.ctl("set_permissions", "-p", "/", "guest", ".*", ".*", ".*")


def _binary(text: str) -> str:
    return "<<" + ",".join(str(byte) for byte in text.encode()) + ">>"


def _binaries(*texts: str) -> str:
    return ", ".join(map(_binary, texts))


def url_of(port: int) -> str:
    return f"amqp://guest:guest@127.0.0.1:{port}/%2F"


def _write_home(place: RabbitInstall, folder: Path, port: int, dist_port: int, epmd_port: int) -> Mapping[str, str]:
    """Fills the broker's home folder; returns the environment that binds the broker to it."""
    (folder / "rabbitmq.conf").write_text(CONFIG.format(port=port))
    (folder / "enabled_plugins").write_text("[].\n")
    cookie = folder / ".erlang.cookie"
    cookie.write_text(COOKIE)
    cookie.chmod(0o400)
    if place.owner is not None:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, *place.owner)
    home = place.seen_inside(folder)
    env = clean_env(
        HOME=home,
        RABBITMQ_NODENAME=f"postdate-{port}@localhost",
        RABBITMQ_CONFIG_FILE=f"{home}/rabbitmq.conf",
        RABBITMQ_CONF_ENV_FILE=f"{home}/no-rabbitmq-env.conf",
        RABBITMQ_MNESIA_BASE=f"{home}/data",
        RABBITMQ_LOG_BASE=f"{home}/log",
        RABBITMQ_ENABLED_PLUGINS_FILE=f"{home}/enabled_plugins",
        RABBITMQ_DIST_PORT=str(dist_port),
        ERL_EPMD_PORT=str(epmd_port),
        ERL_EPMD_ADDRESS="127.0.0.1",
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=f"-kernel inet_dist_use_interface {{127,0,0,1}} {SECOND_TRY}",
        # The start script then becomes the Erlang machine instead of waiting for it: our pid is the broker's,
        # and SIGKILL hits the broker, not a shell.
        RUNNING_UNDER_SYSTEMD="true",
        # Erlang would otherwise write a dump of its whole memory when it is killed at a bad moment.
        ERL_CRASH_DUMP_SECONDS="0",
    )
    return {**env, "PATH": place.path} if place.path else env


def _add_management(folder: Path, port: int) -> None:
    """Switch the plugin on before the first start; files keep their owner."""
    (folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
    with (folder / "rabbitmq.conf").open("a") as conf:
        conf.write(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
        conf.write("collect_statistics_interval = 1000\n")  # a test would wait 5 s for a new count


def find_managed() -> RabbitMQ | None:
    """The given broker, if its management API was given as well; None where one of our own is to be started."""
    management_url = os.environ.get(MANAGEMENT_VARIABLE)
    if not management_url:
        return None
    broker = find_or_start(URL_VARIABLE, RabbitMQ, [])
    broker.management_url = management_url
    return broker


def find() -> RabbitMQ:
    """Given by URL, else RabbitMQ 3.13 from Docker, else what the machine has, else Debian's."""
    return find_or_start(URL_VARIABLE, RabbitMQ, [lambda: RabbitMQ.in_docker(IMAGE), launch])


def prepare() -> None:
    """Fetches what a first run has to fetch, starts nothing: it may take longer than a test is given."""
    if not os.environ.get(URL_VARIABLE) and not engine_answers():
        find_place()


def launch(*, management: bool = False, plugin: Path | None = None) -> RabbitMQ:
    return RabbitMQ.in_place(find_place(), new_folder("rabbitmq"), management=management, plugin=plugin)


def find_place(*, may_install: bool = True) -> RabbitInstall:
    scripts = _scripts()
    if scripts is None and may_install:
        debian.install("rabbitmq-server")
        scripts = _scripts()
    if scripts is None:
        raise Unavailable("no rabbitmq-server on this machine")
    return RabbitInstall(scripts)


def _scripts() -> str | None:
    if Path(DEBIAN_SCRIPTS, "rabbitmq-server").exists():
        return DEBIAN_SCRIPTS
    found = shutil.which("rabbitmq-server")
    return str(Path(found).parent) if found else None
