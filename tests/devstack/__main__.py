"""The servers the tests use, for people: `python -m tests.devstack up | status | down | run`.

`up` prints the URLs as shell exports, so `eval "$(python -m tests.devstack up)"` gives both the shell and the next
test run these servers. `down` stops just what `up` started, by pid and start time. `run` is `up`, one
command and `down`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.devstack import kafka, keeper, rabbitmq, rabbitmq4, redis
from tests.devstack.container import end_recorded_container
from tests.devstack.keeper import is_same
from tests.devstack.process import end_recorded
from tests.devstack.run import run
from tests.devstack.service import STOP_S, Service, StartFailed, Unavailable, devstack_folder, machine_lock

SERVERS: dict[str, tuple[str, Callable[[], Service]]] = {
    "redis": (redis.URL_VARIABLE, redis.find),
    "rabbitmq": (rabbitmq.URL_VARIABLE, rabbitmq.find),
    "rabbitmq4": (rabbitmq4.URL_VARIABLE, rabbitmq4.find),
    "kafka": (kafka.URL_VARIABLE, kafka.find),
}
BY_DEFAULT = ("redis", "rabbitmq")

Record = dict[str, Any]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.devstack", description=__doc__.split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    up_parser = commands.add_parser("up", help="start servers in the background and print their URLs as exports")
    up_parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"any of {', '.join(SERVERS)}")
    commands.add_parser("status", help="what runs")
    commands.add_parser("down", help="stop what `up` started")
    run_parser = commands.add_parser("run", help="run SERVER ... -- COMMAND: with these servers up, then stop them")
    run_parser.add_argument("servers", nargs="*", metavar="SERVER", help="with a ? behind it: if it can be had")
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words else len(words)
    chosen, command = parser.parse_args(words[:cut]), words[cut + 1 :]
    if (chosen.command == "run") != bool(command):
        parser.error("run, and only run, has a command after --")
    named = getattr(chosen, "servers", ())
    if unknown := sorted(
        {name.removesuffix("?") if chosen.command == "run" else name for name in named} - SERVERS.keys()
    ):
        parser.error(f"unknown server: {', '.join(unknown)} (known: {', '.join(SERVERS)})")
    if chosen.command == "run":
        running = {record["name"]: record["url"] for record in _read() if _runs(record)}
        return run(chosen.servers or BY_DEFAULT, command, SERVERS, running)
    with machine_lock("up"):
        if chosen.command == "up":
            return up(chosen.servers or BY_DEFAULT)
        return status() if chosen.command == "status" else down()


def up(names: list[str] | tuple[str, ...]) -> int:
    keeper.leave_running()
    records = [record for record in _read() if _runs(record)]
    running = {record["name"]: record for record in records}
    missing = 0
    for name in names:
        variable, find = SERVERS[name]
        if name in running:
            print(f"export {variable}={running[name]['url']}")
            continue
        try:
            server = find()
        except (Unavailable, StartFailed) as reason:
            print(f"# {name}: {reason}", file=sys.stderr)
            missing += 1
            continue
        if server.owned:
            records.append(server.record())
            # After each one: an interrupted `up` must not leave a server that `down` does not know.
            _write(records)
        print(f"export {variable}={server.url}", flush=True)
    return 1 if missing else 0


def status() -> int:
    records = _read()
    for record in records:
        print(f"{record['name']:<10} {'running' if _runs(record) else 'gone':<8} {record['url']}")
    if not records:
        print("nothing is up")
    return 0


def down() -> int:
    for record in reversed(_read()):
        if "container" in record:
            end_recorded_container(record["container"])
        ended = end_recorded(record, STOP_S)
        what = f"pids {' '.join(map(str, ended))}" if ended else record.get("container", "was already gone")
        print(f"stopped {record['name']} ({what})", file=sys.stderr)
    _file().unlink(missing_ok=True)
    return 0


def _runs(record: Record) -> bool:
    if "container" in record:
        return True  # Docker knows; `down` removes it either way
    return all(is_same(pid, created) for pid, created in record["processes"])


def _file() -> Path:
    return devstack_folder() / "up.json"


def _read() -> list[Record]:
    if not _file().exists():
        return []
    records: list[Record] = json.loads(_file().read_text())
    return records


def _write(records: list[Record]) -> None:
    _file().write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
