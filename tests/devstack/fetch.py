"""`python3 -m tests.devstack.fetch redis rabbitmq kafka`: what these servers need from Debian and from Maven Central.

`make demo` runs it while it makes the environment, with the machine's own Python: this file and what it imports use the
standard library alone. It starts nothing and reports no failure: the start of a server tries again, and explains.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

from tests.devstack import debian, kafka_java
from tests.devstack.service import Unavailable

#: The program that shows that a server is here, and Debian's package.
PROGRAMS = {
    "redis": ("redis-server", "redis-server"),
    "rabbitmq": ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
}
#: Where postdate looks for each server: one that is named is not fetched.
VARIABLES = {
    "redis": "POSTDATE_REDIS__URL",
    "rabbitmq": "POSTDATE_RABBITMQ__URL",
    "kafka": "POSTDATE_KAFKA__BOOTSTRAP_SERVERS",
}


def main(names: Sequence[str]) -> None:
    """Fetch what the servers of these names lack; Kafka's jars and Debian's packages at the same time."""
    wanted = [name for name in names if not os.environ.get(VARIABLES[name])]
    if _docker_answers():
        return
    jars = Thread(target=_fetch_jars)
    if "kafka" in wanted:
        jars.start()
    packages = [package for name in wanted if name in PROGRAMS for package in _missing(*PROGRAMS[name])]
    if packages:
        _report(f"Installing {' and '.join(packages)} from Debian, once")
        with suppress(Unavailable):
            debian.install(*packages)
    if jars.ident is not None:
        jars.join()


def _missing(program: str, package: str) -> list[str]:
    return [] if shutil.which(program) else [package]


def _fetch_jars() -> None:
    kafka_java.announce = lambda: _report("Fetching Apache Kafka from Maven Central, 43 MB, once")
    with suppress(Unavailable):
        kafka_java.find_place()


def _docker_answers() -> bool:
    if os.environ.get("DOCKER_HOST"):
        return True
    with socket.socket(socket.AF_UNIX) as door:
        return Path("/var/run/docker.sock").exists() and door.connect_ex("/var/run/docker.sock") == 0


def _report(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
