"""`postdate healthcheck`: which address it asks, and what it says."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from bridge.cli.healthcheck import ask
from bridge.settings import Settings
from bridge.settings.model import Http
from tests.http_line import free_port


@pytest.fixture
def asked() -> Iterator[tuple[int, list[str]]]:
    """A port that answers 200 for /livez and 503 for all else, and the paths that were asked."""
    paths: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200 if self.path.endswith("/livez") else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port, paths
        server.shutdown()
        thread.join()


def settings(listen: str, **more: object) -> Settings:
    return Settings(http=Http.model_validate({"listen": listen, **more}))


def test_all_addresses_are_asked_at_the_loopback_address(asked: tuple[int, list[str]]) -> None:
    port, paths = asked
    assert ask(settings(f"0.0.0.0:{port}"), "/livez") == ""
    assert paths == ["/livez"]


def test_a_base_path_is_part_of_the_path(asked: tuple[int, list[str]]) -> None:
    port, paths = asked
    found = ask(settings(f"127.0.0.1:{port}", base_path="/postdate"), "/readyz")
    assert found == f"127.0.0.1:{port}/postdate/readyz answers 503. Its log says why."
    assert paths == ["/postdate/readyz"]


def test_liveness_is_asked_at_its_own_address_where_there_is_one(asked: tuple[int, list[str]]) -> None:
    port, paths = asked
    own = settings("127.0.0.1:1", live_listen=f"0.0.0.0:{port}", base_path="/postdate")
    assert ask(own, "/livez") == ""
    assert paths == ["/livez"]
    assert ask(own, "/readyz").startswith("No answer from 127.0.0.1:1/postdate/readyz")


def test_no_answer_is_one_sentence() -> None:
    port = free_port()
    found = ask(settings(f"127.0.0.1:{port}"), "/readyz")
    assert found.startswith(f"No answer from 127.0.0.1:{port}/readyz: ")
    assert "Connection refused" in found


def test_http_that_is_off_is_said() -> None:
    assert "http.enabled" in ask(settings("127.0.0.1:1", enabled=False), "/readyz")
