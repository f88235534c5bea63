"""HTTP of a running bridge, as the tests see it: a free port, its settings, and plain requests."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from tests.bridge_process import Tables, shortened
from tests.devstack.service import free_ports, wait_for

#: A bridge whose /metrics shows what the store has now, and not what it had up to five seconds ago.
FRESH = "bridge.http.metrics._FRESH_S=0.2"
FRESH_PAGE = shortened(FRESH)


class Told(NamedTuple):
    """An answer; status 0 means that there was none."""

    status: int
    text: str


def free_port() -> int:
    """A port that stays free: no client connection and no other test is given it meanwhile."""
    return free_ports(1)[0]


class HttpLine:
    """The address of one bridge."""

    def __init__(self) -> None:
        self.port = free_port()
        self.settings: Tables = {"http": {"enabled": True, "listen": f"127.0.0.1:{self.port}"}}
        self.live_port = free_port()

    def with_live(self) -> Tables:
        """The settings with an address for /livez alone."""
        return {"http": {**self.settings["http"], "live_listen": f"127.0.0.1:{self.live_port}"}}

    def live(self) -> int:
        """The status of /livez there."""
        return self.get("/livez", port=self.live_port).status

    def get(self, path: str, method: str = "GET", timeout_s: float = 15.0, port: int | None = None) -> Told:
        """Ask once."""
        request = urllib.request.Request(f"http://127.0.0.1:{port or self.port}{path}", method=method)
        if method != "GET":
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return Told(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Told(error.code, error.read().decode())
        except OSError as error:
            return Told(0, str(error))

    def wait(self, path: str, status: int, deadline_s: float = 60.0) -> Told:
        """Wait for this status."""
        wait_for(lambda: self.get(path).status == status, f"{path} answers {status}; now {self.get(path)}", deadline_s)
        return self.get(path)


def children_of(pid: int, words: str) -> list[int]:
    """The child processes with these words in their command line."""
    found = []
    for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            command = Path(f"/proc/{text}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if words in command:
            found.append(int(text))
    return found
