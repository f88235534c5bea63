"""`python -m tests.devstack run redis rabbitmq -- COMMAND`: a command with servers up, which are stopped afterwards.

A server that the settings' environment already names, or that `up` has started, is used and left alone. Of one whose
name ends in a question mark (`kafka?`) the reason is printed if it cannot be started, and the command runs without it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from tests.devstack import debian, kafka, kafka_java, rabbitmq, rabbitmq4, redis
from tests.devstack.service import Service, StartFailed, Unavailable

#: Where postdate itself looks for each server.
SETTINGS = {
    redis.Redis.name: "POSTDATE_REDIS__URL",
    rabbitmq.RabbitMQ.name: "POSTDATE_RABBITMQ__URL",
    rabbitmq4.RabbitMQ4.name: "POSTDATE_RABBITMQ__URL",
    kafka.Kafka.name: "POSTDATE_KAFKA__BOOTSTRAP_SERVERS",
}
TITLES = {"redis": "Redis", "rabbitmq": "RabbitMQ", "rabbitmq4": "RabbitMQ 4", "kafka": "Apache Kafka"}
_TICK_S = 0.2

Servers = Mapping[str, tuple[str, Callable[[], Service]]]


def run(names: Sequence[str], command: Sequence[str], servers: Servers, running: Mapping[str, str]) -> int:
    """The command's exit code; 1 when a server that it needs cannot be had, 130 when interrupted before it ran.

    `servers`: the environment's name of the tests and the finder of each; `running`: URLs of what `up` started.
    """
    environ = dict(os.environ)
    wanted = [name for name in names if not os.environ.get(SETTINGS[name.removesuffix("?")])]
    starting = [name for name in (word.removesuffix("?") for word in wanted) if name not in running]
    with ExitStack() as started:
        try:
            found = _start({name: servers[name][1] for name in starting})
        except KeyboardInterrupt:
            return 130
        for service in found.values():
            if isinstance(service, Service):
                started.enter_context(service)
        for word in wanted:
            name = word.removesuffix("?")
            server = found.get(name)
            if isinstance(server, Exception):
                print(f"{TITLES[name]} cannot be started here: {server}", file=sys.stderr)
                if name == word:
                    return 1
                continue
            environ[SETTINGS[name]] = environ[servers[name][0]] = server.url if server else running[name]
        return _run(command, environ)


def _start(finders: Mapping[str, Callable[[], Service]]) -> dict[str, Service | Unavailable | StartFailed]:
    """Return each server, started side by side, or why it cannot be had."""
    if not finders:
        return {}
    found: dict[str, Service | Unavailable | StartFailed] = {}
    with _progress(f"Starting {', '.join(TITLES[name] for name in finders)}") as say, ThreadPoolExecutor() as pool:
        debian.announce = lambda packages: say(f"Installing {' and '.join(packages)} from Debian, once")
        kafka_java.announce = lambda: say("Fetching Apache Kafka from Maven Central, 43 MB, once")
        for name, starting in [(name, pool.submit(find)) for name, find in finders.items()]:
            try:
                found[name] = starting.result()
            except (Unavailable, StartFailed) as reason:
                found[name] = reason
    return found


def _run(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Ctrl-C reaches the command by itself, from the terminal; other signals to end are handed on to it."""
    process = subprocess.Popen(command, env=environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    code = process.wait()
    return 128 - code if code < 0 else code


@contextmanager
def _progress(text: str) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on, with the seconds on a terminal; what is given to it replaces the text."""
    began, shown, done = time.monotonic(), [text], threading.Event()
    terminal = sys.stderr.isatty()

    def write(end: str) -> None:
        line = f"{shown[0]} ... {time.monotonic() - began:.0f} s"
        print(f"\r{line}\x1b[K", end=end, file=sys.stderr, flush=True)

    def tick() -> None:
        while not done.wait(_TICK_S):
            write("")

    def say(other: str) -> None:
        shown[0] = other
        if not terminal:
            print(f"{other} ...", file=sys.stderr, flush=True)

    if not terminal:
        say(text)
        yield say
        return
    ticking = threading.Thread(target=tick, daemon=True)
    ticking.start()
    try:
        yield say
    finally:
        done.set()
        ticking.join()
        write("\n")
