"""``postdate healthcheck``: asks the running bridge how it is. For containers, which have no curl."""

from __future__ import annotations

import http.client
import ssl
from typing import Annotated

import typer

from bridge.cli.options import ConfigOption
from bridge.core.errors import FAILED
from bridge.settings import Settings, settings_from
from bridge.telemetry.printable import complain, printable

#: An address to listen on that stands for all addresses, and how this machine reaches it.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared, not bound)
_TIMEOUT_S = 5.0
_ANSWER_MAX = 4096


def healthcheck(
    config: ConfigOption = None,
    live: Annotated[
        bool, typer.Option("--live", help="Ask /livez: whether it makes progress, even if a server is away.")
    ] = False,
) -> None:
    """Ask the running bridge whether it is ready.

    It asks /readyz at http.listen, or with --live /livez, at http.live_listen where that is set. It needs no token.
    The exit code is 0 for a yes, else 1.
    """
    text = ask(settings_from(config), "/livez" if live else "/readyz")
    if text:
        complain(text)
        raise typer.Exit(FAILED)
    typer.echo("The bridge makes progress." if live else "The bridge is ready.")


def ask(settings: Settings, path: str) -> str:
    """Return why the bridge is not well; "" if it is."""
    live = path == "/livez"
    http_settings = settings.http
    if not http_settings.enabled:
        return "HTTP is off (http.enabled), so the bridge cannot be asked. Switch it on."
    listen, path, tls = http_settings.listen, f"{http_settings.base_path}{path}", bool(http_settings.cert_file)
    if http_settings.live_listen and live:
        listen, path, tls = http_settings.live_listen, "/livez", False
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    host = _EVERYWHERE.get(host, host)
    where = f"{listen}{path}"
    connection = _connection(host, int(port), tls)
    try:
        connection.request("GET", path, headers={"Host": "localhost"})
        answer = connection.getresponse()
        answer.read(_ANSWER_MAX)
    except (OSError, http.client.HTTPException) as error:
        return f"No answer from {where}: {printable(str(error)) or type(error).__name__}."
    finally:
        connection.close()
    return "" if answer.status == http.client.OK else f"{where} answers {answer.status}. Its log says why."


def _connection(host: str, port: int, tls: bool) -> http.client.HTTPConnection:
    if not tls:
        return http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    # The certificate names the machine as others know it, and no secret is sent.
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=context)
